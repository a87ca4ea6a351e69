"""grpo_loss beside its formula written out without checks and bounds, forward and backward."""

import torch

from lib.device import device
from lib.grpo import grpo_loss


def cases():
    """64 answers of 1024 tokens, with and without the KL penalty."""
    logprobs = torch.randn(64, 1024, device=device).sub(2).requires_grad_()
    old = logprobs.detach() + 0.1 * torch.randn(64, 1024, device=device)
    ref = logprobs.detach() + 0.1 * torch.randn(64, 1024, device=device)
    mask = torch.arange(1024, device=device) < torch.randint(1, 1025, (64, 1), device=device)
    advantages = torch.randn(64, device=device)

    def plain(beta):
        ratio = (logprobs - old).exp()
        gain = advantages[:, None]
        losses = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        if beta:
            difference = ref - logprobs
            losses = losses + beta * (difference.exp() - difference - 1)
        return torch.autograd.grad(((losses * mask).sum(-1) / mask.sum(-1)).mean(), logprobs)

    def ours(beta):
        return torch.autograd.grad(grpo_loss(logprobs, old, advantages, mask, ref_logprobs=ref, beta=beta), logprobs)

    for beta in (0.0, 0.04):
        yield f"loss, beta {beta}, 64 × 1024", lambda beta=beta: ours(beta), lambda beta=beta: plain(beta)
