"""lib.adamw: the steps of SGD, Adam and AdamW, the optimiser, clipping by the global norm, the schedule."""

import copy
import math
import re

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR
from transformers import get_cosine_schedule_with_warmup, get_cosine_with_min_lr_schedule_with_warmup

from lib.adamw import AdamW, adam_direction_, adam_step, adamw_step, clip_grad_norm_, sgd_step, warmup_cosine
from tests.checks import DTYPES, close, f64, same, spread

HALF = (torch.bfloat16, torch.float16)
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=30)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradients(n: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """n gradients whose sizes run from 1e-6 to 1e3 over the last axis."""
    return normal(n, *shape, seed=seed) * torch.logspace(-6, 3, shape[-1], dtype=torch.float64)


def state_for(parameter: torch.Tensor) -> list[torch.Tensor]:
    wide = torch.promote_types(parameter.dtype, torch.float32)
    return [torch.zeros_like(parameter, dtype=wide) for _ in range(2)]


def run(function, parameter, all_gradients, **settings_) -> torch.Tensor:
    """The parameter after a step for each gradient; the one given stays."""
    parameter = parameter.detach().clone()
    m, v = state_for(parameter)
    for t, gradient in enumerate(all_gradients, 1):
        if function is sgd_step:
            sgd_step(parameter, gradient, m, **settings_)
        else:
            function(parameter, gradient, m, v, t, **settings_)
    return parameter


def train(cls, parameter, all_gradients, **settings_) -> torch.Tensor:
    """The same through an optimiser's interface."""
    parameter = parameter.detach().clone().requires_grad_()
    optimizer = cls([parameter], **settings_)
    for gradient in all_gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


# AdamW, by hand


def test_the_first_step_moves_by_lr_whatever_the_gradient():
    # m̂ = g and v̂ = g² at t = 1, so the direction is g/(|g| + ε): ±1 until |g| comes near ε.
    start = f64([1.0, 1.0, 1.0, 1.0])
    moved = run(adamw_step, start, [f64([1e3, -1e-3, 1e-8, 0.0])], lr=0.1, weight_decay=0.0)
    close(moved - start, [-0.1, 0.1 / (1 + 1e-5), -0.05, 0.0], atol=2e-12)  # 1e-8/1e3 is left out


@pytest.mark.parametrize(
    ("start", "steps", "settings_", "expected"),
    [
        (  # two steps of a sheet's defaults
            [1.0, -2.0],
            [[0.5, -0.1], [-0.2, 0.3]],
            {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1},
            [[0.999670000006, -1.999640000030], [0.999535370934, -1.999726799554]],
        ),
        (  # the decay multiplies the old weight: neither the finished step nor the gradient
            [1.0, -2.0],
            [[0.5, 1.0], [-0.25, 2.0]],
            {"lr": 0.1, "weight_decay": 0.1},
            [[0.890000002, -2.079999999], [0.8544662987, -2.155718201]],
        ),
    ],
)
def test_two_steps_by_hand(start, steps, settings_, expected):
    for n in (1, 2):
        close(run(adamw_step, f64(start), f64(steps[:n]), **settings_), expected[n - 1], atol=1e-9)


def test_the_second_step_in_forty_digits():
    lr, betas, eps, decay, given_ = 0.01, (0.9, 0.999), 1e-8, 0.1, (0.5, -0.25)
    with mpmath.workdps(40):
        theta, m, v = mpmath.mpf(1), mpmath.mpf(0), mpmath.mpf(0)
        for t, g in enumerate(map(mpmath.mpf, given_), 1):
            m = betas[0] * m + (1 - mpmath.mpf(betas[0])) * g
            v = betas[1] * v + (1 - mpmath.mpf(betas[1])) * g**2
            m_hat, v_hat = m / (1 - mpmath.mpf(betas[0]) ** t), v / (1 - mpmath.mpf(betas[1]) ** t)
            theta = theta - lr * mpmath.mpf(decay) * theta - lr * m_hat / (mpmath.sqrt(v_hat) + eps)
        exact = float(theta)
    moved = run(adamw_step, f64([1.0]), f64([[g] for g in given_]), lr=lr, betas=betas, eps=eps, weight_decay=decay)
    close(moved, [exact], atol=2e-16)


def test_a_constant_gradient_moves_by_lr_at_every_step():
    # m̂ = g and v̂ = g² at every t: without the bias correction the first step would be √1000/10 = 3.16 lr.
    start = f64([0.0, 0.0])
    moved = run(adamw_step, start, [f64([3.0, -1e-2])] * 100, lr=1e-2, weight_decay=0.0)
    close(moved, [-1.0, 1.0], atol=2e-6)


def test_moments_and_direction_by_hand():
    m, v = f64([1.0]), f64([4.0])
    direction = adam_direction_(f64([-2.0]), m, v, 2, (0.5, 0.75), 0.0)
    close(m, [-0.5], atol=1e-16)  # 1/2 − 1
    close(v, [4.0], atol=1e-16)  # 3 + 1
    close(direction, [(-0.5 / 0.75) / math.sqrt(4 / (1 - 0.75**2))], atol=1e-16)


def test_decay_alone_is_geometric():
    # (1 − lr·λ)ⁿ; a weight without gradient must neither stay nor become NaN.
    moved = run(adamw_step, f64([1.0, -3.0]), torch.zeros(10, 2, dtype=torch.float64), lr=0.1, weight_decay=0.5)
    close(moved, [0.95**10, -3 * 0.95**10], atol=1e-15)


def test_the_penalty_does_not_reach_weights_with_large_gradients():
    # Gradients that cancel in pairs: AdamW decays both weights alike, Adam with an L2 penalty decays by λθ/|g|.
    flips = f64([[1.0, 1e3], [-1.0, -1e3]]).repeat(500, 1)
    start, shared = f64([1.0, 1.0]), {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.0, 0.999)}
    decoupled = run(adamw_step, start, flips, **shared)
    penalised = run(adam_step, start, flips, **shared)
    close(decoupled, [0.999**1000] * 2, atol=0.02)  # and a ripple of one step
    assert penalised[0] < 0.5 and penalised[1] > 0.97


