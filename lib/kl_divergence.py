"""KL divergence between two softmax distributions, and the distillation loss that is made of it.

    KL(p‖q) = Σᵥ pᵥ·(log pᵥ − log qᵥ),  p = softmax(p_logits/T),  q = softmax(q_logits/T)

Kullback and Leibler 1951 (doi 10.1214/aoms/1177729694); the factor T² of the loss is Hinton,
Vinyals and Dean 2015 (arXiv 1503.02531). The first argument does the averaging. With a fixed target
p and a model q, KL(p‖q) is called the forward divergence (mode covering), KL(q‖p) the reverse one
(mode seeking): swap the arguments. F.kl_div has them the other way round, the model first.

Zeros, from a logit of −∞ or from underflow: 0·log 0 = 0, whatever q is there; q = 0 where p > 0
gives +∞, which is the true value. Half-precision input is computed and returned in float32.

Reductions have the names of F.kl_div, but the vocabulary is always summed, 'none' and 'mean'
included: there F.kl_div keeps it and divides by it. float32 resolves about 1e-6 nats; pass
.double() to measure less. Left out: a vocabulary in pieces, and labels (add cross_entropy to the
distillation loss).
"""

import torch
from torch import Tensor

from lib.masking import (
    at_least_float32,
    check_floating,
    check_mask,
    check_same_shape,
    masked_mean,
)
from lib.softmax import log_softmax

REDUCTIONS = ("mean", "sum", "batchmean", "none")
DIRECTIONS = ("forward", "reverse")


def kl_divergence(
    p_logits: Tensor,
    q_logits: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """KL(p‖q) = Σᵥ pᵥ·(log pᵥ − log qᵥ) of softmax distributions over the last axis, in nats.

    p_logits, q_logits: (..., V), logits or log-probabilities. mask: (...) bool, True = valid; what
    stands behind a False, even NaN, changes neither value nor gradient. temperature divides both.
    reduction: 'mean' over the valid positions, a scalar; 'sum', a scalar; 'batchmean', the sum over
    the size of the first axis: on (tokens, V) the mean, on (B, tokens, V) that many times more;
    'none', one KL a position, (...), 0 where masked. Float32 or better comes back.

    Raises TypeError for integers and for a mask that is not bool; ValueError for shapes that
    differ, another reduction, a temperature that is not positive, and a mean of nothing.
    """
    check_floating(p_logits=p_logits, q_logits=q_logits)
    check_same_shape(p_logits=p_logits, q_logits=q_logits)
    _check_reduction(reduction, p_logits)
    if mask is not None:  # before any arithmetic, so that a NaN behind it sends no gradient
        keep = check_mask(mask, p_logits[..., 0]).unsqueeze(-1)  # (..., 1)
        p_logits, q_logits = (torch.where(keep, x, 0.0) for x in (p_logits, q_logits))
    log_p = log_softmax(at_least_float32(p_logits), temperature=temperature)
    log_q = log_softmax(at_least_float32(q_logits), temperature=temperature)
    p = log_p.exp()
    log_ratio = torch.where(p == 0, 0.0, log_p - log_q)  # 0·log 0 = 0, and −∞ − (−∞) is NaN
    kl = (p * log_ratio).sum(-1)  # (..., V) → (...)
    if reduction == "mean":
        return masked_mean(kl, mask)
    if reduction == "none":
        return kl
    return kl.sum() if reduction == "sum" else kl.sum() / kl.shape[0]


def distillation_loss(
    student_logits: Tensor,
    teacher_logits: Tensor,
    mask: Tensor | None = None,
    *,
    temperature: float = 1.0,
    direction: str = "forward",
) -> Tensor:
    """T²·KL(teacher‖student), both at temperature T, mean over the valid tokens: a scalar, in nats.

    The gradient of the divergence falls like 1/T²; the factor undoes that, so that a loss on labels
    beside it keeps its weight. student_logits, teacher_logits: (..., V); the teacher is a constant.
    mask: (...) bool, True = a valid token. direction: 'forward', or 'reverse' for KL(student‖
    teacher). Raises as `kl_divergence` does, and ValueError for another direction.
    """
    check_floating(student_logits=student_logits, teacher_logits=teacher_logits)
    check_same_shape(student_logits=student_logits, teacher_logits=teacher_logits)
    if direction not in DIRECTIONS:
        raise ValueError(
            f"direction: got {direction!r}, must be one of {', '.join(map(repr, DIRECTIONS))}"
        )
    pair = teacher_logits.detach(), student_logits
    if direction == "reverse":
        pair = pair[::-1]
    return temperature**2 * kl_divergence(*pair, mask, temperature=temperature)


def _check_reduction(reduction: str, p_logits: Tensor) -> None:
    """An error where a name is unknown, or there is no vocabulary or no batch to reduce."""
    if p_logits.ndim == 0 or p_logits.shape[-1] == 0:
        raise ValueError(
            f"p_logits: shape is {tuple(p_logits.shape)}, must be (..., V) with at least one logit"
        )
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"reduction: got {reduction!r}, must be one of {', '.join(map(repr, REDUCTIONS))}"
        )
    if reduction == "batchmean" and (p_logits.ndim < 2 or p_logits.shape[0] == 0):
        raise ValueError(
            f"reduction: 'batchmean' divides by the batch size, and p_logits of shape "
            f"{tuple(p_logits.shape)} has none; take 'mean'"
        )
