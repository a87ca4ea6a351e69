"""LayerNorm: the backward pass."""

import torch

from lib.layer_norm import layer_norm_backward
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(grad, x, weight, *, eps=1e-5):
    return layer_norm_backward(grad, x, weight, eps=eps)


exercise = Exercise(
    topic="layer_norm",
    part="normalisation",
    title=Text("LayerNorm: the backward pass", "LayerNorm 的反向传播"),
    statement=Text(
        """Write `layer_norm_backward(grad, x, weight, *, eps=1e-5)`. The forward pass is
y = (x − mean) / √(var + `eps`) · `weight` + bias over the last axis, the variance divided by C; `grad` is ∂L/∂y.

- `grad`, `x`: (..., C), float32 or float64. `weight`: (C,).
- Returns the three gradients (∂L/∂x, ∂L/∂weight, ∂L/∂bias), of shapes (..., C), (C,), (C,), all in the dtype of `x`.
- By formulas: autograd is not allowed.""",
        """写 `layer_norm_backward(grad, x, weight, *, eps=1e-5)`。前向是 y = (x − 均值) / √(方差 + `eps`) · `weight` + 偏置，沿最后一维，方差除以 C；`grad` 是 ∂L/∂y。

- `grad`、`x`：(..., C)，float32 或 float64。`weight`：(C,)。
- 返回三个梯度 (∂L/∂x, ∂L/∂weight, ∂L/∂bias)，形状依次为 (..., C)、(C,)、(C,)，数据类型与 `x` 相同。
- 要写出公式，不能用 autograd。""",
    ),
    signature="def layer_norm_backward(grad, x, weight, *, eps=1e-5):",
    reference=reference,
    forbidden=("layer_norm", "layer_norm_backward", "grad", "backward", "vjp", "jacobian"),
    hints=(
        Text(
            "With x̂ the normalised x and ĝ = grad · weight: y depends on x directly, through the mean, and through the "
            "variance. Which of ĝ's components survive?",
            "记 x̂ 为归一化后的 x，ĝ = grad · weight。x 通过三条路影响 y：直接、经均值、经方差。ĝ 的哪些分量留得下来？",
        ),
        Text(
            "The mean takes away mean(ĝ), the variance takes away x̂ · mean(ĝ · x̂); what is left is divided by the root.",
            "均值那条路减去 mean(ĝ)，方差那条路减去 x̂ · mean(ĝ · x̂)；剩下的除以根号。",
        ),
        Text(
            "∂L/∂weight sums grad · x̂ over all tokens, ∂L/∂bias sums grad: .reshape(-1, C).sum(0).",
            "∂L/∂weight 是 grad · x̂ 对所有 token 求和，∂L/∂bias 是 grad 求和：.reshape(-1, C).sum(0)。",
        ),
    ),
    difficulty=2,
    asked=2,
)


def _case(*shape, seed=0, **settings):
    x = 3 * numbers(*shape, seed=seed) + 2
    return call(numbers(*shape, seed=seed + 1), x, numbers(shape[-1], seed=seed + 2), **settings)


SEE = {"see": "layer-norm-gradient"}
exercise.values("one token of two features", "一个 token，两个分量", lambda: _case(1, 2), **SEE)
exercise.values("tokens of a batch", "一批 token", lambda: _case(2, 3, 5), **SEE)
exercise.values("a square", "方阵", lambda: _case(4, 4), **SEE)
exercise.values("one vector", "单个向量", lambda: _case(6), **SEE)
exercise.values("another eps", "换一个 eps", lambda: _case(3, 4, eps=5.0), **SEE)
exercise.values("one feature", "只有一个分量", lambda: _case(4, 1), **SEE)
exercise.dtypes_kept(lambda: _case(4, 9, seed=5), torch.float32, torch.float64, tolerance=1e-5, **SEE)
exercise.device_kept(lambda: _case(2, 5), see="layer-norm-by-hand")


def _parts(grad, x, weight, eps):
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return centred * scale, scale, grad * weight


def _sum(x):
    return x.reshape(-1, x.shape[-1]).sum(0)


