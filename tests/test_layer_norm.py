"""lib.layer_norm: values, gradients by hand, dtypes, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.layer_norm import LayerNorm, layer_norm, layer_norm_backward
from tests.checks import DTYPES, close, compiles, compiles_to_native_code, f64, leaves_inputs_alone, same, spread

few = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)
SHAPES = pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 1), (4, 1, 2, 6)])


def normal(*shape: int, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    return shift + scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(*shape: int, seed: int = 0):
    """x with a mean that is not 0, weight and bias."""
    return (
        normal(*shape, seed=seed, scale=3.0, shift=2.0),
        normal(shape[-1], seed=seed + 1),
        normal(shape[-1], seed=seed + 2),
    )


# Values, by hand


def test_four_numbers():
    # Mean 5, deviations −3, −1, 1, 3, variance 20/4 = 5 and ε = 4: the root is 3.
    close(layer_norm(f64([2, 4, 6, 8]), eps=4.0), [-1, -1 / 3, 1 / 3, 1], atol=1e-15)
    close(layer_norm(f64([2, 4, 6, 8]), f64([1, 3, 3, 2]), f64([0, 0, 1, 1]), eps=4.0), [-1, -1, 2, 3], atol=1e-15)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        # eps on the standard deviation, or a variance by C − 1, gives 1.7320…, 1.5 and ±0.9802…, ±0.7053… here
        ([1, 0, 0, 0], [1.732004621, -0.5773348736, -0.5773348736, -0.5773348736]),
        ([0, 0.001], [-0.1561737619, 0.1561737619]),
        ([3, 3, 3], [0, 0, 0]),
    ],
)
def test_eps_stands_under_the_root_and_the_variance_is_biased(x, expected):
    # From issues of burn (2185), BERT-pytorch (30) and the annotated transformer (119).
    close(layer_norm(f64(x)), expected, atol=1e-9)


def test_eps_matters_where_the_spread_is_small():
    close(layer_norm(f64([0.001, -0.001]), eps=1e-6), [0.707106781, -0.707106781], atol=1e-9)
    close(layer_norm(f64([0.001, -0.001]), eps=1e-5), [0.301511345, -0.301511345], atol=1e-9)


def test_large_values_in_float16_do_not_overflow():
    # 900² is beyond float16: squares in half precision give a row of zeros.
    x = torch.tensor([0, 0, 0, 1200], dtype=torch.float16)
    close(layer_norm(x).double(), [-0.577350, -0.577350, -0.577350, 1.732051], atol=5e-4)


# Properties


@few
@given(seeds, st.integers(2, 40))
def test_mean_0_and_variance_1(seed, size):
    y = layer_norm(normal(5, size, seed=seed, scale=4, shift=-3), eps=0.0)
    close(y.mean(-1), torch.zeros(5), atol=1e-13)
    close(y.var(-1, correction=0), torch.ones(5), atol=1e-13)


@few
@given(seeds, st.floats(0.01, 100), st.floats(-100, 100))
def test_scale_and_shift_of_the_input_cancel(seed, scale, shift):
    x = normal(3, 9, seed=seed)
    close(layer_norm(scale * x + shift, eps=0.0), layer_norm(x, eps=0.0), atol=1e-9)


@few
@given(seeds)
def test_a_token_does_not_see_its_neighbours(seed):
    x = normal(4, 6, 5, seed=seed)
    same(layer_norm(x)[2, 3], layer_norm(x[2, 3]))


# Equality with torch, values and gradients


@SHAPES
@pytest.mark.parametrize("affine", ["plain", "weight", "both"])
def test_equals_torch(shape, affine):
    x, weight, bias = inputs(*shape)
    weight, bias = None if affine == "plain" else weight, bias if affine == "both" else None
    results = []
    for function in (lambda *a: layer_norm(*a), lambda x, w, b: F.layer_norm(x, shape[-1:], w, b)):
        leaves = [None if t is None else t.clone().requires_grad_() for t in (x, weight, bias)]
        y = function(*leaves)
        given_ = [t for t in leaves if t is not None]
        results.append([y, *torch.autograd.grad((y * torch.arange(y.numel()).view(y.shape)).sum(), given_)])
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, atol=2e-14 * max(1.0, theirs.abs().max().item()))


def test_the_module_takes_torchs_weights():
    theirs = torch.nn.LayerNorm(6).double()
    torch.nn.init.normal_(theirs.weight)
    torch.nn.init.normal_(theirs.bias)
    ours = LayerNorm(6).double()
    ours.load_state_dict(theirs.state_dict())
    x = normal(2, 3, 6)
    close(ours(x), theirs(x), atol=1e-15)
    assert ours.eps == theirs.eps
    assert LayerNorm(6, bias=False).state_dict().keys() == torch.nn.LayerNorm(6, bias=False).state_dict().keys()


# The backward pass by hand


class ByHand(torch.autograd.Function):
    """`layer_norm` whose backward is `layer_norm_backward`, for gradcheck."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return layer_norm(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        return layer_norm_backward(grad, *ctx.saved_tensors)


