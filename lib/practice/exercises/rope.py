"""RoPE: turn the pairs, in both layouts."""

import torch

from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text
from lib.rope import apply_rope, rope_angles, rope_frequencies


def reference(x, positions, *, base=10_000.0, layout="half"):
    cos, sin = rope_angles(positions, rope_frequencies(x.shape[-1], base=base, device=x.device))
    return apply_rope(x, cos, sin, layout=layout)


exercise = Exercise(
    topic="rope",
    part="positions",
    title=Text("RoPE in both layouts", "RoPE 的两种布局"),
    statement=Text(
        """Write `apply_rope(x, positions, *, base=10_000.0, layout="half")`. Pair i of the vector at position m turns
by the angle m · base^(−2i/D).

- `x`: (B, H, T, D), D even. `positions`: integers, (T,) for all rows alike, or (B, T) with a row for each sequence.
- `layout="half"` pairs feature i with i + D/2 (Hugging Face's Llama), `"interleaved"` pairs 2i with 2i + 1 (the paper).
- Returns the shape and dtype of `x`. Angles in float32 or better, whatever the dtype of `x`.
- Positions of any size, not only up to the length of a table. No loop over positions or pairs, no D × D matrices.""",
        """写 `apply_rope(x, positions, *, base=10_000.0, layout="half")`：位置 m 上的向量，第 i 对分量旋转 m · base^(−2i/D) 弧度。

- `x`：(B, H, T, D)，D 为偶数。`positions`：整数，形状 (T,) 表示各行相同，(B, T) 表示每条序列各有一行。
- `layout="half"` 把分量 i 与 i + D/2 配对（Hugging Face 的 Llama），`"interleaved"` 把 2i 与 2i + 1 配对（论文）。
- 返回值的形状和数据类型与 `x` 相同；不管 `x` 是什么类型，角度至少用 float32 算。
- 位置可以任意大，不能只支持到某张表的长度。不要对位置或各对分量写循环，也不要构造 D × D 的矩阵。""",
    ),
    signature='def apply_rope(x, positions, *, base=10_000.0, layout="half"):',
    reference=reference,
    hints=(
        Text(
            "A pair (a, b) turned by φ is (a·cos φ − b·sin φ, a·sin φ + b·cos φ). Write this for tensors a and b.",
            "一对 (a, b) 转过 φ 得 (a·cos φ − b·sin φ, a·sin φ + b·cos φ)。先把 a、b 当张量写出这一行。",
        ),
        Text(
            "The angles are positions[..., None] * frequencies: (T, D/2), or (B, T, D/2), which needs an axis for the heads.",
            "角度是 positions[..., None] * frequencies：(T, D/2)，或者 (B, T, D/2)，后者还要给头补一个轴。",
        ),
        Text(
            "half: a, b = x.chunk(2, -1), and torch.cat puts them back. interleaved: x[..., 0::2] and x[..., 1::2], then "
            "torch.stack(…, -1).flatten(-2).",
            "half：a, b = x.chunk(2, -1)，最后 torch.cat 拼回去。interleaved：x[..., 0::2] 与 x[..., 1::2]，最后 "
            "torch.stack(…, -1).flatten(-2)。",
        ),
    ),
    difficulty=2,
    asked=3,
)
EASY = {"tolerance": 1e-5}  # angles may be float32


def _x(*shape, seed=0):
    return numbers(*shape, seed=seed)


