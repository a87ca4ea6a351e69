"""lib.softmax: softmax, log_softmax and logsumexp, at any size of the logits, on any axis, in any dtype."""

import math
import re

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.softmax import MAX_TEMPERATURE, MIN_TEMPERATURE, log_softmax, logsumexp, softmax
from tests.checks import DTYPES, close, compiles, compiles_to_native_code, f64, leaves_inputs_alone, ln, same, spread

INF, NAN = math.inf, math.nan
ALL = pytest.mark.parametrize("function", [softmax, log_softmax, logsumexp])
BOTH = pytest.mark.parametrize("function", [softmax, log_softmax])
EPS = torch.finfo(torch.float64).eps


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def theirs(function):
    """torch's function of the same name."""
    return getattr(torch, function.__name__)


few = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)
finite = st.floats(-1e6, 1e6)
rows = st.lists(finite, min_size=1, max_size=20).map(f64)
temperatures = st.floats(1e-3, 1e3)


# Values, by hand


def test_logarithms_of_weights_give_their_shares():
    # exp(ln 1), exp(ln 2), exp(ln 5) sum to 8.
    x = ln([1, 2, 5])
    close(softmax(x), [1 / 8, 2 / 8, 5 / 8], atol=1e-16)
    close(log_softmax(x), [-math.log(8), -math.log(4), math.log(5 / 8)], atol=1e-15)
    close(logsumexp(x), math.log(8), atol=1e-15)


def test_a_temperature_is_a_power_of_the_weights():
    # T = ½ squares 1, 2, 5 to 1, 4, 25, of 30 together; T = 2 of 1, 4, 9 leaves the roots 1, 2, 3.
    close(softmax(ln([1, 2, 5]), temperature=0.5), [1 / 30, 4 / 30, 25 / 30], atol=1e-15)
    close(softmax(ln([1, 4, 9]), temperature=2.0), [1 / 6, 2 / 6, 3 / 6], atol=1e-15)


def test_two_logits_are_a_sigmoid_of_their_gap():
    gaps = torch.linspace(-40, 40, 81, dtype=torch.float64)
    x = torch.stack((gaps, torch.zeros_like(gaps)), dim=-1)
    close(softmax(x)[:, 0], gaps.sigmoid(), atol=1e-16)
    close(log_softmax(x)[:, 0], torch.nn.functional.logsigmoid(gaps), atol=EPS, rtol=EPS)  # it has log1p for tiny ones


def test_one_logit_has_it_all():
    same(softmax(f64([[-7.0], [1e300]])), f64([[1.0], [1.0]]))
    same(log_softmax(f64([[-7.0], [1e300]])), f64([[0.0], [0.0]]))
    same(logsumexp(f64([[-7.0], [1e300]])), f64([-7.0, 1e300]))


@pytest.mark.parametrize("size", [65_536, 128_256])
def test_a_vocabulary_of_equal_logits_in_half_precision(size):
    # Summed in float16 the ones reach ∞ at 65 520 and every probability is 0.
    x = torch.zeros(size, dtype=torch.float16)
    assert x.exp().sum().isinf()
    # The true share lies among the subnormal numbers of float16, which are 2⁻²⁴ apart: half a step, no more.
    close(softmax(x).double(), torch.full((size,), 1 / size), atol=2**-25)
    close(log_softmax(x).double(), torch.full((size,), -math.log(size)), atol=2**-8)  # a step is 2⁻⁷ between 8 and 16
    close(softmax(x.float()), torch.full((size,), 1 / size), atol=0, rtol=1e-7)
    assert softmax(x.float())[0].item() == pytest.approx({65_536: 1.52587890625e-5, 128_256: 7.796906188e-6}[size])