# Beside PyTorch


@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"lr": 0.05, "betas": (0.9, 0.95), "weight_decay": 0.1},
        {"lr": 3e-4, "eps": 1e-3},
        {"lr": 0.01, "betas": (0.0, 0.0), "weight_decay": 0.0},
    ],
)
def test_adamw_equals_torch_over_a_thousand_steps(settings_):
    start, steps = normal(5, 7), gradients(1000, 5, 7, seed=1)
    expected = train(torch.optim.AdamW, start, steps, **settings_)
    # Weights up to 4, so a rounding is up to 4.4e-16; measured 5.6e-16.
    close(train(AdamW, start, steps, **settings_), expected, atol=1e-15)
    close(run(adamw_step, start, steps, **settings_), expected, atol=1e-15)


@pytest.mark.parametrize("settings_", [{}, {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1}])
def test_adam_equals_torch(settings_):
    # Gradients of one size: a penalty beside a gradient near 0 steers back and forth, and roundings grow.
    start, steps = normal(5, 7), normal(300, 5, 7, seed=1)
    close(run(adam_step, start, steps, **settings_), train(torch.optim.Adam, start, steps, **settings_), atol=2e-15)


@pytest.mark.parametrize("settings_", [{"lr": 0.1}, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}])
def test_sgd_equals_torch(settings_):
    start, steps = normal(5, 7), normal(300, 5, 7, seed=1)
    # Buffers reach 30 and weights 10: some roundings of 2e-15.
    close(run(sgd_step, start, steps, **settings_), train(torch.optim.SGD, start, steps, **settings_), atol=2e-14)


def test_float32_is_as_exact_as_torch():
    start, steps = normal(5, 7), gradients(200, 5, 7, seed=1)
    exact = train(torch.optim.AdamW, start, steps)
    ours, theirs = (
        (train(cls, start.float(), steps.float()).double() - exact).abs().max() for cls in (AdamW, torch.optim.AdamW)
    )
    assert ours <= 1.5 * theirs < 2e-5  # both 7e-6: 200 steps round a weight near 1 by 6e-8 each


def model() -> torch.nn.Module:
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(normal(*p.shape, seed=i) / 2)
    return net


