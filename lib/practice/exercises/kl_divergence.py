"""KL divergence of two softmax distributions."""

import math

import torch

from lib import kl_divergence as topic
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(p_logits, q_logits, *, temperature=1.0):
    return topic.kl_divergence(p_logits, q_logits, temperature=temperature, reduction="none")


exercise = Exercise(
    topic="kl_divergence",
    part="foundations",
    title=Text("KL divergence from logits", "从 logits 算 KL 散度"),
    statement=Text(
        """Write `kl_divergence(p_logits, q_logits, *, temperature=1.0)`: KL(p‖q) at each position, where p and q are the
softmax of the two logits over the last axis.

- `p_logits`, `q_logits`: (..., V), of the same shape; another shape raises `ValueError`. `temperature` divides both.
- Returns (...), in nats; bfloat16 and float16 come back as float32, float64 stays.
- A logit of −∞ excludes a token. Excluded from p it counts 0, whatever q says; excluded from q alone it makes the
  divergence +∞. Logits may lie 1000 apart.""",
        """写 `kl_divergence(p_logits, q_logits, *, temperature=1.0)`：逐个位置计算 KL(p‖q)，p、q 是两组 logits 在最后一维上的 softmax。

- `p_logits`、`q_logits`：形状同为 (..., V)，形状不同则抛出 `ValueError`。`temperature` 两边都除。
- 返回 (...)，单位 nat；bfloat16 和 float16 的输入返回 float32，float64 不变。
- logit 为 −∞ 表示排除这个 token：p 排除的，不管 q 给多少，都算 0；只有 q 排除的，散度是 +∞。logits 之间可能相差 1000。""",
    ),
    signature="def kl_divergence(p_logits, q_logits, *, temperature=1.0):",
    reference=reference,
    forbidden=("kl_div", "kl_divergence"),
    hints=(
        Text(
            "An average of log p − log q. Under which of the two?",
            "它是 log p − log q 的平均。按 p、q 哪一个来平均？",
        ),
        Text(
            "Take log_softmax of both, in float32, after the division by the temperature; p is its exp.",
            "先转 float32、除以温度，再对两边取 log_softmax；p 就是它的 exp。",
        ),
        Text(
            "−∞ − (−∞) is NaN, and NaN times 0 is NaN. Set log p − log q to 0 where p is 0, before the product.",
            "−∞ − (−∞) 是 NaN，NaN 乘 0 还是 NaN。p 为 0 的地方，先把 log p − log q 换成 0，再相乘。",
        ),
    ),
    difficulty=1,
    asked=3,
)