exercise.values(
    "one pair, one position",
    "一对分量，一个位置",
    lambda: call(_x(1, 1, 1, 2), torch.tensor([1])),
    see="rope-formula",
    **EASY,
)
exercise.values(
    "layout half", "half 布局", lambda: call(_x(2, 3, 5, 8), torch.arange(5)), see="rope-pitfall-layout", **EASY
)
exercise.values(
    "layout interleaved", "interleaved 布局", lambda: call(_x(2, 3, 5, 8), torch.arange(5), layout="interleaved"),
    see="rope-pitfall-layout", **EASY,
)  # fmt: skip
exercise.values(
    "another base", "换一个 base", lambda: call(_x(1, 2, 3, 6), torch.arange(3), base=100.0),
    see="rope-pitfall-frequencies", **EASY,
)  # fmt: skip
exercise.values(
    "decoding: one token at position 37", "解码：位置 37 上的单个 token", lambda: call(_x(2, 1, 1, 8), torch.tensor([37])),
    see="rope-pitfall-decode", **EASY,
)  # fmt: skip
exercise.values(
    "positions with gaps, out of order", "位置不连续、乱序", lambda: call(_x(1, 2, 4, 6), torch.tensor([9, 0, 4, 40])),
    see="rope-pitfall-decode", **EASY,
)  # fmt: skip
exercise.values(
    "a row of positions for each sequence", "每条序列各有一行位置",
    lambda: call(_x(3, 3, 3, 4), torch.tensor([[0, 1, 2], [0, 0, 1], [7, 8, 9]])),
    see="rope-pitfall-rows", **EASY,
)  # fmt: skip
exercise.values(
    "decoding: one token, a position for each sequence", "解码：每条序列一个 token，位置各不相同",
    lambda: call(_x(3, 2, 1, 4), torch.tensor([[5], [0], [9]])), see="rope-pitfall-rows", **EASY,
)  # fmt: skip
exercise.values(
    "interleaved, a row of positions each, another base",
    "interleaved，每条序列各有一行位置，换一个 base",
    lambda: call(_x(2, 1, 3, 4), torch.tensor([[0, 1, 2], [5, 6, 7]]), base=50.0, layout="interleaved"),
    see="rope-pitfall-rows",
    **EASY,
)
exercise.values(
    "x not contiguous",
    "x 内存不连续",
    lambda: call(_x(2, 5, 3, 8).transpose(1, 2), torch.arange(5)),
    see="rope-by-hand",
    **EASY,
)
exercise.values(
    "position 100 000",
    "位置 100 000",
    lambda: call(_x(1, 1, 2, 8), torch.tensor([99_999, 100_000])),
    see="rope-pitfall-precision",
    tolerance=3e-2,
)
exercise.gradients(
    "gradients, half", "梯度，half", lambda: call(_x(1, 2, 3, 4), torch.arange(3)), see="rope-formula", **EASY
)
exercise.gradients(
    "gradients, interleaved", "梯度，interleaved",
    lambda: call(_x(1, 2, 3, 4), torch.arange(3), layout="interleaved"), see="rope-formula", **EASY,
)  # fmt: skip
exercise.dtypes_kept(lambda: call(_x(1, 2, 3, 4), torch.arange(3)), see="rope-pitfall-precision", **EASY)
exercise.values(
    "bfloat16 at positions about 4000", "bfloat16，位置在 4000 附近",
    lambda: call(_x(1, 1, 4, 8).bfloat16(), torch.arange(4000, 4004)), see="rope-pitfall-precision", tolerance=2e-2,
)  # fmt: skip
exercise.device_kept(lambda: call(_x(1, 1, 3, 4), torch.arange(3)), see="rope-by-hand")
exercise.cost(
    "512 positions: no loop, no matrices", "512 个位置：没有循环，没有矩阵",
    lambda: call(_x(1, 1, 512, 64), torch.arange(512)),
    operations=60, bytes=2**20, see="rope-cost", tolerance=1e-4,
)  # fmt: skip


@exercise.solution("by the two formulas of a rotation", "照着旋转公式写")
def by_halves(x, positions, *, base=10_000.0, layout="half"):
    D = x.shape[-1]
    exponent = torch.arange(0, D, 2, dtype=torch.float64, device=x.device) / D
    angles = positions[..., None] * base**-exponent  # (T, D/2) or (B, T, D/2)
    if angles.ndim == 3:
        angles = angles[:, None]  # (B, 1, T, D/2): the heads share it
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, dim=-1) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    turned = a * cos - b * sin, a * sin + b * cos
    y = torch.cat(turned, -1) if layout == "half" else torch.stack(turned, -1).flatten(-2)
    return y.to(x.dtype)


