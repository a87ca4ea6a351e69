"""Group relative policy optimisation: compare an answer with its siblings, then take PPO's clipped
step. No critic.

Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), section 4.1. One prompt gets G answers; an
answer's advantage is its reward minus the group's mean, over the group's standard deviation, the
same for each of its tokens.

'GRPO' names several formulas. Those that differ have names here: how the standard deviation is
taken (`STD_CONVENTIONS`), how token losses become one number (`NORMALIZERS`), and the siblings
Dr.GRPO, GSPO, CISPO and RLOO (`METHODS`). The paper averages inside each answer first, then over
answers: `sequence_mean`, the default.

All losses are to be minimised. Old and reference log-probabilities and advantages are constants:
they are detached here, so passing the current `logprobs` as the old ones is safe. Log-ratios are
held within ±20 nats, and half-precision input is computed and returned in float32. Left out:
sampling, the reward and the training loop.
"""

import torch
from torch import Tensor

from lib.kl_estimators import kl_k3
from lib.masking import (
    at_least_float32,
    check_floating,
    check_mask,
    check_not_empty,
    check_same_shape,
    masked_log_ratio,
    masked_mean,
)

#: How the group's standard deviation is taken: the divisor is G − ddof, eps is added to it.
STD_CONVENTIONS = {
    "trl": {"ddof": 1, "eps": 1e-4},
    "verl": {"ddof": 1, "eps": 1e-6},
    "minimind": {"ddof": 0, "eps": 1e-4},
}

#: How token losses become one number → what TRL calls it (loss_type).
NORMALIZERS = {
    # over an answer's tokens, then over answers: the tokens of short answers weigh more
    "sequence_mean": ("grpo",),
    # over all valid tokens: every token weighs the same, so long answers weigh more
    "token_mean": ("bnpo", "dapo"),
    # over answers × max_length: no token's weight depends on any answer's length
    "constant": ("dr_grpo",),
}


