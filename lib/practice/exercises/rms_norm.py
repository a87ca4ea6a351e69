"""RMSNorm: the function."""

import torch

from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text
from lib.rms_norm import rms_norm


def reference(x, weight, *, eps=1e-6):
    return rms_norm(x, weight, eps=eps)


exercise = Exercise(
    topic="layer_norm",
    part="normalisation",
    title=Text("RMSNorm", "RMSNorm"),
    statement=Text(
        """Write `rms_norm(x, weight, *, eps=1e-6)`: x / √(mean(x²) + `eps`) · `weight`, the mean over the last axis.

- `x`: (..., C), floating point. `weight`: (C,). The result has the shape and the dtype of `x`, also where `weight` has
  another one.
- float16 and bfloat16 are computed in float32: 300² is already infinite in float16.
- Free: whether the product with `weight` comes before or after rounding to the dtype of `x`.""",
        """写 `rms_norm(x, weight, *, eps=1e-6)`：x / √(mean(x²) + `eps`) · `weight`，沿最后一维取平均。

- `x`：(..., C)，浮点。`weight`：(C,)。返回值的形状和数据类型与 `x` 相同，`weight` 是别的类型时也一样。
- float16 和 bfloat16 转成 float32 来算：300² 在 float16 里已经是无穷大。
- 不限：先乘 `weight` 再舍入到 `x` 的类型，还是先舍入再乘。""",
    ),
    signature="def rms_norm(x, weight, *, eps=1e-6):",
    reference=reference,
    forbidden=("rms_norm", "layer_norm", "normalize"),
    hints=(
        Text(
            "What differs from LayerNorm? Nothing is subtracted, and no bias is added.",
            "与 LayerNorm 差在哪里？不减均值，也不加偏置。",
        ),
        Text(
            "Widen x to float32 before you square it, float64 stays: torch.promote_types(x.dtype, torch.float32).",
            "先把 x 升到 float32（float64 不变）再平方：torch.promote_types(x.dtype, torch.float32)。",
        ),
        Text(
            "wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps), times weight, then .to(x.dtype).",
            "wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)，乘 weight，最后 .to(x.dtype)。",
        ),
    ),
    difficulty=1,
    asked=3,
)


def _case(*shape, seed=0, **settings):
    return call(numbers(*shape, seed=seed) + 0.5, numbers(shape[-1], seed=seed + 1), **settings)


def _row(*values, dtype=torch.float64):
    return call(torch.tensor([values], dtype=dtype), torch.ones(len(values), dtype=dtype))


def _mixed():
    """The weight in float32, the stream in bfloat16."""
    given = _case(3, 8)
    return call(given.args[0].bfloat16(), given.args[1].float())


FORMULA = {"see": "layer-norm-formula"}
exercise.values("four numbers, by hand", "四个数，可手算", lambda: _row(1.0, 2.0, 2.0, 4.0), **FORMULA)
exercise.values("tokens of a batch", "一批 token", lambda: _case(2, 3, 5), **FORMULA)
exercise.values("a square", "方阵", lambda: _case(4, 4), see="layer-norm-pitfall-axes")
exercise.values(
    "one vector, another eps", "单个向量，换一个 eps", lambda: _case(6, eps=0.5), see="layer-norm-pitfall-eps"
)
exercise.values("small numbers", "很小的数", lambda: _row(0.001, 0.001, -0.001), see="layer-norm-pitfall-eps")
exercise.values("zeros", "全零", lambda: _row(0.0, 0.0), see="layer-norm-pitfall-eps")
exercise.values(
    "300 in float16", "float16 里的 300", lambda: _row(300.0, -300.0, 300.0, dtype=torch.float16), tolerance=2e-3,
    see="layer-norm-pitfall-half",
)  # fmt: skip
exercise.values(
    "a float32 weight, a bfloat16 stream", "weight 是 float32，x 是 bfloat16", _mixed, tolerance=2e-2,
    see="layer-norm-pitfall-dtype",
)  # fmt: skip
exercise.gradients("gradients", "梯度", lambda: _case(2, 3, 5, seed=3), see="layer-norm-gradient")
exercise.dtypes_kept(lambda: _case(4, 64, seed=5), see="layer-norm-pitfall-half", tolerance=1e-6)
exercise.device_kept(lambda: _case(2, 5), see="layer-norm-by-hand")
exercise.cost(
    "200 tokens without a loop", "200 个 token，不写循环", lambda: _case(200, 8), operations=40, bytes=200 * 8 * 8,
    see="layer-norm-by-hand",
)  # fmt: skip


