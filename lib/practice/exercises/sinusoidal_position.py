"""Sinusoidal positions: the vectors."""

import torch

from lib.practice.exercise import Exercise, call
from lib.practice.language import Text
from lib.sinusoidal_position import sinusoidal_positions


def reference(positions, hidden_size, *, base=10_000.0):
    return sinusoidal_positions(positions, hidden_size, base=base, dtype=torch.float64)


exercise = Exercise(
    topic="sinusoidal_position",
    part="positions",
    title=Text("Sinusoidal positions", "正弦位置编码"),
    statement=Text(
        """Write `sinusoidal_position(positions, hidden_size, *, base=10_000.0)`: a vector of C = `hidden_size` features
for each position, as in the first Transformer. Feature 2i of position m is the sine of m · base^(−2i/C), feature
2i + 1 the cosine of the same angle.

- `positions`: integers, (T,) or (B, T), not always from 0: with a KV cache they start at its length.
- Returns (T, C) or (B, T, C), float32 or float64. An odd C leaves out the last cosine.
- Angles in float64: near position 131 071 float32 angles are off by up to 0.008.
- No loop.""",
        """写 `sinusoidal_position(positions, hidden_size, *, base=10_000.0)`：像最早的 Transformer 那样，给每个位置算一个 C = `hidden_size` 维的向量。位置 m 的第 2i 个分量是 m · base^(−2i/C) 的正弦，第 2i + 1 个分量是同一个角的余弦。

- `positions`：整数，形状 (T,) 或 (B, T)，不一定从 0 开始：有 KV cache 时，从缓存长度数起。
- 返回 (T, C) 或 (B, T, C)，float32 或 float64 均可。C 为奇数时，去掉最后一个余弦。
- 角度用 float64 算：到位置 131 071 附近，float32 的角度最多能差 0.008。
- 不写循环。""",
    ),
    signature="def sinusoidal_position(positions, hidden_size, *, base=10_000.0):",
    reference=reference,
    hints=(
        Text(
            "How many different angles does one position need? Both features of a pair use the same one.",
            "一个位置要用到几个不同的角？同一对的两个分量用的是同一个。",
        ),
        Text(
            "positions[..., None] * frequencies is (..., T, ⌈C/2⌉). torch.arange(0, C, 2) already holds 2i.",
            "positions[..., None] * frequencies 的形状是 (..., T, ⌈C/2⌉)。torch.arange(0, C, 2) 给出的已经是 2i。",
        ),
        Text(
            "torch.stack((sin, cos), -1).flatten(-2) interleaves them; [..., :C] drops what an odd C has no room for.",
            "torch.stack((sin, cos), -1).flatten(-2) 让两者相间；[..., :C] 去掉奇数 C 放不下的那个。",
        ),
    ),
    difficulty=1,
    asked=3,
)
LOOSE = {"tolerance": 1e-5, "same_dtype": False}


def _at(*positions):
    return torch.tensor(positions)


exercise.values(
    "positions 0 and 1, four features", "位置 0 和 1，四个分量", lambda: call(_at(0, 1), 4),
    see="sinusoidal-position-formula", **LOOSE,
)  # fmt: skip
exercise.values(
    "sixteen features", "十六个分量", lambda: call(torch.arange(6), 16), see="sinusoidal-position-pitfall-pair", **LOOSE
)
exercise.values(
    "an odd size", "奇数维", lambda: call(torch.arange(4), 5), see="sinusoidal-position-pitfall-odd", **LOOSE
)
exercise.values(
    "one feature", "只有一个分量", lambda: call(_at(3, 4), 1), see="sinusoidal-position-pitfall-odd", **LOOSE
)
exercise.values(
    "decoding: position 37 alone", "解码：只有位置 37", lambda: call(_at(37), 6), see="sinusoidal-position-pitfall-decode",
    **LOOSE,
)  # fmt: skip
exercise.values(
    "a row of positions for each sequence", "每条序列各有一行位置",
    lambda: call(torch.tensor([[0, 0, 1], [0, 1, 2], [7, 8, 9]]), 6), see="sinusoidal-position-pitfall-padding", **LOOSE,
)  # fmt: skip
exercise.values(
    "another base",
    "换一个 base",
    lambda: call(torch.arange(3), 6, base=100.0),
    see="sinusoidal-position-formula",
    **LOOSE,
)
exercise.values(
    "position 131 071",
    "位置 131 071",
    lambda: call(_at(131_071), 64),
    see="sinusoidal-position-pitfall-precision",
    **LOOSE,
)
exercise.device_kept(lambda: call(torch.arange(3), 4), see="sinusoidal-position-by-hand")
exercise.cost(
    "512 positions: no loop", "512 个位置：没有循环", lambda: call(torch.arange(512), 64),
    operations=40, bytes=2**20, see="sinusoidal-position-cost", **LOOSE,
)  # fmt: skip


