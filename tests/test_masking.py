"""lib.masking: means, whitening and log-ratios over valid tokens, and the log-probability of an answer."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.masking import (
    LOG_RATIO_BOUND,
    at_least_float32,
    check_floating,
    check_mask,
    check_not_empty,
    check_same_shape,
    masked_log_ratio,
    masked_mean,
    masked_whiten,
    sequence_logprob,
)
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
POISON = (NAN, INF, -INF, 1e308)  # what a padded entry may hold


def ragged(seed: int, rows: int = 3, columns: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal numbers, and a mask that keeps between one entry and all of them in each row."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, dtype=torch.float64, generator=generator)
    mask = torch.rand(rows, columns, generator=generator) < 0.6
    mask[torch.arange(rows), torch.randint(columns, (rows,), generator=generator)] = True
    return x, mask


seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=25)


# masked_mean: by hand


def test_mean_of_the_valid_entries():
    x, mask = f64([[1, 2, NAN], [6, NAN, NAN]]), torch.tensor([[True, True, False], [True, False, False]])
    same(masked_mean(x, mask), f64(3.0))  # (1 + 2 + 6) / 3, not the mean of the row means 1.5 and 6
    same(masked_mean(x, mask, dim=-1), f64([1.5, 6.0]))
    same(masked_mean(x, mask, dim=0), f64([3.5, 2.0, 0.0]))  # the last column has no valid entry


def test_without_a_mask_every_entry_counts():
    same(masked_mean(f64([[1, 2], [3, 6]])), f64(3.0))
    same(masked_mean(f64([[1, 2], [3, 6]]), dim=1), f64([1.5, 4.5]))


def test_padding_does_not_dilute_an_entropy():
    # Errata M31. One real token with two equal logits (entropy ln 2) and one pad with logits 10 and 0. A plain mean of
    # the two says 0.346823279073.
    entropies = torch.special.entr(torch.softmax(f64([[0, 0], [10, 0]]), -1)).sum(-1)
    close(entropies.mean(), 0.346823279073, atol=1e-12)
    close(masked_mean(entropies, torch.tensor([True, False])), 0.693147180560, atol=1e-12)


def test_a_row_without_a_valid_entry_gives_zero_and_a_zero_gradient():
    x = f64([[1, 3], [NAN, INF]]).requires_grad_()
    means = masked_mean(x, torch.tensor([[True, True], [False, False]]), dim=-1)
    same(means.detach(), f64([2.0, 0.0]))
    same(torch.autograd.grad(means.sum(), x)[0], f64([[0.5, 0.5], [0.0, 0.0]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_seventy_thousand_half_precision_ones_have_mean_one(dtype):
    # Errata N16: in float16 the sum is inf and so is the count; in bfloat16 the sum stops growing at 256.
    ones = torch.ones(70_000, dtype=dtype)
    same(masked_mean(ones, torch.ones(70_000, dtype=torch.bool)), torch.tensor(1.0))


# masked_whiten: by hand


def test_whitening_uses_bessels_variance():
    # Mean 3, deviations −2 −1 0 3, Σ of squares 14, variance 14/3 with n − 1.
    expected = f64([-2, -1, 0, 3]) / math.sqrt(14 / 3)
    close(masked_whiten(f64([1, 2, 3, 6]), eps=0.0), expected, atol=1e-15)


def test_without_the_shift_the_mean_comes_back():
    # Errata M08: (x − mean)/std + mean, not x/std = [0.5345, 1.0690, 1.6036, 3.2071].
    expected = [2.074179901219, 2.537089950610, 3.0, 4.388730148170]
    close(masked_whiten(f64([1, 2, 3, 6]), shift_mean=False), expected, atol=1e-12)


def test_whitened_advantages_of_trl_and_verl():
    # Errata I02. GAE, γ .99 and λ .95, of r = [0, 0, 1] and V = [.5, .2, .1]: from the end, each advantage is
    # r + γ·V' − V + γλ·A'.
    a2 = 1 - 0.1
    a1 = 0.99 * 0.1 - 0.2 + 0.9405 * a2
    a0 = 0.99 * 0.2 - 0.5 + 0.9405 * a1
    expected = f64([-1.101052638246, 0.249258756041, 0.851793908775])
    # verl divides by n + 1e-8: its mean is .61 · 3e-9 too small, which over a std of .26 is 8e-9.
    close(masked_whiten(f64([a0, a1, a2])), expected, atol=1.1e-8)
    padded = f64([a0, NAN, a1, a2, INF]), torch.tensor([True, False, True, True, False])
    close(masked_whiten(*padded), [expected[0], 0, expected[1], expected[2], 0], atol=1.1e-8)


def test_eps_is_added_to_the_variance():
    # Variance of [−1, 1] with n − 1 is 2; 2 + 2 = 4 has the root 2.
    same(masked_whiten(f64([-1, 1]), eps=2.0), f64([-0.5, 0.5]))


def test_one_valid_entry_whitens_to_zero():
    x, mask = f64([NAN, 7, INF]).requires_grad_(), torch.tensor([False, True, False])
    for shift_mean, value, slope in ((True, 0.0, 0.0), (False, 7.0, 1.0)):
        white = masked_whiten(x, mask, shift_mean=shift_mean)
        same(white.detach(), f64([0, value, 0]))
        same(torch.autograd.grad(white.sum(), x)[0], f64([0, slope, 0]))


def test_equal_entries_whiten_to_zero():
    same(masked_whiten(f64([5, 5, 5])), f64([0, 0, 0]))


# masked_log_ratio: by hand


def test_the_log_ratio_is_first_over_second():
    close(masked_log_ratio(ln([0.6, 0.2]), ln([0.3, 0.8])), [math.log(2), -math.log(4)], atol=1e-15)


def test_the_log_ratio_is_bounded_at_20_nats_or_as_asked():
    far = f64([-3, -3]), f64([-103, 97])
    assert LOG_RATIO_BOUND == 20
    same(masked_log_ratio(*far), f64([20, -20]))
    same(masked_log_ratio(*far, bound=5.0), f64([5, -5]))
    same(masked_log_ratio(*far, bound=200.0), f64([100, -100]))
    same(masked_log_ratio(f64([-INF, -1]), f64([-1, -INF])), f64([-20, 20]))


def test_beyond_the_bound_no_gradient_flows():
    logprobs, other = f64([-1, -1, -1]).requires_grad_(), f64([-22, -2, 20]).requires_grad_()  # ratios 21, 1, −21
    masked_log_ratio(logprobs, other).sum().backward()
    same(logprobs.grad, f64([0, 1, 0]))
    same(other.grad, f64([0, -1, 0]))


# sequence_logprob: by hand


def test_labels_are_scored_by_the_position_before_them():
    # Errata M24. Position 0 gives token 1 the probability .1, position 1 gives token 1 the probability .8. Reading the
    # same index instead gives ln .8 + ln .4 = −1.139434283188.
    logits = ln([[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]])
    labels, answer = torch.tensor([[0, 1, 1]]), torch.tensor([[False, True, True]])
    close(sequence_logprob(logits, labels, answer), [-2.525728644308], atol=1e-12)  # ln .1 + ln .8 = ln .08
    close(sequence_logprob(logits, labels), [math.log(0.1 * 0.8)], atol=1e-15)  # the first label is never scored


def test_ignored_labels_may_be_anything():
    # Errata R18: −100 is Hugging Face's mark of an ignored label, and no index.
    logits = ln([[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]])
    answer = torch.tensor([[False, True, False]])
    for ignored in (-100, 99):
        close(sequence_logprob(logits, torch.tensor([[ignored, 1, ignored]]), answer), [math.log(0.1)], atol=1e-15)


def test_a_row_without_a_valid_label_gives_zero():
    logits = torch.zeros(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, False, False]])  # only the label that is never scored
    logprobs = sequence_logprob(logits, torch.zeros(2, 3, dtype=torch.long), mask)
    close(logprobs.detach(), [-2 * math.log(4), 0], atol=1e-15)
    assert not torch.autograd.grad(logprobs.sum(), logits)[0][1].any()


def test_padding_whose_label_is_impossible_adds_nothing():
    # Errata N15: −inf · 0 is NaN; right is two valid tokens of probability ¼ each, −4 ln 2.
    logits = f64([[[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, -INF], [0, 0, 0, 0]]]).requires_grad_()
    mask = torch.tensor([[True, True, True, False]])
    logprob = sequence_logprob(logits, torch.tensor([[0, 1, 2, 3]]), mask)
    close(logprob.detach(), [-2.772588722240], atol=1e-12)
    assert torch.autograd.grad(logprob.sum(), logits)[0].isfinite().all()


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1.0, [-2.407605964, -0.0359762997]), (0.5, [-4.142931628, -0.0006707003]), (2.0, [-1.680269671, -0.2395447662])],
)
def test_a_temperature_divides_the_logits(temperature, expected):
    # Case 19: the sampling distribution is softmax(logits / T). Token 0 of logits [1, 2, 3], token 2 of [0, 0, 4].
    logits = torch.stack((f64([[1, 2, 3], [0, 0, 4]]), torch.zeros(2, 3, dtype=torch.float64)), dim=1)  # (2, 2, 3)
    close(sequence_logprob(logits / temperature, torch.tensor([[0, 0], [0, 2]])), expected, atol=1e-9)


def test_half_precision_logits_are_summed_in_float32():
    # Errata N16: summed in bfloat16, 2048 tokens lose up to 64 nats a step. float32 keeps 2048 × 6e-8 of the sum.
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(1, 2049, 50, generator=generator)).bfloat16()
    labels = torch.randint(50, (1, 2049), generator=generator)
    exact = F.cross_entropy(logits[0, :-1].double(), labels[0, 1:], reduction="sum")
    logprob = sequence_logprob(logits, labels)
    assert logprob.dtype == torch.float32
    close(logprob.double(), [-exact], atol=0, rtol=1e-5)


# Properties


@few
@given(seeds, st.sampled_from(POISON), st.sampled_from([None, 0, 1]))
def test_padding_never_matters_to_a_mean(seed, poison, dim):
    x, mask = ragged(seed)
    clean = value_and_gradients(masked_mean, x, mask, dim=dim)
    poisoned = value_and_gradients(masked_mean, x.masked_fill(~mask, poison), mask, dim=dim)
    for ours, theirs in zip(poisoned, clean, strict=True):
        same(ours, theirs)


@few
@given(seeds, st.sampled_from(POISON), st.booleans())
def test_padding_never_matters_to_whitening(seed, poison, shift_mean):
    x, mask = ragged(seed)
    clean = value_and_gradients(masked_whiten, x, mask, shift_mean=shift_mean)
    poisoned = value_and_gradients(masked_whiten, x.masked_fill(~mask, poison), mask, shift_mean=shift_mean)
    for ours, theirs in zip(poisoned, clean, strict=True):
        same(ours, theirs)
    assert not clean[0][~mask].any() and not clean[1][~mask].any()


@few
@given(seeds, st.sampled_from(POISON), st.sampled_from(POISON))
def test_padding_never_matters_to_a_log_ratio(seed, poison, other_poison):
    x, mask = ragged(seed)
    clean = value_and_gradients(masked_log_ratio, x, x.flip(1), mask)
    poisoned = value_and_gradients(
        masked_log_ratio, x.masked_fill(~mask, poison), x.flip(1).masked_fill(~mask, other_poison), mask
    )
    for ours, theirs in zip(poisoned, clean, strict=True):
        same(ours, theirs)
        assert not ours[~mask].any()


@few
@given(seeds, st.sampled_from(POISON))
def test_logits_that_score_no_valid_label_never_matter(seed, poison):
    _, mask = ragged(seed)
    logits = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(15).view(3, 5) % 4
    unused = ~torch.cat((mask[:, 1:], torch.zeros(3, 1, dtype=torch.bool)), dim=1)  # position t scores label t + 1
    clean = value_and_gradients(sequence_logprob, logits, labels, mask)
    poisoned = value_and_gradients(sequence_logprob, logits.masked_fill(unused.unsqueeze(-1), poison), labels, mask)
    for ours, theirs in zip(poisoned, clean, strict=True):
        same(ours, theirs)
    assert not clean[1][unused].any()


@few
@given(seeds, st.floats(-50, 50), st.floats(0.1, 50))
def test_whitening_forgets_shift_and_scale(seed, shift, scale):
    x, mask = ragged(seed, rows=4)
    # Of at least four normal numbers the standard deviation is far from 0: rounding of 100 by 1e-14 over 1e-2.
    close(masked_whiten(scale * x + shift, mask, eps=0.0), masked_whiten(x, mask, eps=0.0), atol=1e-10)


@few
@given(seeds)
def test_whitened_entries_have_mean_zero_and_bessel_variance_one(seed):
    x, mask = ragged(seed, rows=4)
    white = masked_whiten(x, mask, eps=0.0)[mask]
    close(white.mean(), 0.0, atol=1e-13)
    close(white.var(correction=1), 1.0, atol=1e-13)


@few
@given(seeds)
def test_a_mean_over_rows_equals_each_row_alone(seed):
    x, mask = ragged(seed)
    close(masked_mean(x, mask, dim=1), torch.stack([masked_mean(x[i], mask[i]) for i in range(3)]), atol=1e-15)


@few
@given(seeds, st.floats(-20, 20))
def test_logits_count_up_to_a_constant(seed, shift):
    logits = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(8).view(2, 4) % 5
    close(sequence_logprob(logits + shift, labels), sequence_logprob(logits, labels), atol=1e-13)


# Trusted implementations and gradients


@few
@given(seeds, st.sampled_from([None, 0, 1]))
def test_equals_numpys_masked_array(seed, dim):
    x, mask = ragged(seed)
    array = np.ma.array(x.numpy(), mask=~mask.numpy())
    close(masked_mean(x, mask, dim=dim), np.ma.filled(array.mean(axis=dim), 0.0), atol=1e-15)
    if dim is None and array.count() > 1:
        expected = (array - array.mean()) / np.sqrt(array.var(ddof=1) + 1e-8)
        close(masked_whiten(x, mask), np.ma.filled(expected, 0.0), atol=1e-13)


@few
@given(seeds)
def test_equals_torch_on_the_valid_entries_in_value_and_gradient(seed):
    x, mask = ragged(seed, rows=4)
    for ours, theirs in (
        (lambda x: masked_mean(x, mask), lambda x: x[mask].mean()),
        (lambda x: masked_whiten(x, mask)[mask], lambda x: (x[mask] - x[mask].mean()) / (x[mask].var() + 1e-8).sqrt()),
    ):
        for actual, expected in zip(value_and_gradients(ours, x), value_and_gradients(theirs, x), strict=True):
            close(actual, expected, atol=1e-12)


@few
@given(seeds)
def test_equals_cross_entropy_in_value_and_gradient(seed):
    generator = torch.Generator().manual_seed(seed)
    _, mask = ragged(seed)
    logits = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator)
    labels = torch.randint(7, (3, 5), generator=generator).masked_fill(~mask, -100)

    def trusted(logits):
        losses = F.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="none"
        )
        return -losses.view(3, 4).sum(-1)

    actual = value_and_gradients(sequence_logprob, logits, labels, mask)
    for ours, theirs in zip(actual, value_and_gradients(trusted, logits), strict=True):
        close(ours, theirs, atol=1e-13)


def test_gradcheck():
    x, mask = ragged(0)
    for dim in (None, 0, 1):
        torch.autograd.gradcheck(lambda x, dim=dim: masked_mean(x, mask, dim=dim), (x.requires_grad_(),))
    for shift_mean in (True, False):
        torch.autograd.gradcheck(lambda x, s=shift_mean: masked_whiten(x, mask, shift_mean=s), (x,))
    torch.autograd.gradcheck(lambda x, y: masked_log_ratio(x, y, mask), (x, x.detach().flip(0).requires_grad_()))
    logits = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    torch.autograd.gradcheck(lambda z: sequence_logprob(z, torch.arange(15).view(3, 5) % 4, mask), (logits,))


# Dtypes, memory, compilation


def calls():
    """Each public function with arguments of an ordinary call: (function, arguments, settings)."""
    x, mask = ragged(3)
    logits = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    labels = torch.arange(15).view(3, 5) % 4
    return [
        (masked_mean, (x, mask), {}),
        (masked_mean, (x, mask), {"dim": 1}),
        (masked_mean, (x,), {"dim": 0}),
        (masked_whiten, (x, mask), {}),
        (masked_whiten, (x, mask), {"shift_mean": False}),
        (masked_log_ratio, (30 * x, x.flip(1), mask), {}),
        (masked_log_ratio, (x, x.flip(1)), {"bound": 0.5}),
        (sequence_logprob, (logits, labels, mask), {}),
    ]


def cast(args, dtype):
    return [x.to(dtype) if x.is_floating_point() else x for x in args]


@pytest.mark.parametrize("index", range(8))
@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_is_computed_and_returned_in_float32(index, dtype):
    function, args, settings_ = calls()[index]
    result = function(*cast(args, dtype), **settings_)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    same(result, function(*cast(cast(args, dtype), wide), **settings_))  # the very numbers of the wider computation
    assert result.dtype == wide
    # Numbers up to 100: float32 rounds each of them by 4e-6.
    close(result.double(), function(*cast(cast(args, dtype), torch.float64), **settings_), atol=1e-5)


@pytest.mark.parametrize("index", range(8))
def test_memory_layout_does_not_matter_and_inputs_stay(index):
    function, args, settings_ = calls()[index]
    leaves_inputs_alone(function, *args, **settings_)
    close(function(*map(spread, args), **settings_), function(*args, **settings_), atol=1e-15)


@pytest.mark.parametrize("index", range(8))
def test_compiles_to_one_graph(index):
    function, args, settings_ = calls()[index]
    compiles(function, *args, **settings_)


def test_compiles_to_native_code():
    x, mask = ragged(3)
    compiles_to_native_code(masked_whiten, x, mask)


def test_compiled_code_gives_zero_for_an_empty_mask():
    compiled = torch.compile(masked_mean, fullgraph=True, backend="aot_eager")
    same(compiled(f64([1, NAN]), torch.tensor([False, False])), f64(0.0))


# Checks of arguments: the message names the argument and the value


def test_check_mask():
    like = torch.zeros(2, 3)
    same(check_mask(None, like), torch.ones(2, 3, dtype=torch.bool))
    mask = torch.tensor([[True, False, False], [False, False, False]])
    assert check_mask(mask, like) is mask


def test_check_not_empty():
    check_not_empty(torch.tensor([[False, False], [True, False]]))
    with pytest.raises(ValueError, match=r"^mask: all 6 entries are False"):
        check_not_empty(torch.zeros(2, 3, dtype=torch.bool))


def test_check_floating():
    check_floating(x=torch.zeros(1), y=None, z=torch.zeros(1, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"^y: .*int64"):
        check_floating(x=torch.zeros(1), y=torch.tensor(1))


def test_check_same_shape():
    check_same_shape(x=torch.zeros(2, 3), y=None, z=torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"^z: .*\(3,\).*x.*\(2, 3\)"):
        check_same_shape(x=torch.zeros(2, 3), y=torch.zeros(2, 3), z=torch.zeros(3))
    with pytest.raises(ValueError, match=r"^z: .*\(3, 2\).*x.*\(2, 3\)"):
        check_same_shape(x=torch.zeros(2, 3), z=torch.zeros(3, 2))


def test_at_least_float32():
    dtypes = {
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
        torch.float32: torch.float32,
        torch.float64: torch.float64,
    }
    for narrow, wide in dtypes.items():
        assert at_least_float32(torch.zeros(1, dtype=narrow)).dtype == wide


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: check_mask(mask, x),
        masked_mean,
        lambda x, mask: masked_mean(x, mask, dim=1),
        masked_whiten,
        lambda x, mask: masked_log_ratio(x, x, mask),
        lambda x, mask: sequence_logprob(x.unsqueeze(-1), x.long(), mask),
    ],
)
def test_wrong_masks_are_refused(function):
    x = torch.zeros(2, 3)
    with pytest.raises(TypeError, match=r"^mask: .*float32"):
        function(x, torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"^mask: .*int64"):
        function(x, torch.ones(2, 3, dtype=torch.long))
    for shape in ((3,), (2, 1), (1, 2, 3)):  # each of them would broadcast
        with pytest.raises(ValueError, match=rf"^mask: .*{re.escape(str(shape))}.*\(2, 3\)"):
            function(x, torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("function", [masked_mean, lambda x, mask: masked_mean(x, mask, dim=1), masked_whiten])
def test_a_mean_needs_one_valid_entry(function):
    with pytest.raises(ValueError, match=r"^mask: all 6 entries are False"):
        function(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))


def test_what_is_no_mean_is_zero_under_an_empty_mask():
    x, mask = torch.full((2, 3), NAN), torch.zeros(2, 3, dtype=torch.bool)
    same(masked_log_ratio(x, x, mask), torch.zeros(2, 3))
    same(sequence_logprob(torch.full((2, 3, 4), NAN), torch.full((2, 3), -100), mask), torch.zeros(2))


def test_a_log_ratio_refuses_what_would_broadcast_or_is_no_logprob():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"^ref_logprobs: .*\(3,\).*logprobs.*\(2, 3\)"):
        masked_log_ratio(x, x[0])
    with pytest.raises(TypeError, match=r"^ref_logprobs: .*int64"):
        masked_log_ratio(x, x.long())
    with pytest.raises(TypeError, match=r"^logprobs: .*int64"):
        masked_log_ratio(x.long(), x)


def test_a_sequence_logprob_refuses_wrong_arguments():
    logits, labels = torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(TypeError, match=r"^logits: .*int64"):
        sequence_logprob(logits.long(), labels)
    with pytest.raises(ValueError, match=r"^labels: .*\(3,\).*\(2, 3\)"):
        sequence_logprob(logits, labels[0])
    with pytest.raises(ValueError, match=r"^labels: .*\(\)"):
        sequence_logprob(torch.zeros(4), torch.tensor(0))


@pytest.mark.parametrize("label", [-100, -1, 4])
def test_a_valid_label_outside_the_vocabulary_is_refused(label):
    labels = torch.tensor([[0, label, 0]])
    with pytest.raises(ValueError, match=r"^labels: .*0 to 3"):
        sequence_logprob(torch.zeros(1, 3, 4), labels)
    sequence_logprob(torch.zeros(1, 3, 4), labels, torch.tensor([[True, False, True]]))


@pytest.mark.gpu
@pytest.mark.parametrize("index", range(8))
def test_cuda_equals_cpu(index):
    function, args, settings_ = calls()[index]
    close(function(*[x.cuda() for x in args], **settings_).cpu(), function(*args, **settings_), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_labels_that_are_no_token_ids_are_refused(dtype):
    with pytest.raises(TypeError, match=rf"^labels: .*{dtype}"):
        sequence_logprob(torch.zeros(1, 4, 3), torch.zeros(1, 4, dtype=dtype))
