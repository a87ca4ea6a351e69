"""AdamW: clipping by the global norm."""

import torch

from lib.adamw import clip_grad_norm_
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(gradients, max_norm):
    holders = [torch.zeros_like(g, requires_grad=True) for g in gradients]
    for holder, gradient in zip(holders, gradients):
        holder.grad = gradient.detach().clone()
    norm = clip_grad_norm_(holders, max_norm)
    return [holder.grad for holder in holders], norm


exercise = Exercise(
    topic="adamw",
    part="foundations",
    title=Text("Clipping by the global norm", "按全局范数裁剪梯度"),
    statement=Text(
        """Write `clip_grad_norm(gradients, max_norm)`: read all gradients of a model as one long vector, and where it is
longer than `max_norm`, shorten it to that length.

- `gradients`: a list of tensors of any shapes, one dtype. They must not be changed in place.
- Returns a tuple: the list of new gradients, and the norm **before** clipping, a tensor ().
- Gradients within `max_norm` come back as they are; gradients of zero stay zero.
- The norm is computed and returned in float32 for half precision; the gradients keep their dtype.
- A relative deviation of 10⁻⁵ is accepted: some libraries add 10⁻⁶ to the norm before they divide.""",
        """写 `clip_grad_norm(gradients, max_norm)`：把一个模型的所有梯度当成一个长向量，长度超过 `max_norm` 就缩短到这个长度。

- `gradients`：张量的列表，形状任意，数据类型相同。不能原地修改。
- 返回一个元组：新梯度的列表，以及裁剪**之前**的范数，形状为 () 的张量。
- 范数不超过 `max_norm` 的梯度原样返回；全零的梯度仍是零。
- 半精度时范数用 float32 计算并返回，梯度保持原来的数据类型。
- 允许 10⁻⁵ 的相对误差：有的库在做除法之前给范数加 10⁻⁶。""",
    ),
    signature="def clip_grad_norm(gradients, max_norm):",
    reference=reference,
    forbidden=("clip_grad_norm_",),
    hints=(
        Text(
            "One factor for all tensors: only then does the direction stay. What is the norm of a concatenation?",
            "所有张量乘同一个系数，方向才不变。几个向量拼在一起，范数是多少？",
        ),
        Text(
            "The root of the sum of all squares; the factor is max_norm/norm, at most 1.",
            "所有平方和的平方根；系数是 max_norm/norm，最大取 1。",
        ),
    ),
    difficulty=1,
    asked=2,
)
SETTINGS = {"see": "adamw-clipping", "tolerance": 1e-5, "atol": 1e-9}


def _list(*gradients):
    return [torch.tensor(g, dtype=torch.float64) for g in gradients]


def _some(max_norm, scale=1.0):
    return call(
        [numbers(3, 4, scale=scale), numbers(5, seed=1, scale=scale), numbers(1, 2, 2, seed=2, scale=scale)], max_norm
    )


exercise.values("3, 4 and 5, by hand", "3、4、5，可手算", lambda: call(_list([3.0], [0.0, 4.0]), 2.0), **SETTINGS)
exercise.values(
    "one tensor dominates", "一个张量独大", lambda: call(_list([100.0, 0.0], [[0.1], [-0.2]]), 1.0), **SETTINGS
)
exercise.values("several shapes", "多种形状", lambda: _some(1.0), **SETTINGS)
exercise.values("short enough already", "本来就不超", lambda: _some(1.0, scale=0.01), **SETTINGS)
exercise.values("negative numbers only", "全是负数", lambda: call(_list([-2.0, -1.0], [-2.0]), 1.5), **SETTINGS)
exercise.values("all zero", "全是零", lambda: call(_list([0.0, 0.0], [0.0]), 1.0), **SETTINGS)
exercise.values("a single number", "只有一个数", lambda: call(_list([-7.0]), 3.5), **SETTINGS)
exercise.values(
    "float16 gradients whose squares overflow", "float16 的梯度，平方会上溢",
    lambda: call([torch.full((6, 6), 4096.0, dtype=torch.float16)], 2.0), see="adamw-pitfall-half", tolerance=1e-3,
)  # fmt: skip
exercise.dtypes_kept(lambda: _some(1.0), see="adamw-clipping", tolerance=1e-5)
exercise.device_kept(lambda: _some(1.0), see="adamw-clipping")


@exercise.solution("the norm of the norms", "范数的范数")
def norm_of_norms(gradients, max_norm):
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    norm = torch.stack([g.to(dtype).norm() for g in gradients]).norm()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return [(g * scale).to(g.dtype) for g in gradients], norm


@exercise.solution("one long vector", "拼成一个长向量")
def concatenated(gradients, max_norm):
    flat = torch.cat([g.flatten() for g in gradients])
    norm = flat.to(torch.promote_types(flat.dtype, torch.float32)).square().sum().sqrt()
    if norm <= max_norm:
        return [g.clone() for g in gradients], norm
    return [(g * (max_norm / norm)).to(g.dtype) for g in gradients], norm


