"""A page as its parts: cells, headings, sections. Stored notebooks, exporter and parity check share it."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import nbformat
from jupytext.myst import MystMetadataParsingError, myst_to_notebook

from book.project import ROOT, BookError

LABEL = re.compile(r"^\(([a-z0-9-]+)\)=$")
HEADING = re.compile(r"^(#{1,6}) +(.+?)\s*$")
FENCE = re.compile(r"^(`{3,}|~{3,})")


class Cell(NamedTuple):
    """A cell of a page: its kind ('code' or 'markdown'), source, metadata, and line in the file."""

    kind: str
    source: str
    metadata: nbformat.NotebookNode
    line: int


class Section(NamedTuple):
    """A heading with what stands under it before the next one; the text before the first heading has level 0."""

    label: str | None
    title: str
    level: int
    line: int
    cells: list[Cell]


def relative(path: Path) -> str:
    """The path as a message names it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@cache
def read_cells(path: Path) -> tuple[Cell, ...]:
    """All cells of a page in order."""
    try:
        notebook = myst_to_notebook(path.read_text(encoding="utf-8"), add_source_map=True)
    except FileNotFoundError:
        raise BookError(f"{relative(path)} is missing") from None
    except MystMetadataParsingError as error:
        raise BookError(f"{relative(path)}: a code cell's options: {' '.join(str(error).split())}") from None
    lines = notebook.metadata.source_map
    return tuple(
        Cell(cell.cell_type, cell.source, cell.metadata, line + 1)
        for cell, line in zip(notebook.cells, lines, strict=True)
    )


def code_cells(path: Path) -> list[Cell]:
    """The code cells of a page in order, all of them Python."""
    cells = [cell for cell in read_cells(path) if cell.kind == "code"]
    for cell in cells:
        try:
            ast.parse(cell.source)
        except SyntaxError as error:
            raise BookError(f"{relative(path)}:{cell.line}: the code cell is not valid Python: {error.msg}") from None
    return cells


def prose_lines(source: str):
    """(index, line) of the lines that are prose: what stands inside a code fence is left out."""
    fence = None
    for index, line in enumerate(source.split("\n")):
        mark = FENCE.match(line.strip())
        if fence is None and mark:
            fence = mark[1]
        elif fence is not None:
            if mark and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
        else:
            yield index, line


def sections(path: Path) -> list[Section]:
    """The page cut at its headings; a label belongs to the heading on the line after it."""
    found = [Section(None, "", 0, 1, [])]
    for cell in read_cells(path):
        if cell.kind == "code":
            found[-1].cells.append(cell)
            continue
        lines, start = cell.source.split("\n"), 0
        for index, line in prose_lines(cell.source):
            if not (heading := HEADING.match(line)):
                continue
            label = LABEL.match(lines[index - 1]) if index else None
            _add_prose(found[-1], cell, lines, start, index - bool(label))
            title, level = heading[2], len(heading[1])
            found.append(Section(label[1] if label else None, title, level, cell.line + index, []))
            start = index + 1
        _add_prose(found[-1], cell, lines, start, len(lines))
    return found if found[0].cells else found[1:]


def _add_prose(section: Section, cell: Cell, lines: list[str], start: int, end: int) -> None:
    text = "\n".join(lines[start:end])
    if text.strip():
        section.cells.append(Cell("markdown", text, cell.metadata, cell.line + start))
