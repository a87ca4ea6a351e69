"""Facts about the project: where it lies, its pages, its languages, its repository."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "chapters"
BUILD = ROOT / "_build"
LANGUAGES = ("en", "zh")
STAMP = ".stamp"  # in the finished site: a hash of all that it was made from
TOC_PREFIX = "chapters/en/"

_GITHUB = re.compile(r"github\.com[:/](?P<name>[\w.-]+/[\w.-]+?)(\.git)?/?$")
_FRONT_MATTER = re.compile(r"---\n(.*?\n)---\n", re.DOTALL)


class BookError(Exception):
    """An error of the user's, told in one line and without a stack trace."""


class Part(NamedTuple):
    """One part of the table of contents: its English caption and its pages, in order."""

    caption: str
    pages: tuple[str, ...]


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise BookError(f"{path.name} is missing") from None
    except yaml.YAMLError as error:
        raise BookError(f"{path.name}: not valid YAML: {' '.join(str(error).split())}") from None


def _page_name(entry: str) -> str:
    """`chapters/en/rope` → `rope`."""
    if not entry.startswith(TOC_PREFIX):
        raise BookError(f"_toc.yml: entry '{entry}' does not begin with {TOC_PREFIX}")
    return entry.removeprefix(TOC_PREFIX)


@cache
def toc() -> list[Part]:
    """The parts of `_toc.yml`, without the home page."""
    parts = read_yaml(ROOT / "_toc.yml").get("parts", [])
    return [Part(part["caption"], tuple(_page_name(c["file"]) for c in part["chapters"])) for part in parts]


@cache
def pages() -> list[str]:
    """The names of all pages in reading order, the home page first."""
    home = _page_name(read_yaml(ROOT / "_toc.yml")["root"])
    return [home, *(page for part in toc() for page in part.pages)]


@cache
def topics() -> list[str]:
    """The names of the pages that have code cells, in reading order."""
    return [page for page in pages() if has_code(page_path("en", page))]


@cache
def chapters() -> list[str]:
    """The names of the pages in numbered parts: each is a chapter with ten parts and an exercise."""
    parts = [part for part in read_yaml(ROOT / "_toc.yml").get("parts", []) if part.get("numbered")]
    return [_page_name(chapter["file"]) for part in parts for chapter in part["chapters"]]


@cache
def exercises() -> list[str]:
    """The names of the exercises of lib/practice."""
    return sorted(path.stem for path in (ROOT / "lib/practice/exercises").glob("[!_]*.py"))


def page_path(language: str, page: str) -> Path:
    """`chapters/zh/rope.md` for `zh`, `rope`."""
    return CHAPTERS / language / f"{page}.md"


def has_code(path: Path) -> bool:
    """Whether a page is a notebook: it has at least one code cell."""
    return path.is_file() and "\n```{code-cell}" in path.read_text(encoding="utf-8")


def read_front_matter(path: Path) -> dict[str, Any]:
    """The YAML block between `---` lines at the top of a page; empty without one."""
    match = _FRONT_MATTER.match(path.read_text(encoding="utf-8"))
    try:
        return yaml.safe_load(match[1]) or {} if match else {}
    except yaml.YAMLError as error:
        raise BookError(f"{path.relative_to(ROOT)}: front matter: {' '.join(str(error).split())}") from None


@cache
def repository() -> str | None:
    """`owner/name` on GitHub: from GITHUB_REPOSITORY or the remote `origin`; None where neither says."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return name
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        url = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    match = _GITHUB.search(url)
    return match["name"] if match else None
