"""TRL's own losses and advantages (trl 1.16), called without a trainer, a model or data.

The methods of TRL's trainers are called unbound, with a stand-in for `self` that has just the attributes they read: the
tests compare with TRL's code, not with a copy of it.
"""

from collections import defaultdict
from types import SimpleNamespace

import torch
from torch import Tensor


class Accelerator:
    """One process: gathering and reducing change nothing."""

    num_processes, process_index, device, sync_gradients = 1, 0, "cpu", True

    def gather(self, x):
        return x

    gather_for_metrics = gather

    def reduce(self, x, reduction="sum"):
        return x


def _trainer(**settings) -> SimpleNamespace:
    return SimpleNamespace(
        accelerator=Accelerator(),
        model=SimpleNamespace(training=True, is_gradient_checkpointing=False),
        aux_loss_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        **settings,
    )


def grpo_loss(
    loss_type: str,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    ref_logprobs: Tensor | None = None,
    beta: float = 0.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    max_length: int | None = None,
    level: str = "token",
) -> tuple[Tensor, dict[str, float]]:
    """GRPOTrainer._compute_loss and the metrics it logs. logprobs, old_logprobs, mask: (N, T), advantages: (N,)."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    trainer = _trainer(
        loss_type=loss_type,
        importance_sampling_level=level,
        beta=beta,
        epsilon_low=clip_low,
        epsilon_high=clip_high,
        max_completion_length=max_length,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
    )
    ids = torch.zeros(mask.shape, dtype=torch.long)
    loss = GRPOTrainer._compute_loss(
        trainer,
        None,
        {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1] + 1,
            "completion_ids": ids,
            "completion_mask": mask.long(),
            "old_per_token_logps": old_logprobs,
            "ref_per_token_logps": ref_logprobs,
            "advantages": advantages,
            "num_items_in_batch": mask.sum(),
        },
    )
    return loss, {name: values[0] for name, values in trainer._metrics["train"].items()}


def rloo_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """RLOOTrainer._compute_loss: PPO's clip on whole answers. Its gradient at ratio 1 is that of REINFORCE."""
    from trl.trainer.rloo_trainer import RLOOTrainer

    trainer = _trainer(
        epsilon_low=0.2,
        epsilon_high=0.2,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
    )
    ids = torch.zeros(mask.shape, dtype=torch.long)
    return RLOOTrainer._compute_loss(
        trainer,
        None,
        {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1] + 1,
            "completion_ids": ids,
            "completion_mask": mask.long(),
            "old_logps": (old_logprobs * mask).sum(1),
            "advantages": advantages,
        },
    )


def advantages(method: str, rewards: Tensor) -> Tensor:
    """Rewards (B, G) to advantages (B, G), by the `_generate_and_score_completions` of TRL's trainer.

    method: 'group' or 'none' (GRPOTrainer's scale_rewards) or 'rloo' (RLOOTrainer). Generation is stubbed: every prompt
    and every answer is one token.
    """
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.rloo_trainer import RLOOTrainer

    count, tokens = rewards.numel(), [[1]] * rewards.numel()
    rloo = method == "rloo"
    trainer = _trainer(
        num_generations=rewards.shape[1],
        reward_weights=torch.ones(1, dtype=rewards.dtype),
        reward_func_names=["r"],
        scale_rewards=method,
        multi_objective_aggregation="sum_then_normalize",
        reward_clip_range=None,
        normalize_advantages=False,
        beta=0.0,
        num_iterations=1,
        use_vllm=False,
        mask_truncated_completions=False,
        pad_to_multiple_of=None,
        tools=None,
        environments=None,
        environment_factories=None,
        _pending_extra_logs={},
        _pending_metrics={},
        _tokenizer=SimpleNamespace(pad_token_id=0),
        args=SimpleNamespace(
            per_device_train_batch_size=count,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
        ),
        _logs={"prompt": [], "completion": [], "advantages": [], "rewards": defaultdict(list)},
        _generate=lambda prompts: (
            (tokens, tokens, ["a"] * count) if rloo else (tokens, tokens, None, ["a"] * count, None, {}, None, None)
        ),
        _calculate_rewards=lambda *_: rewards.reshape(-1, 1),
        _get_per_token_logps_and_entropies=lambda *_, **__: (torch.zeros(count, 1), None, None),
    )
    trainer_class = RLOOTrainer if rloo else GRPOTrainer
    output = trainer_class._generate_and_score_completions(trainer, [{"prompt": "q"}] * count)
    return output["advantages"].view(rewards.shape)
