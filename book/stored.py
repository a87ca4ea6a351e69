"""The stored notebooks: each chapter's code cells, run once, with their outputs (`make notebooks`).

The site, the exported notebooks and nbval all take the outputs from here, so one run serves them all.
"""

import argparse
import ast
import base64
import copy
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from PIL import Image

from book.page import Cell, code_cells, relative
from book.project import BUILD, ROOT, BookError, exercises, page_path, topics

STORED = ROOT / "tests" / "notebooks"
CELL_TIMEOUT = 300  # seconds
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
KERNEL_ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm's, where ipywidgets is not installed
    "BOOK_LANGUAGE": "en",
}
CHINESE = "application/vnd.llm-by-hand.zh+json"  # as in lib/practice/language.py
TAGS = {"hide-input", "hide-cell", "hide-output", "remove-input", "nbval-ignore-output"}
MACHINE_PATH = re.compile(r"/tmp/|/home/|/root/|site-packages|ipykernel_\d+")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def notebook_path(topic: str) -> Path:
    """tests/notebooks/TOPIC.ipynb."""
    return STORED / f"{topic}.ipynb"


def tags(cell) -> list[str]:
    """The tags of a cell of a page or of a notebook."""
    return list(cell.metadata.get("tags", []))


def read(topic: str) -> nbformat.NotebookNode:
    """The stored notebook of a topic."""
    path = notebook_path(topic)
    try:
        return nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise BookError(f"{relative(path)} is missing: run make notebooks") from None
    except (nbformat.reader.NotJSONError, nbformat.ValidationError):
        raise BookError(f"{relative(path)}: not a notebook: run make notebooks ALL=1") from None


def check(topic: str) -> list[str]:
    """What is wrong with a stored notebook, one line each: it must hold the chapter's code cells, all of them run."""
    page, path = page_path("en", topic), relative(notebook_path(topic))
    try:
        stored = read(topic).cells
    except BookError as error:
        return [str(error)]
    if [(c.source, tags(c)) for c in stored] != [(c.source, tags(c)) for c in code_cells(page)]:
        return [f"{relative(page)}: code cells differ from {path}: run make notebooks"]
    never = [n for n, cell in enumerate(stored) if cell.execution_count is None]
    return [f"{path}: cell {n} was never run: run make notebooks ALL=1" for n in never]


def check_all() -> list[str]:
    """The problems of all stored notebooks, and notebooks that no chapter stands behind."""
    known = {notebook_path(topic) for topic in topics()}
    orphans = sorted(set(STORED.glob("*.ipynb")) - known)
    problems = [f"{relative(path)}: no chapter has this name: delete it" for path in orphans]
    return problems + [problem for topic in topics() for problem in check(topic)]


def in_language(outputs: list[nbformat.NotebookNode], language: str) -> list[nbformat.NotebookNode]:
    """Outputs as a page of this language shows them: what lib.practice says is stored in both."""
    found = copy.deepcopy(outputs)
    for output in found:
        chinese = output.get("data", {}).pop(CHINESE, None)
        if chinese and language == "zh":
            output.data.update(chinese)
    return found


