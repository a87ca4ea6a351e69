"""The distillation loss: KL at a temperature, and the factor T²."""

import math

import torch
import torch.nn.functional as F

from lib import kl_divergence as topic
from lib.practice.exercise import Exercise, call, numbers
from lib.practice.language import Text


def reference(student_logits, teacher_logits, mask, *, temperature=2.0):
    return topic.distillation_loss(student_logits, teacher_logits, mask, temperature=temperature)


exercise = Exercise(
    topic="kl_divergence",
    part="foundations",
    title=Text("The distillation loss", "蒸馏损失"),
    statement=Text(
        """Write `distillation_loss(student_logits, teacher_logits, mask, *, temperature=2.0)`: Hinton's loss, to be minimised.

- `student_logits`, `teacher_logits`: (B, T, V). `mask`: (B, T) bool, True = a valid token.
- At each token KL(teacher‖student), in nats, both softened by the temperature; then the mean over all valid tokens of
  the batch, times the temperature squared. Returns a tensor ().
- The teacher is a constant. Padding may hold NaN. Half precision is computed and returned in float32.
- PyTorch's functions are allowed; what they divide by is the point.""",
        """写 `distillation_loss(student_logits, teacher_logits, mask, *, temperature=2.0)`，即 Hinton 的蒸馏损失（要最小化）。

- `student_logits`、`teacher_logits`：(B, T, V)。`mask`：(B, T)，bool，True 表示有效 token。
- 每个 token 上，两边都按温度软化，求 KL(teacher‖student)，单位 nat；再对整个 batch 的有效 token 取平均，最后乘温度的平方。返回形状为 () 的张量。
- 教师是常数。填充位置可能是 NaN。半精度输入用 float32 计算并返回。
- 可以用 PyTorch 的函数，考的正是它们除以了什么。""",
    ),
    signature="def distillation_loss(student_logits, teacher_logits, mask, *, temperature=2.0):",
    reference=reference,
    hints=(
        Text(
            "Pick the valid tokens first: (B, T, V) becomes (N, V), and the padding is gone.",
            "先取出有效 token：(B, T, V) 变成 (N, V)，填充就没了。",
        ),
        Text(
            "Which of the two distributions does the averaging, and which of the two is a constant?",
            "两个分布里，按哪一个平均？哪一个是常数？",
        ),
        Text(
            "Sum over V, mean over N, times T². F.kl_div wants the student first, in logs.",
            "对 V 求和，对 N 取平均，乘 T²。F.kl_div 的第一个参数是学生的对数概率。",
        ),
    ),
    difficulty=2,
    asked=2,
)


def _mask(*lengths, width):
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def _batch(padding=None, seed=0, **settings):
    """Three answers of 4, 1 and 2 tokens, a vocabulary of 5."""
    student, teacher = numbers(3, 4, 5, seed=seed, scale=2.0), numbers(3, 4, 5, seed=seed + 1, scale=2.0)
    mask = _mask(4, 1, 2, width=4)
    if padding is not None:
        student, teacher = (x.masked_fill(~mask[..., None], padding) for x in (student, teacher))
    return call(student, teacher, mask, **settings)


def _one():
    """One token, p = [2, 1, 0] and q = [0, 1, .5] at temperature 4: .596893527."""
    student, teacher = (torch.tensor([[x]], dtype=torch.float64) for x in ([0, 1, 0.5], [2, 1, 0]))
    return call(student, teacher, torch.ones(1, 1, dtype=torch.bool), temperature=4.0)


def _full(seed=3):
    """Two answers of three tokens, no padding."""
    return call(numbers(2, 3, 7, seed=seed), numbers(2, 3, 7, seed=seed + 1), _mask(3, 3, width=3), temperature=1.0)


