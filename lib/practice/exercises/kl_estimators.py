"""KL estimators: k1, k2 and k3 over the valid tokens."""

import math

import torch

from lib.kl_estimators import kl_estimate
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(logprobs, ref_logprobs, mask, estimator):
    return kl_estimate(logprobs, ref_logprobs, mask, estimator=estimator)


exercise = Exercise(
    topic="kl_estimators",
    part="foundations",
    title=Text("k1, k2 and k3 with a mask", "k1、k2、k3，带掩码"),
    statement=Text(
        """Write `kl_estimate(logprobs, ref_logprobs, mask, estimator)`: the mean, over all valid tokens of the batch, of
an estimate of KL(π‖π_ref) from tokens that π sampled.

- `logprobs` = log π(x) and `ref_logprobs` = log π_ref(x): (B, T). `mask`: (B, T) bool, True = a valid token.
- With r = π_ref(x)/π(x): `"k1"` is −log r, `"k2"` is (log r)²/2, `"k3"` is r − 1 − log r.
- Returns one number as a tensor (), in nats per token; bfloat16 and float16 come back as float32, float64 stays.
- Padding may hold −∞. k3 must keep its digits where the models nearly agree.""",
        """写 `kl_estimate(logprobs, ref_logprobs, mask, estimator)`：用 π 采样得到的 token 估计 KL(π‖π_ref)，再对整个 batch 的有效 token 取平均。

- `logprobs` = log π(x)，`ref_logprobs` = log π_ref(x)，形状 (B, T)。`mask`：(B, T)，bool，True 表示有效 token。
- 记 r = π_ref(x)/π(x)：`"k1"` 为 −log r，`"k2"` 为 (log r)²/2，`"k3"` 为 r − 1 − log r。
- 返回一个数，即形状为 () 的张量，单位是每个 token 的 nat 数；bfloat16 和 float16 的输入返回 float32，float64 不变。
- 填充位置可能是 −∞。两个模型几乎一致时，k3 不能丢失有效数字。""",
    ),
    signature="def kl_estimate(logprobs, ref_logprobs, mask, estimator):",
    reference=reference,
    forbidden=("kl_div", "kl_divergence"),
    hints=(
        Text(
            "Everything depends on u = log r alone. Which of the two log-probabilities comes first?",
            "三个式子都只依赖 u = log r。两个对数概率，谁减谁？",
        ),
        Text(
            "−∞ − (−∞) is NaN, and NaN · 0 is NaN. Replace masked entries before you compute with them: torch.where.",
            "−∞ − (−∞) 是 NaN，NaN 乘 0 还是 NaN。先用 torch.where 换掉无效位置，再参与计算。",
        ),
        Text(
            "e^u − 1 for small u is torch.expm1(u). Then sum, divided by mask.sum().",
            "u 很小时用 torch.expm1(u) 算 e^u − 1。最后求和，除以 mask.sum()。",
        ),
    ),
    difficulty=1,
    asked=3,
)


def _two(estimator):
    """Two tokens with π = .7, .3 and π_ref = .5, .5."""
    policy = torch.tensor([[0.7, 0.3]], dtype=torch.float64).log()
    ref = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    return call(policy, ref, torch.ones(1, 2, dtype=torch.bool), estimator)


def _ragged(estimator, padding=None, seed=0):
    """Three answers of 1, 4 and 2 tokens."""
    policy, ref = (-numbers(3, 4, seed=seed + i).abs() for i in range(2))
    mask = torch.arange(4) < torch.tensor([[1], [4], [2]])
    if padding is not None:
        policy, ref = (x.masked_fill(~mask, padding) for x in (policy, ref))
    return call(policy, ref, mask, estimator)


def _holes():
    """A token in the middle does not count."""
    given = _ragged("k1", seed=7)
    return call(
        *given.args[:2], torch.tensor([[True, False, True, True], [False, True, False, False], [True] * 4]), "k1"
    )


def _far(estimator):
    """Log-ratios of 8 and −8: far apart, and still numbers."""
    policy = torch.tensor([[-1.0, -9.0, -2.0]], dtype=torch.float64)
    ref = torch.tensor([[-9.0, -1.0, -2.5]], dtype=torch.float64)
    return call(policy, ref, torch.ones(1, 3, dtype=torch.bool), estimator)


def _close():
    """float32 log-ratios of 1e-4: k3 is 5e-9."""
    return call(torch.zeros(1, 5), torch.linspace(0.8e-4, 1.2e-4, 5)[None], torch.ones(1, 5, dtype=torch.bool), "k3")


