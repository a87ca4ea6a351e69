"""Softmax, its logarithm, and the log-sum-exp that both are made of.

    logsumexp(x) = m + log Σⱼ exp(xⱼ − m),  m = max x
    log_softmax(x)ᵢ = (xᵢ − m)/T − log Σⱼ exp((xⱼ − m)/T)
    softmax(x)ᵢ = exp((xᵢ − m)/T) / Σⱼ exp((xⱼ − m)/T)

Bridle 1990 gave softmax its name (doi 10.1007/978-3-642-76153-9_28); Blanchard, Higham and Higham
2021 analyse its rounding errors (arXiv 1909.03469). The maximum cancels, in the value and in the
gradient, so it is held constant; with it exp() stays within [0, 1]. It is subtracted before the
division by the temperature T, which then cannot overflow either. Computed in float32 or better,
returned in the input's dtype: in float16 a sum of 65 536 ones is already infinite.

Conventions, all as in torch: an empty axis gives an empty result (logsumexp: −∞); a row that is −∞
throughout, or holds +∞ or NaN, has no distribution and gives NaN (logsumexp: −∞, +∞, NaN, with a
NaN gradient). Attention removes fully masked rows before they come here. Left out: the running form
of the sum (topic attention).
"""

import torch
from torch import Tensor

#: The temperatures that float32 can divide by, its normal numbers.
MIN_TEMPERATURE = torch.finfo(torch.float32).tiny
MAX_TEMPERATURE = torch.finfo(torch.float32).max


def logsumexp(x: Tensor, dim: int = -1, *, keepdim: bool = False) -> Tensor:
    """log Σⱼ exp(xⱼ) along `dim`, in nats: x without that axis, or with size 1 if keepdim.

    x: floating point, at least one axis; returned in its dtype. Raises TypeError for another dtype,
    ValueError for a `dim` that x does not have.
    """
    _check(x, dim)
    wide = _at_least_float32(x)
    top = _largest(wide, dim)
    top = torch.where(top.isinf(), 0.0, top)  # ∞ − ∞ would be NaN
    result = (top + (wide - top).exp().sum(dim, keepdim=True).log()).to(x.dtype)
    return result if keepdim else result.squeeze(dim)


def log_softmax(x: Tensor, dim: int = -1, *, temperature: float = 1.0) -> Tensor:
    """xᵢ/T − logsumexp(x/T) along `dim`: log-probabilities in nats, of the shape and dtype of x.

    x: floating point, at least one axis; −∞ marks what is excluded. Raises TypeError for another
    dtype, ValueError for a `dim` that x does not have and for a temperature that is not positive.
    """
    _check(x, dim, temperature)
    wide = _at_least_float32(x)
    shifted = (wide - _largest(wide, dim)) / temperature  # ≤ 0
    return (shifted - shifted.exp().sum(dim, keepdim=True).log()).to(x.dtype)


def softmax(x: Tensor, dim: int = -1, *, temperature: float = 1.0) -> Tensor:
    """exp(xᵢ/T) / Σⱼ exp(xⱼ/T) along `dim`: probabilities, of the shape and dtype of x.

    x: floating point, at least one axis; −∞ gives 0. Raises TypeError for another dtype, ValueError
    for a `dim` that x does not have and for a temperature that is not positive.
    """
    _check(x, dim, temperature)
    wide = _at_least_float32(x)
    exps = ((wide - _largest(wide, dim)) / temperature).exp()  # in [0, 1], one of them 1
    return (exps / exps.sum(dim, keepdim=True)).to(x.dtype)


def _at_least_float32(x: Tensor) -> Tensor:
    """float16 and bfloat16 become float32; float32 and float64 stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _largest(x: Tensor, dim: int) -> Tensor:
    """The maximum along `dim`, with size 1 there, as a constant; 0 for an empty axis."""
    constant = x.detach()
    if x.shape[dim] == 0:  # has no maximum, but a sum
        return constant.sum(dim, keepdim=True)
    return constant.amax(dim, keepdim=True)


def _check(x: Tensor, dim: int, temperature: float = 1.0) -> None:
    """An error that says which argument cannot be used, and what could."""
    if not x.is_floating_point():
        raise TypeError(f"x: dtype is {x.dtype}, must be floating point; pass x.float()")
    if x.ndim == 0:
        raise ValueError(f"x: shape is {tuple(x.shape)}, must have at least one axis")
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(
            f"dim: got {dim}, must be {-x.ndim} to {x.ndim - 1} for x of shape {tuple(x.shape)}"
        )
    if not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise ValueError(
            f"temperature: got {temperature}, must be {MIN_TEMPERATURE:.1e} to "
            f"{MAX_TEMPERATURE:.1e}; for the limit 0 take the argmax"
        )
