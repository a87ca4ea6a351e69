"""Layer normalisation over the features of each token, and its backward pass written by hand.

    layer_norm(x) = (x − μ) / √(σ² + ε) · weight + bias

with μ and σ² the mean and the variance of the C features of one token. Ba, Kiros and Hinton 2016
(arXiv 1607.06450).

Conventions, as in torch: the variance divides by C, not C − 1; ε stands under the root and is 1e-5;
computed in float32 or better, weight and bias included, and returned in the dtype of x. Left out:
statistics over several axes at once, which no language model uses.
"""

import torch
from torch import Tensor, nn

from lib.masking import at_least_float32, check_floating


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    """(x − mean) / √(var + eps) · weight + bias over the last axis, in the shape and dtype of x.

    x: (..., C), floating point. weight, bias: (C,) or None for 1 and 0. Raises TypeError for
    another dtype, ValueError for another shape and for an eps below 0.
    """
    check_norm(x, eps, weight=weight, bias=bias)
    wide = at_least_float32(x)
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        normed = normed * weight
    if bias is not None:
        normed = normed + bias
    return normed.to(x.dtype)


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients (dx, dweight, dbias) of `layer_norm`, given the one that arrives at its result.

        dx = (ĝ − mean(ĝ) − x̂ · mean(ĝ · x̂)) / √(var + eps),  ĝ = grad · weight,  x̂ = normalised x

    grad, x: (..., C). dx has the dtype of x, dweight and dbias (C,) are float32 or float64. Raises
    as `layer_norm` does, and ValueError where grad has not the shape of x.
    """
    check_norm(x, eps, weight=weight)
    check_gradient(grad, x)
    x_wide, g = at_least_float32(x), at_least_float32(grad)
    centred = x_wide - x_wide.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    normed = centred * scale
    ours = g if weight is None else g * weight
    along = (ours * normed).mean(-1, keepdim=True)
    dx = scale * (ours - ours.mean(-1, keepdim=True) - normed * along)
    return dx.to(x.dtype), sum_over_tokens(g * normed), sum_over_tokens(g)


class LayerNorm(nn.Module):
    """`layer_norm` with its own `weight` and `bias`, (C,), at 1 and 0 in the beginning."""

    def __init__(self, hidden_size: int, *, eps: float = 1e-5, bias: bool = True):
        super().__init__()
        check_size(hidden_size)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., C)."""
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


def check_norm(x: Tensor, eps: float, **parameters: Tensor | None) -> None:
    """An error that names the argument of a norm over the last axis that cannot be used."""
    check_floating(x=x, **parameters)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(
            f"x: shape is {tuple(x.shape)}, must be (..., C) with at least one feature"
        )
    for name, parameter in parameters.items():
        if parameter is not None and parameter.shape != x.shape[-1:]:
            raise ValueError(
                f"{name}: shape is {tuple(parameter.shape)}, must be ({x.shape[-1]},), the "
                f"features of x of shape {tuple(x.shape)}"
            )
    check_eps(eps)


def sum_over_tokens(x: Tensor) -> Tensor:
    """(..., C) → (C,)."""
    return x.reshape(-1, x.shape[-1]).sum(0)


def check_gradient(grad: Tensor, x: Tensor) -> None:
    """ValueError where the gradient has not the shape of x."""
    check_floating(grad=grad)
    if grad.shape != x.shape:
        raise ValueError(f"grad: shape is {tuple(grad.shape)}, must be x's, {tuple(x.shape)}")


def check_eps(eps: float) -> None:
    """ValueError for an eps below 0, or NaN."""
    if not eps >= 0:
        raise ValueError(f"eps: got {eps}, must be 0 or more")


def check_size(hidden_size: int) -> None:
    """ValueError for a size below 1."""
    if hidden_size < 1:
        raise ValueError(f"hidden_size: got {hidden_size}, must be at least 1")
