"""GRPO: three ways from token losses to one number."""

import math

import torch

from lib.grpo import aggregate
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(losses, mask, normalizer, *, max_length=None):
    length = max_length if normalizer == "constant" else None
    return aggregate(losses, mask, normalizer=normalizer, max_length=length)


exercise = Exercise(
    topic="grpo",
    part="rl",
    title=Text("Three normalisers", "三种归一化方式"),
    statement=Text(
        """Write `aggregate(losses, mask, normalizer, *, max_length=None)`: token losses (N, T) of N answers to one number.

- `"sequence_mean"` (GRPO): the mean over the valid tokens of each answer, then over the answers. An answer without a
  valid token counts as 0.
- `"token_mean"` (DAPO): the mean over all valid tokens of the batch.
- `"constant"` (Dr.GRPO): the sum over all valid tokens, divided by N · `max_length`.
- `mask`: (N, T) bool. Padding may hold NaN. Half precision is computed and returned in float32. Another name raises
  `ValueError`.""",
        """写 `aggregate(losses, mask, normalizer, *, max_length=None)`：把 N 个回答的 token 损失 (N, T) 变成一个数。

- `"sequence_mean"`（GRPO）：先在每个回答的有效 token 上取平均，再对回答取平均。没有有效 token 的回答按 0 计。
- `"token_mean"`（DAPO）：整个 batch 的有效 token 一起取平均。
- `"constant"`（Dr.GRPO）：有效 token 求和，除以 N · `max_length`。
- `mask`：(N, T)，bool。填充位置可能是 NaN。半精度输入用 float32 计算并返回。其他名字抛出 `ValueError`。""",
    ),
    signature="def aggregate(losses, mask, normalizer, *, max_length=None):",
    reference=reference,
    hints=(
        Text("One torch.where at the top serves all three.", "开头一个 torch.where，三种方式都能用。"),
        Text(
            "Where an answer has no valid token, the count is 0: what must you divide by?",
            "没有有效 token 的回答，计数为 0：除数该取多少？",
        ),
        Text(
            "mask.sum(-1).clamp(min=1) for each answer; mask.sum() for all; len(losses) * max_length.",
            "每个回答 mask.sum(-1).clamp(min=1)；全部 mask.sum()；常数 len(losses) * max_length。",
        ),
    ),
    difficulty=1,
    asked=2,
)


def _ragged(normalizer, lengths=(4, 1, 2), padding=None, **settings):
    losses = numbers(len(lengths), 4, seed=2) + 1
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    losses = losses if padding is None else losses.masked_fill(~mask, padding)
    return call(losses, mask, normalizer, **settings)


def _holes():
    mask = torch.tensor([[True, False, True, True], [False, True, False, False]])
    return call(numbers(2, 4, seed=3), mask, "sequence_mean")


LENGTH = {"see": "grpo-behaviour-length"}
exercise.values("sequence_mean", "sequence_mean", lambda: _ragged("sequence_mean"), **LENGTH)
exercise.values("token_mean", "token_mean", lambda: _ragged("token_mean"), **LENGTH)
exercise.values("constant", "constant", lambda: _ragged("constant", max_length=10), **LENGTH)
exercise.values("one answer", "只有一个回答", lambda: _ragged("sequence_mean", (3,)), **LENGTH)
exercise.values(
    "an answer without a valid token", "有一个回答没有有效 token", lambda: _ragged("sequence_mean", (4, 0, 2)), **LENGTH
)
exercise.values(
    "constant, an answer without a valid token", "constant，有一个回答没有有效 token",
    lambda: _ragged("constant", (4, 0, 2), max_length=10), **LENGTH,
)  # fmt: skip
for name, settings in (("sequence_mean", {}), ("constant", {"max_length": 7})):
    exercise.values(
        f"{name}, padding of NaN", f"{name}，填充为 NaN",
        lambda n=name, s=settings: _ragged(n, padding=math.nan, **s), see="kl-estimators-pitfall-padding",
    )  # fmt: skip
exercise.values("a mask with holes", "掩码中间有空洞", lambda: _holes(), **LENGTH)
exercise.gradients(
    "gradient beside an empty answer and NaN", "有空回答、填充为 NaN 时的梯度",
    lambda: _ragged("sequence_mean", (4, 0, 2), math.nan), see="kl-estimators-pitfall-padding",
)  # fmt: skip
exercise.values(
    "padding of NaN", "填充为 NaN", lambda: _ragged("token_mean", padding=math.nan), see="kl-estimators-pitfall-padding"
)
for name, settings in (("sequence_mean", {}), ("token_mean", {}), ("constant", {"max_length": 10})):
    exercise.gradients(f"gradient of {name}", f"{name} 的梯度", lambda n=name, s=settings: _ragged(n, **s), **LENGTH)
exercise.dtypes_kept(lambda: _ragged("sequence_mean"), of="sequence_mean", see="grpo-by-hand", tolerance=1e-6)
exercise.dtypes_kept(lambda: _ragged("token_mean"), see="grpo-by-hand", tolerance=1e-6)
exercise.device_kept(lambda: _ragged("sequence_mean"), see="grpo-by-hand")
exercise.refuses("another name is refused", "拒绝未知的名字", lambda: _ragged("mean"), see="grpo-by-hand")


