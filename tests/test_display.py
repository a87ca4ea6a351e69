"""lib.display: a chapter shows the very source that is tested, and figures in one style."""

import ast
from pathlib import Path

from IPython.display import Markdown

import lib.grpo
import lib.rope
from lib.display import source, use_style


def code(markdown) -> str:
    """What stands between the fences."""
    first, *lines, last = markdown.data.split("\n")
    assert first == "```python"
    assert last == "```"
    return "\n".join(lines)


def test_source_is_the_text_of_the_file():
    shown = code(source(lib.rope.apply_rope))
    assert shown.startswith("def apply_rope(")
    assert shown in Path(lib.rope.__file__).read_text(encoding="utf-8")
    (tree,) = ast.parse(shown).body  # the whole function and nothing else
    assert tree.name == "apply_rope"
    assert isinstance(tree.body[-1], ast.Return)


def test_source_is_markdown_that_a_notebook_renders():
    assert isinstance(source(use_style), Markdown)


def test_several_sources_stand_one_below_the_other():
    both = code(source(lib.rope.rotate_half, lib.grpo.rloo_loss))
    assert both == code(source(lib.rope.rotate_half)) + "\n\n" + code(source(lib.grpo.rloo_loss))
    assert [node.name for node in ast.parse(both).body] == ["rotate_half", "rloo_loss"]


class Example:
    """A class, to be shown."""

    def method(self) -> int:
        return 1


def test_source_of_a_class():
    assert code(source(Example)).startswith('class Example:\n    """A class')
    assert code(source(Example)).endswith("return 1")


def test_use_style_sets_what_it_promises():
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        use_style()
        assert list(mpl.rcParams["figure.figsize"]) == [6.0, 3.4]
        assert mpl.rcParams["font.size"] == 12
        assert mpl.rcParams["figure.facecolor"] == mpl.rcParams["axes.facecolor"] == "none"
        assert mpl.rcParams["savefig.transparent"] is True
        colours = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    # Okabe and Ito's eight without yellow, which is too pale for a line on white.
    assert sorted(colours) == sorted(["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"])


def test_a_figure_in_this_style_has_no_background(tmp_path):
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    with mpl.rc_context():
        mpl.rcdefaults()
        use_style()
        figure = Figure()
        figure.subplots().plot([0, 1])
        figure.savefig(tmp_path / "figure.png")
    pixels = imread(tmp_path / "figure.png")  # (height, width, RGBA)
    assert pixels.shape == (489, 864, 4)  # 3.4 × 6 inch at 144 dots an inch
    assert pixels[0, 0, 3] == 0
    assert pixels[..., 3].max() == 1
