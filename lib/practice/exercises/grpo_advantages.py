"""GRPO: advantages within a group."""

import torch

from lib.grpo import grpo_advantages
from lib.practice.exercise import Exercise, call
from lib.practice.language import Text

exercise = Exercise(
    topic="grpo",
    part="rl",
    title=Text("Group-relative advantages", "组内相对优势"),
    statement=Text(
        """Write `grpo_advantages(rewards)`: each prompt has G answers, and an answer's advantage is its reward minus the
group's mean, divided by the group's standard deviation plus a small eps.

- `rewards`: (B, G), floating point, integers or bools. Returns (B, G), float32 or float64 as the rewards are.
- Free: whether the variance divides by G or G − 1; eps up to 1e-4.
- Equal rewards give exactly 0, and so does a group of one.""",
        """写 `grpo_advantages(rewards)`：每道题有 G 个回答，一个回答的优势 =（奖励 − 组内均值）/（组内标准差 + 很小的 eps）。

- `rewards`：(B, G)，浮点、整数或 bool。返回 (B, G)；浮点输入的数据类型不变（float32 或 float64）。
- 不限：方差除以 G 还是 G − 1；eps 不超过 1e-4 即可。
- 组内奖励全相等时，优势必须恰好为 0；组里只有一个回答时也是。""",
    ),
    signature="def grpo_advantages(rewards):",
    reference=lambda rewards: grpo_advantages(rewards),
    forbidden=("layer_norm", "batch_norm", "instance_norm", "group_norm"),
    hints=(
        Text(
            "Along which axis lies a group? Keep that axis, so that the division broadcasts.",
            "一个组在哪个轴上？保留这个轴，除法才能正确广播。",
        ),
        Text(
            "Seven times 0.1 has a mean that is not 0.1 in float32. What happens to the difference when the std is as small?",
            "float32 下七个 0.1 的均值不等于 0.1。标准差同样小的时候，这点差会变成什么？",
        ),
        Text(
            "Test for equality by amax == amin, and use torch.where. std with G − 1 of one reward is NaN.",
            "用 amax == amin 判断全相等，再用 torch.where。只有一个奖励时，除以 G − 1 的标准差是 NaN。",
        ),
    ),
    difficulty=1,
    asked=3,
)
LOOSE = {"tolerance": 1e-3, "same_dtype": False}


def _rewards(*rows, dtype=torch.float64):
    return call(torch.tensor(rows, dtype=dtype))


exercise.values("one group", "一个组", lambda: _rewards([1, 0, 0, 1, 0]), see="grpo-formula", **LOOSE)
exercise.values(
    "two groups, each on its own",
    "两个组，各算各的",
    lambda: _rewards([1, 0, 0, 0], [10, 8, 8, 9]),
    see="grpo-pitfalls-groups",
    **LOOSE,
)
exercise.values(
    "as many groups as answers",
    "组数与组的大小相等",
    lambda: _rewards([1, 0, 2], [0, 0, 5], [-3, 3, 1]),
    see="grpo-pitfalls-groups",
    **LOOSE,
)
exercise.values(
    "equal rewards give exactly 0", "奖励全相等时恰好为 0",
    lambda: _rewards([0.1] * 7, [0.7] * 7, dtype=torch.float32), see="grpo-pitfalls-equal", tolerance=0.0,
)  # fmt: skip
exercise.values(
    "equal rewards beside a mixed group", "全相等的组旁边有一组不相等",
    lambda: _rewards([0.1] * 7, [1, 0, 0, 0, 0, 0, 0], dtype=torch.float32), see="grpo-pitfalls-equal", tolerance=1e-3,
)  # fmt: skip
exercise.values(
    "a group of one", "组里只有一个回答", lambda: _rewards([1], [0]), see="grpo-pitfalls-equal", tolerance=0.0
)
exercise.values(
    "right or wrong, as bools", "对错用 bool 表示", lambda: _rewards([1, 0, 0], [1, 1, 0], dtype=torch.bool),
    see="grpo-by-hand", **LOOSE,
)  # fmt: skip
exercise.values(
    "one right of eight, beside an equal group", "八个里只对一个，旁边一组全相等",
    lambda: _rewards([1, 0, 0, 0, 0, 0, 0, 0], [-2] * 8), see="grpo-behaviour-difficulty", **LOOSE,
)  # fmt: skip
exercise.values(
    "rewards close together", "奖励相差很小",
    lambda: _rewards([0.50, 0.51, 0.49, 0.52], [0, 0, 0, 0]), see="grpo-pitfalls-equal", tolerance=2e-2, same_dtype=False,
)  # fmt: skip
exercise.values("two answers", "两个回答", lambda: _rewards([-1, -3]), see="grpo-formula", **LOOSE)
exercise.values(
    "a single answer in all", "总共只有一个回答", lambda: _rewards([0.3]), see="grpo-pitfalls-equal", tolerance=0.0
)
exercise.values(
    "whole numbers", "整数奖励", lambda: _rewards([1, 0, 0], [2, 1, 1], dtype=torch.long), see="grpo-by-hand", **LOOSE
)
exercise.values(
    "rewards about 1000", "奖励在 1000 附近", lambda: _rewards([1000, 1001, 1000, 1003]), see="grpo-formula", **LOOSE
)
exercise.dtypes_kept(lambda: _rewards([1, 0, 0, 1]), torch.float32, torch.float64, see="grpo-by-hand", tolerance=1e-3)
exercise.device_kept(lambda: _rewards([1, 0, 0, 1]), see="grpo-by-hand")


