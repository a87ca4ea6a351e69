"""RoPE: carry weights from one layout to the other."""

import torch

from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text
from lib.rope import interleaved_to_half

exercise = Exercise(
    topic="rope",
    part="positions",
    title=Text("RoPE: from Meta's weights to Hugging Face's", "RoPE：把 Meta 的权重转成 Hugging Face 的"),
    statement=Text(
        """A model trained with the interleaved layout is to run on code that pairs halves. Write
`interleaved_to_half(weight, num_heads)`, which reorders the rows of `q_proj` or `k_proj`.

- `weight`: (H·D, C) as `nn.Linear` stores it, head after head; or its bias, (H·D,).
- In each head: first the even features 0 2 4 …, then the odd ones 1 3 5 …
- Returns the same shape and dtype. `num_heads` that does not divide the rows raises `ValueError`.""",
        """模型按 interleaved 布局训练，现在要放到按前后两半配对的代码里运行。写 `interleaved_to_half(weight, num_heads)`，重排 `q_proj` 或 `k_proj` 的行。

- `weight`：(H·D, C)，即 `nn.Linear` 的存法，各头依次排列；也可以是它的偏置 (H·D,)。
- 每个头内部：先放偶数分量 0 2 4 …，再放奇数分量 1 3 5 …
- 返回值形状和数据类型不变。`num_heads` 不能整除行数时抛出 `ValueError`。""",
    ),
    signature="def interleaved_to_half(weight, num_heads):",
    reference=lambda weight, num_heads: interleaved_to_half(weight, num_heads),
    hints=(
        Text(
            "Which axis holds the features, and what must happen before you can reorder inside a head?",
            "分量在哪个轴上？要在头内部重排，先得做什么？",
        ),
        Text(
            "Split the first axis into (H, D), or at once into (H, D/2, 2).",
            "把第 0 轴拆成 (H, D)，或者一步拆成 (H, D/2, 2)。",
        ),
        Text(
            "(H, D/2, 2, C): exchange the axes D/2 and 2, then flatten the first three.",
            "(H, D/2, 2, C)：交换 D/2 与 2 两个轴，再把前三个轴合并。",
        ),
    ),
    difficulty=2,
    asked=2,
)
SEE = {"see": "rope-pitfall-layout"}


def _weight(rows, columns):
    return numbers(rows, columns)


exercise.values("one head of four features", "一个头，四个分量", lambda: call(torch.arange(8.0).view(4, 2), 1), **SEE)
exercise.values("three heads", "三个头", lambda: call(_weight(18, 5), 3), **SEE)
exercise.values("square: rows, not columns", "方阵：重排的是行，不是列", lambda: call(_weight(8, 8), 2), **SEE)
exercise.values("a bias", "偏置", lambda: call(_weight(12, 1)[:, 0], 2), **SEE)
exercise.values("a head of two features", "每个头只有两个分量", lambda: call(_weight(6, 3), 3), **SEE)
exercise.values(
    "one head of eight, not contiguous", "一个头，八个分量，内存不连续", lambda: call(_weight(3, 8).T, 1), **SEE
)
exercise.values("a bias of one head", "一个头的偏置", lambda: call(_weight(8, 1)[:, 0], 1), **SEE)
exercise.dtypes_kept(lambda: call(_weight(8, 2), 2), **SEE)
exercise.refuses("num_heads must divide the rows", "num_heads 必须整除行数", lambda: call(_weight(8, 2), 3), **SEE)


@exercise.solution("exchange two axes", "交换两个轴")
def axes(weight, num_heads):
    rows = weight.shape[0]
    if rows % num_heads:
        raise ValueError(f"num_heads: got {num_heads}, must divide {rows}")
    pairs = weight.view(num_heads, rows // num_heads // 2, 2, *weight.shape[1:])  # (H, D/2, 2, C)
    return pairs.transpose(1, 2).reshape(weight.shape)  # (H, 2, D/2, C) → (H·D, C)


@exercise.solution("by an index", "用下标")
def index(weight, num_heads):
    if len(weight) % num_heads:
        raise ValueError("num_heads")
    heads = weight.view(num_heads, -1, *weight.shape[1:])
    return torch.cat((heads[:, 0::2], heads[:, 1::2]), 1).reshape(weight.shape)


def _heads(weight, num_heads):
    if len(weight) % num_heads:
        raise ValueError("num_heads")
    return weight.unflatten(0, (num_heads, -1))


@exercise.wrong("the rows are reordered across the heads", "没有按头拆开，跨头重排了", fails="three heads")
def across_heads(weight, num_heads):
    _heads(weight, num_heads)
    return torch.cat((weight[0::2], weight[1::2]))


@exercise.wrong("the inverse: from half to interleaved", "方向反了：从 half 转成 interleaved", fails="three heads")
def inverse(weight, num_heads):
    heads = _heads(weight, num_heads)
    return torch.stack(heads.chunk(2, 1), 2).flatten(0, 2)


@exercise.wrong("odd features first", "先放了奇数分量", fails="one head of four features")
def odd_first(weight, num_heads):
    heads = _heads(weight, num_heads)
    return torch.cat((heads[:, 1::2], heads[:, 0::2]), 1).flatten(0, 1)


@exercise.wrong("the two halves are exchanged", "前后两半互换了", fails="one head of four features")
def halves(weight, num_heads):
    heads = _heads(weight, num_heads)
    return torch.cat(heads.chunk(2, 1)[::-1], 1).flatten(0, 1)


@exercise.wrong(
    "columns reordered: those are the input features", "重排的是列，那是输入特征", fails="square: rows, not columns"
)
def columns(weight, num_heads):
    if weight.ndim == 1:
        heads = _heads(weight, num_heads)
        return torch.cat((heads[:, 0::2], heads[:, 1::2]), 1).flatten(0, 1)
    heads = _heads(weight.T, num_heads) if weight.shape[1] % num_heads == 0 else _heads(weight, num_heads)
    mixed = torch.cat((heads[:, 0::2], heads[:, 1::2]), 1).flatten(0, 1)
    return mixed.T if mixed.shape != weight.shape or weight.shape[0] == weight.shape[1] else mixed


@exercise.wrong("the heads end up innermost", "头被排到了最里面", fails="three heads")
def heads_last(weight, num_heads):
    heads = _heads(weight, num_heads)
    return torch.cat((heads[:, 0::2], heads[:, 1::2]), 1).transpose(0, 1).flatten(0, 1)


@exercise.wrong("nothing is reordered", "没有重排", fails="one head of four features")
def nothing(weight, num_heads):
    return _heads(weight, num_heads).flatten(0, 1).clone()


@exercise.wrong("a bias has no columns, and is not handled", "没有处理一维的偏置", fails="a bias")
def no_bias(weight, num_heads):
    rows, columns = weight.shape
    pairs = _heads(weight, num_heads).view(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)
