"""AdamW: the learning-rate schedule."""

import math

from lib import adamw
from lib.practice.exercise import Exercise, call
from lib.practice.language import Text

exercise = Exercise(
    topic="adamw",
    part="foundations",
    title=Text("Warm-up and cosine decay", "预热加余弦下降"),
    statement=Text(
        """Write `warmup_cosine(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0)`: the learning rate of update
number `step`, which counts from 1, as a Python float.

- It rises in equal steps: `peak_lr` / `warmup_steps` for update 1, `peak_lr` itself for update `warmup_steps`.
- From there half a cosine falls to `final_lr`, which is reached at `total_steps` (warm-up included) and kept after it.
- `warmup_steps` may be 0. More warm-up than `total_steps` raises `ValueError`.""",
        """写 `warmup_cosine(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0)`：返回第 `step` 次更新用的学习率，Python 浮点数，`step` 从 1 数起。

- 先等步长上升：第 1 次更新是 `peak_lr` / `warmup_steps`，第 `warmup_steps` 次恰好是 `peak_lr`。
- 然后按半个余弦下降，在 `total_steps`（含预热）时降到 `final_lr`，之后一直保持。
- `warmup_steps` 可以是 0。预热比 `total_steps` 还长时抛出 `ValueError`。""",
    ),
    signature="def warmup_cosine(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0):",
    reference=adamw.warmup_cosine,
    hints=(
        Text(
            "Let x go from 0 at the end of the warm-up to 1 at the end. What does (1 + cos πx)/2 do meanwhile?",
            "让 x 从预热结束时的 0 走到训练结束时的 1，(1 + cos πx)/2 这期间怎样变化？",
        ),
        Text(
            "x = (step − W)/(T − W), at most 1; a cosine that goes on climbs again.",
            "x = (step − W)/(T − W)，最大取 1；余弦再往前走会重新上升。",
        ),
    ),
    difficulty=1,
    asked=2,
)
WARM = {"warmup_steps": 4, "total_steps": 20, "peak_lr": 2.0}
SETTINGS = {"see": "adamw-schedule", "tolerance": 1e-12}
LATE = {"see": "adamw-pitfall-schedule", "tolerance": 1e-12}
exercise.values("the first update", "第一次更新", lambda: call(1, **WARM), **LATE)
exercise.values("inside the warm-up", "预热途中", lambda: call(3, **WARM, final_lr=0.5), **SETTINGS)
exercise.values("the last update of the warm-up", "预热的最后一次", lambda: call(4, **WARM, final_lr=0.5), **SETTINGS)
exercise.values("a quarter down", "降到四分之一处", lambda: call(8, **WARM), **SETTINGS)
exercise.values("with a final rate", "最终学习率不为零", lambda: call(9, **WARM, final_lr=0.5), **SETTINGS)
exercise.values("the last update", "最后一次更新", lambda: call(20, **WARM, final_lr=0.5), **SETTINGS)
exercise.values("after the end", "结束之后", lambda: call(30, **WARM, final_lr=0.5), **LATE)
exercise.values("no warm-up", "没有预热", lambda: call(1, warmup_steps=0, total_steps=10, peak_lr=1.0), **SETTINGS)
exercise.values(
    "nothing but warm-up", "只有预热", lambda: call(5, warmup_steps=5, total_steps=5, peak_lr=1.0), **SETTINGS
)
exercise.refuses(
    "more warm-up than steps", "预热比总步数还长", lambda: call(1, warmup_steps=9, total_steps=5, peak_lr=1.0),
    see="adamw-schedule",
)  # fmt: skip


@exercise.solution("two cases", "分两段写")
def two_cases(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0):
    if warmup_steps > total_steps:
        raise ValueError(f"warmup_steps: got {warmup_steps}, must be at most total_steps, {total_steps}")
    if step <= warmup_steps:
        return peak_lr * step / warmup_steps
    x = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps or 1))
    return final_lr + (peak_lr - final_lr) * (1 + math.cos(math.pi * x)) / 2


@exercise.solution("by the square of a half-angle", "用半角的平方")
def half_angle(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0):
    if warmup_steps > total_steps:
        raise ValueError("warmup_steps: more than total_steps")
    if step < warmup_steps:
        return peak_lr * (step / warmup_steps)
    x = min(step - warmup_steps, total_steps - warmup_steps) / max(1, total_steps - warmup_steps)
    down = math.sin(math.pi * x / 2) ** 2
    return float(peak_lr * (1 - down) + final_lr * down)


