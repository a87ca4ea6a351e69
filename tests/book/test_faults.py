"""The checks can fail: each fault is planted in a copy, and the command that a contributor would run must stop there,
with a message that names the file."""

import base64
import io
import json
import socket

import pytest
from PIL import Image, ImageDraw

from book.project import chapters

TOPIC = chapters()[0]
STORED = f"tests/notebooks/{TOPIC}.ipynb"
EN, ZH = f"chapters/en/{TOPIC}.md", f"chapters/zh/{TOPIC}.md"


def _stopped(result, *texts):
    """The command failed, said these things, and a stack trace is not all it said."""
    assert result.returncode != 0, result.stdout
    for text in texts:
        assert text in result.stdout, result.stdout[-3000:]


def _one_line(result, *texts):
    """The command failed with one line that says it."""
    _stopped(result, *texts)
    assert "Traceback" not in result.stdout, result.stdout[-3000:]


def _spoil_outputs(path):
    """A changed number, a changed figure and a cell that was never run, in one stored notebook; the cells' numbers."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = notebook["cells"]
    text = next(
        n for n, cell in enumerate(cells) for o in cell["outputs"] if any(map(str.isdigit, "".join(o.get("text", ""))))
    )
    stream = next(o for o in cells[text]["outputs"] if "text" in o)
    changed = "".join(stream["text"])
    digit = next(i for i, letter in enumerate(changed) if letter.isdigit())
    stream["text"] = changed[:digit] + str((int(changed[digit]) + 1) % 10) + changed[digit + 1 :]
    figure = next(n for n, cell in enumerate(cells) for o in cell["outputs"] if "image/png" in o.get("data", {}))
    data = next(o for o in cells[figure]["outputs"] if "image/png" in o.get("data", {}))["data"]
    data["image/png"] = _draw_a_line(data["image/png"])
    never = max(n for n in range(len(cells)) if n not in (text, figure))  # no later cell needs it
    cells[never] |= {"execution_count": None, "outputs": []}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return text, figure, never


def _draw_a_line(png):
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
    ImageDraw.Draw(image).line([(0, 0), image.size], fill=(0, 114, 178, 255), width=4)
    buffer = io.BytesIO()
    image.save(buffer, "png")
    return base64.b64encode(buffer.getvalue()).decode()


def test_changed_number_changed_image_and_never_run_cell(copy):
    text, figure, never = _spoil_outputs(copy.root / STORED)
    result = copy.pytest(STORED)
    name = STORED.split("/")[-1]
    _stopped(result, f"{name}: cell {never} was never run", "figure differs: RMS")
    for number in (text, figure, never):
        assert f"{name}::Cell {number}" in result.stdout
    assert result.stdout.rstrip().splitlines()[-1].startswith("3 failed")


def test_a_never_run_cell_stops_the_book(copy):
    _, _, never = _spoil_outputs(copy.root / STORED)
    _one_line(copy.python("-m", "book.site"), f"{STORED}: cell {never} was never run: run make notebooks")


def test_a_code_cell_that_differs_between_the_languages(copy):
    copy.edit(ZH, "use_style()", "use_style() or None")
    result = copy.pytest("tests/book/test_parity.py", "-k", TOPIC)
    _stopped(result, ZH, "code cell 0 is not the program of")


def test_a_missing_chinese_section(copy):
    stem = TOPIC.replace("_", "-")
    text = (copy.root / ZH).read_text(encoding="utf-8")
    start, end = text.index(f"({stem}-cost)="), text.index(f"({stem}-exercise)=")
    (copy.root / ZH).write_text(text[:start] + text[end:], encoding="utf-8")
    result = copy.pytest("tests/book/test_parity.py", "-k", TOPIC)
    _stopped(result, f"{ZH}: section ({stem}-cost)= is missing")


def test_a_stale_chinese_section(copy):
    copy.edit("chapters/en/guide.md", "Then we want to know.", "Then we want to know at once.")
    result = copy.pytest("tests/book/test_parity.py", "-k", "guide")
    _stopped(result, "stale: zh/guide.md § Found a mistake?", "run make translated PAGE=guide")
    assert copy.python("-m", "book.parity", "--accept", "guide").returncode == 0
    assert copy.python("-m", "book.parity").returncode == 0


def test_an_exception_in_a_cell(copy):
    copy.edit(EN, "use_style()", "assert 2 + 2 == 5")
    before = (copy.root / STORED).read_bytes()
    result = copy.python("-m", "book.stored", TOPIC)
    _one_line(result, f"error: {EN}:", "cell 0 raised AssertionError")
    assert (copy.root / STORED).read_bytes() == before, "nothing half-run is stored"


def test_a_cell_that_is_no_python(copy):
    copy.edit(EN, "use_style()", "use_style(")
    for command in (("book.stored", TOPIC), ("book.parity",), ("book.site",)):
        _one_line(
            copy.python("-m", *command), f"error: {EN}:", "the code cell is not valid Python: '(' was never closed"
        )


def test_code_that_was_not_run_again_stops_the_book(copy):
    copy.edit(EN, "use_style()", "use_style()\nassert True")
    _one_line(copy.python("-m", "book.site"), f"{EN}: code cells differ from {STORED}: run make notebooks")


def test_a_broken_link(copy):
    copy.edit("chapters/en/guide.md", "Then we want to know.", "Then {ref}`we want to know <no-such-label>`.")
    _one_line(copy.python("-m", "book.site"), "chapters/en/guide.md:", "no-such-label")
    assert not (copy.root / "_build" / "html").exists(), "a failed build leaves no site behind"


def test_raw_myst_in_an_exported_notebook(copy):
    copy.edit(EN, "\n\n```{code-cell}", "\n\n:::{hint}\nRead this.\n:::\n\n```{code-cell}")
    _one_line(copy.python("-m", "book.site"), f"error: {EN}:", "the exporter knows no directive 'hint'")


@pytest.mark.parametrize(
    ("spoil", "texts"),
    [
        (lambda c: (c.root / "chapters/zh/guide.md").unlink(), ["chapters/zh/guide.md is missing"]),
        (
            lambda c: (c.root / "chapters/en/new.md").write_text("(new)=\n# New\n"),
            ["chapters/en/new.md is not in _toc.yml"],
        ),
        (lambda c: c.edit("_toc.yml", "en/guide", "en/gide"), ["chapters/en/gide.md is missing"]),
        (lambda c: c.edit("_toc.yml", "format", "  - format"), ["_toc.yml: not valid YAML"]),
        (lambda c: (c.root / STORED).unlink(), [f"{STORED} is missing: run make notebooks"]),
        (lambda c: (c.root / STORED).write_text("{"), [f"{STORED}: not a notebook"]),
        (lambda c: (c.root / "tests/notebooks/old.ipynb").write_text("{}"), ["old.ipynb: no chapter has this name"]),
    ],
    ids=["one language only", "not in the toc", "missing chapter", "broken toc", "no output", "damaged", "orphan"],
)
def test_what_is_missing_or_damaged_is_one_line(copy, spoil, texts):
    spoil(copy)
    result = copy.python("-m", "book.site")
    _one_line(result, *texts)
    assert len(result.stdout.strip().splitlines()) == 1, result.stdout


def test_an_occupied_port(copy):
    (copy.root / "_build/html").mkdir(parents=True)
    (copy.root / "_build/html/index.html").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        _one_line(copy.python("-m", "book.serve", "--port", str(port)), f"port {port} is in use", f"PORT={port + 1}")


def test_serving_before_building(copy):
    _one_line(copy.python("-m", "book.serve"), "run make book")


def test_an_old_python_is_refused_in_one_line(copy):
    fake = copy.root / "python"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    result = copy.run("make", "book", "PYTHON=./python", "VENV=none")
    _one_line(result, "error: ./python is not Python 3.11 or newer")
    assert not (copy.root / "none").exists()


def test_without_a_browser_the_tests_say_how_to_get_one(copy):
    result = copy.python("-m", "pytest", "-q", "-rs", "tests/book/test_browser.py", PATH="/nonexistent")
    assert "apt install chromium" in result.stdout, result.stdout[-2000:]
    assert result.returncode == 0
