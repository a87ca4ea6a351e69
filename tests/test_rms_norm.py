"""lib.rms_norm: values, the three conventions, gradients by hand, dtypes, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from lib.layer_norm import layer_norm
from lib.rms_norm import RMSNorm, rms_norm, rms_norm_backward
from tests.checks import DTYPES, close, compiles, compiles_to_native_code, f64, leaves_inputs_alone, same, spread

few = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)
SHAPES = pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 1), (4, 1, 2, 6)])
BFLOAT16 = torch.bfloat16


def normal(*shape: int, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    return shift + scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(*shape: int, seed: int = 0):
    return normal(*shape, seed=seed, scale=3.0, shift=2.0), normal(shape[-1], seed=seed + 1)


# Values, by hand


def test_four_numbers():
    # Squares 1, 4, 4, 16: the mean is 6.25, its root 2.5. The mean of x, 2.25, is not subtracted.
    close(rms_norm(f64([1, 2, 2, 4]), eps=0.0), [0.4, 0.8, 0.8, 1.6], atol=1e-15)
    # With ε = 2.75 the root is 3.
    close(rms_norm(f64([1, 2, 2, 4]), f64([3, 3, -3, 1.5]), eps=2.75), [1, 2, -2, 2], atol=1e-15)


def test_eps_matters_where_the_values_are_small():
    # torch's default for RMSNorm is the dtype's epsilon; Llama's 1e-6 is 30 % away here.
    x = torch.full((4,), 0.001, dtype=torch.float64)
    close(rms_norm(x, eps=1e-6), [0.707106781187] * 4, atol=1e-12)
    close(rms_norm(x, eps=torch.finfo(torch.float64).eps), [0.999999999889] * 4, atol=1e-12)
    close(F.rms_norm(x, (4,)), [0.999999999889] * 4, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "expected"),
    [([300, -300, 300, 300], [1, -1, 1, 1]), ([1, 2, 2, 4], [0.4, 0.8, 0.8, 1.6]), ([60_000] * 3, [1, 1, 1])],
)
def test_squares_beyond_float16(x, expected):
    # Squared in float16, 300 is ∞ and the whole row 0: pytorch issue 133085.
    x = torch.tensor(x, dtype=torch.float16)
    close(rms_norm(x).double(), expected, atol=5e-4)


def test_a_float32_weight_does_not_widen_a_bfloat16_stream():
    # transformers issue 30236. Exact 26.9 lies between bfloat16's 26.875 and 27.
    x, weight = torch.tensor([1, 2, 2, 4], dtype=BFLOAT16), torch.tensor([1, 0.5, 2, 16.8125])
    for round_first in (False, True):
        y = rms_norm(x, weight, round_first=round_first)
        assert y.dtype == BFLOAT16
        close(y.double(), [0.400390625, 0.400390625, 1.6015625, 26.875], atol=0.01, rtol=0.012)
    assert LlamaRMSNorm(4)(x).dtype == torch.float32  # its weight is float32


# Properties


@few
@given(seeds, st.integers(1, 40))
def test_the_result_has_length_root_c(seed, size):
    close(
        rms_norm(normal(5, size, seed=seed), eps=0.0).norm(dim=-1),
        torch.full((5,), size**0.5, dtype=torch.float64),
        atol=1e-13,
    )


@few
@given(seeds, st.floats(0.01, 100))
def test_the_scale_of_the_input_cancels_and_its_shift_does_not(seed, scale):
    x = normal(3, 9, seed=seed)
    close(rms_norm(scale * x, eps=0.0), rms_norm(x, eps=0.0), atol=1e-13)
    assert (rms_norm(x + 1, eps=0.0) - rms_norm(x, eps=0.0)).abs().max() > 0.01


@few
@given(seeds)
def test_without_a_mean_it_is_layer_norm(seed):
    x = normal(3, 9, seed=seed)
    centred = x - x.mean(-1, keepdim=True)
    close(rms_norm(centred, eps=1e-5), layer_norm(x), atol=1e-14)


# Equality with torch, Llama and Gemma


@SHAPES
@pytest.mark.parametrize("weighted", [True, False])
def test_equals_torch(shape, weighted):
    x, weight = (t.requires_grad_() for t in inputs(*shape))
    given_ = (x, weight) if weighted else (x,)
    results = []
    for function in (rms_norm, lambda x, w=None, eps=0: F.rms_norm(x, shape[-1:], w, eps)):
        y = function(*given_, eps=1e-6)
        results.append([y, *torch.autograd.grad((y * torch.arange(y.numel()).view(y.shape)).sum(), given_)])
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs, atol=2e-14 * max(1.0, theirs.abs().max().item()))


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16, torch.float16])
def test_equals_llama(dtype):
    theirs = LlamaRMSNorm(64, eps=1e-5)
    torch.nn.init.normal_(theirs.weight)
    ours = RMSNorm(64, eps=1e-5, round_first=True)
    ours.load_state_dict(theirs.state_dict())
    x = normal(50, 64, scale=3).to(dtype)
    same(ours.to(dtype)(x), theirs.to(dtype)(x))


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16, torch.float16])
def test_equals_gemma(dtype):
    theirs = GemmaRMSNorm(64, eps=1e-6)
    torch.nn.init.normal_(theirs.weight)
    ours = RMSNorm(64, weight_offset=1.0)
    ours.load_state_dict(theirs.state_dict())
    x = normal(50, 64, scale=3).to(dtype)
    same(ours.to(dtype)(x), theirs.to(dtype)(x))


def test_gemmas_weight_plus_one_is_added_in_float32():
    # In bfloat16, 1 + 15.8125 is 16.75, not 16.8125.
    weight, x = torch.tensor([15.8125], dtype=BFLOAT16), torch.ones(1, dtype=torch.float32)
    assert (1 + weight).item() == 16.75
    close(rms_norm(x, weight, eps=0.0, weight_offset=1.0), [16.8125], atol=0)


def test_the_order_of_rounding_shows_in_bfloat16():
    x, weight = normal(200, 64).to(BFLOAT16), normal(64, seed=1).to(BFLOAT16)
    exact = rms_norm(x.double(), weight.double())
    torchs, llamas = (rms_norm(x, weight, round_first=order) for order in (False, True))
    assert (torchs != llamas).double().mean() > 0.1
    errors = [((y.double() - exact) / exact).abs().max().item() for y in (torchs, llamas)]
    assert errors[0] <= 2**-8 * 1.001 < errors[1] < 2**-7  # one rounding, two roundings


def test_modules_begin_with_scale_1():
    x = normal(3, 4).float()
    for module in (RMSNorm(4), RMSNorm(4, weight_offset=1.0)):
        same(module(x), rms_norm(x))


# The backward pass by hand


class ByHand(torch.autograd.Function):
    """`rms_norm` whose backward is `rms_norm_backward`, for gradcheck."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return rms_norm(x, weight)

    @staticmethod
    def backward(ctx, grad):
        return rms_norm_backward(grad, *ctx.saved_tensors)


