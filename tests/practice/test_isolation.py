"""Whatever a submission does: a clear verdict in time, and a session that is as it was."""

import functools
import importlib
import linecache
import os
import sys
import threading

import pytest
import torch

from lib.practice import check, isolation, progress
from lib.practice.report import verdict_text

SECONDS = 5.0
RIGHT = """
    import torch
    if head_dim % 2:
        raise ValueError("odd")
    return base ** (-torch.arange(0, head_dim, 2) / head_dim)
"""


def program(body: str):
    """A right submission that first does something else."""
    scope = {}
    exec(f"def mine(head_dim, *, base=10_000.0):\n    {body}\n{RIGHT}", scope)
    return scope["mine"]


def verdict(body: str, seconds: float = SECONDS):
    return isolation.run_isolated("rope_frequencies", program(body), seconds=seconds)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("while True: pass", "stopped after 2 s, in the case 'head size 8': an endless loop"),
        ("import time; time.sleep(60)", "stopped after 2 s"),
        ("import os; os._exit(3)", "the process ended in the case 'head size 8' (exit status 3)"),
        ("import ctypes; ctypes.string_at(0)", "the process ended in the case 'head size 8'"),
        ("raise SystemExit(1)", "the check was ended by SystemExit: 1"),
        ("raise KeyboardInterrupt", "the check was ended by KeyboardInterrupt"),
    ],
)
def test_what_ends_a_check_is_told(body, told):
    seconds = 2.0 if "2 s" in told else 20.0
    found = verdict(body, seconds)
    assert not found.passed and told in verdict_text(found)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("undefined", "NameError: name 'undefined' is not defined"),
        ("return mine(head_dim)", "RecursionError"),
        ("return 'text'", "got       str 'text'"),
        ("return [1.0]", "another type of result"),
        ("input()", "EOFError"),
        ("import torch; torch.empty(2**42)", "can't allocate memory"),
        ("bytearray(2**35)", "MemoryError"),
    ],
)
def test_what_goes_wrong_inside_is_a_failed_case(body, told):
    if "2**" in body and not sys.platform.startswith("linux"):
        pytest.skip("memory is limited on Linux alone")
    found = verdict(body, 20.0)
    assert found.broken is None and not found.passed
    assert told in verdict_text(found)


@pytest.mark.parametrize(
    "body",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()",
        "import os; os.write(1, b'x' * 100_000); os.write(2, b'x' * 100_000)",
        "import os; os.chdir('/')",
        "import sys; sys.setrecursionlimit(50_000)",
        "import gc; gc.disable()",
    ],
)
def test_what_does_no_harm_passes(body):
    found = verdict(body, 20.0)
    assert found.passed, verdict_text(found)


def test_a_flood_of_output_is_cut():
    found = verdict("for _ in range(100_000): print('flood ' * 100)", 20.0)
    text = verdict_text(found)
    assert found.passed and "flood" in text and len(text) < 3_000


def test_the_session_stays_as_it_was():
    before = torch.exp, torch.get_default_dtype(), torch.get_rng_state(), os.getcwd(), threading.active_count()
    found = verdict("import torch; torch.set_default_dtype(torch.float64); torch.manual_seed(1); torch.exp = torch.sin")
    assert [r.name.en for r in found.results if not r.passed] == ["torch's global state unchanged"]
    assert (torch.exp, torch.get_default_dtype()) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2]) and os.getcwd() == before[3]


def test_the_line_that_raised_is_shown(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def mine(head_dim, *, base=1e4):\n    half = head_dim / 2\n    return [0] * half\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import mine

        text = verdict_text(isolation.run_isolated("rope_frequencies", mine.mine))
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["mine"]
    assert "TypeError: can't multiply sequence by non-int" in text and "3: return [0] * half" in text


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()

    def mine(head_dim, *, base=10_000.0):
        return lock

    with pytest.raises(ValueError, match="cannot be copied into the judge's process: .*lock"):
        check("rope_frequencies", mine)


def test_the_line_of_a_helper_is_shown(tmp_path, monkeypatch):
    """The helper's own line and file, not the main function's line of that number."""
    file = tmp_path / "cell.py"
    file.write_text(
        "def helper(d):\n    return d + undefined\n\n\ndef mine(head_dim, *, base=1e4):\n    return helper(3)\n"
    )
    scope = {"__name__": "__main__"}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    text = verdict_text(isolation.run_isolated("rope_frequencies", scope["mine"]))
    assert "in line  2: return d + undefined" in text
    file.unlink()  # a notebook's cell has no file: its text is sent
    linecache.cache[str(file)] = (1, None, ["first\n", "the text of the cell\n"], str(file))
    text = verdict_text(isolation.run_isolated("rope_frequencies", scope["mine"]))
    assert "in line  2: the text of the cell" in text


def test_cached_and_compiled_functions_travel_along():
    def exponents(D):
        return torch.arange(0, D, 2) / D

    def mine(helper):
        def rope_frequencies(head_dim, *, base=10_000.0):
            if head_dim % 2:
                raise ValueError(head_dim)
            return base ** -helper(head_dim)

        return rope_frequencies

    compiled_inside = program("import torch; exponents = torch.compile(lambda x: x + 1); exponents(torch.ones(2))")
    for right in (
        mine(functools.lru_cache(exponents)), mine(functools.cache(exponents)), mine(torch.compile(exponents)),
        torch.compile(mine(exponents)), functools.partial(mine(exponents), base=10_000.0), compiled_inside,
    ):  # fmt: skip
        found = isolation.run_isolated("rope_frequencies", right)
        if not isinstance(right, functools.partial):
            assert found.passed, verdict_text(found)
        assert found.broken is None


def test_what_cannot_be_unpacked_is_no_attempt():
    class Absent:
        def __reduce__(self):
            return importlib.import_module, ("a_module_that_is_not_there",)

    absent = Absent()

    def mine(head_dim, *, base=10_000.0):
        return absent

    with pytest.raises(ValueError, match="cannot be copied into the judge's process: .*a_module_that_is_not_there"):
        check("rope_frequencies", mine)
    assert progress.read()["exercises"] == {}


def test_a_folder_that_is_gone_and_a_dead_spare_do_no_harm(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    isolation.prepare()
    isolation._spare.kill()
    isolation._spare.wait()
    for _ in range(2):
        assert verdict("pass", 20.0).passed


@pytest.mark.parametrize("device", ["meta"])
def test_another_default_device_is_told_and_put_back(device):
    found = verdict(f"import torch; torch.set_default_device({device!r})", 20.0)
    assert "torch.set_default_device" in verdict_text(found) and "on another device" in verdict_text(found)


def test_warnings_are_told_without_the_judges_files():
    found = verdict("import warnings; warnings.warn('mind the gap')", 20.0)
    assert "  | UserWarning: mind the gap\n" in verdict_text(found) + "\n"


def test_closures_and_helpers_travel_along():
    power = 2

    def exponents(D):
        return torch.arange(0, D, power) / D

    def mine(head_dim, *, base=10_000.0):
        if head_dim % power:
            raise ValueError(head_dim)
        return base ** -exponents(head_dim)

    assert isolation.run_isolated("rope_frequencies", mine).passed


def test_no_process_is_left_behind():
    """The spare one alone waits, and ends when its input closes."""
    verdict("pass")
    isolation.prepare()
    spare = isolation._spare
    assert spare.poll() is None
    spare.stdin.close()
    assert spare.wait(timeout=60) == 0
    isolation._spare = None
