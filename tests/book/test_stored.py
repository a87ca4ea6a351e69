"""The stored notebooks: made from the present chapters and lib, light, and free of this machine."""

import base64
import json

import pytest

from book import stored
from book.project import topics

FIGURE_LIMIT = 40_000  # bytes; the notebooks live in git


def test_all_match_their_chapters():
    assert stored.check_all() == []


@pytest.mark.parametrize("topic", topics())
def test_is_current(topic):
    assert stored.is_current(topic), f"{topic}: code cells or lib changed since it was run: run make notebooks"


@pytest.mark.parametrize("topic", topics())
def test_is_stable(topic):
    """Fixed ids, no timestamps, nothing but what must be there: an unchanged chapter gives an unchanged file."""
    notebook = json.loads(stored.notebook_path(topic).read_text(encoding="utf-8"))
    assert set(notebook["metadata"]) == {"kernelspec", "made_from"}
    for number, cell in enumerate(notebook["cells"]):
        assert cell["id"] == f"cell-{number:02d}"
        assert cell["execution_count"] == number + 1
        assert set(cell["metadata"]) <= {"tags"}


@pytest.mark.parametrize("topic", topics())
def test_figures_are_light(topic):
    for cell in stored.read(topic).cells:
        for output in cell.outputs:
            png = output.get("data", {}).get("image/png", "")
            assert len(base64.b64decode(png)) <= FIGURE_LIMIT, f"{topic}: {cell.id}: the figure is too heavy"


def test_the_fingerprint_follows_lib_through_its_imports(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text("from lib.b import x\n")
    (tmp_path / "lib" / "b.py").write_text("x = 1\n")
    (tmp_path / "lib" / "c.py").write_text("y = 1\n")
    monkeypatch.setattr(stored, "ROOT", tmp_path)
    cells = [stored.Cell("code", "from lib.a import x", {}, 1)]
    before = stored.fingerprint(cells)
    (tmp_path / "lib" / "c.py").write_text("y = 2\n")
    assert stored.fingerprint(cells) == before
    (tmp_path / "lib" / "b.py").write_text("x = 2\n")
    assert stored.fingerprint(cells) != before