def losses(net, optimizer, scheduler=None, steps=40) -> list[float]:
    x, y = normal(16, 3, seed=8), normal(16, 2, seed=9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        if scheduler:
            scheduler.step()
        found.append(loss.item())
    return found


def test_a_training_loop_with_groups_schedule_and_clipping_follows_torch():
    found = []
    for cls in (AdamW, torch.optim.AdamW):
        net = model()
        matrices = [p for p in net.parameters() if p.ndim == 2]
        vectors = [p for p in net.parameters() if p.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.05}]
        optimizer = cls(groups, lr=0.02, betas=(0.9, 0.95))
        schedule = {"warmup_steps": 5, "total_steps": 40, "peak_lr": 1.0, "final_lr": 0.1}
        scheduler = LambdaLR(optimizer, lambda done: warmup_cosine(done + 1, **schedule))  # noqa: B023
        found.append(losses(net, optimizer, scheduler))
    close(f64(found[0]), found[1], atol=1e-13)
    assert found[0][-1] < 0.5 * found[0][0]


def test_a_parameter_without_gradient_rests_and_counts_for_itself():
    late, early = f64([1.0]).requires_grad_(), f64([1.0]).requires_grad_()
    optimizer = AdamW([late, early], lr=0.1, weight_decay=0.5)
    early.grad = f64([1.0])
    optimizer.step()
    close(late.detach(), [1.0], atol=0)
    assert not optimizer.state[late]
    late.grad = f64([1.0])
    optimizer.step()
    close(late.detach(), [0.95 - 0.1], atol=1e-8)  # its own t = 1; with the other's t it would differ
    assert [optimizer.state[p]["step"] for p in (late, early)] == [1, 2]


def test_step_runs_a_closure_with_gradients():
    parameter = f64([2.0]).requires_grad_()
    optimizer = AdamW([parameter], lr=0.1, weight_decay=0.0)

    def closure():
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss

    close(optimizer.step(closure).detach(), 4.0, atol=0)
    close(parameter.detach(), [1.9], atol=1e-9)


# Leaves and graphs


@pytest.mark.parametrize("function", [sgd_step, adam_step, adamw_step])
def test_a_parameter_that_requires_grad_is_changed_and_stays_a_leaf(function):
    # An in-place change of a leaf raises RuntimeError without no_grad.
    parameter = torch.nn.Parameter(f64([1.0, -2.0]))
    gradient = f64([0.5, -0.1]).requires_grad_()
    m, v = state_for(parameter)
    extra = (m,) if function is sgd_step else (m, v, 1)
    function(parameter, gradient, *extra, lr=0.1)
    assert parameter.is_leaf and parameter.requires_grad and not m.requires_grad
    assert (parameter != f64([1.0, -2.0])).all()
    same(gradient.detach(), f64([0.5, -0.1]))


# Half precision


def test_bfloat16_weights_with_a_master_copy_follow_float64():
    # Constant gradient 1, lr 3e-4, λ .1: 100 steps give 0.967048957310. Without a master copy each one rounds away.
    given_ = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    steps = torch.ones(100, 1)
    narrow = torch.ones(1, dtype=torch.bfloat16)
    same(train(torch.optim.AdamW, narrow, steps.bfloat16(), **given_), narrow)
    moved = train(AdamW, narrow, steps.bfloat16(), **given_)
    assert moved.dtype == torch.bfloat16
    same(moved, f64([0.967048957310]).bfloat16())
    close(run(adamw_step, f64([1.0]), steps.double(), **given_), [0.967048957310], atol=1e-11)


def test_hundred_updates_of_six_ten_thousandths_add_up():
    moved = train(AdamW, torch.ones(1, dtype=torch.bfloat16), torch.ones(100, 1).bfloat16(), lr=6e-4, weight_decay=0.0)
    close(moved.float(), [0.94], atol=0.002)


def test_tiny_float16_gradients_neither_overflow_nor_divide_by_zero():
    # In float16 1e-8 is 0 and so is (1e-4)²: torch gives NaN and −inf here.
    start, steps = f64([1.0, 1.0]).half(), f64([[0.0, 1e-4]]).half()
    assert not train(torch.optim.AdamW, start, steps).isfinite().any()
    moved = train(AdamW, start, steps, lr=0.1, weight_decay=0.0)
    close(moved.float(), [1.0, 0.9], atol=5e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [sgd_step, adam_step, adamw_step])
