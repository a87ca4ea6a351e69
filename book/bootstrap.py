# This cell finds the book's library `lib`. On Colab it clones the book's repository first.
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = "@REPOSITORY@"
COMMIT = "@COMMIT@"
PACKAGES = {}  # @PACKAGES@
os.environ.setdefault("BOOK_LANGUAGE", "@LANGUAGE@")  # of the judge's messages


def find_book() -> None:
    """Put the book on Python's path: from here, from a folder above, or from its repository."""
    here = Path.cwd()
    clone = here / "book-of-this-notebook"
    for folder in (here, *here.parents, clone):
        if (folder / "lib" / "rope.py").is_file():
            sys.path.insert(0, str(folder))
            return
    if not REPOSITORY:
        raise RuntimeError("lib was not found and this notebook names no repository: open it inside a clone of the book")
    print(f"cloning {REPOSITORY}", flush=True)
    git = ["git", "-C", str(clone)]
    subprocess.run(["git", "init", "--quiet", str(clone)], check=True)
    subprocess.run([*git, "fetch", "--quiet", "--depth", "1", REPOSITORY, COMMIT], check=True)
    subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)
    sys.path.insert(0, str(clone))


def importable(name: str) -> bool:
    """Whether a module is there, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if not importable("lib.rope"):
    find_book()
for module, requirement in PACKAGES.items():
    if not importable(module):
        print(f"installing {requirement}", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", requirement], check=True)
