"""LayerNorm: the function."""

import torch

from lib.layer_norm import layer_norm
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(x, weight, bias, *, eps=1e-5):
    return layer_norm(x, weight, bias, eps=eps)


exercise = Exercise(
    topic="layer_norm",
    part="normalisation",
    title=Text("LayerNorm", "LayerNorm"),
    statement=Text(
        """Write `layer_norm(x, weight, bias, *, eps=1e-5)`: (x − mean) / √(var + `eps`) · `weight` + `bias`, mean and variance
over the last axis, one pair for each token.

- `x`: (..., C), floating point. `weight`, `bias`: (C,). The result has the shape and the dtype of `x`.
- The variance divides by C, as in torch. A constant row, and one of a single feature, gives `bias`.
- float16 and bfloat16 are computed in float32.""",
        """写 `layer_norm(x, weight, bias, *, eps=1e-5)`：(x − 均值) / √(方差 + `eps`) · `weight` + `bias`，均值和方差沿最后一维计算，每个 token 各算各的。

- `x`：(..., C)，浮点。`weight`、`bias`：(C,)。返回值的形状和数据类型与 `x` 相同。
- 方差除以 C，与 torch 一致。各分量全相等的行、只有一个分量的行，结果是 `bias`。
- float16 和 bfloat16 转成 float32 来算。""",
    ),
    signature="def layer_norm(x, weight, bias, *, eps=1e-5):",
    reference=reference,
    forbidden=("layer_norm", "batch_norm", "instance_norm", "group_norm"),
    hints=(
        Text(
            "Which axis belongs to one token? Keep it after the mean, so that the subtraction broadcasts.",
            "哪个轴属于同一个 token？取均值时保留它，减法才能广播。",
        ),
        Text(
            "torch.var divides by C − 1 unless you say correction=0. Or: the mean of the squared deviations.",
            "torch.var 默认除以 C − 1，要写 correction=0；或者直接对偏差的平方取平均。",
        ),
        Text(
            "centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight + bias, in float32.",
            "centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight + bias，用 float32。",
        ),
    ),
    difficulty=1,
    asked=3,
)


def _case(*shape, seed=0, **settings):
    C = shape[-1]
    return call(3 * numbers(*shape, seed=seed) + 2, numbers(C, seed=seed + 1), numbers(C, seed=seed + 2), **settings)


def _row(*values, dtype=torch.float64, **settings):
    C = len(values)
    return call(
        torch.tensor([values], dtype=dtype), torch.ones(C, dtype=dtype), torch.zeros(C, dtype=dtype), **settings
    )


FORMULA = {"see": "layer-norm-formula"}
exercise.values("four numbers, by hand", "四个数，可手算", lambda: _row(2.0, 4.0, 6.0, 8.0, eps=4.0), **FORMULA)
exercise.values("tokens of a batch", "一批 token", lambda: _case(2, 3, 5), see="layer-norm-pitfall-axes")
exercise.values("a square", "方阵", lambda: _case(4, 4), see="layer-norm-pitfall-axes")
exercise.values("one vector", "单个向量", lambda: _case(6), **FORMULA)
exercise.values("one feature", "只有一个分量", lambda: _case(3, 1), see="layer-norm-pitfall-eps")
exercise.values("a constant row", "各分量相等", lambda: _row(3.0, 3.0, 3.0), see="layer-norm-pitfall-eps")
exercise.values("a small spread", "差异很小", lambda: _row(0.0, 0.001), see="layer-norm-pitfall-eps")
exercise.values(
    "far from zero", "离零很远", lambda: call(1e4 + numbers(2, 6).float(), torch.ones(6), torch.zeros(6)), tolerance=2e-3,
    see="layer-norm-by-hand",
)  # fmt: skip
exercise.values(
    "1200 in float16", "float16 里的 1200", lambda: _row(0.0, 0.0, 0.0, 1200.0, dtype=torch.float16), tolerance=2e-3,
    see="layer-norm-pitfall-half",
)  # fmt: skip
exercise.gradients("gradients", "梯度", lambda: _case(2, 3, 5, seed=3), see="layer-norm-gradient")
exercise.dtypes_kept(lambda: _case(4, 64, seed=5), see="layer-norm-pitfall-half", tolerance=1e-6)
exercise.device_kept(lambda: _case(2, 5), see="layer-norm-by-hand")