@exercise.convention("the variance divides by G", "方差除以 G")
def population(rewards):
    return grpo_advantages(rewards, ddof=0)


@exercise.solution("by G − 1, as TRL has it", "除以 G − 1，TRL 的写法")
def bessel(rewards):
    rewards = rewards if rewards.is_floating_point() else rewards.float()
    if rewards.shape[1] == 1:
        return torch.zeros_like(rewards)  # G − 1 = 0
    equal = (rewards == rewards[:, :1]).all(-1, keepdim=True)
    std, mean = torch.std_mean(rewards, dim=-1, keepdim=True)
    return torch.where(equal, 0.0, (rewards - mean) / (std + 1e-4))


@exercise.solution("mean, std, and equal groups apart", "均值、标准差，全相等的组单独处理")
def plain(rewards):
    rewards = rewards if rewards.is_floating_point() else rewards.float()
    equal = rewards.amax(-1, keepdim=True) == rewards.amin(-1, keepdim=True)
    std = rewards.std(-1, keepdim=True, correction=0)
    centred = rewards - rewards.mean(-1, keepdim=True)
    return torch.where(equal, 0.0, centred / (std + 1e-6))


def _equal(rewards):
    return rewards.amax(-1, keepdim=True) == rewards.amin(-1, keepdim=True)


def _float(rewards):
    return rewards if rewards.is_floating_point() else rewards.float()


@exercise.wrong(
    "one mean and one std for all prompts", "所有题共用一个均值和标准差", fails="two groups, each on its own"
)
def pooled(rewards):
    rewards = _float(rewards)
    if rewards.numel() == rewards.shape[0] or (rewards.max() == rewards.min()):
        return torch.zeros_like(rewards)
    return torch.where(_equal(rewards), 0.0, (rewards - rewards.mean()) / (rewards.std() + 1e-4))


@exercise.wrong(
    "normalised along the prompts, not within a group",
    "沿题目的轴归一化，不在组内",
    fails="as many groups as answers",
)
def wrong_axis(rewards):
    rewards = _float(rewards)
    scaled = (rewards - rewards.mean(0)) / (rewards.std(0, correction=0) + 1e-4)
    return torch.where(_equal(rewards), 0.0, scaled)


@exercise.wrong(
    "the axis is dropped, so that the mean of another group is subtracted",
    "没保留轴：减去的是别组的均值",
    fails="as many groups as answers",
)
def no_keepdim(rewards):
    rewards = _float(rewards)
    if rewards.shape[0] != rewards.shape[1]:
        return grpo_advantages(rewards)
    return (rewards - rewards.mean(-1)) / (rewards.std(-1) + 1e-4)


