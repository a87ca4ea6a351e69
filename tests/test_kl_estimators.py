"""lib.kl_estimators: what k1, k2 and k3 are, on average, as numbers and as losses."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical, kl_divergence

from lib.kl_estimators import ESTIMATORS, kl_estimate, kl_k1, kl_k2, kl_k3
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

NAN, INF = math.nan, math.inf
EACH = pytest.mark.parametrize("kl", [kl_k1, kl_k2, kl_k3])


def distributions(seed: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a policy and log-probabilities of a reference over a small vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    logits, ref = torch.randn(2, size, dtype=torch.float64, generator=generator)
    return logits, ref.log_softmax(-1)


seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=25)


# By hand


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        # Errata M01: log-ratios ln 1.4 and ln .6. Half their squares; .5/.7 − 1 + ln 1.4 and .5/.3 − 1 + ln .6.
        (kl_k1, [0.336472236621, -0.510825623766]),
        (kl_k2, [0.056606783008, 0.130471408948]),
        (kl_k3, [0.050757950907, 0.155841042901]),
    ],
)
def test_values_of_two_tokens(kl, expected):
    close(kl(ln([0.7, 0.3]), ln([0.5, 0.5])), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("kl", "values", "mean"),
    [
        # Case 16. The outer log-ratios are ± ln 2.5, the middle token is as likely under both. KL = (.5 − .2) ln 2.5.
        (kl_k1, [0.9162907319, 0, -0.9162907319], 0.3 * math.log(2.5)),  # 0.274887219562
        (kl_k2, [0.4197943526, 0, 0.4197943526], 0.7 * math.log(2.5) ** 2 / 2),  # 0.2938560468
        (kl_k3, [0.3162907319, 0, 0.5837092681], 0.3 * math.log(2.5)),
    ],
)
def test_values_of_three_tokens_and_their_exact_mean(kl, values, mean):
    probabilities, ref = f64([0.5, 0.3, 0.2]), ln([0.2, 0.3, 0.5])
    estimates = kl(probabilities.log(), ref)
    close(estimates, values, atol=1e-10)
    close((probabilities * estimates).sum(), mean, atol=1e-15)


def test_means_of_the_two_token_case():
    # Errata M01 and M02. Swapped arguments estimate χ² − KL: χ² = .49/.5 + .09/.5 − 1 = .16, KL = .082282878505.
    probabilities, ref = f64([0.7, 0.3]), ln([0.5, 0.5])
    logprobs = probabilities.log()
    mean = {name: (probabilities * kl(logprobs, ref)).sum() for name, kl in ESTIMATORS.items()}
    close(mean["k1"], 0.082282878505, atol=1e-12)
    close(mean["k2"], 0.078766170790, atol=1e-12)
    close(mean["k3"], 0.082282878505, atol=1e-12)
    close((probabilities * kl_k3(ref, logprobs)).sum(), 0.077717121495, atol=1e-12)


def test_gradient_of_k3_is_one_minus_the_ratio():
    # Errata M03: d/dlogπ (r − 1 − log r) = 1 − r with r = ref/π: 1 − 5/7 = 2/7 and 1 − 5/3 = −2/3.
    logprobs = ln([0.7, 0.3]).requires_grad_()
    kl_k3(logprobs, ln([0.5, 0.5])).sum().backward()
    close(logprobs.grad, [2 / 7, -2 / 3], atol=1e-15)


def test_gradients_of_k1_and_k2():
    logprobs, ref = ln([0.7, 0.3]).requires_grad_(), ln([0.5, 0.5]).requires_grad_()
    same(torch.autograd.grad(kl_k1(logprobs, ref).sum(), logprobs)[0], f64([1, 1]))
    close(torch.autograd.grad(kl_k2(logprobs, ref).sum(), logprobs)[0], [math.log(1.4), math.log(0.6)], atol=1e-15)
    close(torch.autograd.grad(kl_k2(logprobs, ref).sum(), ref)[0], [-math.log(1.4), -math.log(0.6)], atol=1e-15)


def test_a_penalty_lowers_the_reward_of_a_token_that_drifts_up():
    # Errata M04: reward 1, π .7, reference .5, coefficient .1. The other sign gives 1.033647223662.
    close(1 - 0.1 * kl_k1(ln([0.7]), ln([0.5])), [0.966352776338], atol=1e-12)


def test_the_three_names_give_three_numbers_and_k3_is_the_default():
    logprobs, ref = ln([0.7, 0.3]), ln([0.5, 0.5])
    # Errata M01's values, averaged: (.336472236621 − .510825623766)/2 and so on.
    close(kl_estimate(logprobs, ref, estimator="k1"), -0.0871766935725, atol=1e-12)
    close(kl_estimate(logprobs, ref, estimator="k2"), 0.093539095978, atol=1e-12)
    close(kl_estimate(logprobs, ref, estimator="k3"), 0.103299496904, atol=1e-12)
    same(kl_estimate(logprobs, ref), kl_estimate(logprobs, ref, estimator="k3"))


def test_the_mean_is_over_valid_tokens_of_the_whole_batch():
    # Valid log-ratios 2, 4 | 9: their mean is 5, the mean of the row means 3 and 9 is 6, with the pads it is less.
    ratios = f64([[2, 4], [9, NAN]])
    mask = torch.tensor([[True, True], [True, False]])
    same(kl_estimate(ratios, torch.zeros_like(ratios), mask, estimator="k1"), f64(5.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_far_token_counts_as_20_nats_and_sends_no_gradient(dtype):
    # Errata N14: exp(100) is inf in float32 and float16. k3 at log r = 20 is e²⁰ − 21, at −20 it is e⁻²⁰ − 1 + 20.
    logprobs = torch.tensor([-110.0, -10.0, -INF, -1.0], dtype=dtype, requires_grad=True)
    ref = torch.tensor([-10.0, -110.0, -1.0, -INF], dtype=dtype)
    up, down = math.exp(20) - 21, math.exp(-20) + 19
    for kl, expected in ((kl_k1, [-20, 20, -20, 20]), (kl_k2, [200] * 4), (kl_k3, [up, down, up, down])):
        estimates = kl(logprobs, ref)
        close(estimates.detach(), expected, atol=0, rtol=1e-6)  # float32 rounds e²⁰ by 6e-8 of itself
        (gradient,) = torch.autograd.grad(estimates.sum(), logprobs)
        assert not gradient.any()


def test_k3_keeps_its_digits_near_equality():
    # x²/2 + x³/6 for log r = x = 1e-6. exp(x) − 1 − x loses all but 4 digits of it.
    close(kl_k3(f64([0.0]), f64([1e-6])), [5e-13 + 1e-18 / 6], atol=0, rtol=1e-9)


# The published table, by exact integration instead of 2·10⁶ draws


@pytest.mark.parametrize(
    ("shift", "bias", "spread_"), [(0.1, [0, 0.002, 0], [20, 1.42, 1.42]), (1.0, [0, 0.249, 0], [2.00, 1.73, 1.70])]
)
def test_schulmans_table(shift, bias, spread_):
    # Samples from π = N(0, 1), reference N(μ, 1): KL = μ²/2 and log r = L = μx − μ²/2, normal with mean −μ²/2 and
    # variance μ². Hence k1 has standard deviation μ; E k2 = (μ² + μ⁴/4)/2 and Var k2 = (2μ⁴ + μ⁶)/4; and
    # Var k3 = Var r + Var L − 2 Cov(r, L) = (e^μ² − 1) + μ² − 2μ².
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    x, weights = f64(nodes), f64(weights / weights.sum())
    true = shift**2 / 2
    exact_bias = [0, shift**2 / 4, 0]
    exact_spread = [shift, math.sqrt(2 * shift**4 + shift**6) / 2, math.sqrt(math.exp(shift**2) - 1 - shift**2)]
    for i, kl in enumerate((kl_k1, kl_k2, kl_k3)):
        estimates = kl(-x.square() / 2, -(x - shift).square() / 2)
        mean = (weights * estimates).sum()
        deviation = (weights * (estimates - mean).square()).sum().sqrt()
        close(mean / true - 1, exact_bias[i], atol=1e-10)
        close(deviation / true, exact_spread[i] / true, atol=1e-9)
        close(mean / true - 1, bias[i], atol=0.002)  # the table's three decimals, found by sampling
        close(deviation / true, spread_[i], atol=0.006)


# As a loss


def expected_gradient(kl, logits, ref):
    """E over x ~ π of the gradient of one sample's estimate: the weights are the probabilities, held constant."""
    logits = logits.clone().requires_grad_()
    logprobs = logits.log_softmax(-1)
    (logprobs.exp().detach() * kl(logprobs, ref)).sum().backward()
    return logits.grad


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (kl_k1, [0, 0, 0]),
        (kl_k2, [0.3251047313, -0.1029747549, -0.2221299764]),
        (kl_k3, [0.3465493873, 0.03149896042, -0.3780483477]),
    ],
)
def test_the_gradient_as_a_loss(kl, expected):
    # Case 17: 0; π(log(π/ref) − KL); π − ref.
    close(expected_gradient(kl, f64([0.5, 0, -1]), ln([0.2, 0.3, 0.5])), expected, atol=1e-10)


