"""Means, whitening and log-ratios over the valid tokens of a padded batch.

Masks are bool, True = a valid token. Masked entries are removed with `torch.where`, *before* any
product, sum or exp: multiplying by zero keeps a NaN (0 · inf = NaN), and so does masking after
`exp`, whose backward pass multiplies by zero as well. Half-precision input is computed, and
returned, in float32: a loss has no use for float16.

Reading a mask's values is a question to the GPU that `torch.compile` cannot ask inside one graph.
The check for an empty mask is therefore made in eager mode only; compiled code returns 0 there.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_RATIO_BOUND = 20.0


def check_mask(mask: Tensor | None, like: Tensor) -> Tensor:
    """A bool mask of the shape of `like`, all True for None.

    TypeError for another dtype, ValueError for another shape.
    """
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask: dtype is {mask.dtype}, must be torch.bool, True = valid; pass mask.bool()"
        )
    if mask.shape != like.shape:
        raise ValueError(
            f"mask: shape is {tuple(mask.shape)}, must equal the values', {tuple(like.shape)}"
        )
    return mask


def check_not_empty(mask: Tensor) -> None:
    """ValueError for a mask without one True (in eager mode: see above)."""
    if not torch.compiler.is_compiling() and not mask.any():
        raise ValueError(
            f"mask: all {mask.numel()} entries are False, but a mean needs at least one valid token"
        )


def check_floating(**tensors: Tensor | None) -> None:
    """TypeError naming the argument that is not a floating-point tensor."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise TypeError(
                f"{name}: dtype is {tensor.dtype}, must be floating point; pass {name}.float()"
            )


def check_same_shape(**tensors: Tensor | None) -> None:
    """ValueError naming the argument whose shape differs from the first one's."""
    (first, expected), *rest = tensors.items()
    for name, tensor in rest:
        if tensor is not None and tensor.shape != expected.shape:
            raise ValueError(
                f"{name}: shape {tuple(tensor.shape)}, must be {first}'s, {tuple(expected.shape)}"
            )


def at_least_float32(x: Tensor) -> Tensor:
    """float16 and bfloat16 become float32; float32 and float64 stay."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def masked_mean(x: Tensor, mask: Tensor | None = None, dim: int | None = None) -> Tensor:
    """Mean of the entries where `mask` is True: Σ xₜ·mₜ / Σ mₜ.

    x, mask: the same shape. dim: the axis to reduce, or None for all of them (a scalar comes back).
    With `dim`, a row without a valid entry gives 0 and a zero gradient. Raises ValueError where the
    whole mask is empty.
    """
    mask = check_mask(mask, x)
    check_not_empty(mask)
    values = torch.where(mask, at_least_float32(x), 0)
    if dim is None:
        return values.sum() / mask.sum().clamp(min=1)
    return values.sum(dim) / mask.sum(dim).clamp(min=1)


def masked_whiten(
    x: Tensor, mask: Tensor | None = None, *, shift_mean: bool = True, eps: float = 1e-8
) -> Tensor:
    """(x − mean) / √(var + eps) over the valid entries, 0 elsewhere.

    `shift_mean=False` adds the mean back. The variance is Bessel's, divided by n − 1, as in TRL and
    verl; one valid entry has no such variance, and whitens to 0 (to itself without the shift)
    instead of NaN. x, mask: the same shape, any number of axes.
    """
    mask = check_mask(mask, x)
    mean = masked_mean(x, mask)
    centred = torch.where(mask, at_least_float32(x) - mean, 0)
    variance = centred.square().sum() / (mask.sum() - 1).clamp(min=1)
    white = centred * torch.rsqrt(variance + eps)
    return white if shift_mean else torch.where(mask, white + mean, 0)


def masked_log_ratio(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor | None = None,
    *,
    bound: float = LOG_RATIO_BOUND,
) -> Tensor:
    """logprobs − ref_logprobs = log(π/π_ref) per token, within ±bound nats; 0 where masked.

    The bound (verl's ±20) keeps exp() of the ratio finite: e²⁰ ≈ 4.9·10⁸. Beyond it the gradient is
    0. logprobs, ref_logprobs, mask: (..., T).
    """
    check_same_shape(logprobs=logprobs, ref_logprobs=ref_logprobs)
    check_floating(logprobs=logprobs, ref_logprobs=ref_logprobs)
    mask = check_mask(mask, logprobs)
    log_ratio = at_least_float32(logprobs) - at_least_float32(ref_logprobs)
    return torch.where(mask, log_ratio, 0.0).clamp(-bound, bound)


def sequence_logprob(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """log p(answer) = Σₜ log p(labelₜ | labels before t), in nats: one number a sequence, (B,).

    logits: (B, T, V) as the model returns them; labels: (B, T), the very token ids that went in;
    mask: (B, T), True on the answer's tokens. The shift is made here: position t − 1 predicts label
    t, so the first label is never scored. Labels outside the mask may be anything, −100 included. A
    row without a valid label gives 0.
    """
    check_floating(logits=logits)
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"labels: dtype is {labels.dtype}, must be an integer type: token ids")
    if labels.shape != logits.shape[:-1] or logits.ndim < 2:
        raise ValueError(
            f"labels: shape is {tuple(labels.shape)}, must be logits' without the vocabulary axis, "
            f"{tuple(logits.shape[:-1])}"
        )
    keep = check_mask(mask, labels)[..., 1:]
    safe = torch.where(keep, labels[..., 1:], 0)
    if not torch.compiler.is_compiling() and ((safe < 0) | (safe >= logits.shape[-1])).any():
        raise ValueError(
            f"labels: a valid one lies outside 0 to {logits.shape[-1] - 1}; mask those to ignore"
        )
    scored = torch.where(keep.unsqueeze(-1), at_least_float32(logits[..., :-1, :]), 0)
    logprobs = F.log_softmax(scored, dim=-1)
    taken = logprobs.gather(-1, safe.unsqueeze(-1)).squeeze(-1)
    return torch.where(keep, taken, 0).sum(-1)
