"""What the tests of the book share: the built site, and a copy of the project that may be broken."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from book.project import ROOT
from book.site import SITE, fingerprint, is_current


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built site, which must be the one of the present sources."""
    if not is_current(fingerprint()):
        pytest.fail("the built site is missing or out of date: run make book", pytrace=False)
    return SITE


def tracked_files() -> list[str]:
    """The files that git tracks or would track."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


class Copy:
    """A copy of the project in a folder of its own, with the commands of its Makefile."""

    def __init__(self, folder: Path):
        self.root = folder
        for name in tracked_files():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace the first occurrence of a text that must be there."""
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{name} does not hold {old!r}"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess:
        """A command in the copy, without what only this run has set; stdout and stderr come back as one text."""
        this_run = r"PYTEST|MAKE|MFLAGS|GITHUB_|PYTHONPATH|CI$|REQUIRE_BROWSER|BOOK_DEVICE"
        keep = {k: v for k, v in os.environ.items() if not re.match(this_run, k)}
        return subprocess.run(
            command,
            cwd=self.root,
            env={**keep, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )

    def python(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        """This Python in the copy, which is what the Makefile's targets run."""
        return self.run(sys.executable, *arguments, PYTHONPATH=".", **environment)

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess:
        """The tests of the copy."""
        return self.python("-m", "pytest", "-q", "--color=no", *arguments)


@pytest.fixture
def copy(tmp_path) -> Copy:
    """A fresh copy of the project."""
    return Copy(tmp_path / "copy")


@pytest.fixture(scope="session")
def repository(tmp_path_factory) -> tuple[str, str]:
    """A git repository with the present files, as a URL and a commit."""
    copied = Copy(tmp_path_factory.mktemp("repository"))
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *arguments], cwd=copied.root, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=copied.root, check=True, capture_output=True, text=True)
    return copied.root.as_uri(), head.stdout.strip()
