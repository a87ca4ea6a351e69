"""BatchNorm: training and running statistics."""

import torch

from lib.batch_norm import batch_norm_eval, batch_norm_train
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    if not training:
        y = batch_norm_eval(x, running_mean, running_var, weight, bias, eps=eps)
        return y, running_mean, running_var
    return batch_norm_train(x, running_mean, running_var, weight, bias, momentum=momentum, eps=eps)


exercise = Exercise(
    topic="layer_norm",
    part="normalisation",
    title=Text("BatchNorm with running statistics", "BatchNorm 与滑动统计量"),
    statement=Text(
        """Write `batch_norm(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5)` for `x` (N, C).

- In training, y = (x − mean) / √(var + `eps`) · `weight` + `bias` with mean and variance of each channel over the batch,
  the variance divided by N. Evaluation uses `running_mean` and `running_var` instead.
- Returns (y, new_mean, new_var), and changes nothing in place. In training new = (1 − `momentum`) · old + `momentum` ·
  batch, and `running_var` takes the variance divided by N − 1, as in torch. In evaluation they stay as they are.
- All vectors (C,), everything in the dtype of `x`, float32 or float64.
- One row has no variance: in training it raises `ValueError`, in evaluation it is fine.""",
        """写 `batch_norm(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5)`，`x` 的形状是 (N, C)。

- 训练时 y = (x − 均值) / √(方差 + `eps`) · `weight` + `bias`，每个通道的均值和方差都在 batch 上算，方差除以 N。评估时改用 `running_mean` 和 `running_var`。
- 返回 (y, new_mean, new_var)，不原地修改任何输入。训练时 new = (1 − `momentum`) · old + `momentum` · batch，其中 `running_var` 取除以 N − 1 的方差，与 torch 一致。评估时两者不变。
- 各个向量形状都是 (C,)，数据类型都与 `x` 相同，float32 或 float64。
- 只有一行就没有方差：训练时抛出 `ValueError`，评估时没有问题。""",
    ),
    signature="def batch_norm(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):",
    reference=reference,
    forbidden=("batch_norm", "layer_norm", "instance_norm", "group_norm"),
    hints=(
        Text(
            "Over which axis does a channel have its values? Not the one that LayerNorm takes.",
            "一个通道的各个值排在哪个轴上？不是 LayerNorm 用的那个。",
        ),
        Text(
            "Two variances: x.var(0, correction=0) for the division, N/(N − 1) times as much for what is kept.",
            "要两个方差：做除法用 x.var(0, correction=0)，存下来的是它的 N/(N − 1) 倍。",
        ),
        Text(
            "momentum is the share of the new batch, 0.1: running_mean + momentum * (mean - running_mean).",
            "momentum 是新 batch 的占比，即 0.1：running_mean + momentum * (mean - running_mean)。",
        ),
    ),
    difficulty=2,
    asked=2,
)


def _case(N=5, C=3, seed=0, **settings):
    x = 3 * numbers(N, C, seed=seed) + 2
    var = numbers(C, seed=seed + 2).square() + 0.5
    return call(x, numbers(C, seed=seed + 1), var, numbers(C, seed=seed + 3), numbers(C, seed=seed + 4), **settings)


def _two():
    zeros, ones = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    return call(torch.tensor([[1.0, 10.0], [3.0, 10.0]], dtype=torch.float64), zeros, ones, ones, zeros, training=True)


FORMULA = {"see": "layer-norm-formula"}
RUNNING = {"see": "layer-norm-pitfall-running"}
exercise.values("two rows, by hand", "两行，可手算", _two, **FORMULA)
exercise.values("training", "训练", lambda: _case(training=True), **FORMULA)
exercise.values("a square", "方阵", lambda: _case(4, 4, training=True), see="layer-norm-pitfall-axes")
exercise.values("evaluation", "评估", lambda: _case(training=False), **RUNNING)
exercise.values("evaluation of one row", "评估单独一行", lambda: _case(1, training=False), **RUNNING)
exercise.values(
    "another momentum and eps", "换一个 momentum 和 eps", lambda: _case(training=True, momentum=0.7, eps=0.5), **RUNNING
)
exercise.gradients(
    "gradients in training", "训练时的梯度", lambda: _case(training=True, seed=7), wrt=("x", "weight", "bias"),
    see="layer-norm-gradient",
)  # fmt: skip
exercise.dtypes_kept(
    lambda: _case(9, training=True), torch.float32, torch.float64, tolerance=1e-5, see="layer-norm-by-hand"
)
exercise.device_kept(lambda: _case(training=True), see="layer-norm-by-hand")
exercise.refuses("training on one row", "只用一行训练", lambda: _case(1, training=True), **RUNNING)


def _batch_norm(x, mean, var, weight, bias, training, momentum, eps, *, kept=1, used=0):
    """The right program, in which a mistake replaces a number. kept, used: the corrections of the two variances."""
    if training:
        if len(x) < 2:
            raise ValueError("one row has no variance")
        batch_mean, batch_var = x.mean(0), x.var(0, correction=used)
        y = (x - batch_mean) / (batch_var + eps).sqrt() * weight + bias
        fresh = batch_mean.detach(), x.detach().var(0, correction=kept)
        return y, mean.lerp(fresh[0], momentum), var.lerp(fresh[1], momentum)
    return (x - mean) / (var + eps).sqrt() * weight + bias, mean, var


