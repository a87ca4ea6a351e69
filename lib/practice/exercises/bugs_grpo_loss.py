"""Find the bugs: from rewards to the GRPO loss."""

import math

import torch

from lib.practice.drill import Bug, Drill
from lib.practice.exercise import call, numbers
from lib.practice.language import Text

exercise = Drill(
    topic="grpo",
    part="rl",
    title=Text("Find the bugs: the GRPO step", "找 bug：GRPO 一步"),
    statement=Text(
        """This function goes from rewards to the GRPO loss of DeepSeekMath. It runs, the reward even rises for a while, and
it has **5 bugs**. `rewards`: (B, G); `logprobs`, `old_logprobs`, `ref_logprobs`, `mask`: (B·G, T), a prompt's answers one
after another; padding may hold −∞. Mend it, changing nothing else, and keep its name.""",
        """下面的函数从奖励一路算到 DeepSeekMath 的 GRPO 损失。它能运行，奖励甚至会涨一阵，但有 **5 个 bug**。`rewards`：(B, G)；`logprobs`、`old_logprobs`、`ref_logprobs`、`mask`：(B·G, T)，同一道题的回答相邻；填充位置可能是 −∞。把它改对，别的不要动，函数名不变。""",
    ),
    signature="def grpo_step_loss(logprobs, old_logprobs, ref_logprobs, rewards, mask, beta=0.04):",
    reference=None,
    program='''
import torch


def grpo_step_loss(logprobs, old_logprobs, ref_logprobs, rewards, mask, beta=0.04):
    """logprobs, old_logprobs, ref_logprobs, mask (B·G, T); rewards (B, G)."""
    mean, std = rewards.mean(-1, keepdim=True), rewards.std(-1, keepdim=True)
    A = ((rewards - mean) / (std + 1e-4)).flatten()[:, None]
    old_logprobs, ref_logprobs = old_logprobs.detach(), ref_logprobs.detach()
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    log_r = torch.where(mask, ref_logprobs - logprobs, 0.0)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(0.8, 1.2)
    surrogate = torch.minimum(ratio * A, clipped * A)
    k3 = torch.expm1(log_r) - log_r
    losses = torch.where(mask, beta * k3 - surrogate, 0.0)
    return (losses.sum(-1) / mask.sum(-1)).mean()
''',
    bugs=(
        Bug(
            "mean, std = rewards.mean(-1, keepdim=True), rewards.std(-1, keepdim=True)",
            "mean, std = rewards.mean(), rewards.std()",
            Text(
                "one mean for all prompts: an easy prompt's wrong answers get a positive advantage",
                "所有题共用一个均值：简单题答错了也是正优势",
            ),
            "grpo-pitfalls-groups",
        ),
        Bug(
            "    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)\n",
            "    log_ratio = logprobs - old_logprobs\n",
            Text(
                "padding is masked after exp: −∞ − (−∞) is NaN, and so is its gradient",
                "exp 之后才处理填充：−∞ − (−∞) 是 NaN，梯度也是",
            ),
            "kl-estimators-pitfall-padding",
        ),
        Bug(
            "surrogate = torch.minimum(ratio * A, clipped * A)",
            "surrogate = torch.minimum(ratio, clipped) * A",
            Text(
                "the minimum before the product: for a bad answer the clip works the wrong way round",
                "先取最小再乘 A：优势为负时裁剪的方向反了",
            ),
            "grpo-behaviour-clip",
        ),
        Bug(
            "losses = torch.where(mask, beta * k3 - surrogate, 0.0)",
            "losses = torch.where(mask, -beta * k3 - surrogate, 0.0)",
            Text(
                "the penalty is subtracted: the policy is paid for leaving the reference",
                "KL 惩罚的符号反了：离参考模型越远反而越划算",
            ),
            "kl-estimators-pitfall-sign",
        ),
        Bug(
            "return (losses.sum(-1) / mask.sum(-1)).mean()",
            "return losses.sum(-1).mean() / mask.shape[-1]",
            Text(
                "divided by the padded length: the same tokens count less in a longer batch",
                "除以填充后的长度：batch 越长，同样的 token 权重越小",
            ),
            "grpo-behaviour-length",
        ),
    ),
    hints=(
        Text(
            "Two prompts, one easy and one hard: which advantages must have mean 0?",
            "两道题，一难一易：哪些优势的均值应为 0？",
        ),
        Text(
            "Take A = −1 and ratios 0.5 and 1.5. Which of them must keep its gradient?",
            "取 A = −1，比率 0.5 和 1.5。哪一个必须保留梯度？",
        ),
        Text("Put −∞ into the padding, call backward, and look for NaN.", "把填充换成 −∞，反向传播，看看有没有 NaN。"),
    ),
    difficulty=3,
    asked=3,
)


def _batch(seed, padding=0.0, **settings):
    new = -numbers(6, 5, seed=seed).abs()
    old, ref = (new + numbers(6, 5, seed=seed + i, scale=0.5) for i in (1, 2))
    mask = torch.arange(5) < torch.tensor([[4], [2], [3], [1], [5], [2]])
    new, old, ref = (x.masked_fill(~mask, padding) for x in (new, old, ref))
    rewards = torch.tensor([[1.0, 0.0, 0.0], [8.0, 9.0, 9.5]], dtype=torch.float64)
    return call(new, old, ref, rewards, mask, **settings)


exercise.values("two prompts with three answers", "两道题，各三个回答", lambda: _batch(0, beta=0.5), tolerance=1e-9)
exercise.gradients(
    "gradients, padding of −∞",
    "梯度，填充为 −∞",
    lambda: _batch(4, -math.inf, beta=0.2),
    tolerance=1e-9,
    wrt=("logprobs", "old_logprobs", "ref_logprobs"),
)
exercise.values("beta as it is by default", "beta 取默认值", lambda: _batch(7), tolerance=1e-9)
