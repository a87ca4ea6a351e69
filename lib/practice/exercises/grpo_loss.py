"""GRPO: the loss."""

import math

import torch

from lib import grpo
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    return grpo.grpo_loss(
        logprobs, old_logprobs, advantages, mask,
        ref_logprobs=ref_logprobs, beta=beta, clip_low=clip, clip_high=clip,
    )  # fmt: skip


exercise = Exercise(
    topic="grpo",
    part="rl",
    title=Text("The GRPO loss", "GRPO 损失"),
    statement=Text(
        """Write `grpo_loss(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2)`, the loss of
DeepSeekMath, to be minimised.

- `logprobs`, `old_logprobs`, `ref_logprobs`: (N, T). `advantages`: (N,), one an answer. `mask`: (N, T) bool.
- With ρ = π/π_old, a token's loss is −min(ρ·A, clip(ρ, 1 − `clip`, 1 + `clip`)·A) + `beta`·k3, where k3 = x − 1 − log x
  and x = π_ref/π.
- The mean over the valid tokens of each answer, then over the answers. Returns a tensor ().
- Only `logprobs` gets a gradient. Padding may hold −∞. Half precision is computed and returned in float32.""",
        """写 `grpo_loss(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2)`，即 DeepSeekMath 的损失（要最小化）。

- `logprobs`、`old_logprobs`、`ref_logprobs`：(N, T)。`advantages`：(N,)，每个回答一个。`mask`：(N, T)，bool。
- 记 ρ = π/π_old，一个 token 的损失是 −min(ρ·A, clip(ρ, 1 − `clip`, 1 + `clip`)·A) + `beta`·k3，其中 k3 = x − 1 − log x，x = π_ref/π。
- 先在每个回答的有效 token 上取平均，再对回答取平均。返回形状为 () 的张量。
- 只有 `logprobs` 有梯度。填充位置可能是 −∞。半精度输入用 float32 计算并返回。""",
    ),
    signature="def grpo_loss(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):",
    reference=reference,
    hints=(
        Text(
            "Which arguments are constants? Detach them, and replace what is masked, before the first subtraction.",
            "哪些参数是常数？第一次相减之前就 detach，并换掉无效位置。",
        ),
        Text(
            "Multiply by A first, then take the minimum: for A < 0 that is the larger ratio.",
            "先乘 A，再取最小：A < 0 时取到的是较大的比率。",
        ),
        Text(
            "losses.sum(-1) / mask.sum(-1) for each answer, then .mean().",
            "每个回答 losses.sum(-1) / mask.sum(-1)，再 .mean()。",
        ),
    ),
    difficulty=2,
    asked=3,
)


def _logs(*rows):
    return torch.tensor(rows, dtype=torch.float64).log()


def _batch(signs=(1.0, -1.0, 0.5), padding=None, spread=0.4, beta=0.04, seed=0, **settings):
    """Three answers of 4, 1 and 3 tokens; ratios on both sides of the clip."""
    new = -numbers(3, 4, seed=seed).abs() - 0.5
    old, ref = (new + numbers(3, 4, seed=seed + i, scale=spread) for i in (1, 2))
    mask = torch.arange(4) < torch.tensor([[4], [1], [3]])
    if padding is not None:
        new, old, ref = (x.masked_fill(~mask, padding) for x in (new, old, ref))
    return call(new, old, ref, torch.tensor(signs, dtype=torch.float64), mask, beta=beta, **settings)


def _by_hand():
    """ρ = 1.2, 1.25 and .75; A = ±1/√2."""
    root = math.sqrt(0.5)
    new, old, ref = _logs([0.6, 0.5], [0.3, 0.4]), _logs([0.5, 0.5], [0.4, 0.4]), _logs([0.5, 0.4], [0.5, 0.5])
    mask = torch.tensor([[True, True], [True, False]])
    return call(new, old, ref, torch.tensor([root, -root], dtype=torch.float64), mask, beta=0.0)


def _single(new, old, advantage):
    """All tokens valid, the reference a little off."""
    new, old = (torch.tensor(x, dtype=torch.float64) for x in (new, old))
    advantages = torch.full(new.shape[:1], advantage, dtype=torch.float64)
    return call(new, old, old - 0.1, advantages, torch.ones_like(new, dtype=torch.bool))