def test_bfloat16_is_as_good_as_torchs():
    # Half a step of bfloat16 below 1 is 2⁻⁹: ours is the exact result rounded once, as torch's is.
    x = normal(64, 512, scale=3).bfloat16()
    exact = x.double().softmax(-1)
    exps = (x - x.amax(-1, keepdim=True)).exp()
    in_bfloat16 = ((exps / exps.sum(-1, keepdim=True)).double() - exact).abs().max()
    ours, torchs = ((f(x, -1).double() - exact).abs().max() for f in (softmax, torch.softmax))
    assert ours <= torchs <= 2**-9 < in_bfloat16


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1.0, [-2.407605964, -0.0359762997]),
        (0.5, [-4.142931628, -0.0006707003]),
        (2.0, [-1.680269671, -0.2395447662]),
    ],
)
def test_log_probabilities_of_tokens_sampled_at_a_temperature(temperature, expected):
    # Token 0 of the first row, token 2 of the second. Neither T = 1 throughout nor a division after the logarithm.
    logprobs = log_softmax(f64([[1, 2, 3], [0, 0, 4]]), temperature=temperature)
    close(logprobs[[0, 1], [0, 2]], expected, atol=1e-9)


# Extreme logits


def test_large_logits_overflow_nothing():
    for offset in (1e3, -1e3, 1e15, -1e15, 1e300):
        close(softmax(f64([offset, offset])), [0.5, 0.5], atol=0)
        close(log_softmax(f64([offset, offset])), [-math.log(2)] * 2, atol=1e-16)
    close(logsumexp(f64([1000, 1000])), 1000 + math.log(2), atol=2e-13)
    close(logsumexp(f64([-1000, -1000])), -1000 + math.log(2), atol=2e-13)


def test_each_row_is_shifted_by_its_own_maximum():
    # With the maximum of all rows, row 1 would be exp(−1000) = 0 throughout and 0/0.
    x = f64([[1000, 1001], [0, 1]])
    close(softmax(x), [[1 / (1 + math.e), math.e / (1 + math.e)]] * 2, atol=1e-15)
    close(logsumexp(x, keepdim=True)[0] - 1000, logsumexp(x, keepdim=True)[1], atol=2e-13)


@BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_numbers_of_each_dtype(function, dtype):
    # Their distance is ∞ in that dtype: exp(−∞) is 0 all the same, and no ∞ − ∞ arises.
    largest = torch.finfo(dtype).max
    result = function(torch.tensor([largest, -largest, 0.0], dtype=dtype))
    expected = function(torch.tensor([0.0, -INF, -INF], dtype=dtype))
    if function is softmax:
        same(result, expected)
    else:
        assert result[0] == 0 and (result[1:] < -1e4).all()


def test_small_probabilities_keep_their_logarithm():
    # exp(−800) is 0 in float64, its logarithm is not −∞.
    close(log_softmax(f64([0, -800]))[1], -800, atol=0)
    assert softmax(f64([0, -800]))[1].log() == -INF


def test_temperatures_at_the_ends():
    x = torch.tensor([1000.0, 999.0, -1000.0])
    same(softmax(x, temperature=MIN_TEMPERATURE), torch.tensor([1.0, 0.0, 0.0]))
    close(softmax(x, temperature=MAX_TEMPERATURE), torch.full((3,), 1 / 3), atol=1e-7)
    close(softmax(f64([1000, 999]), temperature=1e-3), [1, 0], atol=0)
    close(softmax(f64([1e30, 1e30]), temperature=1e-30), [0.5, 0.5], atol=0)  # x/T would be 1e60, exact too
    close(softmax(f64([1e300, 1e300]), temperature=1e-30), [0.5, 0.5], atol=0)  # x/T would be ∞


def test_excluded_entries_get_nothing():
    x = f64([0, -INF, 0])
    same(softmax(x), f64([0.5, 0, 0.5]))
    same(log_softmax(x), f64([-math.log(2), -INF, -math.log(2)]))
    same(logsumexp(x), f64(math.log(2)))
    for function in (softmax, logsumexp):
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf)[..., 0].sum() if function is softmax else function(leaf), leaf)
        assert gradient.isfinite().all() and gradient[1] == 0