def grpo_advantages(rewards: Tensor, *, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Aᵢ = (rᵢ − mean(r)) / (std(r) + eps) within each group: (B, G) → (B, G).

    ddof: 1 divides the variance by G − 1 (TRL, verl), 0 by G; the paper leaves it open. Equal
    rewards, a group of one included, give exactly 0. Rewards may be integers or bools. Raises
    ValueError for G = 0 and for a reward that is not finite.
    """
    if ddof not in (0, 1) or eps < 0:
        raise ValueError(f"ddof, eps: got {ddof} and {eps}, must be 0 or 1 and at least 0")
    centred, equal = _centred(rewards)
    variance = centred.square().sum(-1, keepdim=True) / max(rewards.shape[1] - ddof, 1)
    return centred / torch.where(equal, 1.0, variance.sqrt() + eps)


def dr_grpo_advantages(rewards: Tensor) -> Tensor:
    """Aᵢ = rᵢ − mean(r): (B, G) → (B, G).

    No division, so prompts that are nearly solved, or nearly hopeless, are not blown up. Liu et al.
    2025, Understanding R1-Zero-like training (arXiv 2503.20783).
    """
    return _centred(rewards)[0]


def rloo_advantages(rewards: Tensor) -> Tensor:
    """Aᵢ = rᵢ − mean of the *other* rewards = G/(G − 1)·(rᵢ − mean(r)): (B, G) → (B, G).

    A group of one gives 0. Ahmadian et al. 2024, Back to basics (arXiv 2402.14740).
    """
    centred, _ = _centred(rewards)
    return centred * (rewards.shape[1] / max(rewards.shape[1] - 1, 1))


def _centred(rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards minus their group's mean, and which groups have equal rewards: (B, G), (B, 1) bool.

    Equal rewards give exactly 0. Rounding does not: seven times 0.1 has a float32 mean that is off
    by 7e-9, and divided by a std as small that is an advantage of −0.4.
    """
    if rewards.ndim != 2 or rewards.shape[1] == 0:
        raise ValueError(f"rewards: shape is {tuple(rewards.shape)}, must be (B, G) with G ≥ 1")
    rewards = at_least_float32(rewards.detach() if rewards.is_floating_point() else rewards.float())
    if not torch.compiler.is_compiling() and not rewards.isfinite().all():
        bad = tuple((~rewards.isfinite()).nonzero()[0].tolist())
        raise ValueError(
            f"rewards: {rewards[bad].item()} at {bad} would spoil its whole group, must be finite"
        )
    equal = rewards.amax(-1, keepdim=True) == rewards.amin(-1, keepdim=True)  # (B, 1)
    return torch.where(equal, 0.0, rewards - rewards.mean(-1, keepdim=True)), equal


def aggregate(
    losses: Tensor,
    mask: Tensor | None = None,
    *,
    normalizer: str = "sequence_mean",
    max_length: int | None = None,
    total_tokens: int | None = None,
) -> Tensor:
    """Token losses (..., T) to one number, by a name of `NORMALIZERS`.

    max_length: for 'constant', the longest answer allowed. total_tokens: for 'token_mean', the
    valid tokens of the whole optimiser step when `losses` is one micro-batch of it. The
    micro-batches' results are then added; a mean of their means would depend on the split.
    """
    _check_normalizer(normalizer, max_length, total_tokens)
    if normalizer == "sequence_mean":
        return masked_mean(losses, mask, dim=-1).mean()
    if normalizer == "token_mean" and total_tokens is None:
        return masked_mean(losses, mask)
    mask = check_mask(mask, losses)
    if total_tokens is None:  # a micro-batch of a larger step may be empty
        check_not_empty(mask)
    total = torch.where(mask, at_least_float32(losses), 0.0).sum()
    if normalizer == "constant":
        total_tokens = losses[..., 0].numel() * max_length  # answers × max_length
    return total / total_tokens


def grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    ref_logprobs: Tensor | None = None,
    beta: float = 0.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    normalizer: str = "sequence_mean",
    max_length: int | None = None,
    total_tokens: int | None = None,
) -> Tensor:
    """−min(ρA, clip(ρ, 1 − clip_low, 1 + clip_high)·A) + β·k3 per token, then `aggregate`.

    ρ = π/π_old per token. logprobs, old_logprobs, ref_logprobs, mask: (N, T), or any leading axes;
    advantages: the same without T. old_logprobs are those recorded while sampling. beta: weight of
    the KL penalty to ref_logprobs (the paper: 0.04; TRL's default: 0). DAPO's decoupled clip is
    clip_high > clip_low.
    """
    mask = _check_loss(logprobs, old_logprobs, advantages, mask, clip_low, clip_high)
    ratio = masked_log_ratio(logprobs, old_logprobs.detach(), mask).exp()  # (N, T)
    losses = clipped_surrogate(ratio, advantages.detach().unsqueeze(-1), clip_low, clip_high)
    losses = losses + kl_penalty(logprobs, ref_logprobs, mask, beta)
    return aggregate(
        losses, mask, normalizer=normalizer, max_length=max_length, total_tokens=total_tokens
    )


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """−min(ρA, clip(ρ)·A), PPO's objective as a loss: the shapes broadcast.

    The minimum comes after the product with A: taken on the ratios alone, it would clip the wrong
    side for A < 0.
    """
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def kl_penalty(
    logprobs: Tensor, ref_logprobs: Tensor | None, mask: Tensor, beta: float
) -> Tensor | float:
    """β·k3 per token, with samples from π: (N, T), or 0 where beta is 0."""
    if beta < 0:
        raise ValueError(
            f"beta: got {beta}, must be at least 0: a negative one rewards drifting away"
        )
    if beta == 0:
        return 0.0
    if ref_logprobs is None:
        raise ValueError(f"ref_logprobs: got None with beta {beta}; a KL penalty needs them")
    return beta * kl_k3(logprobs, ref_logprobs.detach(), mask)


def dr_grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    max_length: int,
    **settings,
) -> Tensor:
    """`grpo_loss` over answers × max_length, so lengths change no weight (arXiv 2503.20783)."""
    settings |= {"normalizer": "constant", "max_length": max_length}
    return grpo_loss(logprobs, old_logprobs, advantages, mask, **settings)


def gspo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    ref_logprobs: Tensor | None = None,
    beta: float = 0.0,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Tensor:
    """`grpo_loss` with one ratio an answer, s = exp(mean over its tokens of log π/π_old): a scalar.

    Zheng et al. 2025, Group sequence policy optimization (arXiv 2507.18071), the source
    of the tiny clip range.
    """
    mask = _check_loss(logprobs, old_logprobs, advantages, mask, clip_low, clip_high)
    log_ratio = masked_log_ratio(logprobs, old_logprobs.detach(), mask)  # (N, T)
    ratio = masked_mean(log_ratio, mask, dim=-1).exp()  # (N,)
    losses = clipped_surrogate(ratio, advantages.detach(), clip_low, clip_high)  # (N,)
    losses = losses.unsqueeze(-1).expand(logprobs.shape)  # (N, T)
    losses = losses + kl_penalty(logprobs, ref_logprobs, mask, beta)
    return aggregate(losses, mask)