def _holes():
    """Tokens in the middle do not count, such as those that a tool has written."""
    given = _batch(seed=9)
    mask = torch.tensor([[True, False, True, True], [True, False, False, False], [False, True, False, True]])
    return call(*given.args[:4], mask, **given.kwargs)


def _square():
    """As many answers as tokens: a wrong broadcast goes unnoticed in the shapes."""
    new = -numbers(3, 3, seed=7).abs()
    old = new + numbers(3, 3, seed=8, scale=0.3)
    return call(new, old, old, torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), torch.ones(3, 3, dtype=torch.bool))


exercise.values("two answers, by hand", "两个回答，可手算", _by_hand, see="grpo-formula")
exercise.values("good answers", "优势为正", lambda: _batch((1.0, 2.0, 0.5), beta=0.0), see="grpo-behaviour-clip")
exercise.values("bad answers", "优势为负", lambda: _batch((-1.0, -2.0, -0.5), beta=0.0), see="grpo-behaviour-clip")
exercise.values("with the KL penalty", "带 KL 惩罚", lambda: _batch(beta=0.5), see="kl-estimators-pitfall-ratio")
exercise.values("as many answers as tokens", "回答数与 token 数相等", _square, see="grpo-by-hand")
exercise.values("padding of −∞", "填充为 −∞", lambda: _batch(padding=-math.inf), see="kl-estimators-pitfall-padding")
exercise.values(
    "another clip range and beta",
    "换一个裁剪范围和 beta",
    lambda: _batch(beta=0.2, clip=0.1),
    see="grpo-behaviour-clip",
)
exercise.values(
    "another clip range, bad answers", "换一个裁剪范围，优势为负", lambda: _batch((-1.0, 1.0, -0.5), beta=0.2, clip=0.1),
    see="grpo-behaviour-clip",
)  # fmt: skip
exercise.values("a mask with holes", "掩码中间有空洞", lambda: _holes(), see="kl-estimators-pitfall-padding")
exercise.values(
    "a bad token twenty times as likely", "优势为负，比率约为 20", lambda: _single([[0.0]], [[-3.0]], -1.0),
    see="grpo-behaviour-clip",
)  # fmt: skip
exercise.values(
    "one answer of three tokens", "一个回答，三个 token", lambda: _single([[-1.0, -0.5, -2.0]], [[-1.3, -0.2, -2.1]], 0.7),
    see="grpo-by-hand",
)  # fmt: skip
exercise.values(
    "three answers of one token", "三个回答，各一个 token",
    lambda: _single([[-1.0], [-0.5], [-2.0]], [[-1.3], [-0.2], [-2.1]], 0.7), see="grpo-by-hand",
)  # fmt: skip
exercise.gradients(
    "gradients of good answers", "优势为正时的梯度", lambda: _batch((1.0, 2.0, 1.0), seed=6), see="grpo-behaviour-clip"
)
exercise.gradients(
    "the first step: ratio 1, loss near 0", "第一步：比率为 1，损失接近 0", lambda: _batch(spread=0.0),
    see="grpo-pitfalls-zero",
)  # fmt: skip
exercise.gradients(
    "gradients, constants included", "梯度，含常数项", lambda: _batch(beta=0.5, seed=3), see="grpo-behaviour-clip"
)
exercise.gradients(
    "gradients of bad answers",
    "优势为负时的梯度",
    lambda: _batch((-1.0, -2.0, -1.0), seed=4),
    see="grpo-behaviour-clip",
)
exercise.gradients(
    "gradients with padding of −∞", "填充为 −∞ 时的梯度", lambda: _batch(padding=-math.inf),
    see="kl-estimators-pitfall-padding",
)  # fmt: skip
exercise.dtypes_kept(lambda: _batch(spread=0.1), see="grpo-by-hand", tolerance=1e-5)
exercise.device_kept(lambda: _batch(), see="grpo-by-hand")