def test_one_step_in_every_dtype_is_the_exact_one_rounded(function, dtype):
    start, steps = normal(4, 5).to(dtype), normal(1, 4, 5, seed=1).to(dtype)
    moved = run(function, start, steps, lr=0.1, weight_decay=0.1)
    assert moved.dtype == dtype
    exact = run(function, start.double(), steps.double(), lr=0.1, weight_decay=0.1)
    close(moved.double(), exact, atol=1e-15, rtol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", HALF)
def test_the_state_is_float32_and_survives_a_checkpoint(dtype):
    # torch.optim.Optimizer.load_state_dict rounds it to the dtype of the parameter (pytorch issue 43706).
    start, steps = normal(6).to(dtype), normal(8, 6, seed=1).to(dtype)
    whole = train(AdamW, start, steps, lr=1e-3)
    parameter = torch.nn.Parameter(start.clone())
    first = AdamW([parameter], lr=1e-3)
    for gradient in steps[:4]:
        parameter.grad = gradient.clone()
        first.step()
    saved = copy.deepcopy(first.state_dict())
    resumed_parameter = torch.nn.Parameter(parameter.detach().clone())
    resumed = AdamW([resumed_parameter], lr=0.5)
    resumed.load_state_dict(saved)
    state = resumed.state[resumed_parameter]
    assert {name: x.dtype for name, x in state.items() if name != "step"} == dict.fromkeys(
        ("m", "v", "master"), torch.float32
    )
    for gradient in steps[4:]:
        resumed_parameter.grad = gradient.clone()
        resumed.step()
    same(resumed_parameter.detach(), whole)
    assert saved["state"][0]["step"] == 4 and state["step"] == 8  # the checkpoint is not shared
    same(saved["state"][0]["m"], first.state[parameter]["m"])


def test_wide_parameters_need_no_master_copy():
    for dtype in (torch.float32, torch.float64):
        parameter = torch.zeros(3, dtype=dtype, requires_grad=True)
        parameter.grad = torch.ones(3, dtype=dtype)
        optimizer = AdamW([parameter])
        optimizer.step()
        assert set(optimizer.state[parameter]) == {"step", "m", "v"}
        assert optimizer.state[parameter]["m"].dtype == dtype


# Properties


@few
@given(seeds, st.sampled_from([1e-3, 1.0, 1e4]))
def test_the_scale_of_the_gradients_does_not_matter(seed, factor):
    start, steps = normal(6, seed=seed), normal(20, 6, seed=seed + 1)
    close(
        run(adamw_step, start, factor * steps, eps=0.0, lr=0.1),
        run(adamw_step, start, steps, eps=0.0, lr=0.1),
        atol=1e-13,
    )


@few
@given(seeds, st.floats(0.5, 0.99), st.floats(0.9, 0.9999))
def test_a_step_is_bounded(seed, beta1, beta2):
    # Cauchy-Schwarz: |m̂|/√v̂ ≤ (1−β₁)/√(1−β₂) · √Σ(β₁²/β₂)ⁱ · √(1−β₂ᵗ)/(1−β₁ᵗ); at t = 1 it is 1.
    if beta1**2 >= beta2:
        return
    m, v = (torch.zeros(50, dtype=torch.float64) for _ in range(2))
    for t in range(1, 31):
        direction = adam_direction_(normal(50, seed=seed + t) ** 3, m, v, t, (beta1, beta2), 0.0)
        ratio = beta1**2 / beta2
        bound = (1 - beta1) / math.sqrt(1 - beta2) * math.sqrt((1 - ratio**t) / (1 - ratio))
        bound *= math.sqrt(1 - beta2**t) / (1 - beta1**t)
        assert direction.abs().max() <= bound * (1 + 1e-12)


@few
@given(seeds)
def test_entries_do_not_know_each_other(seed):
    start, steps = normal(4, 3, seed=seed), normal(5, 4, 3, seed=seed + 1)
    whole = run(adamw_step, start, steps, lr=0.1)
    for i in range(4):
        close(run(adamw_step, start[i], steps[:, i], lr=0.1), whole[i], atol=1e-15)


@few
@given(seeds, st.floats(0.01, 0.5))
def test_decoupled_decay_shrinks_the_old_weight_alone(seed, decay):
    start, steps = normal(6, seed=seed), normal(1, 6, seed=seed + 1)
    plain = run(adamw_step, start, steps, lr=0.1, weight_decay=0.0)
    close(run(adamw_step, start, steps, lr=0.1, weight_decay=decay), plain - 0.1 * decay * start, atol=1e-15)


@pytest.mark.parametrize("function", [sgd_step, adam_step, adamw_step])
def test_not_contiguous_gives_the_same(function):
    start, steps = normal(4, 3), normal(3, 4, 3, seed=1)
    expected = run(function, start, steps, lr=0.1)
    close(run(function, spread(start), [spread(g) for g in steps], lr=0.1), expected, atol=1e-15)
    close(run(function, start.T, [g.T for g in steps], lr=0.1), expected.T, atol=1e-15)
    assert run(function, start[:0], steps[:, :0], lr=0.1).shape == (0, 3)


@pytest.mark.parametrize("function", [adam_step, adamw_step])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_compiles_to_one_graph(function, dtype):
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    start, steps = normal(6).to(dtype), normal(4, 6, seed=1).to(dtype)
    parameter = torch.nn.Parameter(start.clone())
    m, v = state_for(parameter)
    for t, gradient in enumerate(steps, 1):
        compiled(parameter, gradient, m, v, t)
    same(parameter.detach(), run(function, start, steps))


def test_sgd_and_clipping_compile_to_one_graph():
    torch.compiler.reset()
    parameter, gradient, buffer = normal(3), normal(3, seed=1), torch.zeros(3, dtype=torch.float64)
    expected = run(sgd_step, parameter, [gradient], lr=0.1)
    torch.compile(sgd_step, fullgraph=True, backend="aot_eager")(parameter, gradient, buffer, lr=0.1)
    same(parameter, expected)
    parameters = with_gradients([f64([3.0]), f64([4.0])])
    norm = torch.compile(clip_grad_norm_, fullgraph=True, backend="aot_eager")(parameters, 1.0)
    close(norm, 5.0, atol=1e-15)
    close(parameters[0].grad, [0.6], atol=1e-6)


# Clipping


def with_gradients(all_gradients) -> list[torch.Tensor]:
    parameters = [torch.zeros_like(g, requires_grad=True) for g in all_gradients]
    for parameter, gradient in zip(parameters, all_gradients):
        parameter.grad = gradient.clone()
    return parameters


def test_three_four_five():
    parameters = with_gradients([f64([3.0]), f64([[0.0, 4.0]])])
    close(clip_grad_norm_(parameters, 2.5), 5.0, atol=1e-15)
    close(parameters[0].grad, [1.5], atol=1e-6)  # one factor for both: the direction stays
    close(parameters[1].grad, [[0.0, 2.0]], atol=1e-6)


@pytest.mark.parametrize("max_norm", [0.0, 0.1, 1.0, 1e9, math.inf])
def test_clipping_equals_torch(max_norm):
    shapes = [(3, 4), (5,), (), (2, 1, 3)]
    ours, theirs = (with_gradients([normal(*shape, seed=i) for i, shape in enumerate(shapes)]) for _ in range(2))
    for parameters in (ours, theirs):
        parameters.append(torch.zeros(2, requires_grad=True))  # without a gradient
    found, expected = clip_grad_norm_(ours, max_norm), torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    close(found, expected, atol=1e-15)
    for a, b in zip(ours[:-1], theirs[:-1]):
        close(a.grad, b.grad, atol=1e-15)
    assert ours[-1].grad is None


@few
@given(seeds, st.floats(1e-3, 10.0))
def test_clipped_gradients_have_at_most_the_norm_asked_for(seed, max_norm):
    parameters = with_gradients([normal(3, 2, seed=seed), normal(5, seed=seed + 1)])
    before = torch.cat([p.grad.flatten() for p in parameters])
    norm = clip_grad_norm_(iter(parameters), max_norm)
    after = torch.cat([p.grad.flatten() for p in parameters])
    close(norm, before.norm(), atol=1e-14)
    assert after.norm() <= max_norm * (1 + 1e-12)
    close(after * before.norm(), before * after.norm(), atol=1e-12)  # parallel
    if norm < max_norm * (1 - 1e-3):
        same(after, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_is_float32_or_better(dtype):
    # 3072² = 9e6 and the norm 1.2e5 are beyond float16, whose largest number is 65 504: torch gives inf, then zeros.
    parameters = with_gradients([torch.full((40, 40), 3072.0, dtype=dtype)])
    norm = clip_grad_norm_(parameters, 1.0)
    assert norm.dtype == torch.promote_types(dtype, torch.float32)
    close(norm.double(), 122_880.0, atol=0, rtol=1e-5)
    assert parameters[0].grad.dtype == dtype
    close(parameters[0].grad[0, 0].double(), 1 / 40, atol=0, rtol=0.01)


def test_no_gradient_at_all_is_norm_zero():
    close(clip_grad_norm_([torch.zeros(2, requires_grad=True)], 1.0), 0.0, atol=0)
    parameters = with_gradients([f64([0.0, 0.0])])
    close(clip_grad_norm_(parameters, 1.0), 0.0, atol=0)
    same(parameters[0].grad, f64([0.0, 0.0]))


def test_a_gradient_of_nan_shows_in_the_norm():
    assert clip_grad_norm_(with_gradients([f64([1.0]), f64([math.nan])]), 1.0).isnan()
    assert clip_grad_norm_(with_gradients([f64([1.0]), f64([math.inf])]), 1.0).isinf()


# The schedule


def test_the_schedule_by_hand():
    schedule = {"warmup_steps": 4, "total_steps": 12, "peak_lr": 1.0, "final_lr": 0.2}
    found = [warmup_cosine(t, **schedule) for t in range(15)]
    assert found[:5] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert found[8] == pytest.approx(0.6, abs=1e-15)  # half-way: the mean of peak and final
    assert found[6] == pytest.approx(0.2 + 0.4 * (1 + math.sqrt(0.5)), abs=1e-15)
    assert found[12:] == [0.2, 0.2, 0.2]  # and no way up again
    assert found[5:] == sorted(found[5:], reverse=True)


def test_the_schedule_equals_transformers():
    def theirs(make, **settings_):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        return make(optimizer, 7, 50, **settings_).lr_lambdas[0]

    for final, make, settings_ in [
        (0.0, get_cosine_schedule_with_warmup, {}),
        (0.05, get_cosine_with_min_lr_schedule_with_warmup, {"min_lr": 0.05}),
    ]:
        factor = theirs(make, **settings_)
        for t in range(51):
            ours = warmup_cosine(t, warmup_steps=7, total_steps=50, peak_lr=0.5, final_lr=final)
            assert ours == pytest.approx(0.5 * factor(t), abs=1e-16)
        assert factor(75) > 0.3  # beyond its end theirs climbs again
        assert warmup_cosine(75, warmup_steps=7, total_steps=50, peak_lr=0.5, final_lr=final) == final


def test_the_schedule_equals_torch():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    rising = LinearLR(optimizer, start_factor=1 / 10, total_iters=9)
    falling = CosineAnnealingLR(optimizer, T_max=40, eta_min=0.1)
    scheduler = SequentialLR(optimizer, [rising, falling], milestones=[9])
    for t in range(1, 51):
        ours = warmup_cosine(t, warmup_steps=10, total_steps=50, peak_lr=1.0, final_lr=0.1)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(ours, abs=1e-13)  # theirs multiplies step by step
        optimizer.step()
        scheduler.step()


@few
@given(st.integers(0, 50), st.integers(1, 100), st.floats(0, 1))
def test_the_schedule_rises_to_the_peak_then_falls(warmup, rest, final):
    found = [
        warmup_cosine(t, warmup_steps=warmup, total_steps=warmup + rest, peak_lr=1.0, final_lr=final)
        for t in range(warmup + rest + 5)
    ]
    assert found[warmup] == pytest.approx(1.0, abs=1e-15) and found[-1] == pytest.approx(final, abs=1e-15)
    assert found[: warmup + 1] == sorted(found[: warmup + 1])
    assert found[warmup:] == sorted(found[warmup:], reverse=True)


def test_warm_up_to_the_last_step():
    assert warmup_cosine(5, warmup_steps=5, total_steps=5, peak_lr=2.0) == 2.0
    assert warmup_cosine(1, warmup_steps=0, total_steps=1, peak_lr=2.0, final_lr=1.0) == 1.0


# Checks of arguments: the message names the argument and the value


def arguments(**changed):
    given_ = {"parameter": normal(3), "gradient": normal(3), "m": normal(3) * 0, "v": normal(3) * 0, "step": 1}
    return given_ | changed


@pytest.mark.parametrize("function", [adam_step, adamw_step])
@pytest.mark.parametrize("step", [0, -1])
def test_steps_count_from_one(function, step):
    # With t = 0 the correction divides zero by zero.
    with pytest.raises(ValueError, match=rf"^step: got {step}, "):
        function(**arguments(step=step))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": -0.1}, "lr: got -0.1"),
        ({"lr": math.nan}, "lr: got nan"),
        ({"eps": -1e-8}, "eps: got -1e-08"),
        ({"weight_decay": -0.5}, "weight_decay: got -0.5"),
        ({"betas": (0.9, 1.0)}, "betas: got (0.9, 1.0)"),
        ({"betas": (-0.1, 0.9)}, "betas: got (-0.1, 0.9)"),
    ],
)
def test_settings_out_of_range_are_refused(changed, message):
    for function in (adam_step, adamw_step):
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            function(**arguments(**changed))
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        AdamW([torch.zeros(1, requires_grad=True)], **changed)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"gradient": normal(1)}, ValueError, r"gradient: shape is (1,), must be that of parameter, (3,)"),
        ({"m": normal(3, 1)}, ValueError, "m: shape is (3, 1)"),
        ({"v": normal(2)}, ValueError, "v: shape is (2,)"),
        ({"v": torch.zeros(3)}, TypeError, "v: dtype is torch.float32, must be torch.float64"),
        ({"parameter": torch.zeros(3).bfloat16()}, TypeError, "m: dtype is torch.float64, must be torch.float32"),
        (
            {"parameter": torch.zeros(3).half(), "m": torch.zeros(3).half()},
            TypeError,
            "m: dtype is torch.float16, must be torch.float32",
        ),
        ({"parameter": torch.zeros(3, dtype=torch.long)}, TypeError, "parameter: dtype is torch.int64"),
        ({"gradient": torch.zeros(3, dtype=torch.long)}, TypeError, "gradient: dtype is torch.int64"),
    ],
)
def test_shapes_and_dtypes_are_checked(changed, error, message):
    for function in (adam_step, adamw_step):
        with pytest.raises(error, match="^" + re.escape(message)):
            function(**arguments(**changed))