def _wide(g):
    return g.to(torch.promote_types(g.dtype, torch.float32))


def _norm(gradients):
    return torch.stack([_wide(g).norm() for g in gradients]).norm()


def _scaled(gradients, scale):
    return [(g * scale).to(g.dtype) for g in gradients]


@exercise.wrong(
    "each tensor clipped by itself: another direction", "每个张量单独裁剪：方向变了", fails="one tensor dominates"
)
def per_tensor(gradients, max_norm):
    return [g * (max_norm / (g.norm() + 1e-6)).clamp(max=1.0) for g in gradients], _norm(gradients)


@exercise.wrong("each number clamped: another direction", "每个数单独截断：方向变了", fails="3, 4 and 5, by hand")
def by_value(gradients, max_norm):
    return [g.clamp(-max_norm, max_norm) for g in gradients], _norm(gradients)


@exercise.wrong("always scaled, so short gradients grow", "一律缩放，短的梯度反被放大", fails="short enough already")
def always(gradients, max_norm):
    norm = _norm(gradients)
    return _scaled(gradients, max_norm / (norm + 1e-6)), norm


@exercise.wrong("0/0 where all gradients are zero", "梯度全零时 0/0", fails="all zero")
def zero_by_zero(gradients, max_norm):
    norm = _norm(gradients)
    return [g / norm * norm.clamp(max=max_norm) for g in gradients], norm


@exercise.wrong(
    "the sum of the norms, not the root of the sum of squares",
    "把各范数直接相加，不是平方和开方",
    fails="3, 4 and 5, by hand",
)
def sum_of_norms(gradients, max_norm):
    norm = torch.stack([_wide(g).norm() for g in gradients]).sum()
    return _scaled(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0)), norm


@exercise.wrong(
    "the squared norm is compared with max_norm", "拿范数的平方与 max_norm 比", fails="negative numbers only"
)
def squared(gradients, max_norm):
    norm = _norm(gradients)
    return _scaled(gradients, (max_norm / (norm**2 + 1e-6)).clamp(max=1.0)), norm


@exercise.wrong("the root of the mean square", "用了均方根", fails="several shapes")
def mean_square(gradients, max_norm):
    norm = torch.cat([_wide(g).flatten() for g in gradients]).square().mean().sqrt()
    return _scaled(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0)), norm


@exercise.wrong("the largest entry in place of the norm", "用最大元素代替范数", fails="several shapes")
def largest(gradients, max_norm):
    norm = torch.stack([_wide(g).abs().max() for g in gradients]).max()
    return _scaled(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0)), norm


@exercise.wrong("the sum without abs: negative numbers cancel", "直接求和没取绝对值：正负抵消", fails="a single number")
def signed_sum(gradients, max_norm):
    norm = torch.stack([_wide(g).sum() for g in gradients]).sum()
    return _scaled(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0)), norm


@exercise.wrong("the norm after clipping is returned", "返回了裁剪之后的范数", fails="3, 4 and 5, by hand")
def after(gradients, max_norm):
    norm = _norm(gradients)
    return _scaled(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0)), norm.clamp(max=max_norm)


@exercise.wrong(
    "the squares are summed in float16: the norm is inf, the gradients 0",
    "平方和用 float16 累加：范数成 inf，梯度成 0",
    fails="float16 gradients whose squares overflow",
)
def narrow(gradients, max_norm):
    norm = sum(g.square().sum() for g in gradients).sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return _scaled(gradients, scale), _wide(norm)


@exercise.wrong("half precision comes back in float32", "半精度变成了 float32", fails="float32, bfloat16, float16")
def widened(gradients, max_norm):
    norm = _norm(gradients)
    return _scaled([_wide(g) for g in gradients], (max_norm / (norm + 1e-6)).clamp(max=1.0)), norm


@exercise.wrong("the norm is rounded to half precision", "范数舍入成了半精度", fails="float32, bfloat16, float16")
def rounded_norm(gradients, max_norm):
    norm = _norm(gradients)
    return _scaled(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0)), norm.to(gradients[0].dtype)


@exercise.wrong("the gradients are changed in place", "原地改了梯度", fails="inputs unchanged")
def in_place(gradients, max_norm):
    norm = _norm(gradients)
    for g in gradients:
        g.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return gradients, norm


@exercise.wrong("PyTorch's own", "用 PyTorch 的函数代劳", fails="written by hand, without clip_grad_norm_")
def library(gradients, max_norm):
    holders = [torch.zeros_like(g, requires_grad=True) for g in gradients]
    for holder, g in zip(holders, gradients):
        holder.grad = g.clone()
    norm = _norm(gradients)
    torch.nn.utils.clip_grad_norm_(holders, max_norm)
    return [holder.grad for holder in holders], norm
