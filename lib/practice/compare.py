"""Two results side by side: what differs, told in few words."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lib.practice.language import Text

EXPECTED, GOT = Text("expected", "应为"), Text("got", "得到")
AT = Text("first at", "首个位置")


@dataclass(frozen=True)
class Failure:
    """Why a case fails: what is wrong, then lines of (what, value)."""

    what: Text
    lines: tuple[tuple[Text, Text | str], ...] = ()


def number(x: float) -> str:
    """0.0823, -1.2e-07, 500000, inf, True."""
    if isinstance(x, float) and x.is_integer() and abs(x) < 1e9:
        return str(int(x))
    return str(x) if isinstance(x, bool | int) else f"{x:.5g}"


def describe(value: Any) -> str:
    """A value in short: the numbers if they are few, else shape and dtype."""
    if isinstance(value, Tensor):
        kind = f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        if value.numel() == 1:
            return f"{number(value.item())} ({kind})"
        if 0 < value.numel() <= 8:
            return f"{_nested(value.tolist())} ({kind})"
        return kind
    if isinstance(value, float):
        return number(value)
    if isinstance(value, tuple | list):
        return "(" + ", ".join(describe(v) for v in value) + ")"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _nested(values: Any) -> str:
    return "[" + ", ".join(map(_nested, values)) + "]" if isinstance(values, list) else number(values)


def compare(
    expected: Any, got: Any, tolerance: float, same_dtype: bool = True, atol: float | None = None
) -> Failure | None:
    """What differs between two results, or None."""
    if isinstance(expected, tuple | list):
        if not isinstance(got, tuple | list) or len(got) != len(expected):
            return _kind(expected, got)
        return next(filter(None, (compare(e, g, tolerance, same_dtype, atol) for e, g in zip(expected, got))), None)
    if isinstance(expected, Tensor):
        if not isinstance(got, Tensor):
            return _kind(expected, got)
        return _compare_tensors(expected.detach(), got.detach(), tolerance, same_dtype, atol)
    if isinstance(expected, float) and isinstance(got, int | float) and not isinstance(got, bool):
        equal = math.isclose(expected, got, rel_tol=tolerance, abs_tol=tolerance)
        return None if equal else _differs(expected, got)
    if isinstance(got, Tensor) or type(got) is not type(expected) or got != expected:
        return _kind(expected, got) if type(got) is not type(expected) else _differs(expected, got)
    return None


def _kind(expected: Any, got: Any) -> Failure:
    what = Text("another type of result", "返回值类型不对")
    if got is None:
        what = Text("nothing is returned", "没有返回值")
    return Failure(what, ((EXPECTED, _type(expected)), (GOT, _type(got))))


def _type(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} ({', '.join(map(_type, value))})"
    return f"Tensor {describe(value)}" if isinstance(value, Tensor) else f"{type(value).__name__} {describe(value)}"


def _differs(expected: Any, got: Any) -> Failure:
    return Failure(Text("another value", "数值不对"), ((EXPECTED, describe(expected)), (GOT, describe(got))))


def _compare_tensors(
    expected: Tensor, got: Tensor, tolerance: float, same_dtype: bool, atol: float | None
) -> Failure | None:
    if got.shape != expected.shape:
        lines = ((EXPECTED, str(tuple(expected.shape))), (GOT, str(tuple(got.shape))))
        return Failure(Text("another shape", "形状不对"), lines)
    if same_dtype and got.dtype != expected.dtype or got.is_floating_point() != expected.is_floating_point():
        lines = ((EXPECTED, str(expected.dtype)), (GOT, str(got.dtype)))
        return Failure(Text("another dtype", "数据类型不对"), lines)
    if got.device != expected.device:
        return Failure(
            Text("on another device", "设备不对"), ((EXPECTED, str(expected.device)), (GOT, str(got.device)))
        )
    e, g = expected.double(), got.double()
    close = torch.isclose(g, e, rtol=tolerance, atol=tolerance if atol is None else atol, equal_nan=True)
    if close.all():
        return None
    lines = [(EXPECTED, describe(expected)), (GOT, describe(got))]
    if describe(expected) == describe(got):
        error = (g - e).abs().max().item()
        told = Text(f"{error:.1e}, allowed {tolerance:.0e}", f"{error:.1e}，允许 {tolerance:.0e}")
        lines.append((Text("off by", "相差"), told))
    if expected.numel() > 1:
        at = tuple((~close).nonzero()[0].tolist())
        place = ", ".join(map(str, at))
        pair = number(e[at].item()), number(g[at].item())
        lines.append((AT, Text(f"[{place}]: {pair[0]}, not {pair[1]}", f"[{place}]：{pair[0]}，不是 {pair[1]}")))
        count = int((~close).sum())
        what = Text(f"{count} of {close.numel()} numbers differ", f"{close.numel()} 个数里有 {count} 个不对")
        return Failure(what, tuple(lines))
    return Failure(Text("another value", "数值不对"), tuple(lines))
