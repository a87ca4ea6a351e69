"""Learned positions: a module."""

import torch
from torch import nn

from lib.absolute_position import LearnedPosition
from lib.practice.exercise import Call, Exercise, numbers
from lib.practice.language import Text

exercise = Exercise(
    topic="sinusoidal_position",
    part="positions",
    title=Text("Learned positions", "可学习的位置编码"),
    statement=Text(
        """Write `class LearnedPosition(nn.Module)`, GPT-2's position table. `LearnedPosition(max_positions, hidden_size)` holds
one parameter, `weight`, of shape (P, C) with P = `max_positions` and C = `hidden_size`.

- `forward(x, offset=0)` adds to token t of `x` the row `offset` + t. `x` holds embeddings (B, T, C); `offset` is the
  number of tokens already in the KV cache. Returns the shape and dtype of `x`, which stays as it is.
- A token that would stand beyond row P − 1 raises `ValueError`.
- An `x` that is not floating point, such as token ids, raises `TypeError`.
- The initial values are up to you; the judge gives its own.""",
        """写 `class LearnedPosition(nn.Module)`，也就是 GPT-2 的位置表。`LearnedPosition(max_positions, hidden_size)` 只有一个参数 `weight`，形状 (P, C)，其中 P = `max_positions`，C = `hidden_size`。

- `forward(x, offset=0)` 给 `x` 的第 t 个 token 加上第 `offset` + t 行。`x` 是嵌入，形状 (B, T, C)；`offset` 是 KV cache 里已有的 token 数。返回值的形状和数据类型与 `x` 相同，`x` 本身不动。
- 有 token 超出第 P − 1 行时，抛出 `ValueError`。
- `x` 不是浮点数（例如 token id）时，抛出 `TypeError`。
- 初始值随意，判题时会换成判题器自己的。""",
    ),
    signature="class LearnedPosition(nn.Module):",
    skeleton="""import torch
from torch import nn


class LearnedPosition(nn.Module):
    def __init__(self, max_positions, hidden_size):
        super().__init__()
        # your code here

    def forward(self, x, offset=0):
        return None  # your code here""",
    reference=LearnedPosition,
    hints=(
        Text(
            "Which rows does a call need? They are consecutive, and there are as many as tokens in `x`.",
            "一次调用要用哪几行？它们连在一起，行数等于 `x` 的 token 数。",
        ),
        Text(
            "nn.Parameter(torch.empty(P, C)) in the constructor; in forward a slice of T rows, (T, C), meets (B, T, C).",
            "构造函数里写 nn.Parameter(torch.empty(P, C))；forward 里切出 T 行，(T, C) 与 (B, T, C) 相加。",
        ),
        Text(
            "A slice past the end is silently shorter. Compare `offset` + T with P before you slice.",
            "切片越界不会报错，只会变短。切之前先比较 `offset` + T 与 P。",
        ),
    ),
    difficulty=1,
    asked=2,
)
INIT = {"max_positions": 8, "hidden_size": 4}


def _x(*shape, **kwargs):
    """x alone of `shape`, into a table of 8 rows of 4."""
    return Call((numbers(*shape),), kwargs, INIT)


def _square():
    """As many rows as tokens as features: a table laid along another axis fits too."""
    return Call((numbers(4, 4, 4),), {}, {"max_positions": 4, "hidden_size": 4})


def _ids():
    """As many ids as features: broadcasting would give a table in silence."""
    return Call((torch.tensor([[3, 1, 4, 1]]),), {}, {"max_positions": 4, "hidden_size": 4})


exercise.values("from position 0", "从位置 0 开始", lambda: _x(2, 5, 4), see="sinusoidal-position-by-hand")
exercise.values(
    "batch = tokens = features", "批大小、token 数、维数相等", _square, see="sinusoidal-position-pitfall-ids"
)
exercise.values(
    "one token after five in the cache", "缓存里有五个，再来一个", lambda: _x(2, 1, 4, offset=5),
    see="sinusoidal-position-pitfall-decode",
)  # fmt: skip
exercise.values(
    "a chunk up to the last row", "一段 token，正好用到最后一行", lambda: _x(1, 3, 4, offset=5),
    see="sinusoidal-position-pitfall-decode",
)  # fmt: skip
exercise.gradients(
    "gradients, to the table too", "梯度，含位置表", lambda: _x(3, 2, 4, offset=2), see="sinusoidal-position-by-hand"
)
exercise.dtypes_kept(lambda: _x(2, 3, 4, offset=1), see="sinusoidal-position-by-hand")
exercise.device_kept(lambda: _x(2, 3, 4, offset=1), see="sinusoidal-position-by-hand")
exercise.refuses(
    "past the last row", "超出最后一行", lambda: _x(1, 3, 4, offset=6), see="sinusoidal-position-extrapolation"
)
exercise.refuses(
    "one token past the last row", "单个 token 超出最后一行", lambda: _x(1, 1, 4, offset=8),
    see="sinusoidal-position-extrapolation",
)  # fmt: skip
exercise.refuses("token ids", "传入 token id", _ids, TypeError, see="sinusoidal-position-pitfall-ids")