@exercise.solution("as complex numbers", "复数乘法")
def complex_product(x, positions, *, base=10_000.0, layout="half"):
    D = x.shape[-1]
    angles = positions[..., None] * base ** (-torch.arange(0, D, 2, device=x.device) / D)
    angles = angles[:, None] if angles.ndim == 3 else angles
    y = x.float() if x.dtype != torch.float64 else x
    pairs = y.unflatten(-1, (2, -1)).mT if layout == "half" else y.unflatten(-1, (-1, 2))
    turn = torch.polar(torch.ones_like(angles), angles)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    return (turned.mT.flatten(-2) if layout == "half" else turned.flatten(-2)).to(x.dtype)


@exercise.solution(
    "rotate_half with doubled tables, as Hugging Face has it", "rotate_half 加重复的表，Hugging Face 的写法"
)
def rotating_half(x, positions, *, base=10_000.0, layout="half"):
    D = x.shape[-1]
    if layout == "interleaved":  # through the permutation
        order = torch.cat((torch.arange(0, D, 2), torch.arange(1, D, 2)))
        return rotating_half(x[..., order], positions, base=base)[..., order.argsort()]
    angles = positions[..., None] * base ** (-torch.arange(0, D, 2, device=x.device) / D)
    angles = torch.cat((angles, angles), -1)
    angles = angles[:, None] if angles.ndim == 3 else angles
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return (x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()).to(x.dtype)


def _turn(x, angles, layout="half", sign=1.0):
    """The rotation itself, right; the mistakes below are in what they pass."""
    angles = angles[:, None] if angles.ndim == 3 else angles
    cos, sin = angles.cos(), sign * angles.sin()
    a, b = x.chunk(2, -1) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    turned = a * cos - b * sin, a * sin + b * cos
    y = torch.cat(turned, -1) if layout == "half" else torch.stack(turned, -1).flatten(-2)
    return y.to(x.dtype)


def _angles(x, positions, base):
    D = x.shape[-1]
    return positions[..., None] * base ** (-torch.arange(0, D, 2, dtype=torch.float64, device=x.device) / D)


@exercise.wrong("x comes back as it went in", "原样返回 x", fails="layout half")
def identity(x, positions, *, base=10_000.0, layout="half"):
    return x.clone()


@exercise.wrong(
    "positions ignored: every sequence starts at 0",
    "忽略 positions：总从 0 开始",
    fails="decoding: one token at position 37",
)
def from_zero(x, positions, *, base=10_000.0, layout="half"):
    return _turn(x, _angles(x, torch.arange(x.shape[-2], device=x.device), base), layout)


@exercise.wrong("frequencies doubled: the exponent is −4i/D", "频率的指数多乘了 2，成了 −4i/D", fails="layout half")
def doubled(x, positions, *, base=10_000.0, layout="half"):
    return _turn(x, _angles(x, positions, base * base), layout)


@exercise.wrong("the layout is ignored: always half", "忽略 layout：总用 half", fails="layout interleaved")
def always_half(x, positions, *, base=10_000.0, layout="half"):
    return _turn(x, _angles(x, positions, base))


@exercise.wrong("the layouts are exchanged", "两种布局弄反了", fails="layout half")
def exchanged(x, positions, *, base=10_000.0, layout="half"):
    return _turn(x, _angles(x, positions, base), "half" if layout == "interleaved" else "interleaved")


