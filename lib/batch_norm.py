"""Batch normalisation: each channel by its mean and variance over the batch; running statistics.

    training:    y = (x − μ_batch) / √(σ²_batch + ε) · weight + bias
    evaluation:  y = (x − μ_running) / √(σ²_running + ε) · weight + bias

Ioffe and Szegedy 2015 (arXiv 1502.03167), algorithms 1 and 2.

Conventions, as in torch: the batch is normalised by the biased variance, divided by n, and the
running variance takes the unbiased one, divided by n − 1; new = (1 − momentum) · old + momentum ·
batch, so `momentum` is the share of what is new. Channels are axis 1, all other axes are averaged
over: (N, C), (N, C, L) or (N, C, H, W). Padding is not known of. Left out: statistics over several
devices.
"""

import torch
from torch import Tensor, nn

from lib.layer_norm import check_eps
from lib.masking import at_least_float32, check_floating


def batch_norm_train(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor]:
    """The batch normalised by its own statistics, then the new running mean and variance.

    x: (N, C, ...), floating point; the result has its shape and dtype. running_mean, running_var,
    weight, bias: (C,); nothing is changed in place. Raises TypeError for another dtype, ValueError
    for another shape, a momentum outside [0, 1], an eps below 0, and for one value per channel,
    which has no variance.
    """
    _check(x, eps, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    _check_momentum(momentum)
    n = x.numel() // x.shape[1]
    if n < 2:
        raise ValueError(
            f"x: shape is {tuple(x.shape)}, {n} values per channel; training needs at least 2, "
            "or use the running statistics"
        )
    wide, others = at_least_float32(x), (0, *range(2, x.ndim))
    mean, var = wide.mean(others), wide.var(others, correction=0)
    y = _normalised(wide, mean, var, weight, bias, eps).to(x.dtype)
    fresh = mean.detach(), var.detach() * n / (n - 1)
    old = running_mean, running_var
    new_mean, new_var = ((a + momentum * (b - a)).to(a.dtype) for a, b in zip(old, fresh))
    return y, new_mean, new_var


def batch_norm_eval(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> Tensor:
    """x normalised by statistics that are given: each row on its own, whoever stands beside it.

    x: (N, C, ...); the result has its shape and dtype. Raises as `batch_norm_train` does, except
    for the number of values: one is enough.
    """
    _check(x, eps, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias)
    wide = at_least_float32(x)
    return _normalised(wide, running_mean, running_var, weight, bias, eps).to(x.dtype)


class BatchNorm(nn.Module):
    """Batch normalisation with parameters and running statistics, for any number of axes after C.

    Names as in torch's BatchNorm1d and BatchNorm2d, so their weights load. momentum=None averages
    all batches alike.
    """

    def __init__(self, num_features: int, *, eps: float = 1e-5, momentum: float | None = 0.1):
        super().__init__()
        if num_features < 1:
            raise ValueError(f"num_features: got {num_features}, must be at least 1")
        _check_momentum(0.0 if momentum is None else momentum)
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        """x: (N, C, ...). In training mode the buffers move, in evaluation they are used."""
        statistics, affine = (self.running_mean, self.running_var), (self.weight, self.bias)
        if not self.training:
            return batch_norm_eval(x, *statistics, *affine, eps=self.eps)
        count = self.num_batches_tracked + 1
        share = 1 / count.to(self.running_mean) if self.momentum is None else self.momentum
        y, mean, var = batch_norm_train(x, *statistics, *affine, momentum=share, eps=self.eps)
        self.running_mean.copy_(mean)
        self.running_var.copy_(var)
        self.num_batches_tracked.copy_(count)
        return y


def _normalised(x: Tensor, mean: Tensor, var: Tensor, weight, bias, eps: float) -> Tensor:
    shape = (1, -1, *[1] * (x.ndim - 2))  # (1, C, 1, …): channels are axis 1
    y = (x - mean.view(shape)) * torch.rsqrt(var + eps).view(shape)
    if weight is not None:
        y = y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


def _check_momentum(momentum: float | Tensor) -> None:
    if not isinstance(momentum, Tensor) and not 0 <= momentum <= 1:
        raise ValueError(f"momentum: got {momentum}, must be 0 to 1, the share of the new batch")


def _check(x: Tensor, eps: float, **parameters: Tensor | None) -> None:
    check_floating(x=x, **parameters)
    if x.ndim < 2:
        raise ValueError(f"x: shape is {tuple(x.shape)}, must be (N, C) or (N, C, ...)")
    for name, parameter in parameters.items():
        if parameter is not None and parameter.shape != x.shape[1:2]:
            raise ValueError(
                f"{name}: shape is {tuple(parameter.shape)}, must be ({x.shape[1]},), the channels "
                f"of x of shape {tuple(x.shape)}"
            )
    check_eps(eps)