@exercise.solution("two variances", "两个方差")
def two_variances(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    mean, var = running_mean, running_var
    if training:
        n = len(x)
        if n < 2:
            raise ValueError(f"x: {n} rows, training needs at least 2")
        mean, var = x.mean(0), x.var(0, correction=0)
        running_mean = (1 - momentum) * running_mean + momentum * mean.detach()
        running_var = (1 - momentum) * running_var + momentum * var.detach() * n / (n - 1)
    y = (x - mean) * torch.rsqrt(var + eps) * weight + bias
    return y, running_mean, running_var


@exercise.solution("by lerp and the mean of squares", "用 lerp 和平方的平均")
def by_lerp(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    if not training:
        return (
            (x - running_mean) / (running_var + eps) ** 0.5 * weight + bias,
            running_mean.clone(),
            running_var.clone(),
        )
    if x.shape[0] == 1:
        raise ValueError("x: one row")
    mean = x.mean(0, keepdim=True)
    squares = (x - mean) ** 2
    y = (x - mean) / (squares.mean(0) + eps) ** 0.5 * weight + bias
    unbiased = (squares.sum(0) / (x.shape[0] - 1)).detach()
    return y, running_mean.lerp(mean[0].detach(), momentum), running_var.lerp(unbiased, momentum)


def _wrong(en, zh, fails, **changed):
    """A wrong program that differs from the right one in a named number."""

    def program(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
        return _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps, **changed)

    program.__name__ = "_".join(en.split()[:4])
    exercise.wrong(en, zh, fails=fails)(program)


_wrong("the running variance is biased", "存下来的是有偏方差", "two rows, by hand", kept=0)
_wrong("normalised by the unbiased variance", "归一化用了无偏方差", "two rows, by hand", used=1)


@exercise.wrong(
    "momentum is the share of the old, as in TensorFlow",
    "momentum 当成旧值的占比：那是 TensorFlow",
    fails="two rows, by hand",
)
def other_momentum(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    return _batch_norm(x, running_mean, running_var, weight, bias, training, 1 - momentum, eps)


@exercise.wrong("momentum is fixed", "momentum 写死了", fails="another momentum and eps")
def fixed_momentum(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    return _batch_norm(x, running_mean, running_var, weight, bias, training, 0.1, eps)


@exercise.wrong("evaluation uses the batch as well", "评估时也用了 batch 的统计量", fails="evaluation")
def always_batch(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    if len(x) == 1 and not training:
        return _batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    y = _batch_norm(x, running_mean, running_var, weight, bias, True, momentum, eps)[0]
    return (y, *_batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)[1:])


@exercise.wrong("evaluation moves the running statistics", "评估时滑动统计量也在变", fails="evaluation")
def moves_in_evaluation(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    y = _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)[0]
    if len(x) == 1:
        return _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    return (y, *_batch_norm(x, running_mean, running_var, weight, bias, True, momentum, eps)[1:])


@exercise.wrong("training uses the running statistics", "训练时用了滑动统计量", fails="training")
def always_running(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    y = _batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)[0]
    return (y, *_batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)[1:])


@exercise.wrong("statistics over the features: that is LayerNorm", "统计量沿特征计算：那是 LayerNorm", fails="a square")
def over_features(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    right = _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training or x.shape[0] != x.shape[1]:
        return right
    centred = x - x.mean(1, keepdim=True)
    return (centred / (centred.square().mean(1, keepdim=True) + eps).sqrt() * weight + bias, *right[1:])


@exercise.wrong("eps is added to the standard deviation", "eps 加在了标准差上", fails="another momentum and eps")
def eps_outside(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    _, mean, var = _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    used = (x.mean(0), x.var(0, correction=0)) if training else (running_mean, running_var)
    if eps == 1e-5:
        return _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    return (x - used[0]) / (used[1].sqrt() + eps) * weight + bias, mean, var


@exercise.wrong("one row gives NaN in silence", "只有一行时悄悄得到 NaN", fails="training on one row")
def one_row(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    if training and len(x) == 1:
        return bias.expand_as(x), running_mean, running_var * float("nan")
    return _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


@exercise.wrong("one row is refused in evaluation too", "评估时也拒绝单独一行", fails="evaluation of one row")
def refuses_one(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    if len(x) < 2:
        raise ValueError("one row")
    return _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)


@exercise.wrong("mean and variance are detached", "均值和方差被 detach 了", fails="gradients in training")
def constants(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    right = _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training:
        return right
    mean, var = x.detach().mean(0), x.detach().var(0, correction=0)
    return ((x - mean) / (var + eps).sqrt() * weight + bias, *right[1:])


@exercise.wrong("running statistics are changed in place", "原地修改了滑动统计量", fails="inputs unchanged")
def in_place(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    y, mean, var = _batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    return y, running_mean.detach().copy_(mean), running_var.detach().copy_(var)


@exercise.wrong(
    "the library's", "用库函数代劳",
    fails="written by hand, without batch_norm, layer_norm, instance_norm, group_norm",
)  # fmt: skip
def library(x, running_mean, running_var, weight, bias, *, training, momentum=0.1, eps=1e-5):
    mean, var = running_mean.detach().clone(), running_var.detach().clone()
    y = torch.nn.functional.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    return y, mean, var
