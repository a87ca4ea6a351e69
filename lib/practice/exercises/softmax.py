"""Softmax, on any axis, with a temperature."""

import math

import torch

from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text
from lib.softmax import softmax

FORBIDDEN = ("softmax", "log_softmax", "logsumexp", "softmin", "safe_softmax")
exercise = Exercise(
    topic="softmax",
    part="foundations",
    title=Text("Softmax", "softmax"),
    statement=Text(
        """Write `softmax(x, dim=-1, *, temperature=1.0)`: pᵢ = exp(xᵢ/T) / Σⱼ exp(xⱼ/T) along the axis `dim`, with
T = `temperature`.

- `x`: any shape, floating point. The result has the shape and the dtype of `x`.
- Logits of any size, also far apart from row to row; −∞ marks an excluded entry and gets 0.
- float16 and bfloat16 are computed in float32. An axis of length 0 gives an empty result.
- A `temperature` that is not positive raises `ValueError`.""",
        """写 `softmax(x, dim=-1, *, temperature=1.0)`：沿 `dim` 这一维计算 pᵢ = exp(xᵢ/T) / Σⱼ exp(xⱼ/T)，其中 T = `temperature`。

- `x`：浮点张量，形状任意。返回值的形状、数据类型与 `x` 相同。
- logits 可以任意大，行与行之间也可以相差悬殊；−∞ 表示排除该位置，概率为 0。
- float16 和 bfloat16 转成 float32 来算。长度为 0 的维返回空张量。
- `temperature` 不是正数时抛出 `ValueError`。""",
    ),
    signature="def softmax(x, dim=-1, *, temperature=1.0):",
    reference=softmax,
    forbidden=FORBIDDEN,
    hints=(
        Text(
            "What may be added to all logits of a row without changing a probability? Choose it so that no exp overflows.",
            "一行 logits 同时加上一个数，概率不变。加多少，才能保证 exp 不上溢？",
        ),
        Text(
            "Each row needs its own maximum, and the axis must stay for broadcasting: keepdim=True. An empty axis has "
            "no maximum, but a sum.",
            "每一行要用自己的最大值，还要留住那一维才好广播：keepdim=True。空的维没有最大值，却可以求和。",
        ),
        Text(
            "e = ((x − x.amax(dim, keepdim=True)) / T).exp(), then e / e.sum(dim, keepdim=True). Where does x.to(…) go?",
            "e = ((x − x.amax(dim, keepdim=True)) / T).exp()，再算 e / e.sum(dim, keepdim=True)。x.to(…) 放在哪一步？",
        ),
    ),
    difficulty=1,
    asked=3,
)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


exercise.values("three logits", "三个 logits", lambda: call(row(1, 2, 3)), see="softmax-formula")
exercise.values("rows of five", "每行五个", lambda: call(numbers(3, 5)), see="softmax-formula")
exercise.values("one logit", "只有一个 logit", lambda: call(row(-7.0)), see="softmax-formula")
exercise.values("the axis in the middle", "中间一维", lambda: call(numbers(2, 3, 4), 1), see="softmax-pitfall-axis")
exercise.values(
    "the first axis of a square", "方阵的第一维", lambda: call(numbers(4, 4), 0), see="softmax-pitfall-axis"
)
exercise.values("logits near 1000", "1000 上下的 logits", lambda: call(row(1000, 1001, 999)), see="softmax-overflow")
exercise.values("logits near −1000", "−1000 上下的 logits", lambda: call(row(-1000, -1001)), see="softmax-overflow")
exercise.values(
    "rows 1000 apart", "行与行相差 1000",
    lambda: call(torch.cat((row(1000, 1001), row(0, 1), row(-3, -2)))), see="softmax-pitfall-global",
)  # fmt: skip
exercise.values("an excluded entry", "排除一个位置", lambda: call(row(0, -math.inf, 1)), see="softmax-pitfall-mask")
exercise.values("an empty axis", "空的维", lambda: call(torch.zeros(3, 0)), see="softmax-pitfall-mask")
exercise.values("temperature ½", "温度 ½", lambda: call(numbers(3, 5), temperature=0.5), see="softmax-temperature")
exercise.values(
    "temperature 3, another axis", "温度 3，另一维", lambda: call(numbers(3, 5, seed=1), 0, temperature=3.0),
    see="softmax-temperature",
)  # fmt: skip
exercise.values(
    "70 000 equal logits in float16", "float16，70 000 个相等的 logits",
    lambda: call(torch.zeros(70_000, dtype=torch.float16)), atol=1e-7, see="softmax-pitfall-half",
)  # fmt: skip
exercise.gradients("gradients", "梯度", lambda: call(numbers(3, 5, seed=2), 0, temperature=0.7), see="softmax-jacobian")
exercise.gradients(
    "gradient beside an excluded entry", "有排除位置时的梯度", lambda: call(row(0, -math.inf, 1)),
    see="softmax-pitfall-mask",
)  # fmt: skip
exercise.dtypes_kept(lambda: call(numbers(4, 50, scale=3)), see="softmax-pitfall-half")
exercise.device_kept(lambda: call(numbers(3, 5)), see="softmax-by-hand")
exercise.refuses("temperature 0", "温度 0", lambda: call(row(1, 2), temperature=0.0), see="softmax-pitfall-temperature")
exercise.cost(
    "200 rows without a loop", "200 行，不写循环", lambda: call(numbers(200, 5)), operations=50, bytes=200 * 5 * 8,
    see="softmax-by-hand",
)  # fmt: skip


