"""Log-softmax, on any axis, with a temperature."""

import math

import torch

from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text
from lib.softmax import log_softmax

FORBIDDEN = ("softmax", "log_softmax", "logsumexp", "softmin", "safe_softmax", "logaddexp", "cross_entropy")
exercise = Exercise(
    topic="softmax",
    part="foundations",
    title=Text("Log-softmax", "log-softmax"),
    statement=Text(
        """Write `log_softmax(x, dim=-1, *, temperature=1.0)`: log pᵢ along the axis `dim`, in nats, where
pᵢ = exp(xᵢ/T) / Σⱼ exp(xⱼ/T) and T = `temperature`.

- `x`: any shape, floating point. The result has the shape and the dtype of `x`.
- A probability may be too small for any float; its logarithm must still be right. −∞ stays −∞.
- float16 and bfloat16 are computed in float32. An axis of length 0 gives an empty result.
- A `temperature` that is not positive raises `ValueError`.""",
        """写 `log_softmax(x, dim=-1, *, temperature=1.0)`：沿 `dim` 这一维计算 log pᵢ，单位是 nat，其中 pᵢ = exp(xᵢ/T) / Σⱼ exp(xⱼ/T)，T = `temperature`。

- `x`：浮点张量，形状任意。返回值的形状、数据类型与 `x` 相同。
- 概率可以小到任何浮点数都存不下，它的对数仍要正确。−∞ 仍是 −∞。
- float16 和 bfloat16 转成 float32 来算。长度为 0 的维返回空张量。
- `temperature` 不是正数时抛出 `ValueError`。""",
    ),
    signature="def log_softmax(x, dim=-1, *, temperature=1.0):",
    reference=log_softmax,
    forbidden=FORBIDDEN,
    hints=(
        Text(
            "Take the logarithm on paper first: a quotient becomes a difference. Which exp remains?",
            "先在纸上取对数，商变成差。还剩下哪个 exp？",
        ),
        Text(
            "log Σ exp(x) = m + log Σ exp(x − m) with the maximum m of the row, and m cancels against xᵢ − m.",
            "log Σ exp(x) = m + log Σ exp(x − m)，m 是这一行的最大值；它与 xᵢ − m 里的 m 正好抵消。",
        ),
        Text(
            "s = (x − x.amax(dim, keepdim=True)) / T, then s − s.exp().sum(dim, keepdim=True).log().",
            "s = (x − x.amax(dim, keepdim=True)) / T，再算 s − s.exp().sum(dim, keepdim=True).log()。",
        ),
    ),
    difficulty=1,
    asked=2,
)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


exercise.values("three logits", "三个 logits", lambda: call(row(1, 2, 3)), see="softmax-formula")
exercise.values("rows of five", "每行五个", lambda: call(numbers(3, 5)), see="softmax-formula")
exercise.values("one logit", "只有一个 logit", lambda: call(row(-7.0)), see="softmax-formula")
exercise.values("the axis in the middle", "中间一维", lambda: call(numbers(2, 3, 4), 1), see="softmax-pitfall-axis")
exercise.values("a gap of 30", "相差 30", lambda: call(row(30, 0)), see="softmax-pitfall-log")
exercise.values("a gap of 1000", "相差 1000", lambda: call(row(1000, 0, -1000)), see="softmax-pitfall-log")
exercise.values("logits near −1000", "−1000 上下的 logits", lambda: call(row(-1000, -1001)), see="softmax-overflow")
exercise.values(
    "rows 2000 apart", "行与行相差 2000",
    lambda: call(torch.cat((row(2000, 2001), row(0, 1)))), see="softmax-pitfall-global",
)  # fmt: skip
exercise.values("an excluded entry", "排除一个位置", lambda: call(row(0, -math.inf, 1)), see="softmax-pitfall-mask")
exercise.values("an empty axis", "空的维", lambda: call(torch.zeros(3, 0)), see="softmax-pitfall-mask")
exercise.values(
    "temperature ½", "温度 ½", lambda: call(numbers(3, 5), temperature=0.5), see="softmax-pitfall-temperature"
)
exercise.values(
    "temperature 3, another axis", "温度 3，另一维", lambda: call(numbers(3, 5, seed=1), 0, temperature=3.0),
    see="softmax-pitfall-temperature",
)  # fmt: skip
exercise.values(
    "70 000 equal logits in float16", "float16，70 000 个相等的 logits",
    lambda: call(torch.zeros(70_000, dtype=torch.float16)), tolerance=1e-3, see="softmax-pitfall-half",
)  # fmt: skip
exercise.gradients("gradients", "梯度", lambda: call(numbers(3, 5, seed=2), 0, temperature=0.7), see="softmax-jacobian")
exercise.gradients(
    "gradient at a gap of 1000", "相差 1000 时的梯度", lambda: call(row(1000, 0)), see="softmax-pitfall-log"
)
exercise.dtypes_kept(lambda: call(numbers(4, 50, scale=3)), see="softmax-pitfall-half")
exercise.device_kept(lambda: call(numbers(3, 5)), see="softmax-by-hand")
exercise.refuses("temperature 0", "温度 0", lambda: call(row(1, 2), temperature=0.0), see="softmax-pitfall-temperature")


