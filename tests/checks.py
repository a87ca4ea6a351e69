"""What the tests of every topic ask of a function, whatever it computes."""

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def f64(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ln(probabilities) -> Tensor:
    """Log-probabilities, in float64, of probabilities that are easy to read."""
    return f64(probabilities).log()


def close(actual: Tensor, expected, *, atol: float, rtol: float = 0.0) -> None:
    """Equal in value, within the tolerance, and in shape; a NaN equals nothing."""
    expected = torch.as_tensor(expected, dtype=actual.dtype, device=actual.device)
    torch.testing.assert_close(actual, expected, atol=atol, rtol=rtol)


def same(actual: Tensor, expected: Tensor) -> None:
    """Equal to the last bit, in dtype and shape too."""
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)


def spread(x: Tensor) -> Tensor:
    """The same values as every second entry of a wider tensor, with zeros between: not contiguous."""
    view = torch.stack((x, torch.zeros_like(x)), dim=-1)[..., 0]
    assert not view.is_contiguous()
    return view


def leaves_inputs_alone(function: Callable, *args, **settings) -> None:
    """Neither a value nor the version counter of any tensor passed in has moved."""
    tensors = [x for x in (*args, *settings.values()) if isinstance(x, Tensor)]
    before = [(x.clone(), x._version) for x in tensors]
    function(*args, **settings)
    for tensor, (value, version) in zip(tensors, before, strict=True):
        assert tensor._version == version, "changed in place"
        torch.testing.assert_close(tensor, value, atol=0, rtol=0, equal_nan=True)


def value_and_gradients(function: Callable, *args, **settings) -> list[Tensor]:
    """The results, then the gradient of their weighted sum with respect to each floating-point argument."""
    args = [x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args]
    results = function(*args, **settings)
    results = results if isinstance(results, tuple) else (results,)
    leaves = [x for x in args if isinstance(x, Tensor) and x.requires_grad]
    if not any(x.requires_grad for x in results):
        return [x.detach() for x in results]
    # Weights 1, 2, 3, …: a plain sum would hide a gradient that lands on the wrong entry.
    total = sum((x * torch.arange(1, x.numel() + 1, device=x.device).view(x.shape)).sum() for x in results)
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return [x.detach() for x in results] + [g for g in gradients if g is not None]


def compiles(function: Callable, *args, **settings) -> None:
    """One graph without a break, and in it the eager values and gradients (float64 arguments: 1e-12 is rounding)."""
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected = value_and_gradients(function, *args, **settings)
    for ours, theirs in zip(value_and_gradients(compiled, *args, **settings), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def compiles_to_native_code(function: Callable, *args, **settings) -> None:
    """The default backend, which writes C++ on a CPU, gives the eager value; skips where no compiler is found."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler: g++ or clang++ on the PATH")
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True)
    torch.testing.assert_close(compiled(*args, **settings), function(*args, **settings), atol=1e-12, rtol=1e-12)