@exercise.wrong(
    "layouts mixed: tables repeated feature by feature, features paired by halves",
    "两种布局混用：表按相邻分量重复，配对却按前后两半",
    fails="layout half",
)
def mixed(x, positions, *, base=10_000.0, layout="half"):
    angles = _angles(x, positions, base).repeat_interleave(2, -1)
    angles = angles[:, None] if angles.ndim == 3 else angles
    a, b = x.chunk(2, -1)
    return (x * angles.cos() + torch.cat((-b, a), -1) * angles.sin()).to(x.dtype)


@exercise.wrong("all pairs turn by one angle", "所有对都转同一个角度", fails="layout half")
def one_angle(x, positions, *, base=10_000.0, layout="half"):
    return _turn(x, _angles(x, positions, base)[..., :1], layout)


@exercise.wrong("turned backwards: the sign of the sine", "转反了：sin 的符号", fails="one pair, one position")
def backwards(x, positions, *, base=10_000.0, layout="half"):
    return _turn(x, _angles(x, positions, base), layout, sign=-1.0)


@exercise.wrong(
    "rotate_half without its minus sign: no rotation any more",
    "rotate_half 漏了负号，已不是旋转",
    fails="one pair, one position",
)
def no_minus(x, positions, *, base=10_000.0, layout="half"):
    a, b = x.chunk(2, -1) if layout == "half" else (x[..., 0::2], x[..., 1::2])
    angles = _angles(x, positions, base)
    angles = angles[:, None] if angles.ndim == 3 else angles
    turned = a * angles.cos() + b * angles.sin(), b * angles.cos() + a * angles.sin()
    return (torch.cat(turned, -1) if layout == "half" else torch.stack(turned, -1).flatten(-2)).to(x.dtype)


@exercise.wrong("the base is ignored", "忽略 base", fails="another base")
def fixed_base(x, positions, *, base=10_000.0, layout="half"):
    return _turn(x, _angles(x, positions, 10_000.0), layout)


@exercise.wrong("angles in the dtype of x", "角度用 x 的数据类型算", fails="bfloat16 at positions about 4000")
def coarse(x, positions, *, base=10_000.0, layout="half"):
    return _turn(x, _angles(x, positions, base).to(x.dtype), layout)


@exercise.wrong(
    "all rows take the positions of the first", "所有行都用第一行的位置", fails="a row of positions for each sequence"
)
def first_row(x, positions, *, base=10_000.0, layout="half"):
    return _turn(x, _angles(x, positions if positions.ndim == 1 else positions[0], base), layout)


@exercise.wrong(
    "(B, T, D/2) meets (B, H, T, D) without an axis for the heads: rows of positions go to heads",
    "(B, T, D/2) 直接与 (B, H, T, D) 广播，没给头补轴：位置按头分配了",
    fails="a row of positions for each sequence",
)
def no_head_axis(x, positions, *, base=10_000.0, layout="half"):
    angles = _angles(x, positions, base)
    return _turn(x, angles[None] if angles.ndim == 3 else angles, layout)


@exercise.wrong(
    "right, but position by position", "结果对，但逐个位置循环", fails="512 positions: no loop, no matrices"
)
def loop(x, positions, *, base=10_000.0, layout="half"):
    rows = [
        _turn(x[..., t : t + 1, :], _angles(x, positions[..., t : t + 1], base), layout) for t in range(x.shape[-2])
    ]
    return torch.cat(rows, -2)


@exercise.wrong(
    "right, but with a D × D matrix for each position",
    "结果对，但为每个位置建了 D × D 矩阵",
    fails="512 positions: no loop, no matrices",
)
def matrices(x, positions, *, base=10_000.0, layout="half"):
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)[:, None]  # (D, 1, D)
    angles = _angles(x, positions, base)
    if angles.ndim == 3:
        return torch.cat([matrices(x[b : b + 1], positions[b], base=base, layout=layout) for b in range(len(x))])
    turns = _turn(eye.expand(-1, x.shape[-2], -1), angles, layout)  # (D, T, D)
    return torch.einsum("bhtd,dte->bhte", x, turns.to(x.dtype))
