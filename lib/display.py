"""What a chapter shows besides numbers: the source of lib itself, and figures in one style."""

import inspect


def source(*objects: object):
    """The real source of functions or classes of lib, as Markdown with a Python fence: what you
    read is what is tested.
    """
    from IPython.display import Markdown

    code = "\n\n".join(inspect.getsource(thing).rstrip() for thing in objects)
    return Markdown(f"```python\n{code}\n```")


def use_style() -> None:
    """Figures of 6.0 × 3.4 inch with 12 pt text, no background and the colours of Okabe and Ito
    (2008), which people with any kind of colour vision can tell apart.
    """
    import matplotlib.pyplot as plt

    colours = [
        "#0072B2",
        "#D55E00",
        "#009E73",
        "#CC79A7",
        "#E69F00",
        "#56B4E9",
        "#000000",
    ]
    plt.rcParams.update(
        {
            "figure.figsize": (6.0, 3.4),
            "figure.dpi": 144,
            "savefig.transparent": True,
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "font.size": 12,
            "axes.titlesize": 12,
            "legend.fontsize": 11,
            "legend.frameon": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "lines.linewidth": 2,
            "axes.prop_cycle": plt.cycler(color=colours),
            "figure.constrained_layout.use": True,
            "image.cmap": "viridis",
        }
    )
