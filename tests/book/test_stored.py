"""The stored notebooks: made from the present chapters and lib, light, and free of this machine."""

import base64
import json

import pytest

from book import stored
from book.project import topics
from lib.practice.language import CHINESE

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


def test_the_fingerprint_follows_the_exercises_that_a_chapter_names(tmp_path, monkeypatch):
    folder = tmp_path / "lib" / "practice" / "exercises"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    for name in ("rope", "other"):
        (folder / f"{name}.py").write_text("x = 1\n")
    monkeypatch.setattr(stored, "ROOT", tmp_path)
    monkeypatch.setattr(stored, "exercises", lambda: ["other", "rope"])

    def hashes():
        one = stored.Cell("code", 'from lib.practice import check\ncheck("rope", f)', {}, 1)
        every = stored.Cell("code", "from lib.practice import overview\noverview()", {}, 1)
        return stored.fingerprint([one]), stored.fingerprint([every])

    before = hashes()
    (folder / "other.py").write_text("x = 2\n")
    after = hashes()
    assert after[0] == before[0] and after[1] != before[1]
    (folder / "rope.py").write_text("x = 2\n")
    assert hashes()[0] != before[0]


def test_what_the_judge_says_is_shown_in_the_language_of_the_page():
    output = {"output_type": "display_data", "data": {"text/plain": "one", stored.CHINESE: {"text/plain": "一"}}}
    outputs = [stored.nbformat.from_dict(output), stored.nbformat.from_dict({"output_type": "stream", "text": "x"})]
    for language, text in (("en", "one"), ("zh", "一")):
        found = stored.in_language(outputs, language)
        assert found[0].data == {"text/plain": text} and found[1].text == "x"
    assert stored.CHINESE == CHINESE and stored.CHINESE in outputs[0].data
