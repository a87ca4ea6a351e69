"""lib.device: BOOK_DEVICE, and what is chosen without it."""

import re
import runpy
from pathlib import Path

import pytest
import torch

import lib.device


@pytest.fixture
def choose(monkeypatch):
    """What a fresh import of lib.device would choose, given BOOK_DEVICE (None: unset) and whether there is CUDA."""

    def choice(wanted: str | None, *, cuda: bool) -> torch.device:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        if wanted is None:
            monkeypatch.delenv("BOOK_DEVICE", raising=False)
        else:
            monkeypatch.setenv("BOOK_DEVICE", wanted)
        return runpy.run_path(str(Path(lib.device.__file__)))["device"]

    return choice


@pytest.mark.parametrize(
    ("wanted", "cuda", "expected"),
    [
        (None, False, "cpu"),
        (None, True, "cuda"),
        ("", False, "cpu"),
        ("", True, "cuda"),
        ("cpu", False, "cpu"),
        ("cpu", True, "cpu"),
        ("cuda", True, "cuda"),
        ("cuda:1", True, "cuda:1"),
    ],
)
def test_the_choice(choose, wanted, cuda, expected):
    assert choose(wanted, cuda=cuda) == torch.device(expected)


@pytest.mark.parametrize("wanted", ["gpu", "mps", "CPU", "cpu0", "cpu:0", "cuda1", " cuda", "cuda:0 ", ":0"])
@pytest.mark.parametrize("cuda", [False, True])
def test_another_name_is_refused(choose, wanted, cuda):
    with pytest.raises(ValueError, match=rf"^BOOK_DEVICE: got '{re.escape(wanted)}'.*'cpu', 'cuda' and 'cuda:N'"):
        choose(wanted, cuda=cuda)


@pytest.mark.parametrize("wanted", ["cuda", "cuda:0"])
def test_cuda_that_is_not_there_is_refused(choose, wanted):
    with pytest.raises(ValueError, match=rf"^BOOK_DEVICE: got '{wanted}'.*no CUDA device"):
        choose(wanted, cuda=False)


@pytest.mark.parametrize("wanted", ["cpu:x", "cuda:", "cuda:x"])
def test_a_malformed_index_is_refused(choose, wanted):
    with pytest.raises(ValueError, match=rf"^BOOK_DEVICE: got '{wanted}'"):
        choose(wanted, cuda=True)


def test_the_module_has_chosen():
    assert isinstance(lib.device.device, torch.device)
    assert lib.device.device.type in ("cpu", "cuda")
    assert torch.ones(2, device=lib.device.device).sum().item() == 2


@pytest.mark.gpu
def test_a_gpu_is_chosen_where_there_is_one(choose):
    assert choose(None, cuda=True).type == "cuda"
    assert torch.ones(2, device=choose("cuda:0", cuda=True)).sum().item() == 2
