"""The exported notebooks: plain Markdown, and they run as on Colab: an empty folder, lib nowhere, a clone by URL."""

import ast
import json
import os
import re
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from book import export
from book.page import Cell
from book.project import LANGUAGES, BookError, chapters, exercises, topics
from book.stored import KERNEL_ENVIRONMENT


@pytest.fixture(scope="module")
def exported(tmp_path_factory, repository):
    folder = tmp_path_factory.mktemp("exported")
    url, commit = repository
    export.export_all(folder, url=url, commit=commit)
    return folder


def _without_lib():
    """The environment of a reader: no path leads to lib, no language is set."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BOOK_LANGUAGE")}


def _run(notebook, folder):
    """Run a notebook as on Colab: in an empty folder, lib nowhere, the repository cloned from its URL."""
    environment = _without_lib() | {"PYTHONWARNINGS": KERNEL_ENVIRONMENT["PYTHONWARNINGS"]}
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute(
        env=environment, stderr=subprocess.DEVNULL
    )
    printed = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    assert printed.startswith("cloning file://")
    assert [path.name for path in folder.iterdir()] == ["book-of-this-notebook"]


def _program(notebook):
    """What the code cells do, without the first, which sets the language."""
    return [ast.dump(ast.parse(cell.source)) for cell in notebook.cells if cell.cell_type == "code"][1:]


@pytest.mark.parametrize("topic", topics())
def test_runs_as_on_colab(exported, tmp_path, topic):
    """Both languages are the same program. At home, where time counts, the Chinese one stops after its first cells."""
    en, zh = (nbformat.read(exported / language / f"{topic}.ipynb", as_version=4) for language in LANGUAGES)
    assert _program(en) == _program(zh)
    if not os.environ.get("CI"):
        second = [number for number, cell in enumerate(zh.cells) if cell.cell_type == "code"][1]
        del zh.cells[second + 1 :]
    for language, notebook in (("en", en), ("zh", zh)):
        (tmp_path / language).mkdir()
        _run(notebook, tmp_path / language)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("topic", topics())
def test_is_plain_and_whole(exported, topic, language):
    path = exported / language / f"{topic}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert not re.search(r"\{[a-z:]+\}`|^:::|^\([a-z-]+\)=$", prose, re.MULTILINE)
    assert "widgets" not in notebook.metadata
    figures = sum("image/png" in o.get("data", {}) for c in notebook.cells for o in c.get("outputs", []))
    assert prose.startswith("# ")
    if topic in chapters():
        assert "★" in prose[:300] and figures >= 4
        solutions = [cell for cell in notebook.cells if cell.source.startswith("solution(")]
        assert solutions and not any(cell.outputs for cell in solutions), "a solution lies open"
    requirements = re.search(r"^PACKAGES = (\{.*\})$", notebook.cells[0].source, re.MULTILINE)[1]
    assert not {"torch", "numpy", "matplotlib"} & set(json.loads(requirements)), "Colab brings these itself"


@pytest.mark.parametrize("name", exercises())
def test_an_exercise_opens_with_statement_stub_and_check(exported, name, capsys, monkeypatch, tmp_path):
    """In both languages: the same program, which runs and says what is to do, in the notebook's language."""
    monkeypatch.setenv("BOOK_DATA", str(tmp_path))
    programs = {}
    for language, told in (("en", ("not yet", "bugs mended")), ("zh", ("还没写", "个 bug 修好了"))):
        notebook = nbformat.read(exported / language / "practice" / f"{name}.ipynb", as_version=4)
        kinds = [cell.cell_type for cell in notebook.cells]
        assert kinds == ["code", "markdown", "code", "code", "markdown", "code"]
        statement = notebook.cells[1].source
        assert statement.startswith("# ") and "★" in statement and "../" in statement
        assert f'setdefault("BOOK_LANGUAGE", "{language}")' in notebook.cells[0].source
        monkeypatch.setenv("BOOK_LANGUAGE", language)
        programs[language] = [cell.source for cell in notebook.cells[2:] if cell.cell_type == "code"]
        scope = {}
        for source in programs[language]:
            exec(source, scope)
        assert told[name.startswith("bugs_")] in capsys.readouterr().out
    assert programs["en"] == programs["zh"]


def test_an_exercise_runs_as_on_colab(exported, tmp_path):
    notebook = nbformat.read(exported / "zh" / "practice" / "rope.ipynb", as_version=4)
    _run(notebook, tmp_path)
    assert notebook.cells[3].outputs[0].data["text/plain"].startswith("rope: 还没写")


def _bootstrap(tmp_path, url="", where=None):
    code = export._bootstrap([], url, "HEAD", "en")
    (tmp_path / "first_cell.py").write_text(code, encoding="utf-8")
    command = [
        sys.executable,
        "-c",
        f"exec(open({str(tmp_path / 'first_cell.py')!r}).read()); import lib.rope; print('found')",
    ]
    return subprocess.run(
        command, cwd=where or tmp_path, env=_without_lib(), capture_output=True, text=True, timeout=120
    )


def test_inside_a_clone_nothing_is_fetched(tmp_path, copy):
    result = _bootstrap(tmp_path, where=copy.root / "chapters" / "en")
    assert result.stdout == "found\n", result.stderr


def test_without_a_repository_the_error_says_what_to_do(tmp_path):
    result = _bootstrap(tmp_path)
    assert result.returncode != 0
    assert "open it inside a clone of the book" in result.stderr.strip().splitlines()[-1]


def _convert(text, page="rope", language="en"):
    return export.Converter(page, language).convert(Cell("markdown", text, {}, 7))


def test_directives_become_markdown():
    assert _convert(":::{note}\nbody\n:::") == "> **Note**\n>\n> body"
    assert _convert("::::{dropdown} Why?\nBecause.\n::::") == (
        "<details>\n<summary>Why?</summary>\n\nBecause.\n\n</details>"
    )
    assert _convert("(rope-x)=\n## Heading\n\ntext") == "## Heading\n\ntext"


def test_code_is_left_alone():
    text = "```python\nx = '{note}`a`'\n```"
    assert _convert(text) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (":::{admonition} x\ny\n:::", "no directive 'admonition'"),
        (":::{note} A title\ny\n:::", "'note' takes no title"),
        ("see {term}`x`", "no role 'term'"),
        ("see {eq}`eq-nowhere`", "no label 'eq-nowhere'"),
        ("{cite:t}`nobody1999`", "no entry 'nobody1999'"),
    ],
)
def test_what_it_does_not_know_stops_it_with_file_and_line(text, problem):
    with pytest.raises(BookError, match=re.escape("chapters/en/rope.md:7: ") + ".*" + re.escape(problem)):
        _convert(text)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://github.com/some/book.git", "some/book"),
        ("git@github.com:some/book.git", "some/book"),
        ("https://example.org/some/book.git", None),
        (None, None),
    ],
)
def test_the_repository_is_known_or_not_named(copy, url, name):
    copy.run("git", "init", "-q")
    if url:
        copy.run("git", "remote", "add", "origin", url)
    code = "from book.project import repository; print(repository())"
    assert copy.python("-c", code).stdout.strip() == str(name)