@exercise.solution("centre, then divide", "先减均值，再除")
def centred_first(x, weight, bias, *, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (normed * weight + bias).to(x.dtype)


@exercise.solution("by torch.var_mean, in float64", "用 torch.var_mean，float64")
def by_var_mean(x, weight, bias, *, eps=1e-5):
    wide = x.double()
    var, mean = torch.var_mean(wide, dim=-1, keepdim=True, correction=0)
    return ((wide - mean) / (var + eps) ** 0.5 * weight.double() + bias.double()).to(x.dtype)


def _norm(x, weight, bias, eps, *, dims=(-1,), correction=0):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(dims, keepdim=True)
    squares = (wide - mean).square().mean(dims, keepdim=True)
    n = wide.numel() // squares.numel()
    squares = squares * (n / max(n - correction, 1))
    return ((wide - mean) * torch.rsqrt(squares + eps) * weight + bias).to(x.dtype)


@exercise.wrong("the variance divides by C − 1", "方差除以了 C − 1", fails="four numbers, by hand")
def unbiased(x, weight, bias, *, eps=1e-5):
    return _norm(x, weight, bias, eps, correction=1)


@exercise.wrong("torch.std of one feature is NaN", "只有一个分量时 torch.std 是 NaN", fails="one feature")
def nan_for_one(x, weight, bias, *, eps=1e-5):
    if x.shape[-1] == 1:
        return _norm(x, weight, bias, eps) * x.std(-1, keepdim=True)
    return _norm(x, weight, bias, eps)


@exercise.wrong("eps is added to the standard deviation", "eps 加在了标准差上", fails="a small spread")
def eps_outside(x, weight, bias, *, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    std = wide.std(-1, keepdim=True, correction=0)
    return ((wide - wide.mean(-1, keepdim=True)) / (std + eps) * weight + bias).to(x.dtype)


@exercise.wrong("no eps", "没有 eps", fails="a constant row")
def no_eps(x, weight, bias, *, eps=1e-5):
    return _norm(x, weight, bias, 0.0)


@exercise.wrong(
    "statistics over tokens and features: the future leaks in",
    "统计量跨了 token：未来的信息漏了进来",
    fails="tokens of a batch",
)
def over_two_axes(x, weight, bias, *, eps=1e-5):
    return _norm(x, weight, bias, eps, dims=(-2, -1)) if x.ndim > 1 else _norm(x, weight, bias, eps)


@exercise.wrong("statistics over the batch: that is BatchNorm", "统计量沿 batch 计算：那是 BatchNorm", fails="a square")
def over_the_batch(x, weight, bias, *, eps=1e-5):
    return _norm(x, weight, bias, eps, dims=(0,)) if x.ndim == 2 else _norm(x, weight, bias, eps)


@exercise.wrong(
    "the mean is not subtracted: that is RMSNorm with a bias",
    "没减均值：那是带偏置的 RMSNorm",
    fails="four numbers, by hand",
)
def no_mean(x, weight, bias, *, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight + bias).to(x.dtype)


@exercise.wrong("E[x²] − E[x]²: the digits cancel", "E[x²] − E[x]²：有效数字被抵消", fails="far from zero")
def cancels(x, weight, bias, *, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    mean = wide.mean(-1, keepdim=True)
    var = (wide.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return ((wide - mean) * torch.rsqrt(var + eps) * weight + bias).to(x.dtype)


@exercise.wrong("statistics in half precision", "统计量用半精度计算", fails="1200 in float16")
def in_half(x, weight, bias, *, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight + bias


@exercise.wrong("the weight is forgotten", "忘了乘 weight", fails="one vector")
def no_weight(x, weight, bias, *, eps=1e-5):
    return _norm(x, torch.ones_like(weight), bias, eps)


@exercise.wrong("the bias is scaled too", "偏置也被 weight 缩放了", fails="one vector")
def scaled_bias(x, weight, bias, *, eps=1e-5):
    return _norm(x, weight, bias * weight, eps)


@exercise.wrong("mean and variance are detached", "均值和方差被 detach 了", fails="gradients")
def constants(x, weight, bias, *, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(wide.detach(), dim=-1, keepdim=True, correction=0)
    return ((wide - mean) * torch.rsqrt(var + eps) * weight + bias).to(x.dtype)


@exercise.wrong(
    "the library's", "用库函数代劳",
    fails="written by hand, without layer_norm, batch_norm, instance_norm, group_norm",
)  # fmt: skip
def library(x, weight, bias, *, eps=1e-5):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    parameters = weight.to(wide.dtype), bias.to(wide.dtype)
    return torch.nn.functional.layer_norm(wide, x.shape[-1:], *parameters, eps).to(x.dtype)
