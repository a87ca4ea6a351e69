"""Where the book computes: the one place that chooses a device."""

import os
import re

import torch


def _choose() -> torch.device:
    wanted = os.environ.get("BOOK_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", wanted):
        raise ValueError(f"BOOK_DEVICE: got {wanted!r}; allowed are 'cpu', 'cuda' and 'cuda:N'")
    if wanted != "cpu" and not torch.cuda.is_available():
        raise ValueError(
            f"BOOK_DEVICE: got {wanted!r}, but there is no CUDA device; unset it to run on the CPU"
        )
    return torch.device(wanted)


#: CUDA where there is one, else the CPU; the environment variable BOOK_DEVICE overrides it.
device: torch.device = _choose()
