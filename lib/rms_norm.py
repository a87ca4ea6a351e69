"""RMS normalisation over the features of each token, and its backward pass written by hand.

    rms_norm(x) = x / √(mean(x²) + ε) · weight

Zhang and Sennrich 2019 (arXiv 1910.07467): layer normalisation without the mean and the bias.

Computed in float32 or better and returned in the dtype of x, whatever the dtype of the weight.
Three conventions live side by side: torch multiplies by the weight and then rounds to the dtype of
x, the default here; Llama rounds first and multiplies in that dtype (`round_first=True`); Gemma
stores the weight minus 1 (`weight_offset=1.0`, added in float32). They differ by a rounding, and by
a weight that loads without an error into the wrong model. Left out: partial RMSNorm, the paper's
pRMSNorm.
"""

import torch
from torch import Tensor, nn

from lib.layer_norm import check_gradient, check_norm, check_size, sum_over_tokens
from lib.masking import at_least_float32


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    round_first: bool = False,
) -> Tensor:
    """x / √(mean(x²) + eps) · (weight_offset + weight) over the last axis, of x's shape and dtype.

    x: (..., C), floating point. weight: (C,) or None for 1. round_first: to the dtype of x before
    the weight, as Llama has it. Raises TypeError for another dtype, ValueError for another shape
    and for an eps below 0.
    """
    check_norm(x, eps, weight=weight)
    wide = at_least_float32(x)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is None:
        return normed.to(x.dtype)
    scale = at_least_float32(weight) + weight_offset
    if round_first:
        return normed.to(x.dtype) * scale.to(x.dtype)
    return (normed * scale).to(x.dtype)


def rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The gradients (dx, dweight) of `rms_norm`, given the one that arrives at its result.

        dx = (ĝ − x̂ · mean(ĝ · x̂)) / √(mean(x²) + eps),  ĝ = grad · weight,  x̂ = normalised x

    grad, x: (..., C). dx has the dtype of x, dweight (C,) is float32 or float64. Raises as
    `rms_norm` does, and ValueError where grad has not the shape of x.
    """
    check_norm(x, eps, weight=weight)
    check_gradient(grad, x)
    wide, g = at_least_float32(x), at_least_float32(grad)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = wide * scale
    ours = g if weight is None else g * (at_least_float32(weight) + weight_offset)
    dx = scale * (ours - normed * (ours * normed).mean(-1, keepdim=True))
    return dx.to(x.dtype), sum_over_tokens(g * normed)


class RMSNorm(nn.Module):
    """`rms_norm` with its own `weight`, (C,), so that the scale is 1 in the beginning."""

    def __init__(
        self,
        hidden_size: int,
        *,
        eps: float = 1e-6,
        weight_offset: float = 0.0,
        round_first: bool = False,
    ):
        super().__init__()
        check_size(hidden_size)
        self.eps, self.weight_offset, self.round_first = eps, weight_offset, round_first
        self.weight = nn.Parameter(torch.full((hidden_size,), 1.0 - weight_offset))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., C)."""
        return rms_norm(
            x,
            self.weight,
            eps=self.eps,
            weight_offset=self.weight_offset,
            round_first=self.round_first,
        )