@exercise.solution("two projections", "两次投影")
def two_projections(grad, x, weight, *, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    normed, g = centred * scale, grad * weight
    along = (g * normed).mean(-1, keepdim=True)
    dx = scale * (g - g.mean(-1, keepdim=True) - normed * along)
    C = x.shape[-1]
    return dx, (grad * normed).reshape(-1, C).sum(0), grad.reshape(-1, C).sum(0)


@exercise.solution("path by path, through mean and variance", "分别走均值、方差两条路")
def path_by_path(grad, x, weight, *, eps=1e-5):
    C = x.shape[-1]
    var, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    root = (var + eps).sqrt()
    g = grad * weight
    dvar = (g * (x - mean)).sum(-1, keepdim=True) * -0.5 / root**3
    dmean = -(g / root).sum(-1, keepdim=True)
    dx = g / root + dvar * 2 * (x - mean) / C + dmean / C
    return dx, _sum(grad * (x - mean) / root), _sum(grad)


@exercise.wrong("mean and variance as constants", "把均值、方差当作常数", fails="tokens of a batch")
def as_constants(grad, x, weight, *, eps=1e-5):
    normed, scale, g = _parts(grad, x, weight, eps)
    return scale * g, _sum(grad * normed), _sum(grad)


@exercise.wrong("the path through the mean is missing", "漏了经过均值的那条路", fails="tokens of a batch")
def no_mean_path(grad, x, weight, *, eps=1e-5):
    normed, scale, g = _parts(grad, x, weight, eps)
    return scale * (g - normed * (g * normed).mean(-1, keepdim=True)), _sum(grad * normed), _sum(grad)


@exercise.wrong("the path through the variance is missing", "漏了经过方差的那条路", fails="tokens of a batch")
def no_variance_path(grad, x, weight, *, eps=1e-5):
    normed, scale, g = _parts(grad, x, weight, eps)
    return scale * (g - g.mean(-1, keepdim=True)), _sum(grad * normed), _sum(grad)


@exercise.wrong("a sum where a mean belongs", "该取平均的地方求了和", fails="tokens of a batch")
def sums(grad, x, weight, *, eps=1e-5):
    normed, scale, g = _parts(grad, x, weight, eps)
    along = (g * normed).sum(-1, keepdim=True)
    return scale * (g - g.mean(-1, keepdim=True) - normed * along), _sum(grad * normed), _sum(grad)


@exercise.wrong("the weight is left out of ∂L/∂x", "∂L/∂x 里漏了 weight", fails="tokens of a batch")
def no_weight(grad, x, weight, *, eps=1e-5):
    return two_projections(grad, x, torch.ones_like(weight), eps=eps)


@exercise.wrong("the weight is in ∂L/∂weight as well", "∂L/∂weight 里多乘了 weight", fails="tokens of a batch")
def weight_twice(grad, x, weight, *, eps=1e-5):
    dx, dweight, dbias = two_projections(grad, x, weight, eps=eps)
    return dx, dweight * weight, dbias


@exercise.wrong(
    "∂L/∂weight and ∂L/∂bias are means over the tokens", "∂L/∂weight 和 ∂L/∂bias 取了平均", fails="tokens of a batch"
)
def means(grad, x, weight, *, eps=1e-5):
    dx, dweight, dbias = two_projections(grad, x, weight, eps=eps)
    tokens = x.numel() // x.shape[-1]
    return dx, dweight / tokens, dbias / tokens


@exercise.wrong("summed over the first axis alone", "只对第一维求了和", fails="tokens of a batch")
def first_axis(grad, x, weight, *, eps=1e-5):
    normed, _, _ = _parts(grad, x, weight, eps)
    dx = two_projections(grad, x, weight, eps=eps)[0]
    return (dx, grad * normed, grad) if x.ndim == 1 else (dx, (grad * normed).sum(0), grad.sum(0))


@exercise.wrong("∂L/∂weight and ∂L/∂bias exchanged", "∂L/∂weight 与 ∂L/∂bias 弄反了", fails="one token of two features")
def exchanged(grad, x, weight, *, eps=1e-5):
    dx, dweight, dbias = two_projections(grad, x, weight, eps=eps)
    return dx, dbias, dweight


@exercise.wrong(
    "the normalised x in ∂L/∂weight is the raw x", "∂L/∂weight 里用了没归一化的 x", fails="one token of two features"
)
def raw(grad, x, weight, *, eps=1e-5):
    dx, _, dbias = two_projections(grad, x, weight, eps=eps)
    return dx, _sum(grad * x), dbias


@exercise.wrong("eps is left out", "漏了 eps", fails="another eps")
def no_eps(grad, x, weight, *, eps=1e-5):
    return two_projections(grad, x, weight, eps=1e-5)


@exercise.wrong("one vector is summed to a number", "单个向量被加成了一个数", fails="one vector")
def sums_all(grad, x, weight, *, eps=1e-5):
    dx, dweight, dbias = two_projections(grad, x, weight, eps=eps)
    return (dx, dweight.sum(), dbias.sum()) if x.ndim == 1 else (dx, dweight, dbias)


@exercise.wrong("0/0 where there is one feature", "只有一个分量时 0/0", fails="one feature")
def by_the_spread(grad, x, weight, *, eps=1e-5):
    dx, dweight, dbias = two_projections(grad, x, weight, eps=eps)
    return dx if x.shape[-1] > 1 else dx / 0, dweight, dbias


@exercise.wrong("along the batch in a square", "方阵里沿 batch 方向算了", fails="a square")
def along_the_batch(grad, x, weight, *, eps=1e-5):
    if x.ndim != 2 or x.shape[0] != x.shape[1]:
        return two_projections(grad, x, weight, eps=eps)
    dx, dweight, dbias = two_projections(grad.T, x.T, weight, eps=eps)
    return dx.T, dweight, dbias


@exercise.wrong(
    "autograd does it", "让 autograd 代劳",
    fails="written by hand, without layer_norm, layer_norm_backward, grad, backward, vjp, jacobian",
)  # fmt: skip
def by_autograd(grad, x, weight, *, eps=1e-5):
    leaves = [t.detach().clone().requires_grad_() for t in (x, weight, torch.zeros_like(weight))]
    with torch.enable_grad():
        centred = leaves[0] - leaves[0].mean(-1, keepdim=True)
        y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * leaves[1] + leaves[2]
        return torch.autograd.grad(y, leaves, grad)
