"""One language through the real `jupyter-book build`: merged settings, outputs from the store, a quiet log."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import yaml

from book.project import BUILD, CHAPTERS, LANGUAGES, ROOT, TOC_PREFIX, BookError, page_path, read_yaml, topics

_WRITTEN = re.compile(r"(?:reading sources|writing output)\.\.\. \[ *(\d+)%\] (\S+)")
_TROUBLE = re.compile(r"(^|\s)(WARNING|ERROR|SEVERE|CRITICAL): |exception: |^[\w.]*(Error|Exception): .")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def merge(base: Any, change: Any) -> Any:
    """`base` with `change` laid over it, mappings key by key."""
    if not (isinstance(base, dict) and isinstance(change, dict)):
        return change
    return {key: merge(base.get(key), change[key]) if key in change else base[key] for key in {**base, **change}}


@cache
def settings(language: str) -> dict[str, Any]:
    """The settings files of a language, merged."""
    config = read_yaml(ROOT / "_config.yml")
    return config if language == "en" else merge(config, read_yaml(ROOT / f"_config.{language}.yml"))


def site_title(language: str) -> str:
    """The title of the book in a language."""
    return settings(language)["title"]


def write_config(language: str, folder: Path) -> Path:
    """The merged `_config.yml`, with absolute paths: the sources lie elsewhere."""
    own = {
        "bibtex_bibfiles": [str(ROOT / name) for name in settings(language)["bibtex_bibfiles"]],
        "execute": {"cache": str(cache_folder(language))},
        "sphinx": {
            "local_extensions": {"book.sphinx_ext": str(ROOT)},
            "config": {"book_site": True, "locale_dirs": [str(BUILD / "locale")]},
        },
    }
    merged = merge(settings(language), own)
    merged.pop("toc_captions", None)
    path = folder / "_config.yml"
    path.write_text(yaml.safe_dump(merged, allow_unicode=True), encoding="utf-8")
    return path


def write_toc(language: str, folder: Path) -> Path:
    """The table of contents relative to `chapters/LANGUAGE`, captions translated."""
    captions = settings(language).get("toc_captions", {})
    table = read_yaml(ROOT / "_toc.yml")
    table["root"] = table["root"].removeprefix(TOC_PREFIX)
    for part in table["parts"]:
        if language != "en" and part["caption"] not in captions:
            raise BookError(f"_config.{language}.yml: toc_captions has no translation of '{part['caption']}'")
        part["caption"] = captions.get(part["caption"], part["caption"])
        for chapter in part["chapters"]:
            chapter["file"] = chapter["file"].removeprefix(TOC_PREFIX)
    path = folder / "_toc.yml"
    path.write_text(yaml.safe_dump(table, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path


def cache_folder(language: str) -> Path:
    """Where stored outputs wait for myst-nb; another lib or other packages mean another folder."""
    digest = hashlib.sha256()
    for path in [*sorted((ROOT / "lib").rglob("*.py")), ROOT / "requirements.txt"]:
        digest.update(path.read_bytes() if path.is_file() else b"")
    return BUILD / "cache" / digest.hexdigest()[:16] / language


def with_outputs(language: str, topic: str) -> nbformat.NotebookNode:
    """A page as myst-nb reads it, with the outputs of the stored notebook in its code cells."""
    from myst_nb.core.read import read_myst_markdown_notebook

    from book.stored import in_language, notebook_path

    page = page_path(language, topic)
    notebook = read_myst_markdown_notebook(page.read_text(encoding="utf-8"), add_source_map=True, path=page)
    stored = [cell for cell in nbformat.read(notebook_path(topic), as_version=4).cells if cell.cell_type == "code"]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if len(cells) != len(stored):
        raise BookError(
            f"{page.relative_to(ROOT)}: {len(cells)} code cells, {len(stored)} stored: make both pages agree"
        )
    for number, (cell, source) in enumerate(zip(cells, stored, strict=True), start=1):
        cell.execution_count, cell.outputs = number, in_language(source.outputs, language)
        for output in cell.outputs:
            if "text/html" in output.get("data", {}):  # from the page to the notebooks beside the site
                to_notebooks = f'href="../notebooks/{language}/practice/'
                output.data["text/html"] = output.data["text/html"].replace('href="practice/', to_notebooks)
    return notebook


def fill_cache(language: str) -> None:
    """Give jupyter-cache the outputs of every page, under the key that myst-nb will ask for."""
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn

    store = get_cache(str(cache_folder(language)))
    store.change_cache_limit(100_000)
    for topic in topics():
        bundle = CacheBundleIn(with_outputs(language, topic), str(page_path(language, topic)))
        store.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def prepare() -> None:
    """Start from clean: no old pages, no old outputs; the Chinese words of the theme beside the rest."""
    for name in ("sites", "cache", "locale"):
        shutil.rmtree(BUILD / name, ignore_errors=True)
    shutil.copytree(ROOT / "book/locale", BUILD / "locale")
    (BUILD / "logs").mkdir(parents=True, exist_ok=True)
    for language in LANGUAGES:
        (BUILD / "sites" / language).mkdir(parents=True)
        fill_cache(language)


def command(language: str, folder: Path) -> list[str]:
    """The command line that builds one language."""
    program = Path(sys.executable).with_name("jupyter-book")
    config, toc = write_config(language, folder), write_toc(language, folder)
    options = ["--config", str(config), "--toc", str(toc), "--path-output", str(folder)]
    return [str(program), "build", str(CHAPTERS / language), *options, "-W", "-n", "--keep-going"]


def report(language: str, line: str) -> None:
    """Show one line for each page that has been written."""
    if line.startswith("writing output") and (match := _WRITTEN.match(line)):
        print(f"  {language}  {match[2]}", flush=True)


def run_logged(language: str, arguments: list[str]) -> tuple[int, list[str]]:
    """Run a build; keep its whole output in a log, report its progress."""
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    lines = []
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "encoding": "utf-8"}
    log = log_path(language).open("w", encoding="utf-8")
    with log, subprocess.Popen(arguments, env=environment, cwd=ROOT, **pipe) as process:
        for raw in process.stdout:
            lines.append(line := _COLOUR.sub("", raw).rstrip())
            print(line, file=log, flush=True)
            report(language, line)
    return process.returncode, lines


def log_path(language: str) -> Path:
    """The full log of a language's last build."""
    return BUILD / "logs" / f"{language}.log"


def build_language(language: str) -> str | None:
    """Build one language from clean; what went wrong, or None."""
    status, lines = run_logged(language, command(language, BUILD / "sites" / language))
    if status == 0:
        return None
    told = [line.replace(f"{ROOT}{os.sep}", "") for line in lines if _TROUBLE.search(line)] or lines[-15:]
    return "\n  ".join(
        [f"the {language} site did not build (full log: {os.path.relpath(log_path(language))})", *told[:30]]
    )
