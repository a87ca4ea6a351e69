"""Layer norm and RMS norm beside torch's fused kernels, forward alone and with the backward pass."""

import torch
import torch.nn.functional as F

from lib.device import device
from lib.layer_norm import layer_norm
from lib.rms_norm import rms_norm


def with_backward(function, x, arriving):
    """One forward and one backward pass."""

    def run():
        return torch.autograd.grad(function(x), x, arriving)

    return run


def cases():
    """The stream of 2048 tokens, C = 1024."""
    shape = (2048, 1024)
    for dtype in (torch.float32, torch.bfloat16):
        x, arriving = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        weight, bias = (torch.randn(1024, device=device).to(dtype) for _ in range(2))
        kind = f"2048 × 1024, {str(dtype)[6:]}"
        pairs = {
            "layer_norm": (
                lambda x, w=weight, b=bias: layer_norm(x, w, b),
                lambda x, w=weight, b=bias: F.layer_norm(x, (1024,), w, b),
            ),
            "rms_norm": (lambda x, w=weight: rms_norm(x, w), lambda x, w=weight: F.rms_norm(x, (1024,), w, 1e-6)),
        }
        for name, (ours, theirs) in pairs.items():
            yield f"{name}, {kind}", lambda f=ours, x=x: f(x), lambda f=theirs, x=x: f(x)
            leaf = x.clone().requires_grad_()
            yield (
                f"{name} and backward, {kind}",
                with_backward(ours, leaf, arriving),
                with_backward(theirs, leaf, arriving),
            )