def _schedule(step, warmup, total, peak, final, *, rise=None, progress=None, fall=None):
    """The right schedule, in which a mistake replaces one part."""
    if warmup > total:
        raise ValueError("warmup_steps: more than total_steps")
    if step < warmup:
        return (rise or (lambda: peak * step / warmup))()
    x = (progress or (lambda: min(1.0, (step - warmup) / max(1, total - warmup))))()
    return (fall or (lambda x: final + (peak - final) * (1 + math.cos(math.pi * x)) / 2))(x)


def _wrong(en, zh, fails, make):
    """A wrong program: make(step, warmup, total, peak, final) gives the parts that differ."""

    def program(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0):
        given = step, warmup_steps, total_steps, peak_lr, final_lr
        return _schedule(*given, **make(*given))

    program.__name__ = "_".join(word for word in en.split()[:4] if word.isalnum())
    exercise.wrong(en, zh, fails=fails)(program)


_wrong("the cosine runs over all steps, warm-up included: a jump down at its end", "余弦按总步数算，含预热：预热一结束就往下跳",
       "the last update of the warm-up", lambda t, W, T, p, f: {"progress": lambda: min(1.0, t / T)})  # fmt: skip
_wrong("a whole period: at the end it is back at the peak", "走了整个周期：最后又回到峰值", "the last update",
       lambda t, W, T, p, f: {"fall": lambda x: f + (p - f) * (1 + math.cos(2 * math.pi * x)) / 2})  # fmt: skip
_wrong("no limit on x: after the end the rate climbs again", "x 没有上限：结束之后学习率又升回去", "after the end",
       lambda t, W, T, p, f: {"progress": lambda: (t - W) / max(1, T - W)})  # fmt: skip
_wrong("a straight line, not a cosine", "降成了直线，不是余弦", "a quarter down",
       lambda t, W, T, p, f: {"fall": lambda x: p + (f - p) * x})  # fmt: skip
_wrong("the final rate is added on top", "最终学习率直接叠加上去", "with a final rate",
       lambda t, W, T, p, f: {"fall": lambda x: f + p * (1 + math.cos(math.pi * x)) / 2})  # fmt: skip
_wrong("the final rate is ignored", "没有用最终学习率", "the last update",
       lambda t, W, T, p, f: {"fall": lambda x: p * (1 + math.cos(math.pi * x)) / 2})  # fmt: skip
_wrong("the warm-up starts from the final rate", "预热从最终学习率开始", "inside the warm-up",
       lambda t, W, T, p, f: {"rise": lambda: f + (p - f) * t / W})  # fmt: skip
_wrong("the warm-up is a cosine too", "预热也用了余弦", "inside the warm-up",
       lambda t, W, T, p, f: {"rise": lambda: p * (1 - math.cos(math.pi * t / W)) / 2})  # fmt: skip
_wrong("the warm-up follows after total_steps: T − W + W", "总步数没有扣掉预热", "a quarter down",
       lambda t, W, T, p, f: {"progress": lambda: min(1.0, (t - W) / T)})  # fmt: skip


@exercise.wrong(
    "counted from 0: the first update has rate 0 and does nothing",
    "从 0 数：第一次更新学习率为 0，白走一步",
    fails="the first update",
)
def from_zero(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0):
    return _schedule(step - 1, warmup_steps, total_steps, peak_lr, final_lr)


@exercise.wrong("counted from 0 in the warm-up alone", "只有预热从 0 数", fails="the first update")
def warmup_from_zero(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0):
    given = step, warmup_steps, total_steps, peak_lr, final_lr
    return _schedule(*given, rise=lambda: peak_lr * (step - 1) / warmup_steps)


@exercise.wrong("without warm-up it divides by zero", "没有预热时除以零", fails="no warm-up")
def divides(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0):
    factor = min(1.0, step / warmup_steps)
    return factor * _schedule(max(step, warmup_steps), warmup_steps, total_steps, peak_lr, final_lr)


@exercise.wrong(
    "without anything after the warm-up it divides by zero", "预热之后没有步数时除以零", fails="nothing but warm-up"
)
def divides_late(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0):
    given = step, warmup_steps, total_steps, peak_lr, final_lr
    return _schedule(*given, progress=lambda: min(1.0, (step - warmup_steps) / (total_steps - warmup_steps)))


@exercise.wrong("an impossible warm-up passes in silence", "不可能的预热没有报错", fails="more warm-up than steps")
def careless(step, *, warmup_steps, total_steps, peak_lr, final_lr=0.0):
    return _schedule(step, min(warmup_steps, total_steps), total_steps, peak_lr, final_lr)