@exercise.solution("stack and flatten", "stack 再 flatten")
def stacked(positions, hidden_size, *, base=10_000.0):
    two_i = torch.arange(0, hidden_size, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * base ** (-two_i / hidden_size)  # (..., T, ⌈C/2⌉)
    pairs = torch.stack((angles.sin(), angles.cos()), dim=-1)  # (..., T, ⌈C/2⌉, 2)
    return pairs.flatten(-2)[..., :hidden_size].float()


@exercise.solution("fill the even, then the odd features", "先填偶数分量，再填奇数分量")
def filled(positions, hidden_size, *, base=10_000.0):
    angles = _angles(positions, hidden_size, base)
    table = torch.empty(*positions.shape, hidden_size, dtype=torch.float64, device=positions.device)
    table[..., 0::2] = angles.sin()
    table[..., 1::2] = angles.cos()[..., : hidden_size // 2]
    return table


@exercise.solution("one formula: a cosine is a sine a quarter turn ahead", "只用正弦：余弦就是超前 90 度的正弦")
def quarter_turn(positions, hidden_size, *, base=10_000.0):
    feature = torch.arange(hidden_size, dtype=torch.float64, device=positions.device)
    odd = feature % 2
    return torch.sin(positions[..., None] * base ** (-(feature - odd) / hidden_size) + odd * torch.pi / 2)


def _angles(positions, hidden_size, base):
    two_i = torch.arange(0, hidden_size, 2, dtype=torch.float64, device=positions.device)
    return positions[..., None] * base ** (-two_i / hidden_size)


def _interleaved(first, second, hidden_size):
    return torch.stack((first, second), dim=-1).flatten(-2)[..., :hidden_size]


@exercise.wrong(
    "a frequency for each feature: sine and cosine of a pair do not match",
    "每个分量各用一个频率：同一对的正弦和余弦对不上",
    fails="positions 0 and 1, four features",
)
def a_frequency_each(positions, hidden_size, *, base=10_000.0):
    feature = torch.arange(hidden_size, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * base ** (-feature / hidden_size)
    return torch.where(feature % 2 == 0, angles.sin(), angles.cos())


@exercise.wrong("2i counted twice: the exponent is −4i/C", "2i 多乘了一次 2，指数成了 −4i/C", fails="sixteen features")
def doubled(positions, hidden_size, *, base=10_000.0):
    return stacked(positions, hidden_size, base=base * base)


@exercise.wrong("sine and cosine exchanged", "正弦和余弦写反了", fails="positions 0 and 1, four features")
def exchanged(positions, hidden_size, *, base=10_000.0):
    angles = _angles(positions, hidden_size, base)
    return _interleaved(angles.cos(), angles.sin(), hidden_size)


@exercise.wrong(
    "all sines, then all cosines: Marian's layout, not the paper's",
    "先排全部正弦，再排全部余弦：那是 Marian 的布局，不是论文的",
    fails="positions 0 and 1, four features",
)
def halves(positions, hidden_size, *, base=10_000.0):
    angles = _angles(positions, hidden_size, base)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)[..., :hidden_size]


@exercise.wrong(
    "the exponent runs to 1 inclusive, as in Whisper", "指数一直取到 1，那是 Whisper 的取法", fails="sixteen features"
)
def endpoint(positions, hidden_size, *, base=10_000.0):
    exponents = torch.linspace(0, 1, (hidden_size + 1) // 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * base**-exponents
    return _interleaved(angles.sin(), angles.cos(), hidden_size)


@exercise.wrong(
    "an odd size does not fit: three cosines into two columns", "奇数维放不下：三个余弦要塞进两列", fails="an odd size"
)
def even_only(positions, hidden_size, *, base=10_000.0):
    angles = _angles(positions, hidden_size, base)
    table = torch.empty(*positions.shape, hidden_size, dtype=torch.float64, device=positions.device)
    table[..., 0::2], table[..., 1::2] = angles.sin(), angles.cos()
    return table


@exercise.wrong(
    "an odd size is rounded down and padded with a zero", "奇数维先取小一维，再补一个零", fails="one feature"
)
def padded(positions, hidden_size, *, base=10_000.0):
    made = stacked(positions, hidden_size - hidden_size % 2, base=base)
    return torch.nn.functional.pad(made, (0, hidden_size % 2))


@exercise.wrong("the base is ignored", "没有用 base", fails="another base")
def fixed_base(positions, hidden_size, *, base=10_000.0):
    return stacked(positions, hidden_size)


@exercise.wrong(
    "counted from 0, whatever the positions", "不管传入什么位置，都从 0 数起", fails="decoding: position 37 alone"
)
def from_zero(positions, hidden_size, *, base=10_000.0):
    counted = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)
    return stacked(counted, hidden_size, base=base)


@exercise.wrong("counted from 1", "位置从 1 数起", fails="positions 0 and 1, four features")
def from_one(positions, hidden_size, *, base=10_000.0):
    return stacked(positions + 1, hidden_size, base=base)


@exercise.wrong(
    "only one axis of positions: the first row serves all",
    "只认一维位置：所有行都用第一行的",
    fails="a row of positions for each sequence",
)
def first_row(positions, hidden_size, *, base=10_000.0):
    row = positions if positions.ndim == 1 else positions[0]
    made = stacked(row, hidden_size, base=base)
    return made.expand(*positions.shape, hidden_size)


@exercise.wrong("angles in float32", "角度用 float32 算", fails="position 131 071")
def coarse(positions, hidden_size, *, base=10_000.0):
    two_i = torch.arange(0, hidden_size, 2, device=positions.device)
    angles = positions[..., None] * base ** (-two_i / hidden_size)
    return _interleaved(angles.sin(), angles.cos(), hidden_size)


@exercise.wrong("the positions are clamped in place", "原地改动了 positions", fails="inputs unchanged")
def in_place(positions, hidden_size, *, base=10_000.0):
    return stacked(positions.clamp_(min=0), hidden_size, base=base)


@exercise.wrong("a loop over the positions", "对位置写了循环", fails="512 positions: no loop")
def looped(positions, hidden_size, *, base=10_000.0):
    rows = [stacked(p.reshape(1), hidden_size, base=base)[0] for p in positions.flatten()]
    return torch.stack(rows).view(*positions.shape, hidden_size)