def test_backward_by_finite_differences():
    leaves = [t.requires_grad_() for t in inputs(3, 5, seed=4)]
    assert torch.autograd.gradcheck(ByHand.apply, leaves)


@SHAPES
@pytest.mark.parametrize("weighted", [True, False])
def test_backward_equals_autograd_of_torch(shape, weighted):
    x, weight, bias = (t.requires_grad_() for t in inputs(*shape, seed=5))
    grad = normal(*shape, seed=9)
    y = F.layer_norm(x, shape[-1:], weight if weighted else None, bias if weighted else None)
    theirs = torch.autograd.grad(y, (x, weight, bias) if weighted else (x,), grad)
    ours = layer_norm_backward(grad, x, weight if weighted else None)
    assert [t.shape for t in ours] == [x.shape, weight.shape, bias.shape]
    for a, b in zip(ours, theirs):
        close(a, b, atol=2e-14 * max(1.0, b.abs().max().item()))


def test_the_gradient_cannot_scale_or_shift_the_input():
    # With ε = 0 both leave the result as it is, so dx stands at right angles to them.
    x = normal(4, 8, seed=6)
    dx = layer_norm_backward(normal(4, 8, seed=7), x, eps=0.0)[0]
    close(dx.sum(-1), torch.zeros(4), atol=1e-14)
    close((dx * x).sum(-1), torch.zeros(4), atol=1e-14)


def test_one_feature_has_no_gradient():
    dx, dweight, dbias = layer_norm_backward(f64([[2.0]]), f64([[3.0]]), f64([5.0]))
    assert (dx.item(), dweight.item(), dbias.item()) == (0.0, 0.0, 2.0)


# Dtypes, layouts, compilation


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", DTYPES)
def test_dtypes(dtype, weights):
    x, weight, bias = inputs(4, 33)
    x, weight, bias = x.to(dtype), weight.to(weights), bias.to(weights)
    y = layer_norm(x, weight, bias)
    assert y.dtype == dtype
    exact = layer_norm(x.double(), weight.double(), bias.double())
    eps = torch.finfo(dtype).eps
    # Half precision is rounded once, at the end; the others by a few operations, at least in float32.
    close(y.double(), exact, atol=8 * max(1e-7, eps) if eps < 1e-3 else eps, rtol=eps)
    dx, dweight, _ = layer_norm_backward(torch.ones_like(x), x, weight)
    assert dx.dtype == dtype and dweight.dtype in (torch.float32, torch.float64)


def test_layouts_and_inputs():
    x, weight, bias = inputs(3, 4, 5)
    same(layer_norm(spread(x), spread(weight), spread(bias)), layer_norm(x, weight, bias))
    same(layer_norm_backward(spread(x), spread(x), weight)[0], layer_norm_backward(x, x, weight)[0])
    leaves_inputs_alone(layer_norm, x, weight, bias)
    leaves_inputs_alone(layer_norm_backward, x, x, weight)
    assert layer_norm(torch.zeros(0, 3)).shape == (0, 3)


def test_compiles():
    compiles(layer_norm, *inputs(3, 5))
    compiles(layer_norm_backward, normal(3, 5, seed=8), *inputs(3, 5)[:2])


def test_compiles_to_native_code():
    compiles_to_native_code(layer_norm, *inputs(3, 5))


# Bad input


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: layer_norm(torch.ones(2, dtype=torch.long)), TypeError, "x: dtype is torch.int64, must be floating"),
        (lambda: layer_norm(torch.tensor(1.0)), ValueError, r"x: shape is \(\), must be \(..., C\)"),
        (lambda: layer_norm(torch.ones(2, 0)), ValueError, r"x: shape is \(2, 0\)"),
        (lambda: layer_norm(torch.ones(2, 3), torch.ones(2)), ValueError, r"weight: shape is \(2,\), must be \(3,\)"),
        (lambda: layer_norm(torch.ones(2, 3), None, torch.ones(1, 3)), ValueError, r"bias: shape is \(1, 3\)"),
        (lambda: layer_norm(torch.ones(3), eps=-1e-5), ValueError, "eps: got -1e-05, must be 0 or more"),
        (lambda: layer_norm(torch.ones(3), eps=float("nan")), ValueError, "eps: got nan"),
        (lambda: layer_norm_backward(torch.ones(3), torch.ones(2, 3)), ValueError, r"grad: shape is \(3,\)"),
        (lambda: LayerNorm(0), ValueError, "hidden_size: got 0, must be at least 1"),
    ],
)
def test_what_it_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_cuda(dtype):
    x, weight, bias = (t.to("cuda", dtype) for t in inputs(4, 65))
    y = layer_norm(x, weight, bias)
    assert y.is_cuda
    exact = layer_norm(x.double().cpu(), weight.double().cpu(), bias.double().cpu())
    close(y.double().cpu(), exact, atol=4 * max(torch.finfo(dtype).eps, 1e-12), rtol=2 * torch.finfo(dtype).eps)