@ALL
@pytest.mark.parametrize("row", [[-INF, -INF], [INF, 0], [INF, INF], [INF, -INF], [NAN, 0], [-INF, 0], [INF, 800]])
def test_infinite_and_undefined_entries_as_in_torch(function, row):
    x = f64([row, [1, 2]])
    torch.testing.assert_close(function(x), theirs(function)(x, -1), equal_nan=True, rtol=EPS, atol=EPS)


# The axis


@ALL
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_any_axis(function, dim):
    x = normal(3, 4, 5, scale=3)
    close(function(x, dim), theirs(function)(x, dim), atol=2e-15)
    close(function(x, dim), function(x, dim % 3 - 3), atol=0)


def test_the_last_axis_is_the_default():
    x = normal(4, 4)
    for function in (softmax, log_softmax, logsumexp):
        same(function(x), function(x, -1))
        assert not torch.allclose(function(x), function(x, 0))


def test_keepdim():
    x = normal(2, 3, 4)
    for dim, kept in ((0, (1, 3, 4)), (1, (2, 1, 4)), (-1, (2, 3, 1))):
        assert logsumexp(x, dim, keepdim=True).shape == kept
        same(logsumexp(x, dim, keepdim=True).squeeze(dim), logsumexp(x, dim))
    assert logsumexp(f64([[[1.0]]])).shape == (1, 1)  # only the axis asked for goes


@ALL
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 4), (0, 0)])
@pytest.mark.parametrize("dim", [0, -1])
def test_empty_axes_as_in_torch(function, shape, dim):
    x = torch.zeros(shape, dtype=torch.float16, requires_grad=True)
    result = function(x, dim)
    same(result, theirs(function)(x, dim))
    (gradient,) = torch.autograd.grad(result.float().nan_to_num(neginf=0.0).sum(), x)
    assert gradient.shape == shape


# Properties


@few
@given(rows, temperatures)
def test_probabilities(x, temperature):
    p = softmax(x, temperature=temperature)
    assert (p >= 0).all() and (p <= 1).all()
    close(p.sum(), 1, atol=len(x) * EPS)
    assert p[x.argmax()] == p.max()
    same(p[x.argsort()], p.sort().values)  # the order of the logits is kept


@few
@given(rows, st.integers(-(2**20), 2**20), temperatures)
def test_a_constant_added_to_all_logits_changes_nothing(x, constant, temperature):
    x = (x * 2**8).round() / 2**8  # so that the addition is exact
    for function in (softmax, log_softmax):
        same(function(x + constant, temperature=temperature), function(x, temperature=temperature))
    close(logsumexp(x + constant) - logsumexp(x), constant, atol=4e6 * EPS)  # numbers up to 2e6, rounded twice


@few
@given(rows, temperatures)
def test_the_three_agree_with_each_other(x, temperature):
    logp = log_softmax(x, temperature=temperature)
    close(logp.exp(), softmax(x, temperature=temperature), atol=4 * EPS)
    close(logsumexp(logp), 0, atol=4 * EPS)
    # x/T reaches 1e9 here, and its difference from the logsumexp is rounded accordingly.
    scale = 1 + (x / temperature).abs().max().item()
    close(logp, x / temperature - logsumexp(x / temperature), atol=4 * EPS * scale)


@few
@given(rows)
def test_logsumexp_lies_between_the_maximum_and_the_maximum_plus_ln_n(x):
    value, top = logsumexp(x), x.max()
    slack = 2 * EPS * (1 + top.abs())
    assert top - slack <= value <= top + math.log(len(x)) + slack


@few
@given(rows)
def test_log_softmax_twice_is_log_softmax(x):
    close(log_softmax(log_softmax(x)), log_softmax(x), atol=0, rtol=4 * EPS)


