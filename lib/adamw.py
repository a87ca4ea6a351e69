"""AdamW: each parameter takes a step of its own size, and forgets a little of itself.

Kingma & Ba 2014, Adam (arXiv 1412.6980); Loshchilov & Hutter 2017, Decoupled Weight Decay
Regularization (arXiv 1711.05101), and SGDR for the cosine (arXiv 1608.03983); Pascanu et al. 2012
for clipping by the global norm (arXiv 1211.5063).

Conventions, where libraries differ: steps t count from 1; ε stands outside the root, after the bias
correction; the decay is lr·λ (PyTorch, Hugging Face) and multiplies the old weight. Moments and
master weights are float32 or better, whatever the dtype of the model: bfloat16 keeps 8 significant
bits, and an update of 1/1000 of a weight rounds away. Functions that end in `_step` or `_` change
their arguments in place. Left out: AMSGrad, sparse and complex gradients, fused kernels, loss
scaling.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


@torch.no_grad()
def sgd_step(
    parameter: Tensor,
    gradient: Tensor,
    buffer: Tensor,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> None:
    """u ← momentum·u + (g + λθ), θ ← θ − lr·u; changes parameter and buffer u in place.

    All of one shape. buffer: zeros before the first step, float32 or better. Equals torch.optim.SGD
    with weight_decay, which is the gradient of an L2 penalty λ‖θ‖²/2. Raises TypeError and
    ValueError for wrong dtypes, shapes and negative settings.
    """
    _check_tensors(parameter, gradient=gradient, buffer=buffer)
    _check_settings(lr=lr, momentum=momentum, weight_decay=weight_decay)
    theta = parameter.to(buffer.dtype)
    buffer.mul_(momentum).add_(gradient.to(buffer.dtype) + weight_decay * theta)
    parameter.copy_(theta - lr * buffer)


@torch.no_grad()
def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    m: Tensor,
    v: Tensor,
    step: int,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> None:
    """Adam with an L2 penalty: g ← g + λθ, then θ ← θ − lr·m̂/(√v̂ + ε); in place.

    Arguments as for `adamw_step`. The decay passes through m and v, so weights with large gradients
    barely decay; kept to show the difference. Equals torch.optim.Adam.
    """
    _check_tensors(parameter, gradient=gradient, m=m, v=v)
    _check_settings(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, step=step)
    theta = parameter.to(m.dtype)
    gradient = gradient.to(m.dtype) + weight_decay * theta
    parameter.copy_(theta - lr * adam_direction_(gradient, m, v, step, betas, eps))


@torch.no_grad()
def adamw_step(
    parameter: Tensor,
    gradient: Tensor,
    m: Tensor,
    v: Tensor,
    step: int,
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> None:
    """θ ← (1 − lr·λ)·θ − lr·m̂/(√v̂ + ε); changes parameter, m and v in place, builds no graph.

    parameter, gradient, m, v: one shape, any layout. m, v: zeros before the first step, float32, or
    float64 where the parameter is; the step is computed in that dtype and rounded to the
    parameter's at the end. step: 1 for the first. Defaults are PyTorch's; LLaMA and DeepSeek-V3 use
    betas (0.9, 0.95) and weight_decay 0.1. Raises ValueError for another shape, a step below 1 and
    settings out of range, TypeError for a wrong dtype.
    """
    _check_tensors(parameter, gradient=gradient, m=m, v=v)
    _check_settings(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, step=step)
    theta = parameter.to(m.dtype)  # the parameter itself, unless it is in half precision
    direction = adam_direction_(gradient.to(m.dtype), m, v, step, betas, eps)
    parameter.copy_(theta.mul_(1 - lr * weight_decay).sub_(direction, alpha=lr))


def adam_direction_(
    gradient: Tensor, m: Tensor, v: Tensor, step: int, betas: tuple[float, float], eps: float
) -> Tensor:
    """Move the moments by the gradient, in place, and return m̂/(√v̂ + ε), of m's shape and dtype.

    m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ), t = step. It is
    ±1 where the gradient never changes, near 0 where its sign is a coin toss.
    """
    beta1, beta2 = betas
    m.mul_(beta1).add_(gradient, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    m_hat = m / (1 - beta1**step)
    v_hat = v / (1 - beta2**step)
    return m_hat.div_(v_hat.sqrt_().add_(eps))  # in place: the two temporaries are enough


class AdamW(torch.optim.Optimizer):
    """`adamw_step` for every parameter of a model: a drop-in for torch.optim.AdamW.

    params: parameters, or groups as torch takes them. A float16 or bfloat16 parameter gets a
    float32 master copy, which takes the steps; the parameter is its rounding, so weights loaded
    into the model after the first step are overwritten unless the state is cleared.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        _check_settings(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """One update of each parameter that has a gradient; the closure's loss, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            settings = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter] or self._start(parameter)
                state["step"] += 1
                weights = state.get("master", parameter)
                adamw_step(
                    weights, parameter.grad, state["m"], state["v"], state["step"], **settings
                )
                if weights is not parameter:
                    parameter.copy_(weights)
        return loss

    def _start(self, parameter: Tensor) -> dict:
        """The state before the first step: t = 0, moments of zero, a master copy where needed."""
        wide = torch.promote_types(parameter.dtype, torch.float32)
        m, v = (torch.zeros_like(parameter, dtype=wide) for _ in range(2))
        self.state[parameter].update(step=0, m=m, v=v)
        if wide != parameter.dtype:
            self.state[parameter]["master"] = parameter.detach().to(wide)
        return self.state[parameter]

    def load_state_dict(self, state_dict: dict) -> None:
        """Resume from `state_dict()`; moments and master copies keep float32.

        torch.optim.Optimizer rounds them to the dtype of the parameter (pytorch issue 43706).
        """
        super().load_state_dict(state_dict)
        saved = state_dict["state"]
        indices = [i for group in state_dict["param_groups"] for i in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for i, parameter in zip(indices, parameters):
            for name, value in saved.get(i, {}).items():
                if isinstance(value, Tensor):
                    value = value.to(parameter.device, copy=True)
                self.state[parameter][name] = value


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """g ← g·min(1, c/‖g‖) in place, ‖g‖ the L2 norm of all gradients as one vector; gives ‖g‖.

    parameters: those without a gradient are skipped. The norm is that before clipping, (), float32
    or better: in float16 the squares of gradients above 255 overflow. As in PyTorch 1e-6 is added
    to ‖g‖, and a norm of inf or NaN ruins every gradient: look at it before the step. Raises
    ValueError for a max_norm below 0.
    """
    if not max_norm >= 0:
        raise ValueError(f"max_norm: got {max_norm}, must be at least 0")
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    first = gradients[0]
    wide = torch.promote_types(first.dtype, torch.float32)
    norms = [torch.linalg.vector_norm(g.to(wide)).to(first.device) for g in gradients]
    total = torch.linalg.vector_norm(torch.stack(norms))
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return total


def warmup_cosine(
    step: int, *, warmup_steps: int, total_steps: int, peak_lr: float, final_lr: float = 0.0
) -> float:
    """The learning rate of update `step`, counted from 1 as in `adamw_step`.

    peak_lr·t/W for t ≤ W, then final + (peak − final)·(1 + cos πx)/2 with x = (t − W)/(T − W), and
    final_lr from T on: T steps in all, W of them warm-up. Raises ValueError for W outside 0 to T,
    T < 1, a negative step and a final_lr outside 0 to peak_lr.
    """
    if not 0 <= warmup_steps <= total_steps or total_steps < 1:
        raise ValueError(
            f"warmup_steps, total_steps: got {warmup_steps} and {total_steps}, must be "
            "0 ≤ warmup_steps ≤ total_steps and total_steps ≥ 1"
        )
    if step < 0:
        raise ValueError(f"step: got {step}, must be at least 0")
    if not 0 <= final_lr <= peak_lr:
        raise ValueError(f"final_lr: got {final_lr}, must lie in 0 to peak_lr, {peak_lr}")
    if step < warmup_steps:
        return peak_lr * step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return final_lr + (peak_lr - final_lr) * (1 + math.cos(math.pi * progress)) / 2


def _check_tensors(parameter: Tensor, **others: Tensor) -> None:
    """One shape for all; the state in float32, or in float64 with a float64 parameter."""
    if not parameter.is_floating_point():
        raise TypeError(f"parameter: dtype is {parameter.dtype}, must be floating point")
    wide = torch.promote_types(parameter.dtype, torch.float32)
    for name, tensor in others.items():
        if tensor.shape != parameter.shape:
            raise ValueError(
                f"{name}: shape is {tuple(tensor.shape)}, must be that of parameter, "
                f"{tuple(parameter.shape)}"
            )
        if name == "gradient" and not tensor.is_floating_point():
            raise TypeError(f"gradient: dtype is {tensor.dtype}, must be floating point")
        if name != "gradient" and tensor.dtype != wide:
            raise TypeError(
                f"{name}: dtype is {tensor.dtype}, must be {wide}: parameter is {parameter.dtype}"
            )


def _check_settings(*, step: int = 1, betas: tuple[float, float] = (0.0, 0.0), **others: float):
    """t ≥ 1, 0 ≤ β < 1, everything else ≥ 0."""
    if step < 1:
        raise ValueError(f"step: got {step}, must be at least 1: with t = 0 the correction is 0/0")
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas: got {betas}, both must lie in 0 ≤ β < 1")
    for name, value in others.items():
        if not value >= 0:
            raise ValueError(f"{name}: got {value}, must be at least 0")