def _checked(temperature):
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature}, must be positive")


@exercise.solution("shifted logits less the logarithm of their sum", "平移之后减去求和的对数")
def shifted(x, dim=-1, *, temperature=1.0):
    if not temperature > 0:
        raise ValueError(f"temperature: got {temperature}, must be positive")
    if x.shape[dim] == 0:
        return x.clone()
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    s = (wide - wide.amax(dim, keepdim=True)) / temperature
    return (s - s.exp().sum(dim, keepdim=True).log()).to(x.dtype)


@exercise.solution("less the log-sum-exp", "减去 log-sum-exp")
def less_lse(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    if x.numel() == 0:
        return x.clone()
    y = x.to(torch.promote_types(x.dtype, torch.float32)) / temperature
    top = y.max(dim, keepdim=True).values
    return (y - (top + (y - top).exp().sum(dim, keepdim=True).log())).to(x.dtype)


def _log_softmax(x, dim, temperature, *, top=None, wide=True):
    """The solution, with another shift, or without the wide dtype."""
    _checked(temperature)
    if x.shape[dim] == 0:
        return x.clone()
    y = x.to(torch.promote_types(x.dtype, torch.float32)) if wide else x
    top = y.amax(dim, keepdim=True) if top is None else top
    s = (y - top) / temperature
    return (s - s.exp().sum(dim, keepdim=True).log()).to(x.dtype)


@exercise.wrong("the logarithm of softmax: log 0 is −∞", "对 softmax 取对数：log 0 是 −∞", fails="a gap of 1000")
def log_of_softmax(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, dim, temperature).exp().log()


@exercise.wrong("eps inside the logarithm", "在 log 里加了 eps", fails="a gap of 30")
def with_eps(x, dim=-1, *, temperature=1.0):
    return (_log_softmax(x, dim, temperature).exp() + 1e-10).log()


@exercise.wrong(
    "probabilities clamped from below: a gap of 1000 counts as 23",
    "概率设了下限：相差 1000 只算 23",
    fails="gradient at a gap of 1000",
)
def clamped(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, dim, temperature).exp().clamp(min=1e-10).log()


@exercise.wrong("no shift: exp overflows", "没有减最大值：exp 上溢", fails="logits near −1000")
def naive(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, dim, temperature, top=0.0)


@exercise.wrong("shifted by the maximum of the whole tensor", "减的是整个张量的最大值", fails="rows 2000 apart")
def global_maximum(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, dim, temperature, top=x.max() if x.numel() else 0.0)


@exercise.wrong("the maximum is not added back to the log-sum-exp", "log-sum-exp 忘了加回最大值", fails="three logits")
def not_added_back(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    if x.shape[dim] == 0:
        return x.clone()
    y = x.to(torch.promote_types(x.dtype, torch.float32)) / temperature
    return (y - (y - y.amax(dim, keepdim=True)).exp().sum(dim, keepdim=True).log()).to(x.dtype)


@exercise.wrong(
    "the logarithm of the sum is missing: the shifted logits", "漏了求和的对数，只平移了", fails="rows of five"
)
def only_shifted(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    if x.shape[dim] == 0:
        return x.clone()
    return (x - x.amax(dim, keepdim=True)) / temperature


@exercise.wrong("negated: the surprise, −log p", "符号反了：成了 −log p", fails="three logits")
def negated(x, dim=-1, *, temperature=1.0):
    return -_log_softmax(x, dim, temperature)


@exercise.wrong("base 2: bits, not nats", "以 2 为底：单位成了 bit", fails="rows of five")
def bits(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, dim, temperature) / math.log(2)


@exercise.wrong("probabilities are returned", "返回了概率", fails="one logit")
def probabilities(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, dim, temperature).exp()


@exercise.wrong("always along the last axis", "写死了最后一维", fails="the axis in the middle")
def last_axis(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, -1, temperature)


@exercise.wrong(
    "log-probabilities divided by T at the end: not normalised",
    "最后才除以 T：不再归一化",
    fails="temperature ½",
)
def divided_late(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    return _log_softmax(x, dim, 1.0) / temperature


@exercise.wrong("the temperature is ignored", "没有用温度", fails="temperature 3, another axis")
def no_temperature(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    return _log_softmax(x, dim, 1.0)


@exercise.wrong(
    "computed in half precision: the sum overflows", "全程半精度：求和上溢", fails="70 000 equal logits in float16"
)
def narrow(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, dim, temperature, wide=False)


@exercise.wrong("returned in float32", "返回值成了 float32", fails="float32, bfloat16, float16")
def not_cast_back(x, dim=-1, *, temperature=1.0):
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    result = _log_softmax(y, dim, temperature)
    return result if x.dtype == torch.bfloat16 else result.to(x.dtype)


@exercise.wrong("the normaliser is held constant", "归一化项被 detach", fails="gradients")
def constant_sum(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    if x.shape[dim] == 0:
        return x.clone()
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    s = (y - y.amax(dim, keepdim=True).detach()) / temperature
    return (s - s.exp().sum(dim, keepdim=True).log().detach()).to(x.dtype)


@exercise.wrong("−∞ replaced by a finite number", "−∞ 被换成了有限的数", fails="an excluded entry")
def finite(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, dim, temperature).clamp(min=-1e4)


@exercise.wrong("an empty axis raises an error", "空的维报错", fails="an empty axis")
def no_empty(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    s = (y - y.amax(dim, keepdim=True)) / temperature
    return (s - s.exp().sum(dim, keepdim=True).log()).to(x.dtype)


@exercise.wrong("temperature 0 gives no error", "温度为 0 时没有报错", fails="temperature 0")
def unchecked(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x / (temperature or 1e-30), dim, 1.0)


@exercise.wrong("a table of zeros made on the CPU", "在 CPU 上建了一个全 0 张量", fails="works where the input lies")
def homeless(x, dim=-1, *, temperature=1.0):
    return _log_softmax(x, dim, temperature) + torch.zeros(x.shape, dtype=x.dtype)


@exercise.wrong(
    "the library's logsumexp", "用库函数 logsumexp 代劳",
    fails="written by hand, without softmax, log_softmax, logsumexp, softmin, safe_softmax, logaddexp, cross_entropy",
)  # fmt: skip
def library(x, dim=-1, *, temperature=1.0):
    _checked(temperature)
    y = x.to(torch.promote_types(x.dtype, torch.float32)) / temperature
    return (y - y.logsumexp(dim, keepdim=True)).to(x.dtype)
