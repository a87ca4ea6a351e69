"""What the reader is told: in English or Chinese, in a notebook or in a terminal."""

import locale
import os
import re
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, NamedTuple

LANGUAGES = ("en", "zh")
#: In an output, the Chinese of each format that it has: the Chinese site shows it in place of the English.
CHINESE = "application/vnd.llm-by-hand.zh+json"

_chosen: str | None = None


class Text(NamedTuple):
    """The same in both languages; `str()` gives the one that is being spoken."""

    en: str
    zh: str

    def __str__(self) -> str:
        return getattr(self, language())

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def language() -> str:
    """'en' or 'zh': what `set_language` chose; else BOOK_LANGUAGE, which a Chinese notebook's first cell sets; else the
    folder of the notebook; else the system's language.
    """
    if _chosen:
        return _chosen
    if (wanted := os.environ.get("BOOK_LANGUAGE", "")) in LANGUAGES:
        return wanted
    if folder := re.search(r"[/\\](en|zh)[/\\]", os.environ.get("JPY_SESSION_NAME", "")):
        return folder[1]
    named = os.environ.get("LC_ALL") or os.environ.get("LANG") or locale.getlocale()[0] or ""
    return "zh" if named.lower().startswith(("zh", "chinese")) else "en"


def set_language(code: str) -> None:
    """Speak English ('en') or Chinese ('zh') for the rest of the session."""
    global _chosen
    if code not in LANGUAGES:
        raise ValueError(f"code: got {code!r}, must be 'en' or 'zh'")
    _chosen = code


@contextmanager
def speaking(code: str):
    """Render a text in one language, whatever the reader's is."""
    global _chosen
    before, _chosen = _chosen, code
    try:
        yield
    finally:
        _chosen = before


class Message:
    """A text for the reader, made anew for each language; in a notebook as Markdown or HTML, where these are given."""

    def __init__(self, text: Callable[[], str], *, markdown: bool = False, html: Callable[[], str] | None = None):
        self.formats = {"text/plain": text}
        if markdown:
            self.formats["text/markdown"] = text
        if html:
            self.formats["text/html"] = html

    def __str__(self) -> str:
        return self.formats["text/plain"]()

    def _repr_mimebundle_(self, **_) -> dict[str, Any]:
        with speaking("zh"):
            chinese = {mime: render() for mime, render in self.formats.items()}
        return {mime: render() for mime, render in self.formats.items()} | {CHINESE: chinese}


def show(message: Message) -> None:
    """Display in a notebook, print in a terminal."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and shell.has_trait("kernel"):
        from IPython.display import display

        display(message)
    else:
        print(message)


def stars(level: int) -> str:
    """2 → ★★☆."""
    return "★" * level + "☆" * (3 - level)


def width(text: str) -> int:
    """Columns in a terminal: a Han character takes two."""
    return sum(2 if "\u2e80" <= c <= "\uffef" else 1 for c in text)


def pad(text: str, columns: int) -> str:
    """The text, filled up with spaces."""
    return text + " " * (columns - width(text))


def table(rows: list[list[str]]) -> str:
    """Rows of equally many cells in columns."""
    columns = [max(width(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(pad(cell, n) for cell, n in zip(row, columns)).rstrip() for row in rows)
