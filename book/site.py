"""Build the website in both languages: `python -m book.site`, which is what `make book` calls."""

import hashlib
import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template

from book.project import BUILD, LANGUAGES, ROOT, STAMP, BookError, page_path, pages, repository
from book.sphinx_build import build_language, prepare, site_title

SITE, NEW, OLD = BUILD / "html", BUILD / "html.new", BUILD / "html.old"
SOURCES = ("chapters", "lib", "book", "tests/notebooks")
SETTINGS = ("_config.yml", "_config.zh.yml", "_toc.yml", "references.bib", "requirements.txt")


def check_pages() -> None:
    """Every page of the table of contents exists in both languages, and no page is left out of it."""
    listed = set(pages())
    for language in LANGUAGES:
        for page in pages():
            if not page_path(language, page).is_file():
                missing = page_path(language, page).relative_to(ROOT)
                raise BookError(f"{missing} is missing: write it, or take {page} out of _toc.yml")
        for path in sorted(page_path(language, "index").parent.glob("*.md")):
            if path.stem not in listed:
                raise BookError(f"{path.relative_to(ROOT)} is not in _toc.yml: add chapters/en/{path.stem}")


def check_outputs() -> None:
    """The stored notebooks hold the code cells of the chapters."""
    from book.stored import check_all

    if problems := check_all():
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BookError(problems[0] + more)


def source_files() -> list[Path]:
    """Everything that the site is made of, in a fixed order."""
    found = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.is_file()]
    found += [ROOT / name for name in SETTINGS if (ROOT / name).is_file()]
    return sorted(path for path in found if not re.search(r"/(\.|__pycache__)", str(path.relative_to(ROOT))))


def fingerprint() -> str:
    """A hash of everything that the site depends on."""
    digest = hashlib.sha256(f"{repository()} {sys.version}".encode())
    for path in source_files():
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def is_current(mark: str) -> bool:
    """Whether the site on disk was built, to the end, from the present sources."""
    stamp = SITE / STAMP
    return stamp.is_file() and stamp.read_text() == mark


def build_sites() -> None:
    """Build both languages side by side; tell every failure before giving up."""
    prepare()
    with ThreadPoolExecutor(len(LANGUAGES)) as pool:
        failures = list(filter(None, pool.map(build_language, LANGUAGES)))
    if failures:
        raise BookError("\n".join(failures))


def write_root_page(folder: Path) -> None:
    """The page that leads to the reader's language."""
    template = Template((ROOT / "book/templates/root.html").read_text(encoding="utf-8"))
    titles = {f"title_{language}": site_title(language) for language in LANGUAGES}
    (folder / "index.html").write_text(template.substitute(titles), encoding="utf-8")


def write_lib(folder: Path) -> None:
    """The implementation as text that a browser shows instead of saving it."""
    for source in sorted((ROOT / "lib").rglob("*.py")):
        target = folder / source.relative_to(ROOT / "lib").with_suffix(".py.txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def export_notebooks() -> None:
    """Begin the new site with its notebooks: what they cannot say is told before the long part of the build."""
    from book.export import export_all

    shutil.rmtree(NEW, ignore_errors=True)
    export_all(NEW / "notebooks")


def assemble(mark: str) -> None:
    """Put the whole site together beside the old one, then swap: a half-written site never looks done."""
    unwanted = shutil.ignore_patterns(".buildinfo")
    for language in LANGUAGES:
        shutil.copytree(BUILD / "sites" / language / "_build/html", NEW / language, ignore=unwanted)
    write_lib(NEW / "lib")
    write_root_page(NEW)
    (NEW / ".nojekyll").touch()
    (NEW / STAMP).write_text(mark)
    shutil.rmtree(OLD, ignore_errors=True)
    if SITE.exists():
        SITE.rename(OLD)
    NEW.rename(SITE)
    shutil.rmtree(OLD, ignore_errors=True)


def make_book() -> None:
    """Build what is out of date and say where the site is."""
    started, mark = time.monotonic(), fingerprint()
    if is_current(mark):
        print("Nothing has changed since the last build.")
    else:
        check_pages()
        check_outputs()
        export_notebooks()
        print(f"Building {len(pages())} pages in {len(LANGUAGES)} languages", flush=True)
        build_sites()
        assemble(mark)
        print(f"Done in {time.monotonic() - started:.0f} s.")
    print(f"The site is in {os.path.relpath(SITE)}; to read it: make serve")


def main() -> int:
    """Run; an error of the user's is one line."""
    try:
        make_book()
    except BookError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the last complete site is kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
