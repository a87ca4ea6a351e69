"""RoPE: the frequencies."""

import torch

from lib.practice.exercise import Exercise, call
from lib.practice.language import Text
from lib.rope import rope_frequencies

exercise = Exercise(
    topic="rope",
    part="positions",
    title=Text("RoPE: the frequencies", "RoPE：频率"),
    statement=Text(
        """Write `rope_frequencies(head_dim, *, base=10_000.0)`: the angle, in radians, by which each pair of features
turns from one position to the next. Pair i = 0 … D/2 − 1 gets `base` to the power −2i/D, with D = `head_dim`.

- Returns a tensor (D/2,), float32 or float64.
- An odd `head_dim` raises `ValueError`.""",
        """写 `rope_frequencies(head_dim, *, base=10_000.0)`：位置每加一，每对分量转过多少弧度。
第 i 对（i = 0 … D/2 − 1）的频率是 `base` 的 −2i/D 次方，其中 D = `head_dim`。

- 返回形状为 (D/2,) 的张量，float32 或 float64 均可。
- `head_dim` 为奇数时抛出 `ValueError`。""",
    ),
    signature="def rope_frequencies(head_dim, *, base=10_000.0):",
    reference=rope_frequencies,
    hints=(
        Text(
            "How many pairs are there, and what is 2i for each? torch.arange has a step.",
            "一共有几对？每对的 2i 是多少？torch.arange 可以带步长。",
        ),
        Text("The first frequency is 1 whatever the base. Is yours?", "无论 base 取多少，第一个频率都是 1。你的呢？"),
        Text(
            "base ** (-torch.arange(0, D, 2) / D), in floating point.",
            "base ** (-torch.arange(0, D, 2) / D)，用浮点数算。",
        ),
    ),
    difficulty=1,
    asked=3,
)
LOOSE = {"tolerance": 1e-5, "atol": 1e-10, "same_dtype": False, "see": "rope-formula"}
exercise.values("head size 8", "head_dim = 8", lambda: call(8), **LOOSE)
exercise.values(
    "head size 96, base 500 000", "head_dim = 96，base = 500 000", lambda: call(96, base=500_000.0), **LOOSE
)
exercise.values(
    "head size 8 again, another base", "再来一次 head_dim = 8，换一个 base", lambda: call(8, base=100.0), **LOOSE
)
exercise.values("one pair", "只有一对", lambda: call(2), **LOOSE)
exercise.refuses("an odd size is refused", "拒绝奇数维", lambda: call(7), see="rope-formula")


@exercise.solution("a power of the base", "直接求幂")
def power(head_dim, *, base=10_000.0):
    if head_dim % 2:
        raise ValueError(f"head_dim: got {head_dim}, must be even")
    return base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)


@exercise.solution(
    "by exp and log, in float32, as the first Transformers did", "用 exp 与 log，float32，早期 Transformer 的写法"
)
def exponential(head_dim, *, base=10_000.0):
    if head_dim % 2:
        raise ValueError("odd")
    return torch.exp(torch.arange(head_dim // 2) * (-2 * torch.log(torch.tensor(base)) / head_dim))


def _even(head_dim):
    if head_dim % 2:
        raise ValueError("odd")
    return head_dim


@exercise.wrong("2i counted twice: the exponent is −4i/D", "2i 多乘了一次 2，指数成了 −4i/D", fails="head size 8")
def doubled(head_dim, *, base=10_000.0):
    return base ** (-2 * torch.arange(0, _even(head_dim), 2) / head_dim)


@exercise.wrong("the 2 is missing: the exponent is −i/D", "漏了 2，指数成了 −i/D", fails="head size 8")
def halved(head_dim, *, base=10_000.0):
    return base ** (-torch.arange(_even(head_dim) // 2) / head_dim)


@exercise.wrong(
    "positive exponent: the pairs get faster, not slower", "指数符号反了：频率越来越高", fails="head size 8"
)
def rising(head_dim, *, base=10_000.0):
    return base ** (torch.arange(0, _even(head_dim), 2) / head_dim)


@exercise.wrong(
    "one frequency a feature, not a pair: D of them", "每个分量一个频率，共 D 个；应是每对一个", fails="head size 8"
)
def full_length(head_dim, *, base=10_000.0):
    return base ** (-torch.arange(0, _even(head_dim), 2) / head_dim).repeat(2)


@exercise.wrong(
    "linspace reaches 1/base itself; the last pair must stay before it",
    "linspace 取到了 1/base，最后一对不该到这里",
    fails="head size 8",
)
def endpoint(head_dim, *, base=10_000.0):
    return base ** -torch.linspace(0, 1, _even(head_dim) // 2)


@exercise.wrong("the base is ignored", "没有用 base", fails="head size 96, base 500 000")
def fixed_base(head_dim, *, base=10_000.0):
    return 10_000.0 ** (-torch.arange(0, _even(head_dim), 2) / head_dim)


TABLES = {}


@exercise.wrong(
    "kept by the size alone: another base gets the old table",
    "只按 head_dim 缓存：换了 base 还是旧表",
    fails="head size 8 again, another base",
)
def cached(head_dim, *, base=10_000.0):
    if head_dim not in TABLES:
        TABLES[head_dim] = base ** (-torch.arange(0, _even(head_dim), 2) / head_dim)
    return TABLES[head_dim]


@exercise.wrong("i from 1: the first frequency is not 1", "i 从 1 开始：第一个频率不是 1", fails="one pair")
def from_one(head_dim, *, base=10_000.0):
    return base ** (-torch.arange(2, _even(head_dim) + 2, 2) / head_dim)


@exercise.wrong("exponents rounded to bfloat16", "指数舍入成了 bfloat16", fails="head size 96, base 500 000")
def coarse(head_dim, *, base=10_000.0):
    return base ** (-torch.arange(0, _even(head_dim), 2) / head_dim).bfloat16().float()


@exercise.wrong("an odd size passes in silence", "奇数维没有报错", fails="an odd size is refused")
def careless(head_dim, *, base=10_000.0):
    return base ** (-torch.arange(0, head_dim, 2) / head_dim)
