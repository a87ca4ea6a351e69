"""The progress file: nothing is lost, and a damaged file is no accident."""

import json
import os
import subprocess
import sys

import pytest

from lib.practice import check, hint, progress, reset, status
from lib.practice.language import set_language


def right(head_dim, *, base=10_000.0):
    import torch

    if head_dim % 2:
        raise ValueError("odd")
    return base ** (-torch.arange(0, head_dim, 2) / head_dim)


def stub(head_dim, *, base=10_000.0):
    return None


def test_attempts_and_solutions_are_kept(data, capsys):
    check("rope_frequencies", stub)
    assert progress.read()["exercises"] == {}
    check("rope_frequencies", lambda head_dim, *, base=1e4: head_dim)
    check("rope_frequencies", right)
    kept = json.loads((data / "progress.json").read_text())["exercises"]["rope_frequencies"]
    assert kept["attempts"] == 2 and kept["solved"] > 0
    first = kept["solved"]
    check("rope_frequencies", right)
    assert progress.read()["exercises"]["rope_frequencies"]["solved"] == first
    capsys.readouterr()
    status()
    shown = capsys.readouterr().out
    assert "1 of 10 solved" in shown or "1 of" in shown
    line = next(line for line in shown.splitlines() if line.strip().startswith("rope_frequencies"))
    assert "✓" in line and line.endswith("3")


def test_as_a_decorator_it_gives_the_function_back(capsys):
    decorated = check("rope_frequencies")(right)
    assert decorated is right
    assert "right, all" in capsys.readouterr().out


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="function: got int, must be a function or a class"):
        check("rope_frequencies", 3)


def test_hints_come_one_by_one(capsys):
    seen = []
    for _ in range(4):
        hint("rope_frequencies")
        seen.append(capsys.readouterr().out)
    assert [text.count("\n") for text in seen] == [1, 2, 4, 4]
    assert seen[2].splitlines()[-1].startswith("That was the last one; now read chapter rope")


def test_many_notebooks_at_once_lose_nothing(data):
    code = "from lib.practice import progress\nfor _ in range(25): progress.record('rope', False)"
    jobs = [subprocess.Popen([sys.executable, "-c", code], env=os.environ) for _ in range(4)]
    assert [job.wait(timeout=120) for job in jobs] == [0] * 4
    assert progress.read()["exercises"]["rope"]["attempts"] == 100
    assert sorted(p.name for p in data.iterdir()) == ["progress.json", "progress.lock"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'{"version": 99, "exercises": {}}',
        b'{"version": 1, "exercises": {"rope": {"attempts": "many"}}, "interview": null}',
        b'{"version": 1, "exercises": [], "interview": null}',
    ],
)
def test_a_damaged_file_is_set_aside(data, content, capsys):
    data.mkdir()
    (data / "progress.json").write_bytes(content)
    assert progress.record("rope", False) == 1
    assert "could not be read; it is kept as" in capsys.readouterr().out
    assert (data / "progress.damaged-1.json").read_bytes() == content
    (data / "progress.json").write_bytes(content)
    progress.record("rope", False)
    assert (data / "progress.damaged-2.json").read_bytes() == content


def test_a_failure_while_writing_leaves_the_old_file(data, monkeypatch):
    progress.record("rope", True)
    before = (data / "progress.json").read_bytes()

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(progress.os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        progress.record("rope", True)
    assert (data / "progress.json").read_bytes() == before


def test_reset_keeps_the_old_file(data, capsys):
    reset()
    assert "no progress yet" in capsys.readouterr().out
    for name in ("rope", "grpo_loss"):
        progress.record(name, True)
    reset("rope")
    assert list(progress.read()["exercises"]) == ["grpo_loss"]
    reset()
    assert progress.read()["exercises"] == {}
    kept = json.loads((data / "progress.before-reset-1.json").read_text())
    assert set(kept["exercises"]) == {"rope", "grpo_loss"}
    with pytest.raises(ValueError, match="no exercise is named"):
        reset("nothing")


def test_without_a_folder_named_it_is_in_the_users(monkeypatch):
    monkeypatch.delenv("BOOK_DATA")
    import platformdirs

    assert progress.path().parent.as_posix() == platformdirs.user_data_path("llm-by-hand", appauthor=False).as_posix()


def test_the_language_of_a_notebook(monkeypatch, capsys):
    from lib.practice import language

    for name in ("BOOK_LANGUAGE", "LC_ALL", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "en_US.UTF-8")
    assert language.language() == "en"
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert language.language() == "zh"
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/notebooks/en/rope.ipynb")
    assert language.language() == "en"
    monkeypatch.setenv("BOOK_LANGUAGE", "zh")
    assert language.language() == "zh"
    set_language("en")
    assert language.language() == "en"
    with pytest.raises(ValueError, match="code: got 'fr', must be 'en' or 'zh'"):
        set_language("fr")
    set_language("zh")
    check("rope_frequencies", stub)
    assert capsys.readouterr().out.startswith("rope_frequencies: 还没写")