def cispo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    ref_logprobs: Tensor | None = None,
    beta: float = 0.0,
    max_ratio: float = 5.0,
    total_tokens: int | None = None,
) -> Tensor:
    """−sg(min(ρ, max_ratio))·A·log π per token, over all valid tokens: a scalar. sg: no gradient.

    The weight is clipped, so no token loses its gradient. max_ratio is the bound itself, not a
    distance from 1. MiniMax 2025, MiniMax-M1 (arXiv 2506.13585).
    """
    mask = _check_loss(logprobs, old_logprobs, advantages, mask)
    if max_ratio <= 0:
        raise ValueError(f"max_ratio: got {max_ratio}, must be positive")
    weight = masked_log_ratio(logprobs, old_logprobs, mask).exp().clamp(max=max_ratio).detach()
    losses = -weight * advantages.detach().unsqueeze(-1) * _valid(logprobs, mask)
    losses = losses + kl_penalty(logprobs, ref_logprobs, mask, beta)
    return aggregate(losses, mask, normalizer="token_mean", total_tokens=total_tokens)


def rloo_loss(logprobs: Tensor, advantages: Tensor, mask: Tensor | None = None) -> Tensor:
    """−A·log π(answer), the mean over answers: REINFORCE on whole answers, on-policy, no ratio, no
    clip.

    The log-probability of an answer is the *sum* over its tokens (arXiv 2402.14740). Shapes as in
    `grpo_loss`.
    """
    mask = _check_loss(logprobs, None, advantages, mask)
    check_not_empty(mask)
    return -(advantages.detach() * _valid(logprobs, mask).sum(-1)).mean()


#: Method → (advantages of the rewards, loss).
METHODS = {
    "grpo": (grpo_advantages, grpo_loss),
    "dr_grpo": (dr_grpo_advantages, dr_grpo_loss),
    "gspo": (grpo_advantages, gspo_loss),
    "cispo": (grpo_advantages, cispo_loss),
    "rloo": (rloo_advantages, rloo_loss),
}


def clip_fraction(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """The share of valid tokens whose gradient the clip cuts off: ρ beyond the bound on the side
    that A pushes to.
    """
    mask = _check_loss(logprobs, old_logprobs, advantages, mask, clip_low, clip_high)
    ratio = masked_log_ratio(logprobs.detach(), old_logprobs.detach(), mask).exp()
    sign = advantages.unsqueeze(-1)
    cut = ((ratio > 1 + clip_high) & (sign > 0)) | ((ratio < 1 - clip_low) & (sign < 0))
    return masked_mean(cut.float(), mask)


def zero_advantage_share(rewards: Tensor) -> Tensor:
    """The share of groups whose rewards are all equal, which teach nothing: (B, G) → a scalar."""
    return _centred(rewards)[1].float().mean()


def _valid(logprobs: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, at_least_float32(logprobs), 0.0)


def _check_loss(
    logprobs: Tensor,
    old_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor | None,
    clip_low: float = 0.0,
    clip_high: float = 0.0,
) -> Tensor:
    """The mask, after a look at what would broadcast in silence or clip wrongly."""
    check_floating(logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    check_same_shape(logprobs=logprobs, old_logprobs=old_logprobs)
    if logprobs.ndim < 2 or advantages.shape != logprobs.shape[:-1]:
        raise ValueError(
            f"advantages: shape is {tuple(advantages.shape)}, must be one number an answer, "
            f"{tuple(logprobs.shape[:-1])} here; flatten (B, G) to (B·G,)"
        )
    if not 0 <= clip_low <= 1 or clip_high < 0:
        raise ValueError(
            f"clip_low, clip_high: got {clip_low} and {clip_high}, must be in [0, 1] and at least 0"
        )
    return check_mask(mask, logprobs)


def _check_normalizer(normalizer: str, max_length: int | None, total_tokens: int | None) -> None:
    if normalizer not in NORMALIZERS:
        raise ValueError(
            f"normalizer: got {normalizer!r}, must be one of {', '.join(map(repr, NORMALIZERS))}"
        )
    needs_length = normalizer == "constant"
    if (max_length is not None) != needs_length or (needs_length and max_length < 1):
        raise ValueError(
            f"max_length: {max_length} with {normalizer!r}; 'constant' alone takes it, ≥ 1"
        )
    if total_tokens is not None and (normalizer != "token_mean" or total_tokens < 1):
        raise ValueError(
            f"total_tokens: {total_tokens} with {normalizer!r}; 'token_mean' alone takes it, ≥ 1"
        )