@few
@given(seeds)
def test_rows_do_not_see_each_other(seed):
    x = normal(4, 6, seed=seed, scale=10)
    for row in range(4):
        close(softmax(x)[row], softmax(x[row]), atol=2 * EPS)


@few
@given(st.lists(st.floats(-700, 700), min_size=1, max_size=8), temperatures)
def test_to_the_last_digits(values, temperature):
    with mpmath.workdps(50):
        weights = [mpmath.exp((mpmath.mpf(v) - max(values)) / mpmath.mpf(temperature)) for v in values]
        total = mpmath.fsum(weights)
        logarithms = [(mpmath.mpf(v) - max(values)) / mpmath.mpf(temperature) - mpmath.log(total) for v in values]
        expected = [float(w / total) for w in weights]
        expected_log = [float(v) for v in logarithms]
        expected_lse = float(mpmath.log(mpmath.fsum(mpmath.exp(v) for v in values)))
    x = f64(values)
    # An exponent up to 1.4e6 is rounded before exp(): p·|ln p| is at most 1/e, so the absolute error stays small.
    close(softmax(x, temperature=temperature), expected, atol=4 * EPS)
    close(log_softmax(x, temperature=temperature), expected_log, atol=4 * EPS, rtol=2 * EPS)
    close(logsumexp(x), expected_lse, atol=4 * EPS, rtol=2 * EPS)


# torch's own


@ALL
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_equals_torch(function, scale):
    x = normal(7, 33, seed=1, scale=scale)
    close(function(x), theirs(function)(x, -1), atol=1e-15, rtol=2 * EPS)
    wide = x.float()
    close(function(wide), theirs(function)(wide, -1), atol=4e-7, rtol=3e-7)  # a few roundings of 2⁻²⁴


@BOTH
@pytest.mark.parametrize("temperature", [0.3, 0.7, 2.5])
def test_equals_torch_of_the_divided_logits(function, temperature):
    # Logits up to about 4/0.3: they are rounded before torch subtracts the maximum, ours after.
    x = normal(7, 33, seed=2)
    close(function(x, temperature=temperature), theirs(function)(x / temperature, -1), atol=8e-15)


# Gradients


@ALL
@pytest.mark.parametrize("dim", [0, 1])
def test_gradcheck(function, dim):
    leaf = normal(3, 4, scale=2).requires_grad_()
    torch.autograd.gradcheck(lambda x: function(x, dim), (leaf,))
    torch.autograd.gradgradcheck(lambda x: function(x, dim), (leaf,))
    if function is not logsumexp:
        torch.autograd.gradcheck(lambda x: function(x, dim, temperature=0.7), (leaf,))


@ALL
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_gradients_equal_torchs(function, scale):
    x = normal(5, 9, seed=3, scale=scale).requires_grad_()
    arriving = normal(*function(x).shape, seed=4)
    ours, torchs = (torch.autograd.grad(f(x, -1), x, arriving)[0] for f in (function, theirs(function)))
    # torch's logsumexp takes exp(x − result), which rounds an exponent of the size of the logits.
    close(ours, torchs, atol=4e-15 + (scale * EPS if function is logsumexp else 0))


def test_tied_maxima_share_nothing_but_their_probability():
    # A gradient through amax would be split between the ties, and cancels; held constant it never appears.
    x = f64([2, 2, 0]).requires_grad_()
    (gradient,) = torch.autograd.grad(logsumexp(x), x)
    close(gradient, softmax(x.detach()), atol=1e-16)


@few
@given(rows.filter(lambda x: len(x) <= 8), st.floats(0.1, 10))
def test_jacobian_is_diagonal_less_outer_product(x, temperature):
    p = softmax(x, temperature=temperature)
    jacobian = torch.autograd.functional.jacobian(lambda y: softmax(y, temperature=temperature), x)
    close(jacobian, (p.diag() - p.outer(p)) / temperature, atol=10 * EPS)
    log_jacobian = torch.autograd.functional.jacobian(lambda y: log_softmax(y, temperature=temperature), x)
    close(log_jacobian, (torch.eye(len(x)) - p.expand(len(x), -1)) / temperature, atol=40 * EPS)


