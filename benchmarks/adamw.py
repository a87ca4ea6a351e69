"""AdamW.step beside torch.optim.AdamW's, float32, and clip_grad_norm_ beside PyTorch's."""

import torch

from lib import adamw
from lib.device import device


def _parameters(count: int, size: int) -> list[torch.Tensor]:
    parameters = [torch.randn(size, size, device=device, requires_grad=True) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def cases():
    """A few large matrices and many small ones; the peer in its default form and fused."""
    for name, count, size in (("4 of 1024²", 4, 1024), ("64 of 64²", 64, 64)):
        ours = adamw.AdamW(_parameters(count, size))
        for peer, settings in (("default", {}), ("fused", {"fused": True})):
            theirs = torch.optim.AdamW(_parameters(count, size), **settings)
            yield f"step, {name}, peer {peer}", ours.step, theirs.step
        parameters = _parameters(count, size)
        yield (
            f"clip_grad_norm_, {name}",
            lambda parameters=parameters: adamw.clip_grad_norm_(parameters, 1.0),
            lambda parameters=parameters: torch.nn.utils.clip_grad_norm_(parameters, 1.0),
        )
