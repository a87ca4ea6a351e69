"""Find the bugs: from logits to a KL penalty."""

import torch

from lib.practice.drill import Bug, Drill
from lib.practice.exercise import call, numbers
from lib.practice.language import Text

exercise = Drill(
    topic="kl_estimators",
    part="foundations",
    title=Text("Find the bugs: the KL penalty", "找 bug：KL 惩罚"),
    statement=Text(
        """This function computes the k3 penalty of a batch from the logits of policy and reference. The training run looks
healthy, and it has **5 bugs**. `logits`, `ref_logits`: (B, T, V), as the models return them for `tokens` (B, T); `mask`:
(B, T) bool, True on the tokens of the answer. Wanted: the mean of k3 over the answers' tokens, an estimate of
KL(π‖π_ref), with a gradient to the policy alone. Mend it, changing nothing else, and keep its name.""",
        """下面的函数从策略与参考模型的 logits 算一个 batch 的 k3 惩罚。训练看上去正常，但有 **5 个 bug**。`logits`、`ref_logits`：(B, T, V)，是模型对 `tokens` (B, T) 的输出；`mask`：(B, T)，bool，回答里的 token 为 True。应得到：k3 在回答 token 上的平均，即 KL(π‖π_ref) 的估计，且只对策略有梯度。把它改对，别的不要动，函数名不变。""",
    ),
    signature="def kl_penalty(logits, ref_logits, tokens, mask):",
    reference=None,
    program='''
import torch


def kl_penalty(logits, ref_logits, tokens, mask):
    """logits, ref_logits (B, T, V); tokens, mask (B, T)."""
    labels = tokens[:, 1:, None]
    keep = mask[:, 1:]
    logprobs = logits[:, :-1].log_softmax(-1).gather(-1, labels).squeeze(-1)
    ref_logits = ref_logits.detach()
    ref_logprobs = ref_logits[:, :-1].log_softmax(-1).gather(-1, labels).squeeze(-1)
    log_r = ref_logprobs - logprobs
    k3 = torch.expm1(log_r) - log_r
    return torch.where(keep, k3, 0.0).sum() / keep.sum()
''',
    bugs=(
        Bug(
            "labels = tokens[:, 1:, None]",
            "labels = tokens[:, :-1, None]",
            Text(
                "position t predicts token t + 1: without the shift each token scores itself",
                "位置 t 预测的是第 t + 1 个 token；不移位就成了给输入自己打分",
            ),
            "kl-estimators-by-hand",
        ),
        Bug(
            "keep = mask[:, 1:]",
            "keep = mask[:, :-1]",
            Text("the mask must shift with the labels", "掩码要和标签一起移位"),
            "kl-estimators-pitfall-padding",
        ),
        Bug(
            "    ref_logits = ref_logits.detach()\n",
            "    ref_logits = ref_logits.clone()\n",
            Text("a gradient flows into the reference model", "梯度流进了参考模型"),
            "kl-estimators-by-hand",
        ),
        Bug(
            "log_r = ref_logprobs - logprobs",
            "log_r = logprobs - ref_logprobs",
            Text("the ratio is reference over policy", "比值是参考模型除以策略"),
            "kl-estimators-pitfall-ratio",
        ),
        Bug(
            "return torch.where(keep, k3, 0.0).sum() / keep.sum()",
            "return torch.where(keep, k3, 0.0).mean()",
            Text(
                "the mean runs over padding too, so it shrinks as padding grows",
                "把填充也算进了平均：填充越多，数值越小",
            ),
            "kl-estimators-pitfall-padding",
        ),
    ),
    hints=(
        Text(
            "Whose logits are logits[:, t]: those of token t or of the one after it?",
            "logits[:, t] 预测的是第 t 个 token，还是后一个？",
        ),
        Text("Append padding to a batch: what must not change?", "在 batch 末尾多加几列填充，什么不该变？"),
        Text(
            "Two of the five do not change the value of a batch without padding, or do not change any value at all.",
            "五个里有两个：没有填充时看不出数值变化，甚至任何数值都不变。",
        ),
    ),
    difficulty=3,
    asked=2,
)


def _batch(seed):
    logits, ref = (numbers(2, 5, 7, seed=seed + i) for i in range(2))
    tokens = torch.tensor([[1, 3, 0, 6, 2], [5, 5, 4, 2, 0]])
    mask = torch.tensor([[False, True, True, True, False], [True, True, False, False, False]])
    return call(logits, ref, tokens, mask)


exercise.values("two answers", "两个回答", lambda: _batch(0), tolerance=1e-9)
exercise.gradients("gradients", "梯度", lambda: _batch(3), tolerance=1e-9)