@exercise.convention(
    "rounded to the dtype of x before the weight, as Llama has it", "先舍入到 x 的类型再乘 weight，Llama 的写法"
)
def rounded_first(x, weight, *, eps=1e-6):
    return rms_norm(x, weight, eps=eps, round_first=True)


@exercise.solution("in float32, the weight last", "用 float32，最后乘 weight")
def widened(x, weight, *, eps=1e-6):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed * weight).to(x.dtype)


@exercise.solution("by the length of the vector, in float64", "用向量长度，float64")
def by_length(x, weight, *, eps=1e-6):
    wide = x.double()
    mean = (wide * wide).sum(-1, keepdim=True) / x.shape[-1]
    return (wide / (mean + eps).sqrt() * weight.double()).to(x.dtype)


def _rms(x, weight, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight).to(x.dtype)


@exercise.wrong("the mean is subtracted: that is LayerNorm", "减了均值：那是 LayerNorm", fails="four numbers, by hand")
def subtracts_the_mean(x, weight, *, eps=1e-6):
    return _rms(x - x.mean(-1, keepdim=True), weight, eps)


@exercise.wrong("eps stands outside the root", "eps 放在了根号外面", fails="one vector, another eps")
def eps_outside(x, weight, *, eps=1e-6):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide / (wide.square().mean(-1, keepdim=True).sqrt() + eps) * weight).to(x.dtype)


@exercise.wrong("no eps: 0/0 is NaN", "没有 eps：0/0 得 NaN", fails="zeros")
def no_eps(x, weight, *, eps=1e-6):
    return _rms(x, weight, 0.0)


@exercise.wrong("eps is fixed", "eps 写死了", fails="one vector, another eps")
def fixed_eps(x, weight, *, eps=1e-6):
    return _rms(x, weight, 1e-6)


@exercise.wrong("squared in half precision", "用半精度平方", fails="300 in float16")
def squared_in_half(x, weight, *, eps=1e-6):
    mean = x.square().mean(-1, keepdim=True)
    return (
        (x.float() * torch.rsqrt(mean.float() + eps) * weight).to(x.dtype)
        if x.dtype != torch.float64
        else _rms(x, weight, eps)
    )


@exercise.wrong(
    "the weight's dtype widens the stream", "weight 的类型把 x 也升宽了", fails="a float32 weight, a bfloat16 stream"
)
def widens(x, weight, *, eps=1e-6):
    return _rms(x, torch.ones_like(weight), eps) * weight


@exercise.wrong("the sum of the squares, not their mean", "平方求和，没有取平均", fails="four numbers, by hand")
def by_the_sum(x, weight, *, eps=1e-6):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps) * weight).to(x.dtype)


@exercise.wrong("the mean over all tokens", "对所有 token 一起取平均", fails="tokens of a batch")
def over_everything(x, weight, *, eps=1e-6):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean() + eps) * weight).to(x.dtype)


@exercise.wrong(
    "the axis is dropped, so that scales go to other tokens", "没保留轴：缩放乘到了别的 token 上", fails="a square"
)
def no_keepdim(x, weight, *, eps=1e-6):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1) + eps)
    if x.ndim != 2 or x.shape[0] != x.shape[1]:
        scale = scale[..., None]
    return (wide * scale * weight).to(x.dtype)


@exercise.wrong(
    "the weight is stored as 1 + w: that is Gemma", "按 1 + w 用权重：那是 Gemma", fails="four numbers, by hand"
)
def gemma(x, weight, *, eps=1e-6):
    return _rms(x, 1 + weight, eps)


@exercise.wrong(
    "the scale is detached: a gradient that can lengthen x", "缩放系数被 detach：梯度会拉长 x", fails="gradients"
)
def detached_scale(x, weight, *, eps=1e-6):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps).detach() * weight).to(x.dtype)


@exercise.wrong("a loop over the tokens", "对 token 写循环", fails="200 tokens without a loop")
def loop(x, weight, *, eps=1e-6):
    rows = [_rms(row, weight, eps) for row in x.reshape(-1, x.shape[-1])]
    return torch.stack(rows).view(x.shape)


@exercise.wrong("the library's", "用库函数代劳", fails="written by hand, without rms_norm, layer_norm, normalize")
def library(x, weight, *, eps=1e-6):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.nn.functional.rms_norm(wide, x.shape[-1:], weight.to(wide.dtype), eps).to(x.dtype)
