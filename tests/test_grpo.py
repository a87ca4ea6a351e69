"""lib.grpo: group advantages, the clipped loss and its normalisers, Dr.GRPO, GSPO, CISPO and RLOO."""

import inspect
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.grpo import (
    METHODS,
    NORMALIZERS,
    STD_CONVENTIONS,
    aggregate,
    cispo_loss,
    clip_fraction,
    clipped_surrogate,
    dr_grpo_advantages,
    dr_grpo_loss,
    grpo_advantages,
    grpo_loss,
    gspo_loss,
    kl_penalty,
    rloo_advantages,
    rloo_loss,
    zero_advantage_share,
)
from lib.kl_estimators import kl_estimate
from tests import trl_losses
from tests.checks import (
    DTYPES,
    close,
    compiles,
    compiles_to_native_code,
    f64,
    leaves_inputs_alone,
    ln,
    same,
    spread,
    value_and_gradients,
)

NAN, INF, ROOT_HALF = math.nan, math.inf, math.sqrt(0.5)
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=20)


def batch(seed: int, answers: int = 4, tokens: int = 5, scale: float = 0.4):
    """logprobs, old_logprobs, advantages, mask, ref_logprobs of ragged answers; about a third of the ratios is clipped.

    No ratio lies at a bound, where the loss has a corner and no gradient of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    logprobs = -0.1 - 3 * torch.rand(answers, tokens, dtype=torch.float64, generator=generator)
    old, ref = (
        logprobs + scale * torch.randn(answers, tokens, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    advantages = torch.randn(answers, dtype=torch.float64, generator=generator)
    lengths = torch.randint(1, tokens + 1, (answers, 1), generator=generator)
    return logprobs, old, advantages, torch.arange(tokens) < lengths, ref


# Losses as functions of (logprobs, old_logprobs, advantages, mask), each in the variants that matter
LOSSES = {
    "grpo": grpo_loss,
    "token_mean": lambda *args, **kw: grpo_loss(*args, normalizer="token_mean", **kw),
    "dr_grpo": lambda *args, **kw: dr_grpo_loss(*args, max_length=7, **kw),
    "gspo": lambda *args, **kw: gspo_loss(*args, **({"clip_low": 0.2, "clip_high": 0.2} | kw)),
    "cispo": lambda *args, **kw: cispo_loss(*args, max_ratio=1.2, **kw),
    "rloo": lambda logprobs, old_logprobs, advantages, mask=None: rloo_loss(logprobs, advantages, mask),
}
EACH = pytest.mark.parametrize("name", LOSSES)
RATIO_LOSSES = ["grpo", "token_mean", "dr_grpo", "gspo"]


# Advantages, by hand


def test_advantages_of_one_right_answer_in_four():
    # Mean 1/4; Σ of squares 9/16 + 3/16 = 3/4; with G − 1 the std is 1/2, with G it is √3/4.
    rewards = f64([[1, 0, 0, 0]])
    close(grpo_advantages(rewards, eps=0.0), [[1.5, -0.5, -0.5, -0.5]], atol=1e-15)
    close(grpo_advantages(rewards, ddof=0, eps=0.0), f64([[3, -1, -1, -1]]) / math.sqrt(3), atol=1e-15)
    same(grpo_advantages(rewards, eps=0.25), f64([[1, -1 / 3, -1 / 3, -1 / 3]]))  # 3/4 over 1/2 + 1/4
    same(dr_grpo_advantages(rewards), f64([[0.75, -0.25, -0.25, -0.25]]))
    close(rloo_advantages(rewards), [[1, -1 / 3, -1 / 3, -1 / 3]], atol=1e-15)  # others: 0, then 1/3


@pytest.mark.parametrize(
    ("settings_", "first", "lone", "tolerance"),
    [
        # Errata I01: the first advantage of [1, 0, 1, .5, 0, 1, .5, 0] and of [1, 0, 0, 0].
        ({"ddof": 0, "eps": 0.0}, 1.154700538379, 1.732050807569, 1e-12),
        ({"ddof": 1, "eps": 1e-8}, 1.080123426401, 1.499999970, 1e-10),
        ({"ddof": 0, "eps": 1e-6}, 1.154697871719, 1.732046807578, 1e-12),
        (STD_CONVENTIONS["minimind"], 0.5 / (math.sqrt(1.5 / 8) + 1e-4), 0.75 / (math.sqrt(0.75 / 4) + 1e-4), 1e-12),
        (STD_CONVENTIONS["verl"], 1.080121116406, 1.5 / 1.000002, 1e-12),
        (STD_CONVENTIONS["trl"], 1.079890142664, 1.499700037645, 3e-8),  # TRL itself rounds 8/7 and 4/3 to float32
        ({}, 1.079890142664, 1.499700037645, 3e-8),
    ],
)
def test_std_conventions(settings_, first, lone, tolerance):
    close(grpo_advantages(f64([[1, 0, 1, 0.5, 0, 1, 0.5, 0]]), **settings_)[0, 0], first, atol=tolerance)
    close(grpo_advantages(f64([[1, 0, 0, 0]]), **settings_)[0, 0], lone, atol=tolerance)


def test_the_default_is_trls_convention_without_its_rounding():
    # Σ of squares 6 · ¼ over 7 and ¾ over 3; eps is added to the root.
    first, lone = 0.5 / (math.sqrt(1.5 / 7) + 1e-4), 0.75 / (0.5 + 1e-4)
    close(grpo_advantages(f64([[1, 0, 1, 0.5, 0, 1, 0.5, 0]]))[0, 0], first, atol=1e-15)
    close(grpo_advantages(f64([[1, 0, 0, 0]]))[0, 0], lone, atol=1e-15)


def test_each_prompt_has_its_own_statistics():
    # Case 9. Group 1: mean ¾, Σ of squares ¾, std ½ or √3/4. Group 2: mean 11, Σ of squares 4, std √(4/3) or 1.
    rewards = f64([[1, 0, 1, 1], [10, 12, 10, 12]])
    sample = [[0.5, -1.5, 0.5, 0.5], [-0.8660254038, 0.8660254038, -0.8660254038, 0.8660254038]]
    population = [[0.5773502692, -1.732050808, 0.5773502692, 0.5773502692], [-1, 1, -1, 1]]
    close(grpo_advantages(rewards, eps=0.0), sample, atol=1e-9)
    close(grpo_advantages(rewards, ddof=0, eps=0.0), population, atol=1e-9)
    # Errata M28: pooled, the first prompt would be all negative.
    close(grpo_advantages(f64([[1, 0], [10, 8]]), ddof=0, eps=0.0), [[1, -1], [1, -1]], atol=1e-15)


def test_the_baseline_of_rloo_is_the_mean_of_the_others():
    rewards = [3.0, 1.0, 0.5, -2.0]
    expected = [reward - (sum(rewards) - reward) / 3 for reward in rewards]
    close(rloo_advantages(f64([rewards])), [expected], atol=1e-15)


@pytest.mark.parametrize("advantages", [grpo_advantages, dr_grpo_advantages, rloo_advantages])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_rewards_give_exactly_zero(advantages, dtype):
    # Errata N12 and N13: seven float32 rewards of .1 have a mean that is off by 7e-9; float16 has no eps of 1e-8.
    for reward in (0.1, 0.3, 0.7, 1 / 3, -0.6, 1e-3, 123.4, 0.0):
        for size in range(1, 65):
            assert not advantages(torch.full((2, size), reward, dtype=dtype)).any()


@pytest.mark.parametrize("advantages", [grpo_advantages, dr_grpo_advantages, rloo_advantages])
def test_a_group_of_one_gives_zero(advantages):
    same(advantages(f64([[5], [-3]])), f64([[0], [0]]))
    same(grpo_advantages(f64([[5], [-3]]), ddof=0, eps=0.0), f64([[0], [0]]))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_rewards_may_be_integers_or_bools(dtype):
    # Errata R23.
    rewards = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]]).to(dtype)
    for advantages in (grpo_advantages, dr_grpo_advantages, rloo_advantages):
        same(advantages(rewards), advantages(rewards.float()))
    same(zero_advantage_share(rewards), torch.tensor(0.5))


def test_the_share_of_groups_that_teach_nothing():
    same(zero_advantage_share(f64([[0, 0], [1, 0], [0.1, 0.1], [2, 2]])), torch.tensor(0.75))


def test_the_table_of_methods():
    expected = {
        "grpo": (grpo_advantages, grpo_loss),
        "dr_grpo": (dr_grpo_advantages, dr_grpo_loss),
        "gspo": (grpo_advantages, gspo_loss),
        "cispo": (grpo_advantages, cispo_loss),
        "rloo": (rloo_advantages, rloo_loss),
    }
    assert expected == METHODS


# Advantages, properties

groups = (
    st.lists(st.integers(-16, 16), min_size=2, max_size=9).filter(lambda r: len(set(r)) > 1).map(lambda r: f64([r]) / 8)
)


@few
@given(groups, st.integers(-64, 64))
def test_a_shift_of_the_rewards_changes_nothing(rewards, shift):
    for advantages in (grpo_advantages, dr_grpo_advantages, rloo_advantages):
        # Multiples of 1/8 are exact; the mean rounds at 1e-14 and the std is at least 0.04.
        close(advantages(rewards + shift), advantages(rewards), atol=1e-11)


@few
@given(groups, st.floats(0.01, 100))
def test_scaled_rewards(rewards, scale):
    for ddof in (0, 1):
        standardised = grpo_advantages(rewards, ddof=ddof, eps=0.0)
        close(grpo_advantages(scale * rewards, ddof=ddof, eps=0.0), standardised, atol=1e-12)
        close(grpo_advantages(-rewards, ddof=ddof, eps=0.0), -standardised, atol=1e-12)
    for advantages in (dr_grpo_advantages, rloo_advantages):
        close(advantages(scale * rewards), scale * advantages(rewards), atol=1e-12)


@few
@given(groups)
def test_advantages_have_mean_zero_and_std_one(rewards):
    for ddof in (0, 1):
        standardised = grpo_advantages(rewards, ddof=ddof, eps=0.0)
        close(standardised.mean(), 0.0, atol=1e-14)
        close(standardised.std(correction=ddof), 1.0, atol=1e-14)
        assert grpo_advantages(rewards, ddof=ddof, eps=0.1).std(correction=ddof) < 1


@few
@given(groups, st.randoms(use_true_random=False))
def test_the_order_of_answers_and_other_prompts_do_not_matter(rewards, random):
    size = rewards.shape[1]
    order = random.sample(range(size), size)
    other = f64([[random.uniform(-9, 9) for _ in range(size)]])
    for advantages in (grpo_advantages, dr_grpo_advantages, rloo_advantages):
        close(advantages(rewards[:, order]), advantages(rewards)[:, order], atol=1e-13)
        both = advantages(torch.cat((other, rewards)))
        close(both[1:], advantages(rewards), atol=1e-13)
        close(both[:1], advantages(other), atol=1e-13)


@pytest.mark.parametrize("advantages", [grpo_advantages, dr_grpo_advantages, rloo_advantages])
def test_no_gradient_reaches_the_rewards(advantages):
    assert not advantages(f64([[1, 0]]).requires_grad_()).requires_grad


# Aggregation, by hand


def test_three_normalisers_of_the_same_losses():
    # Case 1 and errata M20: two and four tokens, advantages ±1 and ratio 1, so token losses ∓1.
    losses = f64([[-1, -1, NAN, NAN], [1, 1, 1, 1]])
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    same(aggregate(losses, mask), f64(0.0))  # −1 and 1
    close(aggregate(losses, mask, normalizer="token_mean"), 1 / 3, atol=1e-15)  # 2 of 6 tokens
    same(aggregate(losses, mask, normalizer="constant", max_length=4), f64(0.25))  # 2 over 2 answers × 4
    # Lengths 1 and 3: 2 of 4 tokens.
    losses, mask = f64([[-1, NAN, NAN], [1, 1, 1]]), torch.tensor([[True, False, False], [True] * 3])
    same(aggregate(losses, mask), f64(0.0))
    same(aggregate(losses, mask, normalizer="token_mean"), f64(0.5))


def test_without_a_mask_every_token_counts():
    losses = f64([[1, 2], [3, 6]])
    for settings_ in (
        {},
        {"normalizer": "token_mean"},
        {"normalizer": "constant", "max_length": 2},
        {"normalizer": "token_mean", "total_tokens": 4},
    ):
        same(aggregate(losses, **settings_), f64(3.0))


def test_micro_batches_add_up_to_the_batch():
    # Case 2: token losses [4] and [1, 1, 2]: 8/4 = 2. The mean of the two means would be 8/3.
    parts = [aggregate(f64([row]), normalizer="token_mean", total_tokens=4) for row in ([4], [1, 1, 2])]
    same(sum(parts), f64(2.0))
    together = f64([[4, NAN, NAN], [1, 1, 2]]), torch.tensor([[True, False, False], [True] * 3])
    same(aggregate(*together, normalizer="token_mean"), f64(2.0))


def test_an_answer_without_tokens_counts_as_an_answer_with_loss_zero():
    losses, mask = f64([[4, 2], [NAN, NAN]]), torch.tensor([[True, True], [False, False]])
    same(aggregate(losses, mask), f64(1.5))
    same(aggregate(losses, mask, normalizer="constant", max_length=3), f64(1.0))
    same(aggregate(losses, mask, normalizer="token_mean"), f64(3.0))


@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"normalizer": "token_mean"},
        {"normalizer": "token_mean", "total_tokens": 70_000},
        {"normalizer": "constant", "max_length": 70_000},
    ],
)
def test_half_precision_losses_are_summed_in_float32(settings_):
    # Errata N16: float16 ends at 65504.
    same(aggregate(torch.ones(1, 70_000, dtype=torch.float16), **settings_), torch.tensor(1.0))


# The clipped loss, by hand

CLIPPING = pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # −min(ρA, clip(ρ, .8, 1.28) A), and its derivative −ρA with respect to log π where ρ itself is the minimum.
        (1.5, 1, -1.28, 0),  # pushed up far enough
        (0.5, 1, -0.5, -0.5),  # to be pushed back up
        (1.5, -1, 1.5, 1.5),  # to be pushed back down: a large ratio is not capped for A < 0
        (0.5, -1, 0.8, 0),  # pushed down far enough
        (1.1, 1, -1.1, -1.1),
        (1.1, -1, 1.1, 1.1),  # inside
        (1.25, 2, -2.5, -2.5),
        (1.35, 2, -2.56, 0),
        (0.75, -2, 1.6, 0),  # each bound on its own side
        (1.5, 0, 0, 0),
    ],
)


@CLIPPING
def test_the_clip_in_all_quadrants(ratio, advantage, loss, slope):
    # Case 5 and its clip-higher, errata R19.
    logprobs = ln([[ratio]]).requires_grad_()
    value = grpo_loss(logprobs, ln([[1.0]]), f64([advantage]), clip_low=0.2, clip_high=0.28)
    close(value.detach(), loss, atol=1e-15)
    close(torch.autograd.grad(value, logprobs)[0], [[slope]], atol=1e-15)
    close(clipped_surrogate(f64(ratio), f64(advantage), 0.2, 0.28), loss, atol=1e-15)


@CLIPPING
def test_gspo_clips_the_geometric_mean_of_the_ratios(ratio, advantage, loss, slope):
    # Two tokens of ratios 2ρ and ρ/2: their geometric mean is ρ. Each carries half the slope.
    logprobs = ln([[2 * ratio, ratio / 2, 9.0]]).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    value = gspo_loss(logprobs, ln([[1.0, 1.0, 1.0]]), f64([advantage]), mask, clip_low=0.2, clip_high=0.28)
    close(value.detach(), loss, atol=1e-14)
    close(torch.autograd.grad(value, logprobs)[0], [[slope / 2, slope / 2, 0]], atol=1e-14)


def test_gspos_own_clip_range_is_tiny():
    old, up = ln([[1.0]]), f64([1.0])
    close(gspo_loss(ln([[2.0]]), old, up), -1.0004, atol=1e-15)
    close(gspo_loss(ln([[0.5]]), old, -up), 0.9997, atol=1e-15)


def test_the_default_clip_is_one_fifth():
    close(grpo_loss(ln([[2.0]]), ln([[1.0]]), f64([1])), -1.2, atol=1e-15)
    close(grpo_loss(ln([[0.1]]), ln([[1.0]]), f64([-1])), 0.8, atol=1e-15)


@pytest.mark.parametrize("advantage", [1, -1])
@pytest.mark.parametrize(("ratio", "weight"), [(1.5, 1.2), (0.5, 0.5)])
def test_cispo_clips_the_weight_and_keeps_every_gradient(ratio, advantage, weight):
    # −weight · A · log π: both sides of the advantage are treated alike, and the weight has no gradient.
    logprobs = ln([[0.3]]).requires_grad_()
    value = cispo_loss(logprobs, ln([[0.3 / ratio]]), f64([advantage]), max_ratio=1.2)
    close(value.detach(), -weight * advantage * math.log(0.3), atol=1e-15)
    close(torch.autograd.grad(value, logprobs)[0], [[-weight * advantage]], atol=1e-15)


def test_cispos_default_bound_is_five():
    close(cispo_loss(ln([[0.9]]), ln([[0.1]]), f64([1])), -5 * math.log(0.9), atol=1e-15)
    close(cispo_loss(ln([[0.9]]), ln([[0.2]]), f64([1])), -4.5 * math.log(0.9), atol=1e-15)


def test_rloo_sums_the_tokens_of_an_answer_and_averages_answers():
    # (−2 · ln(.5 · .25) + 1 · ln .5)/2 = (6 − 1) ln 2 / 2, each valid token with gradient −A/2.
    logprobs, mask = ln([[0.5, 0.25], [0.5, 0.1]]).requires_grad_(), torch.tensor([[True, True], [True, False]])
    loss = rloo_loss(logprobs, f64([2, -1]), mask)
    close(loss.detach(), 2.5 * math.log(2), atol=1e-15)
    same(torch.autograd.grad(loss, logprobs)[0], f64([[-1, -1], [0.5, 0]]))


CASE = {  # errata R12
    "logprobs": ln([[0.6, 0.5], [0.3, 0.4]]),
    "old_logprobs": ln([[0.5, 0.5], [0.4, 0.4]]),
    "advantages": f64([ROOT_HALF, -ROOT_HALF]),
    "mask": torch.tensor([[True, True], [True, False]]),
}
CASE_REF = ln([[0.5, 0.4], [0.5, 0.5]])


@pytest.mark.parametrize(
    ("settings_", "plain", "with_kl"),
    [
        # Ratios 1.2, 1, .75 clipped to .8: token losses −1.2 a, −a, .8 a with a = √½. Errata R12 and M03 for the KL.
        ({}, -0.106066017178, -0.097304003997),  # (−1.1 + .8) a / 2
        ({"normalizer": "token_mean"}, -0.329983164554, -0.323495181742),  # −1.4 a / 3
        ({"normalizer": "constant", "max_length": 2}, -0.247487373415, -0.242621386307),
    ],
)  # −1.4 a / 4
def test_two_answers_with_every_normaliser(settings_, plain, with_kl):
    close(grpo_loss(**CASE, **settings_), plain, atol=1e-12)
    close(grpo_loss(**CASE, ref_logprobs=CASE_REF, beta=0.1, **settings_), with_kl, atol=1e-12)
    if "max_length" in settings_:
        same(dr_grpo_loss(**CASE, max_length=2), grpo_loss(**CASE, **settings_))
        same(
            dr_grpo_loss(**CASE, max_length=2, ref_logprobs=CASE_REF, beta=0.1),
            grpo_loss(**CASE, ref_logprobs=CASE_REF, beta=0.1, **settings_),
        )


def test_the_penalty_is_beta_times_k3():
    # Errata M03: k3 of π .7, .3 against .5, .5 is .050757950907 and .155841042901.
    logprobs, ref, mask = ln([[0.7, 0.3]]), ln([[0.5, 0.5]]), torch.tensor([[True, True]])
    close(kl_penalty(logprobs, ref, mask, 2.0), [[0.101515901814, 0.311682085802]], atol=1e-12)
    same(kl_penalty(logprobs, ref, torch.tensor([[True, False]]), 2.0)[0, 1], f64(0.0))
    for nothing in (ref, None):
        assert kl_penalty(logprobs, nothing, mask, 0.0) == 0


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "rloo"])
def test_each_loss_adds_the_penalty_as_it_averages_tokens(name):
    # Advantages 0 leave the penalty alone. k3 of the valid tokens: .050757950907, .155841042901 | .050757950907.
    logprobs, ref = ln([[0.7, 0.3], [0.7, 0.6]]), ln([[0.5, 0.5], [0.5, 0.1]])
    mask = torch.tensor([[True, True], [True, False]])
    first, second = 0.050757950907, 0.155841042901
    by_answer, by_token = ((first + second) / 2 + first) / 2, (2 * first + second) / 3
    expected = {
        "grpo": by_answer,
        "gspo": by_answer,
        "token_mean": by_token,
        "cispo": by_token,
        "dr_grpo": (2 * first + second) / (2 * 7),
    }
    value = LOSSES[name](logprobs, logprobs, f64([0, 0]), mask, ref_logprobs=ref, beta=0.5)
    close(value, 0.5 * expected[name], atol=1e-12)
    same(LOSSES[name](logprobs, logprobs, f64([0, 0]), mask, ref_logprobs=None, beta=0.0), f64(0.0))


def test_dapo_of_four_tokens():
    # Errata R19: −1.28, −1.25, .8 and 1.5 over four; M21: the second answer filtered away by its mask: −1.28 over one.
    old, advantages = torch.zeros(2, 2, dtype=torch.float64), grpo_advantages(f64([[1, -1]]), ddof=0, eps=0.0)[0]
    dapo = {"normalizer": "token_mean", "clip_high": 0.28}
    close(grpo_loss(ln([[1.5, 1.25], [0.5, 1.5]]), old, advantages, **dapo), -0.0575, atol=1e-15)
    filtered = torch.tensor([[True, False], [False, False]])
    close(grpo_loss(ln([[1.5, 1.25], [0.5, 1.5]]), old, advantages, filtered, **dapo), -1.28, atol=1e-15)


def test_the_first_step_has_loss_zero_and_a_gradient():
    # Case 13: ratio 1, and −A/(answers · length) for each token. The old log-probabilities are the current ones.
    logprobs = ln([[0.5, 0.2, 1, 1], [0.1, 0.9, 0.4, 0.3]]).requires_grad_()
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    loss = grpo_loss(logprobs, logprobs, f64([1, -1]), mask)
    same(loss.detach(), f64(0.0))
    same(torch.autograd.grad(loss, logprobs)[0], f64([[-0.25, -0.25, 0, 0], [0.125] * 4]))


@EACH
def test_far_ratios_stay_finite(name):
    # Errata N14: e¹⁰⁰ · 0 is NaN in float32, and a gradient through it too.
    logprobs = torch.tensor([[-1.0, -101.0], [-101.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-101.0, -1.0]] * 2)
    for advantages in (torch.zeros(2), torch.ones(2), -torch.ones(2)):
        loss = LOSSES[name](logprobs, old, advantages)
        assert loss.isfinite() and torch.autograd.grad(loss, logprobs)[0].isfinite().all()
        if not advantages.any():
            same(loss.detach(), torch.tensor(0.0))


def test_a_far_ratio_counts_as_20_nats():
    close(grpo_loss(f64([[-1]]), f64([[-101]]), f64([-1])), math.exp(20), atol=0, rtol=1e-14)
    close(grpo_loss(f64([[-101]]), f64([[-1]]), f64([1])), -math.exp(-20), atol=0, rtol=1e-14)


def test_clip_fraction_counts_tokens_without_a_gradient():
    # A > 0: only 1.5 and 1.21 are above 1.2. A < 0: only .5 and .79 are below .8. A = 0 is never cut.
    logprobs = ln([[1.5, 0.5, 1.21, 1.19], [1.5, 0.5, 0.79, 0.81], [1.5, 0.5, 1.0, 1.0]])
    old, advantages = torch.zeros_like(logprobs), f64([1, -1, 0])
    close(clip_fraction(logprobs, old, advantages), 4 / 12, atol=1e-7)
    mask = torch.tensor([[True, True, True, False], [False, False, True, True], [False] * 4])
    close(clip_fraction(logprobs, old, advantages, mask), 3 / 5, atol=1e-7)
    close(clip_fraction(logprobs, old, advantages, mask, clip_low=0.3), 2 / 5, atol=1e-7)
    close(clip_fraction(logprobs, old, advantages, mask, clip_high=0.4), 2 / 5, atol=1e-7)
    assert not clip_fraction(logprobs.requires_grad_(), old, advantages).requires_grad


@few
@given(seeds)
def test_clip_fraction_is_the_share_of_zero_gradients(seed):
    logprobs, old, advantages, mask, _ = batch(seed)
    _, gradient, *_ = value_and_gradients(grpo_loss, logprobs, old, advantages, mask)
    close(clip_fraction(logprobs, old, advantages, mask), (gradient[mask] == 0).double().mean(), atol=1e-7)


# The losses, properties


@EACH
def test_only_the_current_logprobs_get_a_gradient(name):
    logprobs, old, advantages, mask, ref = (x.requires_grad_() if x.is_floating_point() else x for x in batch(0))
    settings_ = {} if name == "rloo" else {"ref_logprobs": ref, "beta": 0.1}
    loss = LOSSES[name](logprobs, old, advantages, mask, **settings_)
    found = torch.autograd.grad(loss, (logprobs, old, advantages, ref), allow_unused=True)
    assert [gradient is not None for gradient in found] == [True, False, False, False]


@EACH
@few
@given(seed=seeds, poison=st.sampled_from([NAN, INF, -INF, -1e308]))
def test_padding_never_matters(name, seed, poison):
    logprobs, old, advantages, mask, ref = batch(seed)

    def loss(logprobs, old, ref):
        settings_ = {} if name == "rloo" else {"ref_logprobs": ref, "beta": 0.1}
        return LOSSES[name](logprobs, old, advantages, mask, **settings_)

    clean = value_and_gradients(loss, logprobs, old, ref)
    poisoned = value_and_gradients(loss, *(x.masked_fill(~mask, poison) for x in (logprobs, old, ref)))
    for ours, theirs in zip(poisoned, clean, strict=True):
        same(ours, theirs)
    assert not clean[1][~mask].any()
    wider = [torch.cat((x, torch.full((4, 2), poison, dtype=x.dtype)), 1) for x in (logprobs, old, ref)]
    mask = torch.cat((mask, torch.zeros(4, 2, dtype=torch.bool)), 1)
    close(loss(*wider), clean[0], atol=1e-14)


@EACH
@few
@given(seed=seeds)
def test_the_order_of_answers_does_not_matter(name, seed):
    logprobs, old, advantages, mask, _ = batch(seed)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    close(
        LOSSES[name](logprobs[order], old[order], advantages[order], mask[order]),
        LOSSES[name](logprobs, old, advantages, mask),
        atol=1e-14,
    )


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gspo", "rloo"])
@few
@given(seed=seeds)
def test_losses_averaged_over_answers_are_the_mean_of_equal_micro_batches(name, seed):
    logprobs, old, advantages, mask, _ = batch(seed)
    halves = [LOSSES[name](logprobs[i], old[i], advantages[i], mask[i]) for i in (slice(0, 2), slice(2, 4))]
    close(sum(halves) / 2, LOSSES[name](logprobs, old, advantages, mask), atol=1e-14)


@pytest.mark.parametrize("loss", [grpo_loss, cispo_loss])
@pytest.mark.parametrize("sizes", [[1, 3], [2, 2], [1, 1, 1, 1]])
@few
@given(seed=seeds)
def test_token_means_do_not_depend_on_the_split(loss, sizes, seed):
    logprobs, old, advantages, mask, ref = batch(seed)
    settings_ = {"beta": 0.1} | ({"normalizer": "token_mean"} if loss is grpo_loss else {})
    parts = zip(*(x.split(sizes) for x in (logprobs, old, advantages, mask, ref)), strict=True)
    total = int(mask.sum())
    added = sum(loss(lp, old, a, m, ref_logprobs=r, total_tokens=total, **settings_) for lp, old, a, m, r in parts)
    close(added, loss(logprobs, old, advantages, mask, ref_logprobs=ref, **settings_), atol=1e-14)


@EACH
def test_leading_axes_are_answers(name):
    logprobs, old, advantages, mask, _ = batch(1, answers=6)
    grouped = logprobs.view(2, 3, 5), old.view(2, 3, 5), advantages.view(2, 3), mask.view(2, 3, 5)
    close(LOSSES[name](*grouped), LOSSES[name](logprobs, old, advantages, mask), atol=1e-15)


@EACH
def test_no_mask_is_a_mask_of_ones(name):
    logprobs, old, advantages, mask, _ = batch(2)
    same(LOSSES[name](logprobs, old, advantages), LOSSES[name](logprobs, old, advantages, torch.ones_like(mask)))


@pytest.mark.parametrize("name", RATIO_LOSSES)
@few
@given(seed=seeds)
def test_without_a_clip_the_loss_is_linear_in_the_ratio_and_the_advantage(name, seed):
    logprobs, old, advantages, mask, _ = batch(seed)
    open_ = {"clip_low": 1.0, "clip_high": 1e9}
    value = LOSSES[name](logprobs, old, advantages, mask, **open_)
    close(LOSSES[name](logprobs, old, -3 * advantages, mask, **open_), -3 * value, atol=1e-13)
    close(LOSSES[name](logprobs + math.log(2), old, advantages, mask, **open_), 2 * value, atol=1e-13)
    clipped = LOSSES[name](logprobs, old, advantages, mask, clip_low=0.2, clip_high=0.2)
    assert clipped >= value - 1e-14  # the minimum of the objective can only be more pessimistic


# TRL's own code


@pytest.fixture(scope="module")
def trl():
    pytest.importorskip("trl")
    return trl_losses


TRL_LOSSES = {
    ("grpo", "token"): lambda *args, **kw: grpo_loss(*args, **kw),
    ("bnpo", "token"): lambda *args, **kw: grpo_loss(*args, normalizer="token_mean", **kw),
    ("dapo", "token"): lambda *args, **kw: grpo_loss(*args, normalizer="token_mean", **kw),
    ("dr_grpo", "token"): lambda *args, **kw: dr_grpo_loss(*args, max_length=9, **kw),
    ("grpo", "sequence"): lambda *args, **kw: gspo_loss(*args, **kw),
    ("cispo", "token"): lambda *args, clip_low, clip_high, **kw: cispo_loss(*args, max_ratio=clip_high, **kw),
}


@pytest.mark.parametrize(("loss_type", "level"), TRL_LOSSES)
@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize(("clip_low", "clip_high"), [(0.2, 0.2), (0.1, 0.28)])
def test_equals_trl_in_value_and_gradient(trl, loss_type, level, beta, clip_low, clip_high):
    for seed in range(5):
        logprobs, old, advantages, mask, ref = batch(seed)
        leaf = logprobs.requires_grad_()
        settings_ = {"beta": beta, "clip_low": clip_low, "clip_high": clip_high, "ref_logprobs": ref if beta else None}
        ours = TRL_LOSSES[loss_type, level](leaf, old, advantages, mask, **settings_)
        theirs, metrics = trl.grpo_loss(loss_type, leaf, old, advantages, mask, level=level, max_length=9, **settings_)
        close(ours.detach(), theirs.detach(), atol=1e-15)
        close(*(torch.autograd.grad(loss, leaf)[0] for loss in (ours, theirs)), atol=1e-15)
        if beta:
            close(kl_estimate(logprobs, ref, mask).detach(), metrics["kl"], atol=1e-7)  # TRL counts tokens in float32
        if level == "token" and loss_type != "cispo":
            close(
                clip_fraction(logprobs, old, advantages, mask, clip_low=clip_low, clip_high=clip_high),
                metrics["clip_ratio/region_mean"],
                atol=1e-7,
            )


def test_the_normalisers_are_trls_loss_types(trl):
    logprobs, old, advantages, mask, _ = batch(7)
    for normalizer, loss_types in NORMALIZERS.items():
        length = 9 if normalizer == "constant" else None
        ours = grpo_loss(logprobs, old, advantages, mask, normalizer=normalizer, max_length=length)
        for loss_type in loss_types:
            close(ours, trl.grpo_loss(loss_type, logprobs, old, advantages, mask, max_length=9)[0], atol=1e-15)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_advantages_equal_trls(trl, size):
    # Sizes whose G/(G − 1) is exact in float32, in which TRL keeps it.
    rewards = f64([[(7 * i + 3 * b) % 5 / 4 for i in range(size)] for b in range(4)])
    rewards[3] = 0.25  # equal, and exact: of .1 TRL leaves 1e-13
    close(grpo_advantages(rewards), trl.advantages("group", rewards), atol=1e-14)
    close(grpo_advantages(rewards, **STD_CONVENTIONS["trl"]), trl.advantages("group", rewards), atol=1e-14)
    close(dr_grpo_advantages(rewards), trl.advantages("none", rewards), atol=1e-15)
    close(rloo_advantages(rewards), trl.advantages("rloo", rewards), atol=1e-15)


def test_advantages_of_a_group_of_eight_equal_trls(trl):
    rewards = f64([[1, 0, 1, 0.5, 0, 1, 0.5, 0]])
    close(grpo_advantages(rewards), trl.advantages("group", rewards), atol=1e-7)  # 8/7 is rounded to float32 there


def test_reinforce_is_trls_rloo_at_ratio_one(trl):
    logprobs, _, advantages, mask, _ = batch(3)
    leaf = logprobs.requires_grad_()
    theirs = trl.rloo_loss(leaf, leaf.detach(), advantages, mask)
    close(*(torch.autograd.grad(loss, leaf)[0] for loss in (rloo_loss(leaf, advantages, mask), theirs)), atol=1e-15)


# Gradients, dtypes, memory, compilation


@EACH
def test_gradcheck(name):
    logprobs, old, advantages, mask, ref = batch(4)
    settings_ = {} if name == "rloo" else {"ref_logprobs": ref, "beta": 0.1}
    if name == "cispo":  # its gradient holds the weight constant, which no finite difference does: bound it instead
        logprobs, settings_["max_ratio"], function = old + 2, 1.0, cispo_loss
    else:
        function = LOSSES[name]
    torch.autograd.gradcheck(lambda x: function(x, old, advantages, mask, **settings_), (logprobs.requires_grad_(),))


def test_cispos_gradient_is_that_of_weighted_log_likelihood():
    logprobs, old, advantages, mask, _ = batch(5)
    _, gradient, *_ = value_and_gradients(cispo_loss, logprobs, old, advantages, mask)
    weight = (logprobs - old).exp().clamp(max=5)
    close(gradient, -weight * advantages.unsqueeze(-1) * mask / mask.sum(), atol=1e-15)


@EACH
@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_is_computed_and_returned_in_float32(name, dtype):
    *args, mask, ref = batch(6)
    *args, ref = (x.to(dtype) for x in (*args, ref))
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def loss(to):
        settings_ = {} if name == "rloo" else {"ref_logprobs": ref.to(to), "beta": 0.1}
        return LOSSES[name](*(x.to(to) for x in args), mask, **settings_)

    assert loss(dtype).dtype == wide
    same(loss(dtype), loss(wide))
    close(loss(dtype).double(), loss(torch.float64), atol=2e-6)  # float32 rounds log-ratios and losses up to 5 by 3e-7


@pytest.mark.parametrize("advantages", [grpo_advantages, dr_grpo_advantages, rloo_advantages])
@pytest.mark.parametrize("dtype", DTYPES)
def test_advantages_in_half_precision_are_float32(advantages, dtype):
    rewards = f64([[1, 0, 0.5, 0.25], [3, 3, 3, 3]])  # exact in every dtype
    result = advantages(rewards.to(dtype))
    assert result.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    close(result.double(), advantages(rewards), atol=1e-15 if dtype == torch.float64 else 3e-7)


def calls():
    logprobs, old, advantages, mask, ref = batch(8)
    rewards = f64([[1, 0, 0, 0.5], [3, 3, 3, 3]])
    table = {
        name: (loss, (logprobs, old, advantages, mask), {"ref_logprobs": ref, "beta": 0.1})
        for name, loss in LOSSES.items()
        if name != "rloo"
    }
    table["rloo"] = (rloo_loss, (logprobs, advantages, mask), {})
    table |= {
        function.__name__: (function, (rewards,), {})
        for function in (grpo_advantages, dr_grpo_advantages, rloo_advantages, zero_advantage_share)
    }
    return table | {
        "aggregate": (aggregate, (logprobs, mask), {"normalizer": "token_mean", "total_tokens": 30}),
        "clip_fraction": (clip_fraction, (logprobs, old, advantages, mask), {}),
        "clipped_surrogate": (clipped_surrogate, ((logprobs - old).exp(), advantages.unsqueeze(-1), 0.2, 0.2), {}),
        "kl_penalty": (kl_penalty, (logprobs, ref, mask, 0.1), {}),
    }


CALLS = pytest.mark.parametrize("name", calls())


@CALLS
def test_memory_layout_does_not_matter_and_inputs_stay(name):
    function, args, settings_ = calls()[name]
    leaves_inputs_alone(function, *args, **settings_)
    scattered = [spread(x) if isinstance(x, torch.Tensor) else x for x in args]
    settings_ = settings_ | ({"ref_logprobs": spread(settings_["ref_logprobs"])} if "ref_logprobs" in settings_ else {})
    close(function(*scattered, **settings_), function(*args, **settings_), atol=1e-15)


@CALLS
def test_compiles_to_one_graph(name):
    function, args, settings_ = calls()[name]
    compiles(function, *args, **settings_)


def test_compiles_to_native_code():
    function, args, settings_ = calls()["grpo"]
    compiles_to_native_code(function, *args, **settings_)


# Checks of arguments: the message names the argument and the value


@pytest.mark.parametrize("function", [grpo_advantages, dr_grpo_advantages, rloo_advantages, zero_advantage_share])
def test_wrong_rewards_are_refused(function):
    for shape in ((4,), (2, 2, 2), (3, 0)):
        with pytest.raises(ValueError, match=rf"^rewards: .*{re.escape(str(shape))}"):
            function(torch.ones(shape))
    for bad in (NAN, INF, -INF):
        with pytest.raises(ValueError, match=rf"^rewards: .*{bad}.*\(1, 0\)"):
            function(f64([[1, 0], [bad, 1]]))


@pytest.mark.parametrize(
    ("settings_", "match"),
    [({"ddof": 2}, r"^ddof.* 2 "), ({"ddof": -1}, r"^ddof.* -1 "), ({"eps": -1e-4}, r"eps: .*-0\.0001")],
)
def test_wrong_conventions_are_refused(settings_, match):
    with pytest.raises(ValueError, match=match):
        grpo_advantages(f64([[1, 0]]), **settings_)


@pytest.mark.parametrize(
    ("settings_", "match"),
    [
        ({"normalizer": "mean"}, r"^normalizer: .*'mean'.*'sequence_mean', 'token_mean', 'constant'"),
        ({"normalizer": "constant"}, r"^max_length: .*None.*'constant'"),
        ({"normalizer": "constant", "max_length": 0}, r"^max_length: .*0.*'constant'"),
        ({"normalizer": "token_mean", "max_length": 3}, r"^max_length: .*3.*'token_mean'"),
        ({"max_length": 3}, r"^max_length: .*3.*'sequence_mean'"),
        ({"total_tokens": 3}, r"^total_tokens: .*3.*'sequence_mean'"),
        ({"normalizer": "constant", "max_length": 3, "total_tokens": 3}, r"^total_tokens: .*3.*'constant'"),
        ({"normalizer": "token_mean", "total_tokens": 0}, r"^total_tokens: .*0.*'token_mean'"),
    ],
)
def test_wrong_normalisers_are_refused(settings_, match):
    with pytest.raises(ValueError, match=match):
        aggregate(torch.ones(2, 3), **settings_)
    with pytest.raises(ValueError, match=match):
        grpo_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2), **settings_)


@EACH
def test_wrong_shapes_and_masks_are_refused(name):
    loss, x, a = LOSSES[name], torch.zeros(2, 3), torch.ones(2)
    for shape in ((3,), (2, 1), (2, 3), ()):  # each of them could broadcast
        with pytest.raises(ValueError, match=rf"^advantages: .*{re.escape(str(shape))}.*\(2,\)"):
            loss(x, x, torch.ones(shape))
    with pytest.raises(ValueError, match=r"^advantages: .*\(\)"):
        loss(torch.zeros(3), torch.zeros(3), torch.ones(()))
    with pytest.raises(TypeError, match=r"^mask: .*float32"):
        loss(x, x, a, torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"^mask: .*\(3,\).*\(2, 3\)"):
        loss(x, x, a, torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^mask: all 6 entries are False"):
        loss(x, x, a, torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"^logprobs: .*int64"):
        loss(x.long(), x, a)
    with pytest.raises(TypeError, match=r"^advantages: .*int64"):
        loss(x, x, a.long())
    if name == "rloo":
        return
    with pytest.raises(ValueError, match=r"^old_logprobs: .*\(1, 3\).*\(2, 3\)"):
        loss(x, x[:1], a)
    with pytest.raises(TypeError, match=r"^old_logprobs: .*int64"):
        loss(x, x.long(), a)


@pytest.mark.parametrize(
    "settings_",
    [
        {},
        {"normalizer": "token_mean"},
        {"normalizer": "constant", "max_length": 3},
    ],
)
def test_a_batch_without_a_valid_token_is_refused(settings_):
    with pytest.raises(ValueError, match=r"^mask: all 6 entries are False"):
        aggregate(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool), **settings_)
    with pytest.raises(ValueError, match=r"^mask: all 6 entries are False"):
        clip_fraction(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2), torch.zeros(2, 3, dtype=torch.bool))


def test_a_micro_batch_may_be_empty():
    losses = torch.full((2, 3), NAN, dtype=torch.float64, requires_grad=True)
    empty = aggregate(losses, torch.zeros(2, 3, dtype=torch.bool), normalizer="token_mean", total_tokens=4)
    same(empty, f64(0.0))
    empty.backward()
    assert not losses.grad.any()


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "rloo"])
def test_wrong_penalties_are_refused(name):
    loss, x, a = LOSSES[name], torch.zeros(2, 3), torch.ones(2)
    with pytest.raises(ValueError, match=r"^beta: .*-0\.1"):
        loss(x, x, a, ref_logprobs=x, beta=-0.1)
    with pytest.raises(ValueError, match=r"^ref_logprobs: .*None.*0\.1"):
        loss(x, x, a, beta=0.1)
    with pytest.raises(ValueError, match=r"^ref_logprobs: .*\(1, 3\).*\(2, 3\)"):
        loss(x, x, a, ref_logprobs=x[:1], beta=0.1)


@pytest.mark.parametrize("function", [grpo_loss, gspo_loss, clip_fraction])
@pytest.mark.parametrize(
    ("settings_", "match"),
    [
        ({"clip_low": -0.1}, r"^clip_low, clip_high: .*-0\.1"),
        ({"clip_low": 1.1}, r"^clip_low, clip_high: .*1\.1"),
        ({"clip_high": -0.1}, r"^clip_low, clip_high: .*-0\.1"),
    ],
)
def test_wrong_clips_are_refused(function, settings_, match):
    with pytest.raises(ValueError, match=match):
        function(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2), **settings_)


@pytest.mark.parametrize("max_ratio", [0.0, -1.0])
def test_a_bound_of_nothing_is_refused(max_ratio):
    with pytest.raises(ValueError, match=rf"^max_ratio: .*{max_ratio}"):
        cispo_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2), max_ratio=max_ratio)


def test_hyperparameters_are_keyword_only():
    for function in (grpo_advantages, aggregate, grpo_loss, dr_grpo_loss, gspo_loss, cispo_loss, clip_fraction):
        tensors = {"rewards", "losses", "logprobs", "old_logprobs", "advantages", "mask", "settings"}
        for parameter in inspect.signature(function).parameters.values():
            assert parameter.name in tensors or parameter.kind is parameter.KEYWORD_ONLY


@pytest.mark.gpu
@CALLS
def test_cuda_equals_cpu(name):
    function, args, settings_ = calls()[name]
    args, settings_ = list(args), dict(settings_)
    expected = value_and_gradients(function, *args, **settings_)
    args = [x.cuda() if isinstance(x, torch.Tensor) else x for x in args]
    settings_ = {key: x.cuda() if isinstance(x, torch.Tensor) else x for key, x in settings_.items()}
    for ours, theirs in zip(value_and_gradients(function, *args, **settings_), expected, strict=True):
        assert ours.device.type == "cuda"
        close(ours.cpu(), theirs, atol=1e-12)