for name in ("k1", "k2", "k3"):
    see = {"see": "kl-estimators-pitfall-ratio" if name == "k3" else "kl-estimators-formula"}
    exercise.values(f"{name}, two tokens", f"{name}，两个 token", lambda name=name: _two(name), **see)
    exercise.values(
        f"{name}, answers of unequal length", f"{name}，长度不等的回答", lambda name=name: _ragged(name),
        see="kl-estimators-pitfall-padding",
    )  # fmt: skip
for name in ("k1", "k2"):
    exercise.values(
        f"{name}, padding of −∞", f"{name}，填充为 −∞", lambda name=name: _ragged(name, -math.inf),
        see="kl-estimators-pitfall-padding",
    )  # fmt: skip
exercise.values("a mask with holes", "掩码中间有空洞", _holes, see="kl-estimators-pitfall-padding")
exercise.values("models far apart", "两个模型相差很大", lambda: _far("k2"), see="kl-estimators-formula")
exercise.values("padding of −∞", "填充为 −∞", lambda: _ragged("k3", -math.inf), see="kl-estimators-pitfall-padding")
exercise.values(
    "k3 keeps its digits close to 0", "k3 在 0 附近不丢有效数字", _close, tolerance=1e-2, atol=0.0,
    see="kl-estimators-pitfall-float",
)  # fmt: skip
for name in ("k1", "k2", "k3"):
    exercise.gradients(
        f"gradient of {name}", f"{name} 的梯度", lambda name=name: _ragged(name, seed=5), wrt=("logprobs",),
        see="kl-estimators-gradient",
    )  # fmt: skip
for name in ("k1", "k2", "k3"):
    exercise.gradients(
        f"gradient of {name} with padding of −∞", f"{name} 的梯度，填充为 −∞", lambda name=name: _ragged(name, -math.inf),
        wrt=("logprobs",), see="kl-estimators-pitfall-padding",
    )  # fmt: skip
for name in ("k1", "k2"):
    exercise.dtypes_kept(lambda name=name: _ragged(name), of=name, see="kl-estimators-pitfall-float", tolerance=1e-6)
exercise.dtypes_kept(lambda: _two("k3"), see="kl-estimators-pitfall-float", tolerance=1e-6)
exercise.device_kept(lambda: _ragged("k2"), see="kl-estimators-by-hand")


@exercise.solution("mask first, then one formula each", "先处理掩码，再各写一个式子")
def where_first(logprobs, ref_logprobs, mask, estimator):
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    u = torch.where(mask, ref_logprobs.to(dtype) - logprobs.to(dtype), 0.0)  # log r
    formulas = {"k1": -u, "k2": u * u / 2, "k3": torch.expm1(u) - u}
    return formulas[estimator].sum() / mask.sum()


@exercise.solution("select the valid tokens", "只取有效 token")
def select(logprobs, ref_logprobs, mask, estimator):
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    u = ref_logprobs[mask].to(dtype) - logprobs[mask].to(dtype)
    if estimator == "k1":
        return -u.mean()
    return u.square().mean() / 2 if estimator == "k2" else (torch.expm1(u) - u).mean()


def _estimate(u, mask, estimator):
    formulas = {"k1": -u, "k2": u * u / 2, "k3": torch.expm1(u) - u}
    return formulas[estimator].sum() / mask.sum()


def _log_r(logprobs, ref_logprobs, mask):
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    return torch.where(mask, ref_logprobs.to(dtype) - logprobs.to(dtype), 0.0)


@exercise.wrong("the ratio is π/π_ref, upside down", "比值写成了 π/π_ref，反了", fails="k3, two tokens")
def turned(logprobs, ref_logprobs, mask, estimator):
    u = _log_r(logprobs, ref_logprobs, mask)
    return _estimate(-u if estimator == "k3" else u, mask, estimator)


@exercise.wrong("k2 and k3 exchanged", "k2 与 k3 弄反了", fails="k2, two tokens")
def exchanged(logprobs, ref_logprobs, mask, estimator):
    other = {"k1": "k1", "k2": "k3", "k3": "k2"}[estimator]
    return _estimate(_log_r(logprobs, ref_logprobs, mask), mask, other)


@exercise.wrong("k1 negated", "k1 的符号反了", fails="k1, two tokens")
def negated(logprobs, ref_logprobs, mask, estimator):
    value = _estimate(_log_r(logprobs, ref_logprobs, mask), mask, estimator)
    return -value if estimator == "k1" else value


@exercise.wrong("k1 made positive with abs", "给 k1 取了绝对值", fails="k1, two tokens")
def absolute(logprobs, ref_logprobs, mask, estimator):
    u = _log_r(logprobs, ref_logprobs, mask)
    return u.abs().sum() / mask.sum() if estimator == "k1" else _estimate(u, mask, estimator)


