"""kl_k3 beside the line that GRPO trainers write, exp(d) − d − 1, forward and backward."""

import torch

from lib.device import device
from lib.kl_estimators import kl_estimate
from lib.masking import masked_mean


def cases():
    """64 answers of 1024 tokens."""
    logprobs = torch.randn(64, 1024, device=device, requires_grad=True)
    ref_logprobs = torch.randn(64, 1024, device=device)
    mask = torch.rand(64, 1024, device=device) < 0.8

    def plain():
        difference = ref_logprobs - logprobs
        return torch.autograd.grad(masked_mean(difference.exp() - difference - 1, mask), logprobs)

    yield "k3, 64 × 1024", lambda: torch.autograd.grad(kl_estimate(logprobs, ref_logprobs, mask), logprobs), plain
