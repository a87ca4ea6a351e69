"""Each test has a progress file of its own, and speaks English."""

import pytest

from lib.practice import language


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("BOOK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("BOOK_LANGUAGE", "en")
    monkeypatch.setattr(language, "_chosen", None)
    return tmp_path / "data"
