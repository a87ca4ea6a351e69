"""AdamW: one step."""

import torch

from lib import adamw
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    parameter, m, v = (x.detach().clone() for x in (parameter, m, v))
    adamw.adamw_step(parameter, gradient, m, v, step, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    return parameter, m, v


exercise = Exercise(
    topic="adamw",
    part="foundations",
    title=Text("One step of AdamW", "AdamW 的一步"),
    statement=Text(
        """Write `adamw_step(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)`:
the parameter and both moments after one step of AdamW, as a tuple `(parameter, m, v)` of new tensors.

- All four tensors have one shape. `m` and `v` are what the step before returned, zeros before the first.
- `step` counts from 1; a `step` below 1 raises `ValueError`.
- The decay is `lr` times `weight_decay` of the old weight. `eps` is added to the root of the corrected v.
- `m` and `v` are float32 even where the parameter and its gradient are in half precision. Compute in their dtype;
  only the new parameter is rounded to the dtype of the old one.""",
        """写 `adamw_step(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2)`：AdamW 走一步之后的参数和两个矩，以新张量组成的元组 `(parameter, m, v)` 返回。

- 四个张量形状相同。`m` 和 `v` 是上一步返回的，第一步之前为零。
- `step` 从 1 数起；小于 1 的 `step` 抛出 `ValueError`。
- 衰减量是旧权重的 `lr` 乘 `weight_decay` 倍。`eps` 加在修正后的 v 的平方根上。
- 参数和梯度即使是半精度，`m` 和 `v` 也是 float32。按它们的数据类型计算，最后只把新参数舍入到原来的类型。""",
    ),
    signature="def adamw_step(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):",
    reference=reference,
    forbidden=("adamw", "adam", "AdamW", "Adam"),
    hints=(
        Text(
            "Two running means, of g and of g². What is each after the first step, and by what must you divide to get g and g²?",
            "两个滑动平均，一个平均 g，一个平均 g²。第一步之后它们各是多少？要除以多少才得回 g 和 g²？",
        ),
        Text(
            "m = β₁m + (1 − β₁)g; dividing by 1 − β₁ᵗ gives m̂. The same for v. The direction is m̂/(√v̂ + eps).",
            "m = β₁m + (1 − β₁)g，除以 1 − β₁ᵗ 得到 m̂；v 同理。方向是 m̂/(√v̂ + eps)。",
        ),
        Text(
            "The decay never meets m or v: (1 − lr·λ)·θ − lr·direction. Widen the gradient before you square it.",
            "衰减与 m、v 无关：(1 − lr·λ)·θ − lr·方向。先把梯度转宽，再平方。",
        ),
    ),
    difficulty=2,
    asked=3,
)


def _moments(*shape, seed=0):
    """What some steps have left behind."""
    return numbers(*shape, seed=seed + 10, scale=0.3), numbers(*shape, seed=seed + 20).square()


def _by_hand():
    """Case: θ = 1 and −2, the second gradient −0.25 and 2 after 0.5 and 1."""
    parameter = torch.tensor([0.890000002, -2.079999999], dtype=torch.float64)
    m, v = torch.tensor([0.05, 0.1], dtype=torch.float64), torch.tensor([0.00025, 0.001], dtype=torch.float64)
    gradient = torch.tensor([-0.25, 2.0], dtype=torch.float64)
    return call(parameter, gradient, m, v, 2, lr=0.1, weight_decay=0.1)


def _first(*sizes, decay=0.0):
    """The first step, from moments of zero."""
    gradient = torch.tensor(sizes, dtype=torch.float64)
    zeros = torch.zeros_like(gradient)
    return call(torch.ones_like(gradient), gradient, zeros, zeros.clone(), 1, lr=0.1, weight_decay=decay)


def _later(*shape, step=7, seed=0, **settings):
    return call(
        numbers(*shape, seed=seed), numbers(*shape, seed=seed + 1), *_moments(*shape, seed=seed), step, **settings
    )


def _half(dtype, size):
    """A half-precision parameter and gradient with moments in float32."""
    gradient = torch.tensor([size, -2 * size, 0.0, size / 2]).to(dtype)
    zeros = torch.zeros(4)
    return call(torch.ones(4, dtype=dtype), gradient, zeros, zeros.clone(), 1, lr=0.25, weight_decay=0.0)


SAME = {"tolerance": 1e-9}
exercise.values("two numbers, by hand", "两个数，可手算", _by_hand, see="adamw-formula", **SAME)
exercise.values(
    "the first step, gradients from 10⁻⁵ to 10³", "第一步，梯度从 10⁻⁵ 到 10³", lambda: _first(1e-5, -1e-2, 3.0, -1e3),
    see="adamw-bias-correction", **SAME,
)  # fmt: skip
exercise.values(
    "gradients as small as eps", "梯度与 eps 一样小", lambda: _first(1e-8, -3e-8, 1e-9), see="adamw-pitfall-eps", **SAME
)
exercise.values(
    "the hundredth step, a matrix", "第一百步，一个矩阵", lambda: _later(3, 4, step=100, lr=0.02),
    see="adamw-bias-correction", **SAME,
)  # fmt: skip
exercise.values(
    "strong decay", "衰减很强", lambda: _later(2, 3, lr=0.1, weight_decay=1.5, seed=3), see="adamw-decay", **SAME
)
exercise.values(
    "no gradient yet: the weight only decays", "还没有梯度：只衰减", lambda: _first(0.0, 0.0, decay=0.5),
    see="adamw-decay", **SAME,
)  # fmt: skip
exercise.values(
    "other betas", "换一组 β", lambda: _later(1, 5, step=3, betas=(0.5, 0.95), eps=1e-4), see="adamw-formula", **SAME
)
exercise.values(
    "bfloat16 parameter, float32 moments", "参数 bfloat16，矩 float32", lambda: _half(torch.bfloat16, 0.7),
    see="adamw-pitfall-half", tolerance=1e-5, atol=1e-12,
)  # fmt: skip
exercise.values(
    "float16 gradients of 10⁻⁴", "float16 的梯度只有 10⁻⁴", lambda: _half(torch.float16, 1e-4),
    see="adamw-pitfall-half", tolerance=1e-3, atol=1e-14,
)  # fmt: skip
exercise.device_kept(lambda: _later(2, 3), see="adamw-by-hand")
exercise.refuses("step 0 is refused", "拒绝第 0 步", lambda: _later(2, step=0), see="adamw-pitfall-t")


def _from_one(step):
    if step < 1:
        raise ValueError(f"step: got {step}, must be at least 1")


@exercise.solution("line by line", "逐行照公式写")
def by_the_formula(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    if step < 1:
        raise ValueError(f"step: got {step}, must be at least 1")
    beta1, beta2 = betas
    g, theta = gradient.to(m.dtype), parameter.to(m.dtype)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    theta = theta - lr * weight_decay * theta - lr * m_hat / (v_hat.sqrt() + eps)
    return theta.to(parameter.dtype), m, v


@exercise.solution("as PyTorch arranges it: the corrections in the step size", "PyTorch 的写法：把修正并进步长")
def as_torch(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    _from_one(step)
    theta = parameter.to(m.dtype) * (1 - lr * weight_decay)
    m = m.lerp(gradient.to(m.dtype), 1 - betas[0])
    v = (v * betas[1]).addcmul(gradient.to(v.dtype), gradient.to(v.dtype), value=1 - betas[1])
    root = v.sqrt() / (1 - betas[1] ** step) ** 0.5 + eps
    return theta.addcdiv(m, root, value=-lr / (1 - betas[0] ** step)).to(parameter.dtype), m, v


def _step(parameter, gradient, m, v, step, lr, betas, eps, weight_decay, **changed):
    """The right step, in which a mistake replaces one part."""
    _from_one(step)
    part = {
        "g": lambda g, theta: g,
        "m": lambda m, g: betas[0] * m + (1 - betas[0]) * g,
        "v": lambda v, g: betas[1] * v + (1 - betas[1]) * g**2,
        "m_hat": lambda m: m / (1 - betas[0] ** step),
        "v_hat": lambda v: v / (1 - betas[1] ** step),
        "root": lambda v_hat: v_hat.sqrt() + eps,
        "move": lambda theta, u: (1 - lr * weight_decay) * theta - lr * u,
        "state": lambda m, v, m_hat, v_hat: (m, v),
    } | changed
    theta = parameter.to(m.dtype)
    g = part["g"](gradient.to(m.dtype), theta)
    m, v = part["m"](m, g), part["v"](v, g)
    m_hat, v_hat = part["m_hat"](m), part["v_hat"](v)
    theta = part["move"](theta, m_hat / part["root"](v_hat))
    return theta.to(parameter.dtype), *part["state"](m, v, m_hat, v_hat)


def _wrong(en, zh, fails, make):
    """A wrong program: make(step, lr, betas, eps, decay) gives the parts that differ."""

    def program(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        changed = make(max(step, 1), lr, betas, eps, weight_decay)
        return _step(parameter, gradient, m, v, step, lr, betas, eps, weight_decay, **changed)

    program.__name__ = "_".join(word for word in en.split()[:4] if word.isalnum())
    exercise.wrong(en, zh, fails=fails)(program)


_wrong("the decay goes through the gradient: that is Adam with an L2 penalty", "衰减走了梯度：那是带 L2 的 Adam", "strong decay",
       lambda t, lr, b, e, d: {"g": lambda g, x: g + d * x, "move": lambda x, u: x - lr * u})  # fmt: skip
_wrong("the decay hits the finished step, not the old weight", "衰减乘在走完之后的权重上", "strong decay",
       lambda t, lr, b, e, d: {"move": lambda x, u: (1 - lr * d) * (x - lr * u)})  # fmt: skip
_wrong("the decay is not multiplied by lr", "衰减没有乘 lr", "no gradient yet: the weight only decays",
       lambda t, lr, b, e, d: {"move": lambda x, u: (1 - d) * x - lr * u})  # fmt: skip
_wrong("no decay at all: plain Adam", "没有衰减：只是 Adam", "no gradient yet: the weight only decays",
       lambda t, lr, b, e, d: {"move": lambda x, u: x - lr * u})  # fmt: skip
_wrong("eps before the bias correction: it is multiplied up with v", "先加 eps 再修正：eps 也跟着放大", "gradients as small as eps",
       lambda t, lr, b, e, d: {"v_hat": lambda v: v, "root": lambda v: (v.sqrt() + e) / (1 - b[1] ** t) ** 0.5})  # fmt: skip
_wrong("eps inside the root", "eps 放进了根号", "other betas",
       lambda t, lr, b, e, d: {"root": lambda v: (v + e).sqrt()})  # fmt: skip
_wrong("no eps: 0/0", "漏了 eps：0/0", "no gradient yet: the weight only decays",
       lambda t, lr, b, e, d: {"root": lambda v: v.sqrt()})  # fmt: skip
_wrong("no bias correction", "没有偏差修正", "the first step, gradients from 10⁻⁵ to 10³",
       lambda t, lr, b, e, d: {"m_hat": lambda m: m, "v_hat": lambda v: v})  # fmt: skip
_wrong("only m is corrected", "只修正了 m", "the first step, gradients from 10⁻⁵ to 10³",
       lambda t, lr, b, e, d: {"v_hat": lambda v: v})  # fmt: skip
_wrong("divided by v, without the root", "除以 v，漏了开方", "two numbers, by hand",
       lambda t, lr, b, e, d: {"root": lambda v: v + e})  # fmt: skip
_wrong("the betas exchanged", "两个 β 弄反了", "other betas",
       lambda t, lr, b, e, d: {"m": lambda m, g: b[1] * m + (1 - b[1]) * g, "v": lambda v, g: b[0] * v + (1 - b[0]) * g**2})  # fmt: skip
_wrong("the gradient is added whole, not by 1 − β", "梯度整个加上去，没乘 1 − β", "two numbers, by hand",
       lambda t, lr, b, e, d: {"m": lambda m, g: b[0] * m + g})  # fmt: skip
_wrong("v from m squared, not from g squared", "v 平均了 m²，不是 g²", "two numbers, by hand",
       lambda t, lr, b, e, d: {"v": lambda v, g: b[1] * v + (1 - b[1]) * ((1 - b[0]) * g) ** 2})  # fmt: skip
_wrong("uphill: the step is added", "往上走：步子加上去了", "the first step, gradients from 10⁻⁵ to 10³",
       lambda t, lr, b, e, d: {"move": lambda x, u: (1 - lr * d) * x + lr * u})  # fmt: skip
_wrong("the corrected moments are handed to the next step", "把修正后的矩交给了下一步", "two numbers, by hand",
       lambda t, lr, b, e, d: {"state": lambda m, v, m_hat, v_hat: (m_hat, v_hat)})  # fmt: skip
_wrong("the fixed betas .9 and .999", "β 写死成 .9 和 .999", "other betas",
       lambda t, lr, b, e, d: {"m": lambda m, g: 0.9 * m + 0.1 * g, "v": lambda v, g: 0.999 * v + 0.001 * g**2})  # fmt: skip


@exercise.wrong(
    "t counts from 0: one step too few in the correction",
    "t 从 0 数：修正少算一步",
    fails="the hundredth step, a matrix",
)
def from_zero(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    _from_one(step)
    changed = {
        "m_hat": lambda m: m / (1 - betas[0] ** (step - 1) if step > 1 else 0 * m),
        "v_hat": lambda v: v / (1 - betas[1] ** (step - 1) if step > 1 else 0 * v),
    }
    return _step(parameter, gradient, m, v, step, lr, betas, eps, weight_decay, **changed)


@exercise.wrong("step 0 passes in silence", "第 0 步没有报错", fails="step 0 is refused")
def careless(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    if step < 1:
        return parameter * torch.nan, m, v
    return _step(parameter, gradient, m, v, step, lr, betas, eps, weight_decay)


@exercise.wrong(
    "squared in the gradient's own dtype: 10⁻⁸ is 0 in float16",
    "在梯度自己的类型里平方：float16 里 10⁻⁸ 成了 0",
    fails="float16 gradients of 10⁻⁴",
)
def squared_narrow(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    square = (gradient * gradient).to(v.dtype)
    changed = {"v": lambda v, g: betas[1] * v + (1 - betas[1]) * square}
    return _step(parameter, gradient, m, v, step, lr, betas, eps, weight_decay, **changed)


@exercise.wrong(
    "the moments take the dtype of the parameter", "矩用了参数的数据类型", fails="bfloat16 parameter, float32 moments"
)
def narrow_moments(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    theta, m, v = _step(parameter, gradient, m, v, step, lr, betas, eps, weight_decay)
    return theta, m.to(theta.dtype), v.to(theta.dtype)


@exercise.wrong(
    "the parameter comes back in float32", "参数变成了 float32", fails="bfloat16 parameter, float32 moments"
)
def widened(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    return _step(parameter.to(m.dtype), gradient, m, v, step, lr, betas, eps, weight_decay)


@exercise.wrong("the arguments are changed in place", "原地改了传进来的参数", fails="inputs unchanged")
def in_place(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    adamw.adamw_step(parameter, gradient, m, v, step, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    return parameter, m, v


@exercise.wrong(
    "PyTorch's own AdamW", "用 PyTorch 的 AdamW 代劳", fails="written by hand, without adamw, adam, AdamW, Adam"
)
def library(parameter, gradient, m, v, step, *, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    _from_one(step)
    p, m, v = (x.detach().clone() for x in (parameter.to(m.dtype), m, v))
    torch.optim._functional.adamw(
        [p], [gradient.to(m.dtype)], [m], [v], [], [torch.tensor(float(step - 1))], foreach=False, amsgrad=False,
        beta1=betas[0], beta2=betas[1], lr=lr, weight_decay=weight_decay, eps=eps, maximize=False,
    )  # fmt: skip
    return p.to(parameter.dtype), m, v