def _imported(code: str) -> set[str]:
    """The modules of lib that Python code imports."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names |= {name.removeprefix("lib.") for name in modules if name.startswith("lib.")}
    return names


def _exercises(code: str) -> set[str]:
    """The modules of the exercises that a chapter names, as in `check("rope", f)`, or of all, for `overview()`."""
    nodes = list(ast.walk(ast.parse(code)))
    named = {node.value for node in nodes if isinstance(node, ast.Constant)}
    every = any(isinstance(node, ast.Name) and node.id == "overview" for node in nodes)
    return {f"practice.exercises.{name}" for name in exercises() if every or name in named}


def fingerprint(cells: list[Cell]) -> str:
    """A hash of all that decides the outputs: code cells, their tags, and the lib modules they import, however deep."""
    found: dict[str, str] = {}
    code = "\n".join(cell.source for cell in cells)
    waiting = _imported(code)
    if "practice" in waiting:
        waiting |= _exercises(code)
    while waiting:
        name = waiting.pop()
        path = ROOT / "lib" / (name.replace(".", "/") + ".py")
        path = path if path.exists() else ROOT / "lib" / name.replace(".", "/") / "__init__.py"
        found[name] = path.read_text(encoding="utf-8") if path.exists() else ""
        waiting |= _imported(found[name]) - found.keys()
    parts = [repr([(cell.source, tags(cell)) for cell in cells]), repr(sorted(found.items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def is_current(topic: str) -> bool:
    """Whether the stored notebook was made from the present code cells and lib."""
    if check(topic):
        return False
    return read(topic).metadata.get("made_from") == fingerprint(code_cells(page_path("en", topic)))


def packed(png: bytes) -> bytes:
    """A figure with a palette of 256 colours: a third of the bytes."""
    smaller = io.BytesIO()
    figure = Image.open(io.BytesIO(png)).convert("RGBA")
    figure.quantize(256, method=Image.Quantize.FASTOCTREE).save(smaller, "png", optimize=True)
    return smaller.getvalue()


def _tidy(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """An output without what differs from run to run, its figure packed."""
    if output.output_type == "execute_result":
        output.execution_count = None
    if png := output.get("data", {}).get("image/png"):
        output.data["image/png"] = base64.b64encode(packed(base64.b64decode(png))).decode() + "\n"
    if "metadata" in output:
        output.metadata = nbformat.NotebookNode()
    return output


def run(topic: str) -> float:
    """Run a chapter's code cells and store them with their outputs; the seconds it took.

    Nothing is written unless every cell ran, wrote nothing to stderr, and shows no path of this machine.
    """
    page = page_path("en", topic)
    cells = code_cells(page)
    if bad := [(c.line, tag) for c in cells for tag in tags(c) if tag not in TAGS]:
        raise BookError(f"{relative(page)}:{bad[0][0]}: tag '{bad[0][1]}' is not one of {', '.join(sorted(TAGS))}")
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": KERNEL, "made_from": fingerprint(cells)})
    for number, cell in enumerate(cells):
        new = nbformat.v4.new_code_cell(cell.source, id=f"cell-{number:02d}")
        if tags(cell):
            new.metadata["tags"] = tags(cell)
        notebook.cells.append(new)
    started = time.monotonic()
    _execute(notebook, topic, cells)
    for number, (cell, source) in enumerate(zip(notebook.cells, cells, strict=True), start=1):
        cell.metadata.pop("execution", None)
        cell.execution_count = number
        cell.outputs = [_tidy(output) for output in cell.outputs]
        _refuse_noise(cell, f"{relative(page)}:{source.line}")
    notebook.metadata.pop("language_info", None)
    _write(notebook, notebook_path(topic))
    return time.monotonic() - started


def _execute(notebook: nbformat.NotebookNode, topic: str, cells: list[Cell]) -> None:
    """Run the cells in a fresh kernel and an empty folder, with lib on its path."""
    environment = {**os.environ, **KERNEL_ENVIRONMENT}
    environment.pop("MPLBACKEND", None)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        environment["BOOK_DATA"] = folder  # no reader's progress
        client = NotebookClient(
            notebook, timeout=CELL_TIMEOUT, kernel_name="python3", resources=resources, coalesce_streams=True
        )
        try:
            client.execute(env=environment, stderr=subprocess.DEVNULL)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            number = sum(cell.execution_count is not None for cell in notebook.cells)
            line = cells[max(number - 1, 0)].line
            log = BUILD / "logs" / f"{topic}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(ANSI.sub("", str(error)), encoding="utf-8")
            what = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else type(error).__name__
            raise BookError(
                f"{relative(page_path('en', topic))}:{line}: cell {number - 1} raised {ANSI.sub('', what).strip()} "
                f"(the whole of it: {relative(log)})"
            ) from None


def _refuse_noise(cell: nbformat.NotebookNode, where: str) -> None:
    cell.outputs = [output for output in cell.outputs if not _of_this_cpu(output)]
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stderr":
            raise BookError(f"{where}: the cell writes to stderr: {output.text.strip().splitlines()[-1][:120]}")
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        if found := MACHINE_PATH.search(text):
            raise BookError(f"{where}: the output shows a path of this machine: {found[0]}")


def _of_this_cpu(output: nbformat.NotebookNode) -> bool:
    """bitsandbytes says on some CPUs, as it is imported, that a package which it does not need is missing."""
    return output.get("name") == "stderr" and output.text.startswith("Failed to load CPU gemm_4bit_forward")


def _write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    nbformat.write(notebook, temporary)
    temporary.replace(path)


def main() -> int:
    """Run the chapters whose code cells or lib changed; --all: every one; or those named."""
    parser = argparse.ArgumentParser(prog="make notebooks", description=main.__doc__)
    parser.add_argument("topics", nargs="*", help="run only these")
    parser.add_argument("--all", action="store_true", help="run every chapter")
    arguments = parser.parse_args()
    if unknown := set(arguments.topics) - set(topics()):
        raise BookError(f"no chapter named {', '.join(sorted(unknown))}; there are {', '.join(topics())}")
    wanted = arguments.topics or topics()
    todo = [t for t in wanted if arguments.all or arguments.topics or not is_current(t)]
    print(f"{len(todo)} of {len(wanted)} chapters to run" + (": " + ", ".join(todo) if todo else ""), flush=True)
    failures = 0
    with ProcessPoolExecutor(max_workers=max(1, min(len(todo), (os.cpu_count() or 2) // 2 or 1, 4))) as pool:
        jobs = {pool.submit(run, topic): topic for topic in todo}
        for job in as_completed(jobs):
            try:
                seconds, size = job.result(), notebook_path(jobs[job]).stat().st_size
                print(f"  {jobs[job]:24} {seconds:5.1f} s   {size / 1024:.0f} KB stored", flush=True)
            except BookError as error:
                failures += 1
                print(f"error: {error}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BookError as error:
        sys.exit(f"error: {error}")