# Dtypes, memory, compilation


@ALL
@pytest.mark.parametrize("dtype", DTYPES)
def test_computed_in_float32_or_better_and_returned_in_the_dtype_of_x(function, dtype):
    x = normal(5, 40, scale=4).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    same(function(x), function(x.to(wide)).to(dtype))
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    assert gradient.dtype == dtype


@ALL
def test_memory_layout_does_not_matter_and_inputs_stay(function):
    x = normal(4, 6, 5)
    leaves_inputs_alone(function, x, 1)
    close(function(spread(x), 1), function(x, 1), atol=2e-15)
    close(function(x.permute(2, 0, 1).contiguous().permute(1, 2, 0), 1), function(x, 1), atol=2e-15)
    close(function(x[:, :1].expand(4, 6, 5), 1), function(x[:, :1].expand(4, 6, 5).contiguous(), 1), atol=2e-15)


def calls():
    x = normal(3, 4, 5)
    return {
        "softmax": (softmax, (x,), {}),
        "softmax, dim 1, T ½": (softmax, (x, 1), {"temperature": 0.5}),
        "log_softmax": (log_softmax, (x,), {"temperature": 2.0}),
        "log_softmax, dim 0": (log_softmax, (x, 0), {}),
        "logsumexp": (logsumexp, (x,), {}),
        "logsumexp, kept": (logsumexp, (x, 1), {"keepdim": True}),
    }


@pytest.mark.parametrize("name", calls())
def test_compiles_to_one_graph(name):
    function, args, settings_ = calls()[name]
    compiles(function, *args, **settings_)


def test_compiles_to_native_code():
    function, args, settings_ = calls()["softmax, dim 1, T ½"]
    compiles_to_native_code(function, *args, **settings_)


# Checks of arguments: the message names the argument and the value


@ALL
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_x_is_floating_point(function, dtype):
    with pytest.raises(TypeError, match=rf"^x: .*{dtype}.*floating point"):
        function(torch.ones(3, dtype=dtype))


@ALL
def test_x_has_an_axis(function):
    with pytest.raises(ValueError, match=r"^x: shape is \(\).*one axis"):
        function(torch.tensor(1.0))


@ALL
@pytest.mark.parametrize("dim", [2, 5, -3])
def test_x_has_the_axis(function, dim):
    with pytest.raises(ValueError, match=rf"^dim: got {dim}, must be -2 to 1 .*\(3, 4\)"):
        function(torch.zeros(3, 4), dim)


@BOTH
@pytest.mark.parametrize("temperature", [0, 0.0, -1.0, 1e-300, INF, NAN])
def test_a_temperature_is_positive_and_finite(function, temperature):
    with pytest.raises(ValueError, match=rf"^temperature: got {re.escape(str(temperature))}.*argmax"):
        function(torch.zeros(3), temperature=temperature)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", calls())
def test_cuda_equals_cpu(name, dtype):
    function, (x, *rest), settings_ = calls()[name]
    ours = function(x.to(dtype).cuda(), *rest, **settings_)
    assert ours.device.type == "cuda" and ours.dtype == dtype
    # The same formula with another exp() and another order of summation: a few units in the last place.
    step = torch.finfo(dtype).eps
    close(ours.cpu(), function(x.to(dtype), *rest, **settings_), atol=4 * step, rtol=4 * step)


@pytest.mark.gpu
def test_a_vocabulary_of_equal_logits_on_cuda():
    close(
        softmax(torch.zeros(128_256, dtype=torch.float16, device="cuda"))[:3].double().cpu(),
        [1 / 128_256] * 3,
        atol=2**-25,
    )
