"""lib.kl_divergence: the divergence of two softmax distributions, in either direction, and distillation."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical
from torch.distributions import kl_divergence as torch_kl

from lib.kl_divergence import REDUCTIONS, distillation_loss, kl_divergence
from lib.kl_estimators import kl_k3
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
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=25, deadline=None)


def logits(seed: int, *shape: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of this shape, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(scale * torch.randn(2, *shape, dtype=torch.float64, generator=generator))


def kl_div(p_logits, q_logits, reduction):
    """F.kl_div called rightly: the model's log-probabilities first, then the target's."""
    return F.kl_div(q_logits.log_softmax(-1), p_logits.log_softmax(-1), reduction=reduction, log_target=True)


# By hand


def test_two_tokens_in_both_directions():
    # .7 ln 1.4 + .3 ln .6 = .0822828785; the other way (ln(.5/.7) + ln(.5/.3))/2 = −ln(.84)/2 = .0871766936.
    p, q = ln([0.7, 0.3]), ln([0.5, 0.5])
    close(kl_divergence(p, q), 0.7 * math.log(1.4) + 0.3 * math.log(0.6), atol=1e-15)
    close(kl_divergence(q, p), -math.log(0.84) / 2, atol=1e-15)


def test_against_the_uniform_distribution_it_is_what_the_entropy_lacks():
    # Σ p ln(4p) = ln 4 − H, and H(½, ¼, ⅛, ⅛) = 1.75 bits.
    p = ln([1 / 2, 1 / 4, 1 / 8, 1 / 8])
    close(kl_divergence(p, torch.zeros_like(p)), 0.25 * math.log(2), atol=1e-15)


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        # p = (½, ½, 0): ½(ln ½ − ln q₁) + ½(ln ½ − ln q₂) = −ln 2 − ½ + ln(e + 2).
        ([0, 0, -INF], [1, 0, 0], -math.log(2) - 0.5 + math.log(math.e + 2)),  # 0.358297533372
        # Both without the third token: the two-token case, −ln 2 − ½ + ln(e + 1).
        ([0, 0, -INF], [1, 0, -INF], -math.log(2) - 0.5 + math.log(math.e + 1)),  # 0.120114506958
        ([1, 0, 0], [0, 0, -INF], INF),
        ([0, -INF, -INF], [0, 0, -INF], math.log(2)),  # certain against a coin
    ],
)
def test_excluded_tokens(p, q, expected):
    p, q = f64(p), f64(q)
    close(kl_divergence(p, q), expected, atol=1e-12)
    close(kl_divergence(p, q), torch_kl(Categorical(logits=p), Categorical(logits=q)), atol=1e-15)


def test_the_librarys_kl_div_on_excluded_tokens():
    # Right with probabilities as target, as long as the model excludes nothing; NaN where both do.
    p, q = f64([0, 0, -INF]), f64([1, 0, 0])
    close(F.kl_div(q.log_softmax(-1), p.softmax(-1), reduction="sum"), kl_divergence(p, q), atol=1e-15)
    assert kl_div(p, q, "sum").isnan()
    assert F.kl_div(p.log_softmax(-1), p.softmax(-1), reduction="sum").isnan()


def test_the_excluded_token_that_makes_the_library_nan_is_finite_here_with_its_gradient():
    p, q = f64([0, 0, -INF]).requires_grad_(), f64([1, 0, -INF]).requires_grad_()
    assert kl_div(p.detach(), q.detach(), "sum").isnan()
    kl = kl_divergence(p, q)
    by_p, by_q = torch.autograd.grad(kl, (p, q))
    share = math.e / (math.e + 1)  # softmax of (1, 0); the gradients are q − p and p·(log p/q − KL)
    close(by_q, [share - 0.5, 0.5 - share, 0], atol=1e-15)
    ratio = 0.5 * (math.log(1 - share) - math.log(share)) / 2  # half the difference of the log-ratios, times p
    close(by_p, [ratio, -ratio, 0], atol=1e-15)


def test_temperature_and_hintons_factor():
    # p = [2, 1, 0] and q = [0, 1, .5] at T = 1 and 4; the loss multiplies by T²: 16 · .037305845 = .596893527.
    p, q = f64([2, 1, 0]), f64([0, 1, 0.5])
    close(kl_divergence(p, q), 0.558130331, atol=1e-9)
    close(kl_divergence(p, q, temperature=4.0), 0.037305845, atol=1e-9)
    close(distillation_loss(q, p, temperature=4.0), 0.596893527, atol=1e-8)


def test_at_high_temperature_the_loss_is_half_the_variance_of_the_logit_differences():
    # Differences 2, 0, −½: mean ½, variance (2.25 + .25 + 1)/3 = 7/6. The next term is of order 1/T.
    for direction in ("forward", "reverse"):
        loss = distillation_loss(f64([0, 1, 0.5]), f64([2, 1, 0]), temperature=1e4, direction=direction)
        close(loss, 7 / 12, atol=1e-4)


def test_reductions_against_each_other():
    # (B, T, V) = (2, 3, 6): batchmean is T times the mean; the mean of F.kl_div divides by V as well.
    p, q = logits(0, 2, 3, 6)
    each = kl_divergence(p, q, reduction="none")
    assert each.shape == (2, 3)
    close(kl_divergence(p, q), each.sum() / 6, atol=1e-15)
    close(kl_divergence(p, q, reduction="sum"), each.sum(), atol=1e-14)
    close(kl_divergence(p, q, reduction="batchmean") / kl_divergence(p, q), 3.0, atol=1e-14)
    close(kl_divergence(p, q) / kl_div(p, q, "mean"), 6.0, atol=1e-13)


# The trusted implementations


@few
@given(seeds, st.sampled_from([(5,), (1, 7), (4, 3), (2, 3, 6), (2, 1, 3, 4)]), st.sampled_from([0.1, 1.0, 10.0]))
def test_equals_torch(seed, shape, scale):
    # Divergences up to 40 nats: a double resolves 7e-15 there.
    p, q = logits(seed, *shape, scale=scale)
    expected = torch_kl(Categorical(logits=p), Categorical(logits=q))
    close(kl_divergence(p, q, reduction="none"), expected, atol=2e-14, rtol=1e-13)
    close(kl_divergence(p, q), expected.mean(), atol=2e-14, rtol=1e-13)
    close(kl_divergence(p, q, reduction="none"), kl_div(p, q, "none").sum(-1), atol=2e-14, rtol=1e-13)
    close(kl_divergence(p, q, reduction="sum"), kl_div(p, q, "sum"), atol=1e-13, rtol=1e-13)
    if len(shape) > 1:
        close(kl_divergence(p, q, reduction="batchmean"), kl_div(p, q, "batchmean"), atol=1e-13, rtol=1e-13)


@few
@given(seeds, st.sampled_from([0.5, 1.0, 3.0]))
def test_gradients_equal_torchs(seed, temperature):
    p, q = logits(seed, 3, 5)

    def theirs(p, q):
        return torch_kl(Categorical(logits=p / temperature), Categorical(logits=q / temperature)).mean()

    ours = value_and_gradients(lambda p, q: kl_divergence(p, q, temperature=temperature), p, q)
    for a, b in zip(ours, value_and_gradients(theirs, p, q), strict=True):
        close(a, b, atol=1e-14)


@pytest.mark.parametrize(("direction", "beta"), [("forward", 0), ("reverse", 1)])
def test_equals_trl_without_its_missing_factor(direction, beta):
    # TRL's GKD divides by T and does not multiply by T².
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gkd = pytest.importorskip("trl.experimental.gkd")
    student, teacher = logits(1, 2, 4, 9)
    mask = torch.tensor([[True, True, False, True], [True, False, False, False]])
    labels = torch.where(mask, 1, -100)
    trl = gkd.GKDTrainer.generalized_jsd_loss(student, teacher, labels, beta=beta, temperature=2.0)
    close(distillation_loss(student, teacher, mask, temperature=2.0, direction=direction), 4 * trl, atol=1e-14)


# Properties


@few
@given(seeds, st.floats(-3, 3))
def test_never_negative_zero_for_equal_distributions_and_blind_to_a_shift(seed, scale):
    p, q = logits(seed, 4, 6, scale=scale)
    kl = kl_divergence(p, q, reduction="none")
    assert (kl >= -1e-15).all()
    same(kl_divergence(p, p.clone(), reduction="none"), torch.zeros(4, dtype=torch.float64))
    close(kl_divergence(p + 5, q - 3, reduction="none"), kl, atol=1e-14)
    close(kl_divergence(p.log_softmax(-1), q, reduction="none"), kl, atol=1e-14)


@few
@given(seeds)
def test_cross_entropy_minus_entropy(seed):
    p, q = logits(seed, 3, 6)
    crossed = F.cross_entropy(q, p.softmax(-1), reduction="none")
    close(kl_divergence(p, q, reduction="none"), crossed - Categorical(logits=p).entropy(), atol=1e-14)


@few
@given(seeds)
def test_it_is_the_exact_mean_of_k3(seed):
    p, q = (x.log_softmax(-1) for x in logits(seed, 3, 6))
    close(kl_divergence(p, q, reduction="none"), (p.exp() * kl_k3(p, q)).sum(-1), atol=1e-13)


@few
@given(seeds)
def test_pinsker_and_the_data_processing_inequality(seed):
    p, q = logits(seed, 6)
    kl = kl_divergence(p, q)
    assert kl >= 0.5 * (p.softmax(-1) - q.softmax(-1)).abs().sum() ** 2 - 1e-15
    merged = [torch.stack((x[:3].logsumexp(0), x[3:].logsumexp(0))) for x in (p, q)]  # two classes of three
    assert kl_divergence(*merged) <= kl + 1e-15


@few
@given(seeds)
def test_gradients_by_the_formula(seed):
    # q − p for the second argument; p·(log p/q − KL) for the first.
    p, q = (x.requires_grad_() for x in logits(seed, 6))
    kl = kl_divergence(p, q)
    by_p, by_q = torch.autograd.grad(kl, (p, q))
    p, q = p.detach().log_softmax(-1), q.detach().log_softmax(-1)
    close(by_q, q.exp() - p.exp(), atol=1e-15)
    close(by_p, p.exp() * (p - q - kl.detach()), atol=1e-14)


def test_the_factor_keeps_the_size_of_the_gradient():
    # At high T the gradient is T² · (q − p)/T → (z_q − z_p, centred)/V, whatever T.
    teacher, student = logits(3, 50)
    difference = student - teacher
    limit = (difference - difference.mean()) / 50
    for temperature in (1e3, 1e4):
        leaf = student.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(distillation_loss(leaf, teacher, temperature=temperature), leaf)
        close(gradient, limit, atol=1 / temperature)


@few
@given(seed=seeds, poison=st.sampled_from([NAN, INF, -INF, 1e308]))
def test_padding_never_matters(seed, poison):
    p, q = logits(seed, 2, 3, 5)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    for function in (
        *(lambda p, q, r=r: kl_divergence(p, q, mask, reduction=r) for r in REDUCTIONS),
        lambda p, q: distillation_loss(p, q, mask, temperature=2.0),
        lambda p, q: distillation_loss(p, q, mask, direction="reverse"),
    ):
        clean = value_and_gradients(function, p, q)
        bad = [x.masked_fill(~mask[..., None], poison) for x in (p, q)]
        for ours, theirs in zip(value_and_gradients(function, *bad), clean, strict=True):
            same(ours, theirs)
    close(kl_divergence(p, q, mask), kl_divergence(p[mask], q[mask]), atol=1e-15)
    assert not kl_divergence(p, q, mask, reduction="none")[~mask].any()


def test_nan_among_the_valid_logits_is_not_hidden():
    x = torch.zeros(2, 3)
    for at in (0, 1):
        pair = [x.clone(), x.clone()]
        pair[at][0, 1] = NAN
        kl = kl_divergence(*pair, reduction="none")
        assert kl[0].isnan() and kl[1] == 0


def test_the_teacher_is_a_constant():
    student, teacher = (x.requires_grad_() for x in logits(2, 3, 5))
    for direction in ("forward", "reverse"):
        distillation_loss(student, teacher, temperature=3.0, direction=direction).backward()
    assert teacher.grad is None and student.grad.any()


# Numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_large_vocabulary_in_any_precision(dtype):
    # Widened before the softmax: the difference to float64 of the same inputs is float32's, 1e-6 nats.
    p, q = (x.to(dtype) for x in logits(0, 2, 128_256, scale=2.0))
    kl = kl_divergence(p, q, reduction="none")
    assert kl.dtype == torch.float32
    close(kl, kl_divergence(p.double(), q.double(), reduction="none"), atol=1e-5, rtol=1e-6)


def test_extreme_logits_stay_finite():
    # Certain and wrong: KL is the gap of the logits. In float16 the largest gap is 65504 + 65504.
    p, q = torch.tensor([65504.0, -65504.0]).half(), torch.tensor([-65504.0, 65504.0]).half()
    close(kl_divergence(p, q), 131008.0, atol=0)
    close(kl_divergence(f64([1e300, 0]), f64([0, 0])), math.log(2), atol=1e-15)


def calls():
    p, q = logits(0, 3, 4, 5)
    mask = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)) < 0.6
    return [
        *((kl_divergence, (p, q, mask), {"reduction": r, "temperature": 2.0}) for r in REDUCTIONS),
        (kl_divergence, (p, q), {}),
        (distillation_loss, (p, q, mask), {"temperature": 2.0}),
        (distillation_loss, (p, q), {"direction": "reverse"}),
    ]


CALLS = pytest.mark.parametrize("index", range(7))


@CALLS
def test_gradcheck(index):
    function, args, kwargs = calls()[index]
    leaves = [x.requires_grad_() for x in args[: 1 if function is distillation_loss else 2]]
    torch.autograd.gradcheck(lambda *x: function(*x, *args[len(x) :], **kwargs), leaves)


@CALLS
@pytest.mark.parametrize("dtype", DTYPES)
def test_half_precision_is_computed_and_returned_in_float32(index, dtype):
    function, (p, q, *rest), kwargs = calls()[index]
    p, q = p.to(dtype), q.to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    result = function(p, q, *rest, **kwargs)
    assert result.dtype == wide
    same(result, function(p.to(wide), q.to(wide), *rest, **kwargs))
    # Sums of at most 12 divergences of about 1: float32 rounds by 1e-7 of each term.
    close(result.double(), function(p.double(), q.double(), *rest, **kwargs), atol=3e-6)


@CALLS
def test_memory_layout_does_not_matter_and_inputs_stay(index):
    function, args, kwargs = calls()[index]
    leaves_inputs_alone(function, *args, **kwargs)
    close(function(*map(spread, args), **kwargs), function(*args, **kwargs), atol=1e-14)


@CALLS
def test_compiles_to_one_graph(index):
    function, args, kwargs = calls()[index]
    compiles(function, *args, **kwargs)


def test_compiles_to_native_code():
    function, args, kwargs = calls()[5]
    compiles_to_native_code(function, *args, **kwargs)


# Checks of arguments: the message names the argument and the value


def test_wrong_arguments_are_refused():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"^q_logits: .*\(3,\).*\(2, 3\)"):
        kl_divergence(x, x[0])
    with pytest.raises(TypeError, match=r"^p_logits: .*int64"):
        kl_divergence(x.long(), x)
    with pytest.raises(ValueError, match=r"^teacher_logits: .*\(2, 1\).*\(2, 3\)"):
        distillation_loss(x, x[:, :1])
    with pytest.raises(TypeError, match=r"^student_logits: .*int64"):
        distillation_loss(x.long(), x)
    with pytest.raises(ValueError, match=r"^direction: got 'backward'.*'forward', 'reverse'"):
        distillation_loss(x, x, direction="backward")


@pytest.mark.parametrize("function", [kl_divergence, distillation_loss])
def test_what_both_refuse(function):
    x = torch.zeros(2, 3)
    with pytest.raises(TypeError, match=r"^mask: .*int64"):
        function(x, x, torch.ones(2).long())
    with pytest.raises(ValueError, match=r"^mask: .*\(2, 3\).*\(2,\)"):
        function(x, x, x.bool())
    with pytest.raises(ValueError, match=r"^mask: all 2 entries are False"):
        function(x, x, torch.zeros(2, dtype=torch.bool))
    for temperature in (0.0, -1.0, NAN):
        with pytest.raises(ValueError, match=r"^temperature: got"):
            function(x, x, temperature=temperature)
    with pytest.raises(ValueError, match=r"^p_logits: shape is \(2, 0\)"):
        function(x[:, :0], x[:, :0])
    with pytest.raises(ValueError, match=r"^p_logits: shape is \(\)"):
        function(x[0, 0], x[0, 0])


@pytest.mark.parametrize("name", ["avg", "Mean", None])
def test_an_unknown_reduction_is_refused(name):
    with pytest.raises(ValueError, match=rf"^reduction: got {name!r}.*'mean', 'sum', 'batchmean', 'none'"):
        kl_divergence(torch.zeros(1, 2), torch.zeros(1, 2), reduction=name)


def test_batchmean_of_one_distribution_is_refused():
    # F.kl_div divides by the first axis, here the vocabulary: 1/V of the right value, in silence.
    p, q = logits(0, 8)
    close(kl_div(p, q, "batchmean"), kl_divergence(p, q) / 8, atol=1e-15)
    with pytest.raises(ValueError, match=r"^reduction: 'batchmean'.*\(8,\)"):
        kl_divergence(p, q, reduction="batchmean")


@pytest.mark.gpu
@CALLS
def test_cuda_equals_cpu(index):
    function, args, kwargs = calls()[index]
    close(function(*[x.cuda() for x in args], **kwargs).cpu(), function(*args, **kwargs), atol=1e-12)