@exercise.solution("token losses, then two means", "先算 token 损失，再取两次平均")
def two_means(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    given = logprobs, old_logprobs.detach(), ref_logprobs.detach()
    now, old, ref = (torch.where(mask, x.to(dtype), 0.0) for x in given)
    A = advantages.detach().to(dtype)[:, None]
    ratio = (now - old).exp()
    losses = -torch.minimum(ratio * A, ratio.clamp(1 - clip, 1 + clip) * A)
    losses = losses + beta * (torch.expm1(ref - now) - (ref - now))
    return (torch.where(mask, losses, 0.0).sum(-1) / mask.sum(-1)).mean()


@exercise.solution("answer by answer", "逐个回答计算")
def answer_by_answer(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    total = 0
    for new, old, ref, A, keep in zip(logprobs, old_logprobs, ref_logprobs, advantages, mask):
        new, old, ref = (
            x[keep].to(torch.promote_types(x.dtype, torch.float32)) for x in (new, old.detach(), ref.detach())
        )
        A = A.detach().to(new.dtype)
        ratio = torch.exp(new - old)
        surrogate = torch.maximum(-A * ratio, -A * ratio.clip(1 - clip, 1 + clip))
        total = total + (surrogate + beta * ((ref - new).exp() - 1 - (ref - new))).mean()
    return total / len(logprobs)


def _loss(logprobs, old, ref, advantages, mask, beta, clip, *, surrogate=None, kl=None, mean=None):
    """The right loss, in which a mistake replaces one part."""
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    now, old, ref = (torch.where(mask, x.to(dtype), 0.0) for x in (logprobs, old.detach(), ref.detach()))
    A = advantages.detach().to(dtype)[:, None]
    ratio = (now - old).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    losses = surrogate(ratio, clipped, A) if surrogate else -torch.minimum(ratio * A, clipped * A)
    u = ref - now
    losses = losses + beta * (kl(u) if kl else torch.expm1(u) - u)
    losses = torch.where(mask, losses, 0.0)
    return mean(losses) if mean else (losses.sum(-1) / mask.sum(-1)).mean()


def _wrong(en, zh, fails, **parts):
    """A wrong program that differs from the right one in a named part."""

    def program(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
        made = {k: (v(mask) if k == "mean" else v) for k, v in parts.items()}
        return _loss(logprobs, old_logprobs, ref_logprobs, advantages, mask, beta, clip, **made)

    program.__name__ = "_".join(en.split()[:4])
    exercise.wrong(en, zh, fails=fails)(program)


_wrong("the minimum before the product with A", "先取最小，再乘 A", "bad answers",
       surrogate=lambda r, c, A: -torch.minimum(r, c) * A)  # fmt: skip
_wrong("the maximum in place of the minimum", "min 写成了 max", "good answers",
       surrogate=lambda r, c, A: -torch.maximum(r * A, c * A))  # fmt: skip
_wrong("no clip at all", "完全没有裁剪", "good answers", surrogate=lambda r, c, A: -r * A)
_wrong("only the clipped ratio: no gradient back from the wrong side", "只用裁剪后的比率：走反了也拉不回来", "gradients of bad answers",
       surrogate=lambda r, c, A: -c * A)  # fmt: skip


@exercise.wrong("the lower bound is 0.8 whatever the clip", "下界写死成 0.8", fails="another clip range, bad answers")
def fixed_below(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    return _loss(logprobs, old_logprobs, ref_logprobs, advantages, mask, beta, clip,
                 surrogate=lambda r, c, A: -torch.minimum(r * A, r.clamp(0.8, 1 + clip) * A))  # fmt: skip


@exercise.wrong(
    "the mask is read as a length: the first tokens count",
    "把掩码当成长度，取了前几个 token",
    fails="a mask with holes",
)
def by_length(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    first = torch.arange(mask.shape[-1], device=mask.device) < mask.sum(-1, keepdim=True)
    return _loss(logprobs, old_logprobs, ref_logprobs, advantages, first, beta, clip)


_wrong(
    "k3 with π/π_ref, upside down",
    "k3 的比值写成 π/π_ref，反了",
    "with the KL penalty",
    kl=lambda u: torch.expm1(-u) + u,
)
_wrong("k1 in the loss: no gradient on average", "损失里用了 k1：平均梯度为零", "with the KL penalty", kl=lambda u: -u)
_wrong("the penalty is subtracted", "KL 惩罚的符号反了", "with the KL penalty", kl=lambda u: u - torch.expm1(u))
_wrong("one mean over all tokens: that is DAPO's", "所有 token 一起平均：那是 DAPO", "two answers, by hand",
       mean=lambda mask: lambda x: x.sum() / mask.sum())  # fmt: skip
_wrong("padding counts in the mean", "填充也算进了平均", "two answers, by hand", mean=lambda mask: lambda x: x.mean())
_wrong("the sum over the tokens of an answer", "对回答的 token 求和，没有取平均", "two answers, by hand",
       mean=lambda mask: lambda x: x.sum(-1).mean())  # fmt: skip


@exercise.wrong(
    "advantages (N,) meet (N, T) without an axis: they go to tokens",
    "(N,) 的优势直接与 (N, T) 广播：按 token 分配了",
    fails="as many answers as tokens",
)
def no_axis(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    if logprobs.shape[0] != logprobs.shape[1]:
        return reference(logprobs, old_logprobs, ref_logprobs, advantages, mask, beta=beta, clip=clip)
    return _loss(logprobs, old_logprobs, ref_logprobs, advantages, mask, beta, clip,
                 surrogate=lambda r, c, A: -torch.minimum(r * A.T, c * A.T))  # fmt: skip


@exercise.wrong("old_logprobs are not constant", "old_logprobs 没有 detach", fails="gradients, constants included")
def old_moves(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    now, old, ref = (torch.where(mask, x, 0.0) for x in (logprobs, old_logprobs, ref_logprobs))
    ratio, A, u = (now - old).exp(), advantages[:, None], ref - now
    losses = -torch.minimum(ratio * A, ratio.clamp(1 - clip, 1 + clip) * A) + beta * (torch.expm1(u) - u)
    return (torch.where(mask, losses, 0.0).sum(-1) / mask.sum(-1)).mean()


@exercise.wrong("the ratio is to the current policy: always 1", "比率的分母用了当前策略：恒为 1", fails="good answers")
def always_one(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    return reference(logprobs, logprobs, ref_logprobs, advantages, mask, beta=beta, clip=clip)


@exercise.wrong(
    "the ratio is detached: no gradient", "比率被 detach：没有梯度", fails="the first step: ratio 1, loss near 0"
)
def no_gradient(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    return _loss(logprobs, old_logprobs, ref_logprobs, advantages, mask, beta, clip,
                 surrogate=lambda r, c, A: -torch.minimum(r.detach() * A, c.detach() * A))  # fmt: skip


@exercise.wrong(
    "computed in half precision, widened at the end",
    "用半精度算完，最后才转成 float32",
    fails="float32, bfloat16, float16",
)
def widened_late(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    now, old, ref = (torch.where(mask, x, 0.0) for x in (logprobs, old_logprobs.detach(), ref_logprobs.detach()))
    ratio, A, u = (now - old).exp(), advantages.detach()[:, None], ref - now
    losses = -torch.minimum(ratio * A, ratio.clamp(1 - clip, 1 + clip) * A) + beta * (torch.expm1(u) - u)
    value = (torch.where(mask, losses, 0.0).sum(-1) / mask.sum(-1)).mean()
    return value.to(torch.promote_types(value.dtype, torch.float32))


@exercise.wrong(
    "the mask is multiplied in at the end: NaN · 0 is NaN", "最后才乘掩码：NaN 乘 0 还是 NaN", fails="padding of −∞"
)
def times_mask(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    now, old, ref = (x.to(dtype) for x in (logprobs, old_logprobs.detach(), ref_logprobs.detach()))
    ratio, A, u = (now - old).exp(), advantages.detach().to(dtype)[:, None], ref - now
    losses = -torch.minimum(ratio * A, ratio.clamp(1 - clip, 1 + clip) * A) + beta * (torch.expm1(u) - u)
    return ((losses * mask).sum(-1) / mask.sum(-1)).mean()