def test_sgd_checks_its_arguments():
    with pytest.raises(ValueError, match=r"^gradient: shape is \(2,\)"):
        sgd_step(normal(3), normal(2), normal(3), lr=0.1)
    with pytest.raises(TypeError, match="^buffer: dtype is torch.bfloat16"):
        sgd_step(normal(3).bfloat16(), normal(3), normal(3).bfloat16(), lr=0.1)
    for name in ("lr", "momentum", "weight_decay"):
        with pytest.raises(ValueError, match=f"^{name}: got -1"):
            sgd_step(normal(3), normal(3), normal(3), **{"lr": 0.1, name: -1})


@pytest.mark.parametrize("max_norm", [-1.0, math.nan])
def test_a_negative_norm_is_refused(max_norm):
    with pytest.raises(ValueError, match=f"^max_norm: got {max_norm}"):
        clip_grad_norm_(with_gradients([f64([1.0])]), max_norm)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"warmup_steps": 11}, "warmup_steps, total_steps: got 11 and 10"),
        ({"warmup_steps": -1}, "warmup_steps, total_steps: got -1 and 10"),
        ({"warmup_steps": 0, "total_steps": 0}, "warmup_steps, total_steps: got 0 and 0"),
        ({"final_lr": 2.0}, "final_lr: got 2.0, must lie in 0 to peak_lr, 1.0"),
        ({"final_lr": -0.1}, "final_lr: got -0.1"),
        ({"step": -1}, "step: got -1"),
    ],
)
def test_an_impossible_schedule_is_refused(changed, message):
    given_ = {"step": 1, "warmup_steps": 2, "total_steps": 10, "peak_lr": 1.0} | changed
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        warmup_cosine(**given_)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_equals_cpu(dtype):
    start, steps = normal(5, 7).to(dtype), gradients(50, 5, 7, seed=1).to(dtype)
    found = train(AdamW, start.cuda(), steps.cuda())
    assert found.device.type == "cuda"
    close(found.cpu().double(), train(AdamW, start, steps).double(), atol=0, rtol=2 * torch.finfo(dtype).eps)


@pytest.mark.gpu
def test_clipping_on_cuda_equals_the_cpu():
    cpu = with_gradients([normal(3, 4), normal(5, seed=1)])
    cuda = with_gradients([p.grad.cuda() for p in cpu])
    close(clip_grad_norm_(cuda, 1.0).cpu(), clip_grad_norm_(cpu, 1.0), atol=1e-14)
    for a, b in zip(cuda, cpu):
        close(a.grad.cpu(), b.grad, atol=1e-14)