exercise.values("one token, by hand", "一个 token，可手算", _one, see="kl-divergence-temperature")
exercise.values(
    "two answers of three tokens, temperature 1", "两条回答各三个 token，温度为 1", _full,
    see="kl-divergence-pitfall-reduction",
)  # fmt: skip
exercise.values("answers of unequal length", "长度不等的回答", _batch, see="kl-divergence-pitfall-reduction")
exercise.values("temperature ½", "温度为 ½", lambda: _batch(temperature=0.5), see="kl-divergence-temperature")
exercise.values("padding of NaN", "填充为 NaN", lambda: _batch(math.nan), see="kl-divergence-by-hand")
exercise.gradients("gradients, teacher included", "梯度，含教师", lambda: _batch(seed=5), see="kl-divergence-gradient")
exercise.gradients(
    "gradients with padding of NaN", "填充为 NaN 时的梯度", lambda: _batch(math.nan), see="kl-divergence-by-hand"
)
exercise.dtypes_kept(lambda: _batch(seed=7), see="kl-divergence-pitfall-half", tolerance=1e-5)
exercise.values(
    "bfloat16 logits, float32 digits", "bfloat16 的 logits，float32 的精度",
    lambda: call(*(numbers(2, 3, 300, seed=i, scale=2.0).bfloat16() for i in range(2)), _mask(3, 2, width=3)),
    see="kl-divergence-pitfall-half", tolerance=1e-4,
)  # fmt: skip
exercise.device_kept(lambda: _batch(), see="kl-divergence-by-hand")


@exercise.solution("valid tokens only, then the definition", "只取有效 token，再照定义写")
def by_definition(student_logits, teacher_logits, mask, *, temperature=2.0):
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    student = (student_logits[mask].to(dtype) / temperature).log_softmax(-1)  # (N, V)
    teacher = (teacher_logits[mask].detach().to(dtype) / temperature).log_softmax(-1)
    kl = (teacher.exp() * (teacher - student)).sum(-1)  # (N,)
    return temperature**2 * kl.mean()


@exercise.solution("F.kl_div on (N, V), where batchmean is right", "F.kl_div 作用在 (N, V) 上，batchmean 才对")
def by_library(student_logits, teacher_logits, mask, *, temperature=2.0):
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    student, teacher = (x[mask].to(dtype) / temperature for x in (student_logits, teacher_logits.detach()))
    pair = student.log_softmax(-1), teacher.log_softmax(-1)
    return temperature**2 * F.kl_div(*pair, log_target=True, reduction="batchmean")


@exercise.solution("masked with where, nothing selected: fixed shapes", "用 where 屏蔽，不做选取，形状固定")
def by_where(student_logits, teacher_logits, mask, *, temperature=2.0):
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    keep = mask[..., None]
    pair = (torch.where(keep, x.to(dtype), 0.0) / temperature for x in (student_logits, teacher_logits.detach()))
    student, teacher = (x.log_softmax(-1) for x in pair)
    kl = (teacher.softmax(-1) * (teacher - student)).sum(-1)
    return temperature**2 * kl.sum() / mask.sum()


def _logs(student_logits, teacher_logits, mask, temperature):
    """log-probabilities of both, 0-logits where masked."""
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    given = student_logits, teacher_logits.detach()
    return [(torch.where(mask[..., None], x.to(dtype), 0.0) / temperature).log_softmax(-1) for x in given]


def _loss(student, teacher, mask):
    return (teacher.exp() * (teacher - student)).sum() / mask.sum()


@exercise.wrong("the factor T² is missing", "漏了 T²", fails="one token, by hand")
def no_factor(student_logits, teacher_logits, mask, *, temperature=2.0):
    return _loss(*_logs(student_logits, teacher_logits, mask, temperature), mask)


@exercise.wrong("T in place of T²", "乘的是 T，不是 T²", fails="one token, by hand")
def once(student_logits, teacher_logits, mask, *, temperature=2.0):
    return temperature * _loss(*_logs(student_logits, teacher_logits, mask, temperature), mask)


@exercise.wrong(
    "batchmean on (B, T, V) divides by B alone: it grows with the length",
    "batchmean 用在 (B, T, V) 上只除以 B：回答越长损失越大",
    fails="two answers of three tokens, temperature 1",
)
def batchmean(student_logits, teacher_logits, mask, *, temperature=2.0):
    pair = _logs(student_logits, teacher_logits, mask, temperature)
    return temperature**2 * F.kl_div(*pair, log_target=True, reduction="batchmean")


@exercise.wrong(
    "F.kl_div's default mean divides by V as well",
    "F.kl_div 默认的 mean 连 V 也除了",
    fails="two answers of three tokens, temperature 1",
)
def default_mean(student_logits, teacher_logits, mask, *, temperature=2.0):
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    student, teacher = (x[mask].to(dtype) / temperature for x in (student_logits, teacher_logits.detach()))
    terms = F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="none")
    return temperature**2 * terms.mean()