@exercise.wrong("k2 without its ½", "k2 漏了 ½", fails="k2, two tokens")
def no_half(logprobs, ref_logprobs, mask, estimator):
    return _estimate(_log_r(logprobs, ref_logprobs, mask), mask, estimator) * (2 if estimator == "k2" else 1)


@exercise.wrong("the mean runs over padding too", "把填充也算进了平均", fails="k1, answers of unequal length")
def over_padding(logprobs, ref_logprobs, mask, estimator):
    u = _log_r(logprobs, ref_logprobs, mask)
    return _estimate(u, torch.ones_like(mask), estimator)


@exercise.wrong(
    "the mask is read as a length: the first tokens count",
    "把掩码当成长度，取了前几个 token",
    fails="a mask with holes",
)
def by_length(logprobs, ref_logprobs, mask, estimator):
    first = torch.arange(mask.shape[-1], device=mask.device) < mask.sum(-1, keepdim=True)
    return _estimate(_log_r(logprobs, ref_logprobs, first), first, estimator)


@exercise.wrong("log-ratios are cut off at ±5", "把对数比率截断在 ±5", fails="models far apart")
def cut_off(logprobs, ref_logprobs, mask, estimator):
    return _estimate(_log_r(logprobs, ref_logprobs, mask).clamp(-5, 5), mask, estimator)


@exercise.wrong(
    "mean of each answer first, then of the answers",
    "先对每个回答取平均，再对回答取平均",
    fails="k2, answers of unequal length",
)
def per_answer(logprobs, ref_logprobs, mask, estimator):
    u = _log_r(logprobs, ref_logprobs, mask)
    return torch.stack([_estimate(a, m, estimator) for a, m in zip(u, mask)]).mean()


@exercise.wrong(
    "the mask is multiplied in at the end: NaN · 0 is NaN", "最后才乘掩码：NaN 乘 0 还是 NaN", fails="padding of −∞"
)
def times_mask(logprobs, ref_logprobs, mask, estimator):
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    u = ref_logprobs.to(dtype) - logprobs.to(dtype)
    formulas = {"k1": -u, "k2": u * u / 2, "k3": torch.expm1(u) - u}
    return (formulas[estimator] * mask).sum() / mask.sum()


@exercise.wrong(
    "masked after exp: the value is right, the gradient NaN",
    "exp 之后才用 where：值对，梯度是 NaN",
    fails="gradient of k3 with padding of −∞",
)
def masked_late(logprobs, ref_logprobs, mask, estimator):
    dtype = torch.promote_types(logprobs.dtype, torch.float32)
    u = ref_logprobs.to(dtype) - logprobs.to(dtype)
    formulas = {"k1": -u, "k2": u * u / 2, "k3": torch.expm1(u) - u}
    return torch.where(mask, formulas[estimator], 0.0).sum() / mask.sum()


@exercise.wrong(
    "exp(u) − 1 − u: the digits cancel", "exp(u) − 1 − u：有效数字被抵消", fails="k3 keeps its digits close to 0"
)
def cancels(logprobs, ref_logprobs, mask, estimator):
    u = _log_r(logprobs, ref_logprobs, mask)
    return (u.exp() - 1 - u).sum() / mask.sum() if estimator == "k3" else _estimate(u, mask, estimator)


@exercise.wrong("half precision is not widened", "半精度没有转成 float32", fails="float32, bfloat16, float16")
def narrow(logprobs, ref_logprobs, mask, estimator):
    u = torch.where(mask, ref_logprobs - logprobs, 0.0)
    return _estimate(u, mask, estimator)


@exercise.wrong(
    "computed in half precision, widened at the end",
    "用半精度算完，最后才转成 float32",
    fails="float32, bfloat16, float16",
)
def widened_late(logprobs, ref_logprobs, mask, estimator):
    u = torch.where(mask, ref_logprobs - logprobs, 0.0)
    value = _estimate(u, mask, estimator)
    return value.to(torch.promote_types(value.dtype, torch.float32))


@exercise.wrong("the sum, not the mean", "求了和，没有取平均", fails="k1, two tokens")
def total(logprobs, ref_logprobs, mask, estimator):
    return _estimate(_log_r(logprobs, ref_logprobs, mask), mask, estimator) * mask.sum()


@exercise.wrong(
    "k1 by F.kl_div, the library's answer", "用 F.kl_div 代劳", fails="written by hand, without kl_div, kl_divergence"
)
def library(logprobs, ref_logprobs, mask, estimator):
    u = _log_r(logprobs, ref_logprobs, mask)
    torch.nn.functional.kl_div(-u, torch.zeros_like(u), log_target=True, reduction="none")
    return _estimate(u, mask, estimator)