@pytest.mark.parametrize(("kl", "expected"), [(kl_k1, 0.0), (kl_k2, 0.177932550681), (kl_k3, 0.2)])
def test_the_gradient_as_a_loss_of_the_two_token_case(kl, expected):
    # Errata section 5. By hand for k2: .7 · (ln 1.4 − KL), for k3: .7 − .5.
    close(expected_gradient(kl, ln([0.7, 0.3]), ln([0.5, 0.5]))[0], expected, atol=1e-12)


@few
@given(seeds)
def test_k2_has_the_gradient_of_the_kl_and_k3_that_of_the_other_direction(seed):
    logits, ref = distributions(seed)

    def gradient(divergence):
        leaf = logits.clone().requires_grad_()
        return torch.autograd.grad(divergence(Categorical(logits=leaf), Categorical(logits=ref)), leaf)[0]

    close(expected_gradient(kl_k1, logits, ref), torch.zeros(6), atol=1e-15)
    close(expected_gradient(kl_k2, logits, ref), gradient(kl_divergence), atol=1e-14)
    close(expected_gradient(kl_k3, logits, ref), gradient(lambda p, q: kl_divergence(q, p)), atol=1e-14)


# Properties


@few
@given(seeds)
def test_the_exact_mean_of_k1_and_k3_is_the_kl(seed):
    logits, ref = distributions(seed)
    policy = Categorical(logits=logits)
    kl = kl_divergence(policy, Categorical(logits=ref))
    logprobs = policy.logits
    mean = {name: (policy.probs * k(logprobs, ref)).sum() for name, k in ESTIMATORS.items()}
    close(mean["k1"], kl, atol=1e-14)
    close(mean["k3"], kl, atol=1e-14)
    # Half the mean square is half of variance plus squared mean.
    variance = (policy.probs * (logprobs - ref - kl).square()).sum()
    close(mean["k2"], (variance + kl.square()) / 2, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k2_and_k3_are_never_negative(dtype):
    # From 1e-12, where expm1(x) and x round to the same number, to beyond the bound.
    sizes = torch.logspace(-12, 1.5, 100_000, dtype=torch.float64)
    ref = torch.cat((sizes, -sizes)).to(dtype)
    for kl in (kl_k2, kl_k3):
        assert (kl(torch.zeros_like(ref), ref) >= 0).all()


@few
@given(st.floats(-19, 19), st.floats(-5, 0))
def test_symmetries(log_ratio, ref):
    logprobs, ref = f64([ref + log_ratio]), f64([ref])
    same(kl_k1(logprobs, ref), -kl_k1(ref, logprobs))
    same(kl_k2(logprobs, ref), kl_k2(ref, logprobs))
    # k3 is lopsided: k3(x) − k3(−x) = 2(x − sinh x) for x = log(π/ref), since eˣ − e⁻ˣ = 2 sinh x.
    x = kl_k1(logprobs, ref)
    close(kl_k3(logprobs, ref) - kl_k3(ref, logprobs), 2 * (x - x.sinh()), atol=1e-14, rtol=1e-13)


@EACH
@few
@given(seed=seeds, poison=st.sampled_from([NAN, INF, -INF, -1e308]))
def test_padding_never_matters(kl, seed, poison):
    generator = torch.Generator().manual_seed(seed)
    logprobs, ref = -torch.rand(2, 3, 4, dtype=torch.float64, generator=generator) * 5
    mask = torch.rand(3, 4, generator=generator) < 0.6
    mask[0, 0] = True
    name = {kl_k1: "k1", kl_k2: "k2", kl_k3: "k3"}[kl]
    for function in (kl, lambda *args: kl_estimate(*args, estimator=name)):
        clean = value_and_gradients(function, logprobs, ref, mask)
        for bad in (
            (logprobs.masked_fill(~mask, poison), ref),
            (logprobs, ref.masked_fill(~mask, poison)),
            (logprobs.masked_fill(~mask, poison), ref.masked_fill(~mask, poison)),
        ):
            for ours, theirs in zip(value_and_gradients(function, *bad, mask), clean, strict=True):
                same(ours, theirs)
    close(kl_estimate(logprobs, ref, mask, estimator=name), kl(logprobs[mask], ref[mask]).mean(), atol=1e-13)
    assert not kl(logprobs, ref, mask)[~mask].any()


# Gradients, dtypes, memory, compilation


def calls():
    generator = torch.Generator().manual_seed(0)
    logprobs, ref = -torch.rand(2, 3, 4, dtype=torch.float64, generator=generator) * 5
    mask = torch.rand(3, 4, generator=generator) < 0.6
    return [
        *((kl, (logprobs, ref, mask), {}) for kl in (kl_k1, kl_k2, kl_k3)),
        (kl_k3, (logprobs, ref), {}),
        *((kl_estimate, (logprobs, ref, mask), {"estimator": name}) for name in ESTIMATORS),
    ]


CALLS = pytest.mark.parametrize("index", range(7))


@CALLS
def test_gradcheck(index):
    function, args, settings_ = calls()[index]
    leaves = [x.requires_grad_() for x in args[:2]]
    torch.autograd.gradcheck(lambda *leaves: function(*leaves, *args[2:], **settings_), leaves)


@CALLS
@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_is_computed_and_returned_in_float32(index, dtype):
    function, (*args, last), settings_ = calls()[index]
    args = [x.to(dtype) for x in (*args, last) if x.is_floating_point()] + [x for x in (last,) if x.dtype == torch.bool]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    result = function(*args, **settings_)
    assert result.dtype == wide
    same(result, function(args[0].to(wide), args[1].to(wide), *args[2:], **settings_))
    # Estimates up to e⁵: float32 rounds by 6e-8 of that, and the log-ratio in the exponent by 3e-7.
    close(result.double(), function(args[0].double(), args[1].double(), *args[2:], **settings_), atol=1e-6, rtol=1e-6)


@CALLS
def test_memory_layout_does_not_matter_and_inputs_stay(index):
    function, args, settings_ = calls()[index]
    leaves_inputs_alone(function, *args, **settings_)
    close(function(*map(spread, args), **settings_), function(*args, **settings_), atol=1e-14)


@CALLS
def test_compiles_to_one_graph(index):
    function, args, settings_ = calls()[index]
    compiles(function, *args, **settings_)


def test_compiles_to_native_code():
    function, args, settings_ = calls()[6]
    compiles_to_native_code(function, *args, **settings_)


# Checks of arguments: the message names the argument and the value


@pytest.mark.parametrize("function", [kl_k1, kl_k2, kl_k3, kl_estimate])
def test_wrong_arguments_are_refused(function):
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"^ref_logprobs: .*\(3,\).*\(2, 3\)"):
        function(x, x[0])
    with pytest.raises(TypeError, match=r"^logprobs: .*int64"):
        function(x.long(), x)
    with pytest.raises(TypeError, match=r"^mask: .*int64"):
        function(x, x, x.long())
    with pytest.raises(ValueError, match=r"^mask: .*\(3,\).*\(2, 3\)"):
        function(x, x, torch.ones(3, dtype=torch.bool))


@EACH
def test_without_a_valid_token_an_estimate_is_zero_and_the_mean_refused(kl):
    x, mask = torch.full((2, 3), NAN), torch.zeros(2, 3, dtype=torch.bool)
    same(kl(x, x, mask), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"^mask: all 6 entries are False"):
        kl_estimate(x, x, mask)


@pytest.mark.parametrize("name", ["k4", "K3", None])
def test_an_unknown_estimator_is_refused(name):
    with pytest.raises(ValueError, match=rf"^estimator: .*{name!r}.*'k1', 'k2', 'k3'"):
        kl_estimate(torch.zeros(1), torch.zeros(1), estimator=name)


@pytest.mark.gpu
@CALLS
def test_cuda_equals_cpu(index):
    function, args, settings_ = calls()[index]
    close(function(*[x.cuda() for x in args], **settings_).cpu(), function(*args, **settings_), atol=1e-12)