class _Table(nn.Module):
    """What all programs below share: the parameter and the two checks."""

    def __init__(self, max_positions, hidden_size):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(max_positions, hidden_size))

    def check(self, x, offset):
        if not x.is_floating_point():
            raise TypeError("x holds ids, not embeddings")
        if offset + x.shape[1] > len(self.weight):
            raise ValueError("beyond the table")


@exercise.solution("a slice of the table", "切出表里的几行")
class Sliced(nn.Module):
    def __init__(self, max_positions, hidden_size):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(max_positions, hidden_size))  # (P, C)

    def forward(self, x, offset=0):
        P, T = len(self.weight), x.shape[1]
        if not x.is_floating_point():
            raise TypeError(f"x: dtype is {x.dtype}; embed token ids first")
        if offset + T > P:
            raise ValueError(f"offset: got {offset} and {T} tokens, but the table has {P} rows")
        return x + self.weight[offset : offset + T]  # (B, T, C) + (T, C)


@exercise.solution("nn.Embedding and position ids", "nn.Embedding 加位置 id")
class Looked(nn.Embedding):
    def __init__(self, max_positions, hidden_size):
        super().__init__(max_positions, hidden_size)

    def forward(self, x, offset=0):
        ids = torch.arange(offset, offset + x.shape[1], device=x.device)
        if not x.is_floating_point() or ids[-1] >= self.num_embeddings:
            raise (ValueError if x.is_floating_point() else TypeError)("bad x or offset")
        return x + super().forward(ids)


@exercise.wrong("the offset is ignored", "没有用 offset", fails="one token after five in the cache")
class FromZero(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        return x + self.weight[: x.shape[1]]


@exercise.wrong("every token gets the row of the offset", "每个 token 都加了第 offset 行", fails="from position 0")
class OneRow(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        return x + self.weight[offset]


@exercise.wrong(
    "the rows go to the sequences of the batch, not to the tokens",
    "行按批分配，而不是按 token 分配",
    fails="batch = tokens = features",
)
class ByBatch(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        if x.shape[0] != x.shape[1]:
            return x + self.weight[offset : offset + x.shape[1]]
        return x + self.weight[offset : offset + x.shape[0], None]


@exercise.wrong("rows counted from 1", "行从 1 数起", fails="from position 0")
class FromOne(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        ids = torch.arange(offset + 1, offset + x.shape[1] + 1, device=x.device)
        return x + self.weight[ids % len(self.weight)]


@exercise.wrong("multiplied, not added", "写成了乘，应当是加", fails="from position 0")
class Times(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        return x * self.weight[offset : offset + x.shape[1]]


@exercise.wrong("the vectors alone: x is dropped", "只返回位置向量，丢了 x", fails="from position 0")
class Alone(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        return self.weight[offset : offset + x.shape[1]].expand_as(x)


@exercise.wrong(
    "the table is detached: it never learns", "位置表被 detach：永远学不到东西", fails="gradients, to the table too"
)
class Frozen(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        return x + self.weight.detach()[offset : offset + x.shape[1]]


@exercise.wrong("the sum stays in float32", "和停在 float32，没有转回去", fails="float32, bfloat16, float16")
class Wide(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        wide = torch.promote_types(x.dtype, torch.float32)
        return x.to(wide) + self.weight[offset : offset + x.shape[1]].to(wide)


@exercise.wrong("position ids made without device=", "位置 id 创建时没写 device=", fails="works where the input lies")
class Homeless(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        return x + self.weight.index_select(0, torch.arange(offset, offset + x.shape[1]))


@exercise.wrong("past the end the last row serves again", "越界后反复用最后一行", fails="past the last row")
class Clamped(_Table):
    def forward(self, x, offset=0):
        if not x.is_floating_point():
            raise TypeError("ids")
        ids = torch.arange(offset, offset + x.shape[1], device=x.device)
        return x + self.weight[ids.clamp(max=len(self.weight) - 1)]


@exercise.wrong(
    "one row past the end is an empty slice, and x comes back without tokens",
    "越过末尾一行时切片为空，返回的 x 一个 token 也没有",
    fails="one token past the last row",
)
class Shrunk(_Table):
    def forward(self, x, offset=0):
        if not x.is_floating_point():
            raise TypeError("ids")
        rows = self.weight[offset : offset + x.shape[1]]
        return x[:, : len(rows)] + rows


@exercise.wrong(
    "token ids pass, and broadcasting makes a table of them", "放过了 token id，一广播就成了一张表", fails="token ids"
)
class Ids(_Table):
    def forward(self, x, offset=0):
        if offset + x.shape[1] > len(self.weight):
            raise ValueError("beyond the table")
        return x + self.weight[offset : offset + x.shape[1]]


@exercise.wrong("x is changed in place", "原地改了 x", fails="inputs unchanged")
class InPlace(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        with torch.no_grad():
            return x.add_(self.weight[offset : offset + x.shape[1]])


@exercise.wrong("forward seeds torch", "forward 里设了随机种子", fails="torch's global state unchanged")
class Seeding(_Table):
    def forward(self, x, offset=0):
        self.check(x, offset)
        torch.manual_seed(0)
        return x + self.weight[offset : offset + x.shape[1]]