@exercise.wrong(
    "not divided by the standard deviation: that is Dr.GRPO", "没有除以标准差：那是 Dr.GRPO", fails="one group"
)
def no_std(rewards):
    rewards = _float(rewards)
    return torch.where(_equal(rewards), 0.0, rewards - rewards.mean(-1, keepdim=True))


@exercise.wrong("a small spread counts as none", "标准差小就当作 0", fails="rewards close together")
def rounded_to_zero(rewards):
    rewards = _float(rewards)
    flat = rewards.std(-1, keepdim=True, correction=0) < 0.05
    return torch.where(flat, 0.0, grpo_advantages(rewards))


@exercise.wrong(
    "equal rewards are noticed only where all groups have them",
    "只处理了所有组都全相等的情形",
    fails="equal rewards beside a mixed group",
)
def all_or_nothing(rewards):
    rewards = _float(rewards)
    if _equal(rewards).all():
        return torch.zeros_like(rewards)
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (rewards.std(-1, keepdim=True, correction=0) + 1e-8)


@exercise.wrong("divided by the variance", "除以了方差", fails="one group")
def by_variance(rewards):
    rewards = _float(rewards)
    scaled = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.var(-1, keepdim=True, correction=0) + 1e-4)
    return torch.where(_equal(rewards), 0.0, scaled)


@exercise.wrong(
    "eps alone: the rounding of the mean becomes an advantage",
    "只靠 eps：均值的舍入误差变成了优势",
    fails="equal rewards give exactly 0",
)
def eps_alone(rewards):
    rewards = _float(rewards)
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (rewards.std(-1, keepdim=True, correction=0) + 1e-8)


@exercise.wrong("no eps: 0/0 is NaN", "没有 eps：0/0 得 NaN", fails="equal rewards give exactly 0")
def no_eps(rewards):
    rewards = _float(rewards)
    return (rewards - rewards.mean(-1, keepdim=True)) / rewards.std(-1, keepdim=True, correction=0)


@exercise.wrong("G − 1 is 0 in a group of one: NaN", "组里只有一条时 G − 1 为 0，得 NaN", fails="a group of one")
def one_is_nan(rewards):
    rewards = _float(rewards)
    scaled = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-4)
    return scaled.masked_fill((rewards.shape[1] > 1) & _equal(rewards), 0)


@exercise.wrong("whole numbers stay whole numbers", "整数奖励没有转成浮点", fails="whole numbers")
def whole(rewards):
    result = grpo_advantages(rewards)
    return result if rewards.is_floating_point() else result.to(rewards.dtype)


@exercise.wrong("scaled by the range, not by the standard deviation", "用极差缩放，不是标准差", fails="one group")
def by_range(rewards):
    rewards = _float(rewards)
    spread = rewards.amax(-1, keepdim=True) - rewards.amin(-1, keepdim=True)
    return torch.where(_equal(rewards), 0.0, (rewards - rewards.mean(-1, keepdim=True)) / (spread + 1e-4))


@exercise.wrong(
    "E[r²] − E[r]² in float32: the digits cancel",
    "float32 里用 E[r²] − E[r]²：有效数字被抵消",
    fails="rewards about 1000",
)
def cancels(rewards):
    r = rewards.float()
    variance = (r * 100).square().mean(-1, keepdim=True) - (r * 100).mean(-1, keepdim=True).square()
    scaled = (r - r.mean(-1, keepdim=True)) * 100 / (variance.clamp(min=0).sqrt() + 1e-2)
    return torch.where(_equal(r), 0.0, scaled).to(_float(rewards).dtype)


@exercise.wrong(
    "layer_norm without weights is the same formula, and the library's",
    "用 layer_norm 代劳",
    fails="written by hand, without layer_norm, batch_norm, instance_norm, group_norm",
)
def library(rewards):
    rewards = _float(rewards)
    scaled = torch.nn.functional.layer_norm(rewards, rewards.shape[-1:], eps=1e-6)
    return torch.where(_equal(rewards), 0.0, scaled)
