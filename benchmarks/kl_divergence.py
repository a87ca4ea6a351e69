"""distillation_loss beside F.log_softmax and F.kl_div, forward and backward, in both directions."""

import torch
import torch.nn.functional as F

from lib.device import device
from lib.kl_divergence import distillation_loss


def cases():
    """64 tokens, the vocabulary of Llama 3, temperature 2."""
    student = torch.randn(64, 128_256, device=device, requires_grad=True)
    teacher = torch.randn(64, 128_256, device=device)
    for direction in ("forward", "reverse"):

        def ours(direction=direction):
            return torch.autograd.grad(
                distillation_loss(student, teacher, temperature=2.0, direction=direction), student
            )

        def fused(direction=direction):
            q, p = ((x / 2.0).log_softmax(-1) for x in (student, teacher))
            pair = (q, p) if direction == "forward" else (p, q)
            return torch.autograd.grad(4.0 * F.kl_div(*pair, log_target=True, reduction="batchmean"), student)

        yield f"{direction}, 64 × 128 256", ours, fused