@exercise.solution("mask once, then three divisors", "先处理掩码，再用三种除数")
def three_divisors(losses, mask, normalizer, *, max_length=None):
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
    losses = torch.where(mask, losses, 0.0)
    if normalizer == "sequence_mean":
        return (losses.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    if normalizer == "token_mean":
        return losses.sum() / mask.sum()
    if normalizer == "constant":
        return losses.sum() / (len(losses) * max_length)
    raise ValueError(f"normalizer: {normalizer!r} is not sequence_mean, token_mean or constant")


@exercise.solution("as weights of the tokens", "写成每个 token 的权重")
def weights(losses, mask, normalizer, *, max_length=None):
    losses = losses.to(torch.promote_types(losses.dtype, torch.float32)).masked_fill(~mask, 0)
    count = mask.sum(-1, keepdim=True)
    share = {
        "sequence_mean": lambda: 1 / (len(mask) * count.clamp(min=1)),
        "token_mean": lambda: 1 / count.sum(),
        "constant": lambda: 1 / (len(mask) * max_length),
    }
    if normalizer not in share:
        raise ValueError(normalizer)
    return (losses * share[normalizer]()).sum()


def _wrong(en, zh, fails, **replaced):
    """The right program with one rule replaced."""

    def program(losses, mask, normalizer, *, max_length=None):
        if normalizer not in replaced:
            return three_divisors(losses, mask, normalizer, max_length=max_length)
        losses = losses.to(torch.promote_types(losses.dtype, torch.float32))
        return replaced[normalizer](torch.where(mask, losses, 0.0), mask, max_length)

    program.__name__ = "_".join(en.split()[:4])
    exercise.wrong(en, zh, fails=fails)(program)


def _tokens(x, mask, length):
    return x.sum() / mask.sum()


def _answers(x, mask, length):
    return (x.sum(-1) / mask.sum(-1).clamp(min=1)).mean()


_wrong(
    "sequence_mean and token_mean exchanged",
    "sequence_mean 与 token_mean 弄反了",
    "sequence_mean",
    sequence_mean=_tokens,
    token_mean=_answers,
)
_wrong(
    "a sum within the answer, then a mean",
    "回答内求和，没有取平均",
    "sequence_mean",
    sequence_mean=lambda x, m, n: x.sum(-1).mean(),
)
_wrong(
    "padding counts in the mean over tokens",
    "token 平均把填充也算进去了",
    "token_mean",
    token_mean=lambda x, m, n: x.mean(),
)
_wrong(
    "padding counts in the mean of an answer",
    "回答内的平均把填充也算进去了",
    "sequence_mean",
    sequence_mean=lambda x, m, n: x.mean(-1).mean(),
)
_wrong(
    "the constant forgets the number of answers",
    "constant 忘了除以回答数",
    "constant",
    constant=lambda x, m, n: x.sum() / n,
)
_wrong(
    "the constant is the longest answer at hand",
    "constant 用了当前 batch 的最大长度",
    "constant",
    constant=lambda x, m, n: x.sum() / x.numel(),
)
_wrong(
    "an empty answer gives 0/0",
    "空回答得到 0/0",
    "an answer without a valid token",
    sequence_mean=lambda x, m, n: (x.sum(-1) / m.sum(-1)).mean(),
)
_wrong(
    "the constant counts only answers that have a token",
    "constant 只数了非空的回答",
    "constant, an answer without a valid token",
    constant=lambda x, m, n: x.sum() / (m.any(-1).sum() * n),
)
_wrong("empty answers are left out of the mean", "空回答没有计入平均", "an answer without a valid token",
       sequence_mean=lambda x, m, n: (x.sum(-1) / m.sum(-1).clamp(min=1)).sum() / m.any(-1).sum())  # fmt: skip


@exercise.wrong(
    "the mask is multiplied in: NaN · 0 is NaN", "用乘法处理掩码：NaN 乘 0 还是 NaN", fails="padding of NaN"
)
def times_mask(losses, mask, normalizer, *, max_length=None):
    if normalizer != "token_mean":
        return three_divisors(losses, mask, normalizer, max_length=max_length)
    return (losses.to(torch.promote_types(losses.dtype, torch.float32)) * mask).sum() / mask.sum()


@exercise.wrong("half precision is not widened", "半精度没有转成 float32", fails="float32, bfloat16, float16")
def narrow(losses, mask, normalizer, *, max_length=None):
    if normalizer == "token_mean":
        return torch.where(mask, losses, 0.0).sum() / mask.sum()
    if normalizer == "sequence_mean":
        return (torch.where(mask, losses, 0.0).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    return three_divisors(losses, mask, normalizer, max_length=max_length)


@exercise.wrong(
    "a wrong name falls through to the mean over tokens",
    "名字写错也不报错，当成 token_mean",
    fails="another name is refused",
)
def falls_through(losses, mask, normalizer, *, max_length=None):
    known = ("sequence_mean", "token_mean", "constant")
    return three_divisors(losses, mask, normalizer if normalizer in known else "token_mean", max_length=max_length)