def _f64(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def _pair(*shape, seed=0, scale=1.0, **settings):
    return call(numbers(*shape, seed=seed, scale=scale), numbers(*shape, seed=seed + 1, scale=scale), **settings)


def _two():
    """p = .7, .3 and q = .5, .5."""
    return call(_f64([0.7, 0.3]).log(), _f64([0.5, 0.5]).log())


def _excluded(p=(0, 0, -math.inf), q=(1, 0, -math.inf)):
    return call(_f64(p), _f64(q))


exercise.values("two tokens", "两个 token", _two, see="kl-divergence-formula")
exercise.values("one distribution", "单个分布", lambda: _pair(7), see="kl-divergence-by-hand")
exercise.values("a batch of sequences", "一批序列", lambda: _pair(2, 3, 5), see="kl-divergence-pitfall-reduction")
exercise.values(
    "temperature 3", "温度为 3", lambda: _pair(4, 6, scale=2.0, temperature=3.0), see="kl-divergence-temperature"
)
exercise.values(
    "logits far apart", "logits 相差悬殊", lambda: call(_f64([1000, 0, -1000]), _f64([0, 1000, -500])),
    see="kl-divergence-pitfall-epsilon",
)  # fmt: skip
exercise.values("excluded from p", "p 排除", lambda: _excluded(q=(1, 0, 0)), see="kl-divergence-pitfall-masked")
exercise.values("excluded from both", "两边都排除", _excluded, see="kl-divergence-pitfall-masked")
exercise.values(
    "excluded from q alone", "只有 q 排除", lambda: _excluded(p=(1, 0, 0)), see="kl-divergence-pitfall-epsilon"
)
exercise.gradients("gradients", "梯度", lambda: _pair(3, 5, temperature=2.0), see="kl-divergence-gradient")
exercise.gradients("gradients, excluded from both", "两边都排除时的梯度", _excluded, see="kl-divergence-pitfall-masked")
exercise.dtypes_kept(lambda: _pair(2, 600, scale=2.0), see="kl-divergence-pitfall-half", tolerance=1e-5)
exercise.values(
    "bfloat16 logits, float32 digits", "bfloat16 的 logits，float32 的精度",
    lambda: call(*(numbers(2, 600, seed=i, scale=2.0).bfloat16() for i in range(2))),
    see="kl-divergence-pitfall-half", tolerance=1e-4,
)  # fmt: skip
exercise.device_kept(lambda: _pair(2, 3), see="kl-divergence-by-hand")
exercise.refuses(
    "shapes that differ", "形状不同", lambda: call(numbers(2, 3), numbers(1, 3)), see="kl-divergence-by-hand"
)


def _check(p_logits, q_logits):
    if p_logits.shape != q_logits.shape:
        raise ValueError(f"q_logits: shape {tuple(q_logits.shape)}, must be {tuple(p_logits.shape)}")


def _logs(p_logits, q_logits, temperature):
    _check(p_logits, q_logits)
    dtype = torch.promote_types(p_logits.dtype, torch.float32)
    return [(x.to(dtype) / temperature).log_softmax(-1) for x in (p_logits, q_logits)]


@exercise.solution("log-softmax of both, then the average under p", "两边取 log-softmax，再按 p 平均")
def by_logs(p_logits, q_logits, *, temperature=1.0):
    if p_logits.shape != q_logits.shape:
        raise ValueError(f"q_logits: shape {tuple(q_logits.shape)}, must be {tuple(p_logits.shape)}")
    dtype = torch.promote_types(p_logits.dtype, torch.float32)
    log_p = torch.log_softmax(p_logits.to(dtype) / temperature, dim=-1)
    log_q = torch.log_softmax(q_logits.to(dtype) / temperature, dim=-1)
    p = log_p.exp()
    log_ratio = torch.where(p == 0, 0.0, log_p - log_q)
    return (p * log_ratio).sum(-1)


@exercise.solution("with log-sum-exp, and every entry that p excludes left out", "用 log-sum-exp，p 排除的项一律不算")
def by_logsumexp(p_logits, q_logits, *, temperature=1.0):
    _check(p_logits, q_logits)
    dtype = torch.promote_types(p_logits.dtype, torch.float32)
    a, b = (x.to(dtype) / temperature for x in (p_logits, q_logits))
    p = torch.softmax(a, dim=-1)
    kept = p > 0
    difference = torch.where(kept, a, 0.0) - torch.where(kept, b, 0.0)
    return (p * difference).sum(-1) - a.logsumexp(-1) + b.logsumexp(-1)


def _kl(log_p, log_q):
    p = log_p.exp()
    return (p * torch.where(p == 0, 0.0, log_p - log_q)).sum(-1)


@exercise.wrong("the average is taken under q: the other direction", "按 q 平均：方向反了", fails="two tokens")
def other_direction(p_logits, q_logits, *, temperature=1.0):
    log_p, log_q = _logs(p_logits, q_logits, temperature)
    return _kl(log_q, log_p)


@exercise.wrong("the sign is turned: Σ p·log(q/p)", "符号反了：Σ p·log(q/p)", fails="two tokens")
def negated(p_logits, q_logits, *, temperature=1.0):
    return -_kl(*_logs(p_logits, q_logits, temperature))


@exercise.wrong("the mean over the vocabulary, not the sum", "对词表取了平均，应是求和", fails="two tokens")
def mean_over_vocabulary(p_logits, q_logits, *, temperature=1.0):
    return _kl(*_logs(p_logits, q_logits, temperature)) / p_logits.shape[-1]


@exercise.wrong("the terms, not their sum: (..., V)", "只有各项，没有求和：(..., V)", fails="one distribution")
def not_summed(p_logits, q_logits, *, temperature=1.0):
    log_p, log_q = _logs(p_logits, q_logits, temperature)
    return log_p.exp() * (log_p - log_q)


@exercise.wrong("one number for the whole batch", "整个 batch 只返回一个数", fails="a batch of sequences")
def one_number(p_logits, q_logits, *, temperature=1.0):
    return _kl(*_logs(p_logits, q_logits, temperature)).mean()


@exercise.wrong("softmax over the first axis", "softmax 作用在第一维上", fails="a batch of sequences")
def first_axis(p_logits, q_logits, *, temperature=1.0):
    _check(p_logits, q_logits)
    dtype = torch.promote_types(p_logits.dtype, torch.float32)
    return _kl(*[(x.to(dtype) / temperature).log_softmax(0) for x in (p_logits, q_logits)])


@exercise.wrong("bits, not nats", "用了 log2，单位成了比特", fails="two tokens")
def bits(p_logits, q_logits, *, temperature=1.0):
    return _kl(*_logs(p_logits, q_logits, temperature)) / math.log(2)


@exercise.wrong("an epsilon inside the logarithm", "log 里加了 eps", fails="logits far apart")
def epsilon(p_logits, q_logits, *, temperature=1.0):
    p, q = (x.exp() for x in _logs(p_logits, q_logits, temperature))
    return (p * ((p + 1e-10).log() - (q + 1e-10).log())).sum(-1)


@exercise.wrong(
    "the logarithm of a softmax: log 0 where it underflows",
    "先 softmax 再取 log：下溢后是 log 0",
    fails="logits far apart",
)
def log_of_softmax(p_logits, q_logits, *, temperature=1.0):
    p, q = (x.exp() for x in _logs(p_logits, q_logits, temperature))
    return (p * torch.where(p == 0, 0.0, p.log() - q.log())).sum(-1)


@exercise.wrong("logits taken for log-probabilities", "把 logits 当成了对数概率", fails="one distribution")
def not_normalised(p_logits, q_logits, *, temperature=1.0):
    _check(p_logits, q_logits)
    return _kl(p_logits.float().to(p_logits.dtype) / temperature, q_logits / temperature)


@exercise.wrong("the temperature divides the log-probabilities", "温度除在了对数概率上", fails="temperature 3")
def after_softmax(p_logits, q_logits, *, temperature=1.0):
    return _kl(*(x / temperature for x in _logs(p_logits, q_logits, 1.0)))


@exercise.wrong("the temperature divides p's logits alone", "温度只除了 p 一边", fails="temperature 3")
def one_side(p_logits, q_logits, *, temperature=1.0):
    return _kl(_logs(p_logits, q_logits, temperature)[0], _logs(p_logits, q_logits, 1.0)[1])


@exercise.wrong("multiplied by T²: that is the distillation loss", "乘了 T²：那是蒸馏损失", fails="temperature 3")
def squared(p_logits, q_logits, *, temperature=1.0):
    return temperature**2 * _kl(*_logs(p_logits, q_logits, temperature))


@exercise.wrong("0 · (−∞ − (−∞)) is NaN", "0 乘 (−∞ − (−∞)) 是 NaN", fails="excluded from both")
def not_guarded(p_logits, q_logits, *, temperature=1.0):
    log_p, log_q = _logs(p_logits, q_logits, temperature)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


@exercise.wrong(
    "guarded after the product: the value is right, the gradient NaN",
    "相乘之后才用 where：值对，梯度是 NaN",
    fails="gradients, excluded from both",
)
def guarded_late(p_logits, q_logits, *, temperature=1.0):
    log_p, log_q = _logs(p_logits, q_logits, temperature)
    p = log_p.exp()
    return torch.where(p == 0, 0.0, p * (log_p - log_q)).sum(-1)


@exercise.wrong(
    "nan_to_num: an infinite divergence becomes a number",
    "nan_to_num：无穷大也变成了有限的数",
    fails="excluded from q alone",
)
def swept_away(p_logits, q_logits, *, temperature=1.0):
    log_p, log_q = _logs(p_logits, q_logits, temperature)
    return (log_p.exp() * (log_p - log_q)).nan_to_num(0.0, posinf=0.0, neginf=0.0).sum(-1)


@exercise.wrong(
    "p is held constant: no gradient reaches p_logits", "p 被 detach：p_logits 的梯度不完整", fails="gradients"
)
def constant(p_logits, q_logits, *, temperature=1.0):
    log_p, log_q = _logs(p_logits, q_logits, temperature)
    return _kl(log_p.detach(), log_q)


@exercise.wrong("half precision is not widened", "半精度没有转成 float32", fails="bfloat16 logits, float32 digits")
def narrow(p_logits, q_logits, *, temperature=1.0):
    _check(p_logits, q_logits)
    kl = _kl(*[(x / temperature).log_softmax(-1) for x in (p_logits, q_logits)])
    return kl.to(torch.promote_types(kl.dtype, torch.float32))


@exercise.wrong("shapes that differ broadcast in silence", "形状不同时悄悄广播", fails="shapes that differ")
def broadcast(p_logits, q_logits, *, temperature=1.0):
    dtype = torch.promote_types(p_logits.dtype, torch.float32)
    return _kl(*[(x.to(dtype) / temperature).log_softmax(-1) for x in (p_logits, q_logits)])


@exercise.wrong("the library's", "用库函数代劳", fails="written by hand, without kl_div, kl_divergence")
def library(p_logits, q_logits, *, temperature=1.0):
    log_p, log_q = _logs(p_logits, q_logits, temperature)
    return torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