@exercise.wrong("the mean runs over padding too", "把填充也算进了平均", fails="answers of unequal length")
def over_padding(student_logits, teacher_logits, mask, *, temperature=2.0):
    pair = _logs(student_logits, teacher_logits, mask, temperature)
    return temperature**2 * _loss(*pair, torch.ones_like(mask))


@exercise.wrong(
    "mean of each answer first, then of the answers",
    "先对每条回答取平均，再对回答取平均",
    fails="answers of unequal length",
)
def per_answer(student_logits, teacher_logits, mask, *, temperature=2.0):
    student, teacher = _logs(student_logits, teacher_logits, mask, temperature)
    kl = (teacher.exp() * (teacher - student)).sum(-1)
    return temperature**2 * (kl.sum(-1) / mask.sum(-1)).mean()


@exercise.wrong(
    "KL(student‖teacher): the reverse direction", "KL(student‖teacher)：方向反了", fails="one token, by hand"
)
def reverse(student_logits, teacher_logits, mask, *, temperature=2.0):
    student, teacher = _logs(student_logits, teacher_logits, mask, temperature)
    return temperature**2 * _loss(teacher, student, mask)


@exercise.wrong("only the teacher is softened", "只软化了教师", fails="one token, by hand")
def teacher_alone(student_logits, teacher_logits, mask, *, temperature=2.0):
    student, _ = _logs(student_logits, teacher_logits, mask, 1.0)
    _, teacher = _logs(student_logits, teacher_logits, mask, temperature)
    return temperature**2 * _loss(student, teacher, mask)


@exercise.wrong("the logits are multiplied by the temperature", "logits 乘了温度，应是除", fails="temperature ½")
def multiplied(student_logits, teacher_logits, mask, *, temperature=2.0):
    return temperature**2 * _loss(*_logs(student_logits, teacher_logits, mask, 1 / temperature), mask)


@exercise.wrong(
    "cross-entropy: the teacher's entropy is left in", "只算了交叉熵，没有减去教师的熵", fails="one token, by hand"
)
def crossed(student_logits, teacher_logits, mask, *, temperature=2.0):
    student, teacher = _logs(student_logits, teacher_logits, mask, temperature)
    losses = torch.where(mask, -(teacher.exp() * student).sum(-1), 0.0)
    return temperature**2 * losses.sum() / mask.sum()


@exercise.wrong("the teacher is not held constant", "教师没有 detach", fails="gradients, teacher included")
def teacher_moves(student_logits, teacher_logits, mask, *, temperature=2.0):
    keep = mask[..., None]
    pair = (torch.where(keep, x, 0.0) / temperature for x in (student_logits, teacher_logits))
    student, teacher = (x.log_softmax(-1) for x in pair)
    return temperature**2 * _loss(student, teacher, mask)


@exercise.wrong(
    "the mask is multiplied in at the end: NaN · 0 is NaN", "最后才乘掩码：NaN 乘 0 还是 NaN", fails="padding of NaN"
)
def times_mask(student_logits, teacher_logits, mask, *, temperature=2.0):
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    given = student_logits, teacher_logits.detach()
    student, teacher = ((x.to(dtype) / temperature).log_softmax(-1) for x in given)
    kl = (teacher.exp() * (teacher - student)).sum(-1)
    return temperature**2 * (kl * mask).sum() / mask.sum()


@exercise.wrong(
    "masked at the end with where: the value is right, the gradient NaN",
    "最后才用 where 屏蔽：值对，梯度是 NaN",
    fails="gradients with padding of NaN",
)
def masked_late(student_logits, teacher_logits, mask, *, temperature=2.0):
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    given = student_logits, teacher_logits.detach()
    student, teacher = ((x.to(dtype) / temperature).log_softmax(-1) for x in given)
    kl = (teacher.exp() * (teacher - student)).sum(-1)
    return temperature**2 * torch.where(mask, kl, 0.0).sum() / mask.sum()


@exercise.wrong("half precision is not widened", "半精度没有转成 float32", fails="bfloat16 logits, float32 digits")
def narrow(student_logits, teacher_logits, mask, *, temperature=2.0):
    student, teacher = ((x[mask] / temperature).log_softmax(-1) for x in (student_logits, teacher_logits.detach()))
    loss = temperature**2 * (teacher.exp() * (teacher - student)).sum(-1).mean()
    return loss.to(torch.promote_types(loss.dtype, torch.float32))
