"""Find the bugs: RoPE."""

import torch

from lib.practice.drill import Bug, Drill
from lib.practice.exercise import call, numbers
from lib.practice.language import Text

exercise = Drill(
    topic="rope",
    part="positions",
    title=Text("Find the bugs: RoPE", "找 bug：RoPE"),
    statement=Text(
        """This function rotates queries or keys in the layout of Hugging Face's Llama (feature i with i + D/2). It runs,
the shapes are right, and it has **4 bugs**. `x` is (B, H, T, D), `positions` (B, T). Mend it, changing nothing else, and keep its name.""",
        """下面的函数按 Hugging Face Llama 的布局（分量 i 与 i + D/2 配对）旋转 query 或 key。它能运行，形状也对，但有 **4 个 bug**。`x` 是 (B, H, T, D)，`positions` 是 (B, T)。把它改对，别的不要动，函数名不变。""",
    ),
    signature="def rotate(x, positions, base=10_000.0):",
    reference=None,
    program='''
import torch


def rotate(x, positions, base=10_000.0):
    """x (B, H, T, D), positions (B, T)."""
    B, H, T, D = x.shape
    exponents = torch.arange(0, D, 2, device=x.device) / D
    frequencies = 1.0 / base**exponents
    angles = positions[:, None, :, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    first, second = x.chunk(2, dim=-1)
    swapped = torch.cat((-second, first), dim=-1)
    return (x * angles.cos() + swapped * angles.sin()).to(x.dtype)
''',
    bugs=(
        Bug(
            "exponents = torch.arange(0, D, 2, device=x.device) / D",
            "exponents = torch.arange(D // 2, device=x.device) / D",
            Text(
                "the exponent is 2i/D, not i/D: the slow pairs turn far too fast",
                "指数是 2i/D，不是 i/D：慢的那些对转得太快",
            ),
            "rope-pitfall-frequencies",
        ),
        Bug(
            "positions[:, None, :, None].float()",
            "(positions - positions[:, :1])[:, None, :, None].float()",
            Text(
                "counted from each row's first token: while decoding every token is at position 0",
                "从每行第一个 token 数起：解码时每个 token 都在位置 0",
            ),
            "rope-pitfall-decode",
        ),
        Bug(
            "angles = torch.cat((angles, angles), dim=-1)",
            "angles = angles.repeat_interleave(2, dim=-1)",
            Text(
                "the table of the interleaved layout meets the pairing of halves",
                "表用了 interleaved 布局，配对却按前后两半",
            ),
            "rope-pitfall-layout",
        ),
        Bug(
            "swapped = torch.cat((-second, first), dim=-1)",
            "swapped = torch.cat((second, -first), dim=-1)",
            Text("the minus sign on the other half turns everything backwards", "负号放错了半边，全部转反"),
            "rope-formula",
        ),
    ),
    hints=(
        Text("Take D = 2 and position 1: what must (1, 0) become?", "取 D = 2、位置 1：(1, 0) 应变成什么？"),
        Text(
            "Call it with a single token at position 37. What angle does it use?",
            "只传位置 37 上的一个 token，它用的角度是多少？",
        ),
        Text(
            "With D = 4, write down the angle of each feature and the partner of each feature.",
            "取 D = 4，逐个写出每个分量的角度和它的搭档。",
        ),
    ),
    difficulty=2,
    asked=2,
)
exercise.values("one pair", "一对分量", lambda: call(numbers(1, 1, 2, 2), torch.tensor([[0, 1]])), tolerance=1e-5)
exercise.values(
    "three pairs", "三对分量", lambda: call(numbers(2, 3, 3, 6), torch.tensor([[0, 1, 2], [5, 6, 7]])), tolerance=1e-5
)
exercise.values(
    "one token at position 37",
    "位置 37 上的单个 token",
    lambda: call(numbers(1, 1, 1, 4), torch.tensor([[37]])),
    tolerance=1e-5,
)
exercise.values(
    "another base", "换一个 base", lambda: call(numbers(1, 2, 2, 6), torch.tensor([[3, 4]]), base=50.0), tolerance=1e-5
)
exercise.gradients("gradients", "梯度", lambda: call(numbers(1, 2, 2, 4), torch.tensor([[1, 2]])), tolerance=1e-5)
exercise.dtypes_kept(lambda: call(numbers(1, 2, 2, 4), torch.tensor([[1, 2]])), tolerance=1e-5)
exercise.device_kept(lambda: call(numbers(1, 2, 2, 4), torch.tensor([[1, 2]])))