def test_backward_by_finite_differences():
    leaves = [t.requires_grad_() for t in inputs(3, 5, seed=4)]
    assert torch.autograd.gradcheck(ByHand.apply, leaves)


@SHAPES
@pytest.mark.parametrize("settings_", [{}, {"weight_offset": 1.0}, {"eps": 0.5}])
def test_backward_equals_autograd(shape, settings_):
    x, weight = (t.requires_grad_() for t in inputs(*shape, seed=5))
    grad = normal(*shape, seed=9)
    theirs = torch.autograd.grad(rms_norm(x, weight, **settings_), (x, weight), grad)
    for a, b in zip(rms_norm_backward(grad, x, weight, **settings_), theirs, strict=True):
        close(a, b, atol=2e-14 * max(1.0, b.abs().max().item()))
    plain = torch.autograd.grad(F.rms_norm(x, shape[-1:], None, 1e-6), x, grad)[0]
    close(rms_norm_backward(grad, x)[0], plain, atol=2e-14)


def test_the_gradient_cannot_scale_the_input():
    x = normal(4, 8, seed=6)
    dx = rms_norm_backward(normal(4, 8, seed=7), x, eps=0.0)[0]
    close((dx * x).sum(-1), torch.zeros(4), atol=1e-14)
    assert dx.sum(-1).abs().max() > 0.01


# Dtypes, layouts, compilation


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weights", DTYPES)
def test_dtypes(dtype, weights):
    x, weight = inputs(4, 33)
    x, weight = x.to(dtype), weight.to(weights)
    y = rms_norm(x, weight)
    assert y.dtype == rms_norm(x, weight, round_first=True).dtype == dtype
    eps = torch.finfo(dtype).eps
    close(y.double(), rms_norm(x.double(), weight.double()), atol=8 * max(1e-7, eps) if eps < 1e-3 else eps, rtol=eps)
    dx, dweight = rms_norm_backward(torch.ones_like(x), x, weight)
    assert dx.dtype == dtype and dweight.dtype in (torch.float32, torch.float64)


def test_layouts_and_inputs():
    x, weight = inputs(3, 4, 5)
    same(rms_norm(spread(x), spread(weight)), rms_norm(x, weight))
    same(rms_norm_backward(spread(x), spread(x), weight)[0], rms_norm_backward(x, x, weight)[0])
    leaves_inputs_alone(rms_norm, x, weight)
    leaves_inputs_alone(rms_norm_backward, x, x, weight)


def test_compiles():
    compiles(rms_norm, *inputs(3, 5))
    compiles(rms_norm_backward, normal(3, 5, seed=8), *inputs(3, 5))


def test_compiles_to_native_code():
    compiles_to_native_code(rms_norm, *inputs(3, 5))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rms_norm(torch.ones(2, dtype=torch.long)), TypeError, "x: dtype is torch.int64"),
        (lambda: rms_norm(torch.tensor(1.0)), ValueError, r"x: shape is \(\)"),
        (lambda: rms_norm(torch.ones(2, 3), torch.ones(2)), ValueError, r"weight: shape is \(2,\), must be \(3,\)"),
        (lambda: rms_norm(torch.ones(3), torch.ones(3).long()), TypeError, "weight: dtype is torch.int64"),
        (lambda: rms_norm(torch.ones(3), eps=-1.0), ValueError, "eps: got -1.0, must be 0 or more"),
        (lambda: rms_norm_backward(torch.ones(2, 4), torch.ones(2, 3)), ValueError, r"grad: shape is \(2, 4\)"),
        (lambda: RMSNorm(0), ValueError, "hidden_size: got 0"),
    ],
)
def test_what_it_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_cuda(dtype):
    x, weight = (t.to("cuda", dtype) for t in inputs(4, 65))
    y = rms_norm(x, weight)
    assert y.is_cuda
    exact = rms_norm(x.double().cpu(), weight.double().cpu())
    close(y.double().cpu(), exact, atol=4 * max(torch.finfo(dtype).eps, 1e-12), rtol=2 * torch.finfo(dtype).eps)
