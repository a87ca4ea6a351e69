"""softmax, log_softmax and logsumexp beside torch's fused kernels, forward alone and with the backward pass."""

import torch

from lib.device import device
from lib.softmax import log_softmax, logsumexp, softmax


def with_backward(function, x, arriving):
    """One forward and one backward pass."""

    def run():
        return torch.autograd.grad(function(x), x, arriving)

    return run


def cases():
    """Next-token logits of 64 positions, and attention scores of 32 heads over 512 keys."""
    for name, shape in (("64 × 32 000", (64, 32_000)), ("32 × 512 × 512", (32, 512, 512))):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(shape, device=device).to(dtype)
            kind = f"{name}, {str(dtype)[6:]}"
            for ours, theirs in (
                (softmax, torch.softmax),
                (log_softmax, torch.log_softmax),
                (logsumexp, torch.logsumexp),
            ):
                yield (
                    f"{ours.__name__}, {kind}",
                    lambda x=x, ours=ours: ours(x),
                    lambda x=x, theirs=theirs: theirs(x, -1),
                )
            leaf, arriving = x.clone().requires_grad_(), torch.randn(shape, device=device).to(dtype)
            yield (
                f"softmax and backward, {kind}",
                with_backward(softmax, leaf, arriving),
                with_backward(lambda x: torch.softmax(x, -1), leaf, arriving),
            )