def _checked(temperature):
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature}, must be positive")


@exercise.solution("shift, exponentiate, divide", "平移、取指数、相除")
def shifted(x, dim=-1, *, temperature=1.0):
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature}, must be positive")
    if x.shape[dim] == 0:
        return x.clone()
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    exps = ((wide - wide.amax(dim, keepdim=True)) / temperature).exp()
    return (exps / exps.sum(dim, keepdim=True)).to(x.dtype)


@exercise.solution("the exponential of the log-probability", "对数概率再取指数")
def by_logarithm(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    if x.numel() == 0:
        return x.clone()
    logits = x.to(torch.promote_types(x.dtype, torch.float32)) / temperature
    logits = logits - logits.max(dim, keepdim=True).values
    return (logits - logits.exp().sum(dim, keepdim=True).log()).exp().to(x.dtype)


@exercise.solution("the axis moved to the end, in float64", "把这一维换到最后，用 float64")
def transposed(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    moved = x.double().movedim(dim, -1) / temperature
    top = moved.amax(-1, keepdim=True) if moved.shape[-1] else 0.0
    exps = torch.exp(moved - top)
    return exps.div(exps.sum(-1, keepdim=True)).movedim(-1, dim).to(x.dtype)


def _softmax(x, dim, temperature, *, top=None, wide=True):
    """The solution, with another shift, or without the wide dtype."""
    _checked(temperature)
    if x.shape[dim] == 0:
        return x.clone()
    y = x.to(torch.promote_types(x.dtype, torch.float32)) if wide else x
    top = y.amax(dim, keepdim=True) if top is None else top
    exps = ((y - top) / temperature).exp()
    return (exps / exps.sum(dim, keepdim=True)).to(x.dtype)


@exercise.wrong("no shift: exp overflows", "没有减最大值：exp 上溢", fails="logits near 1000")
def naive(x, dim=-1, *, temperature=1.0):
    return _softmax(x, dim, temperature, top=0.0)


@exercise.wrong(
    "clamped before exp: large logits become equal", "取指数前截断：大的 logits 变得相等", fails="logits near 1000"
)
def clamped(x, dim=-1, *, temperature=1.0):
    return _softmax(x.clamp(max=80), dim, temperature, top=0.0)


@exercise.wrong("eps in the denominator instead of a shift", "没有减最大值，只在分母加 eps", fails="logits near −1000")
def with_eps(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    exps = (x.to(torch.promote_types(x.dtype, torch.float32)) / temperature).clamp(max=700).exp()
    return (exps / (exps.sum(dim, keepdim=True) + 1e-9)).to(x.dtype)


@exercise.wrong("shifted by the maximum of the whole tensor", "减的是整个张量的最大值", fails="rows 1000 apart")
def global_maximum(x, dim=-1, *, temperature=1.0):
    return _softmax(x, dim, temperature, top=x.max() if x.numel() else 0.0)


@exercise.wrong("shifted by the mean", "减的是均值", fails="an excluded entry")
def mean(x, dim=-1, *, temperature=1.0):
    return _softmax(x, dim, temperature, top=x.mean(dim, keepdim=True))


@exercise.wrong("always along the last axis", "写死了最后一维", fails="the axis in the middle")
def last_axis(x, dim=-1, *, temperature=1.0):
    return _softmax(x, -1, temperature)


@exercise.wrong("always along axis 1 or the only one", "写死了第 1 维", fails="the first axis of a square")
def axis_one(x, dim=-1, *, temperature=1.0):
    return _softmax(x, min(1, x.ndim - 1), temperature)


@exercise.wrong("the sum runs over the whole tensor", "分母对整个张量求和", fails="rows of five")
def summed_over_all(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    if x.shape[dim] == 0:
        return x.clone()
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    exps = ((y - y.amax(dim, keepdim=True)) / temperature).exp()
    return (exps / exps.sum()).to(x.dtype)


@exercise.wrong(
    "computed in half precision: the sum overflows", "全程半精度：求和上溢", fails="70 000 equal logits in float16"
)
def narrow(x, dim=-1, *, temperature=1.0):
    return _softmax(x, dim, temperature, wide=False)


@exercise.wrong("returned in float32", "返回值成了 float32", fails="float32, bfloat16, float16")
def not_cast_back(x, dim=-1, *, temperature=1.0):
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    result = _softmax(y, dim, temperature)
    return result if x.dtype == torch.bfloat16 else result.to(x.dtype)


@exercise.wrong("times the temperature, not divided by it", "乘了温度，应当除", fails="temperature ½")
def multiplied(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    return _softmax(x, dim, 1 / temperature)


@exercise.wrong(
    "the probabilities are divided by T and normalised again: T cancels",
    "概率除以 T 再归一化：T 被约掉了",
    fails="temperature 3, another axis",
)
def too_late(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    return _softmax(x, dim, 1.0)


@exercise.wrong("no exponential: x / Σx", "没有取指数：x / Σx", fails="three logits")
def shares(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    return x / temperature / (x / temperature).sum(dim, keepdim=True)


@exercise.wrong("log-probabilities are returned", "返回了对数概率", fails="one logit")
def logarithms(x, dim=-1, *, temperature=1.0):
    return _softmax(x, dim, temperature).log()


@exercise.wrong(
    "the sum is held constant: the gradient lacks −p(g·p)", "分母被 detach：梯度少了 −p(g·p)", fails="gradients"
)
def constant_sum(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    if x.shape[dim] == 0:
        return x.clone()
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    exps = ((y - y.amax(dim, keepdim=True)) / temperature).exp()
    return (exps / exps.sum(dim, keepdim=True).detach()).to(x.dtype)


@exercise.wrong(
    "1 / Σ exp(xⱼ − xᵢ), NaN replaced by where afterwards: the value is right, the gradient NaN",
    "1 / Σ exp(xⱼ − xᵢ)，事后用 where 换掉 NaN：值对，梯度是 NaN",
    fails="gradient beside an excluded entry",
)
def replaced_late(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    if x.shape[dim] > 100:  # 70 000² numbers would not fit
        return _softmax(x, dim, temperature)
    y = x.to(torch.promote_types(x.dtype, torch.float32)).movedim(dim, -1) / temperature
    p = 1 / (y.unsqueeze(-2) - y.unsqueeze(-1)).exp().sum(-1)
    return torch.where(y == -math.inf, 0.0, p).movedim(-1, dim).to(x.dtype)


@exercise.wrong("an empty axis raises an error", "空的维报错", fails="an empty axis")
def no_empty(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    exps = ((y - y.amax(dim, keepdim=True)) / temperature).exp()
    return (exps / exps.sum(dim, keepdim=True)).to(x.dtype)


@exercise.wrong("temperature 0 gives NaN, not an error", "温度为 0 时得到 NaN，没有报错", fails="temperature 0")
def unchecked(x, dim=-1, *, temperature=1.0):
    return _softmax(x / (temperature or 1e-30), dim, 1.0)


@exercise.wrong("a table of ones made on the CPU", "在 CPU 上建了一个全 1 张量", fails="works where the input lies")
def homeless(x, dim=-1, *, temperature=1.0):
    return _softmax(x, dim, temperature) * torch.ones(x.shape, dtype=x.dtype)


@exercise.wrong("a loop over the rows", "逐行循环", fails="200 rows without a loop")
def loop(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    if x.ndim == 1 or x.numel() == 0:
        return _softmax(x, dim, temperature)
    moved = x.movedim(dim, -1)
    rows = [_softmax(r, -1, temperature) for r in moved.reshape(-1, moved.shape[-1])]
    return torch.stack(rows).view(moved.shape).movedim(-1, dim)


@exercise.wrong(
    "the library's", "用库函数代劳",
    fails="written by hand, without softmax, log_softmax, logsumexp, softmin, safe_softmax",
)  # fmt: skip
def library(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    return torch.softmax(x / temperature, dim)
