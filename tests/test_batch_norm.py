"""lib.batch_norm: values, running statistics, training and evaluation, dtypes, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.batch_norm import BatchNorm, batch_norm_eval, batch_norm_train
from tests.checks import DTYPES, close, compiles, compiles_to_native_code, f64, leaves_inputs_alone, same, spread

few = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)
SHAPES = pytest.mark.parametrize("shape", [(6, 3), (2, 1), (4, 3, 5), (1, 2, 7), (2, 3, 4, 5)])


def normal(*shape: int, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    return shift + scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def inputs(*shape: int, seed: int = 0):
    """x, running mean and variance, weight and bias."""
    C = shape[1]
    x = normal(*shape, seed=seed, scale=3.0, shift=2.0)
    return (
        x,
        normal(C, seed=seed + 1),
        normal(C, seed=seed + 2).square() + 0.5,
        normal(C, seed=seed + 3),
        normal(C, seed=seed + 4),
    )


def torchs(shape):
    """torch's module for that many axes, in float64."""
    kind = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d}[len(shape)]
    return lambda **settings_: kind(shape[1], **settings_).double()


# Values, by hand


def test_three_rows():
    # Column 1: 1, 3, 5, mean 3, Σ of squares 8: biased 8/3, unbiased 4. From 0 and 1, a tenth of the way: .3 and 1.3.
    x = f64([[1, 2], [3, 6], [5, 10]])
    y, mean, var = batch_norm_train(x, torch.zeros(2).double(), torch.ones(2).double())
    close(y[:, 0], [-1.224742575001, 0, 1.224742575001], atol=1e-12)
    close(y[:, 1], [-1.224744297293, 0, 1.224744297293], atol=1e-12)
    close(mean, [0.3, 0.6], atol=1e-15)
    close(var, [1.3, 2.5], atol=1e-15)
    expected = [[0.613938252218, 0.885435973977], [2.368047544271, 3.415253042483], [4.122156836324, 5.945070110988]]
    close(batch_norm_eval(x, mean, var), expected, atol=1e-12)


def test_two_rows_and_a_constant_channel():
    # mlx issue 3817, pytorch issue 60528. The biased variance of 1, 3 is 1, the unbiased one 2.
    y, mean, var = batch_norm_train(f64([[1, 10], [3, 10]]), torch.zeros(2).double(), torch.ones(2).double())
    close(y, [[-0.999995, 0], [0.999995, 0]], atol=1e-9)
    close(mean, [0.2, 1.0], atol=1e-15)
    close(var, [1.1, 0.9], atol=1e-15)


# Properties


@few
@given(seeds, st.integers(2, 30))
def test_each_channel_has_mean_0_and_variance_1(seed, rows):
    x = normal(rows, 3, seed=seed, scale=4, shift=-3)
    y = batch_norm_train(x, torch.zeros(3).double(), torch.ones(3).double(), eps=0.0)[0]
    close(y.mean(0), torch.zeros(3), atol=1e-12)
    close(y.var(0, correction=0), torch.ones(3), atol=1e-12)


@few
@given(seeds)
def test_in_training_the_neighbours_count_in_evaluation_they_do_not(seed):
    x, mean, var, weight, bias = inputs(5, 3, seed=seed)
    other = torch.cat((x[:1], normal(4, 3, seed=seed ^ 1)))
    trained = [batch_norm_train(batch, mean, var)[0][0] for batch in (x, other)]
    assert (trained[0] - trained[1]).abs().max() > 1e-6
    same(*(batch_norm_eval(batch, mean, var, weight, bias)[0] for batch in (x, other)))
    same(batch_norm_eval(x[:1], mean, var, weight, bias)[0], batch_norm_eval(x, mean, var, weight, bias)[0])


@few
@given(seeds, st.integers(1, 6))
def test_running_statistics_of_all_batches_alike_are_their_means(seed, batches):
    module = BatchNorm(2, momentum=None).double()
    data = normal(batches, 4, 2, seed=seed, shift=3)
    for batch in data:
        module(batch)
    close(module.running_mean, data.mean((0, 1)), atol=1e-14)
    close(module.running_var, data.var(1).mean(0), atol=1e-14)
    assert module.num_batches_tracked == batches


# Equality with torch


@SHAPES
def test_training_equals_torch_with_gradients(shape):
    values = inputs(*shape)
    x, mean, var, weight, bias = values
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    ours, new_mean, new_var = batch_norm_train(leaves[0], mean, var, leaves[1], leaves[2], momentum=0.3)
    twins = [t.clone().requires_grad_() for t in (x, weight, bias)]
    running = mean.clone(), var.clone()
    theirs = F.batch_norm(twins[0], *running, twins[1], twins[2], training=True, momentum=0.3)
    close(ours, theirs, atol=2e-14)
    close(new_mean, running[0], atol=1e-15)
    close(new_var, running[1], atol=2e-14)
    assert not new_mean.requires_grad and not new_var.requires_grad
    weights = torch.arange(x.numel()).view(x.shape)
    for a, b in zip(
        torch.autograd.grad((ours * weights).sum(), leaves), torch.autograd.grad((theirs * weights).sum(), twins)
    ):
        close(a, b, atol=2e-13 * max(1.0, b.abs().max().item()))


@SHAPES
def test_evaluation_equals_torch(shape):
    x, mean, var, weight, bias = inputs(*shape)
    close(batch_norm_eval(x, mean, var, weight, bias), F.batch_norm(x, mean, var, weight, bias), atol=2e-14)
    close(batch_norm_eval(x, mean, var), F.batch_norm(x, mean, var), atol=2e-14)


@SHAPES
@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_the_module_follows_torchs_step_by_step(shape, momentum):
    theirs, ours = torchs(shape)(momentum=momentum), BatchNorm(shape[1], momentum=momentum).double()
    torch.nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    for seed in range(3):
        x = normal(*shape, seed=seed, shift=1)
        close(ours(x), theirs(x), atol=2e-14)
    for (name, a), (_, b) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        close(a, b, atol=0 if name == "num_batches_tracked" else 2e-14)
    before = {name: t.clone() for name, t in ours.state_dict().items()}
    ours.eval(), theirs.eval()
    x = normal(*shape, seed=9)[:1]
    close(ours(x), theirs(x), atol=2e-14)
    for name, t in ours.state_dict().items():
        same(t, before[name])


def test_gradients_by_finite_differences():
    x, mean, var, weight, bias = inputs(4, 2, 3)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    assert torch.autograd.gradcheck(lambda x, w, b: batch_norm_train(x, mean, var, w, b)[0], leaves)
    assert torch.autograd.gradcheck(lambda x, w, b: batch_norm_eval(x, mean, var, w, b), leaves)


# Dtypes, layouts, compilation


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("statistics", [torch.float32, torch.float64])
def test_dtypes(dtype, statistics):
    x, mean, var, weight, bias = inputs(20, 3, 4)
    x = x.to(dtype)
    mean, var, weight, bias = (t.to(statistics) for t in (mean, var, weight, bias))
    y, new_mean, new_var = batch_norm_train(x, mean, var, weight, bias)
    z = batch_norm_eval(x, mean, var, weight, bias)
    assert y.dtype == z.dtype == dtype and new_mean.dtype == new_var.dtype == statistics
    wide = [t.double() for t in (x, mean, var, weight, bias)]
    eps = torch.finfo(dtype).eps
    bound = {"atol": 8 * max(1e-7, eps) if eps < 1e-3 else eps, "rtol": eps if eps > 1e-8 else 1e-6}
    close(y.double(), batch_norm_train(*wide)[0], **bound)
    close(z.double(), batch_norm_eval(*wide), **bound)


def test_large_values_in_float16_do_not_overflow():
    x = torch.tensor([[0], [0], [0], [1200]], dtype=torch.float16)
    y, _, var = batch_norm_train(x, torch.zeros(1), torch.ones(1))
    close(y.double()[:, 0], [-0.577350, -0.577350, -0.577350, 1.732051], atol=5e-4)
    close(var, [0.9 + 0.1 * 360_000], atol=0.01)


def test_layouts_and_inputs():
    values = inputs(4, 3, 5)
    for function in (batch_norm_train, batch_norm_eval):
        leaves_inputs_alone(function, *values)
    same(batch_norm_eval(*map(spread, values)), batch_norm_eval(*values))
    for a, b in zip(batch_norm_train(*map(spread, values)), batch_norm_train(*values)):
        close(a, b, atol=1e-15)  # torch's mean may sum in another order


def test_compiles():
    compiles(lambda *args: batch_norm_train(*args)[0], *inputs(4, 3))
    compiles(batch_norm_eval, *inputs(4, 3))
    module = BatchNorm(3, momentum=None).double()
    torch.compile(module, fullgraph=True, backend="aot_eager")(normal(4, 3))
    assert module.num_batches_tracked == 1


def test_compiles_to_native_code():
    compiles_to_native_code(batch_norm_eval, *inputs(4, 3))


def _train(x, **settings_):
    C = x.shape[1] if x.ndim > 1 else 1
    return batch_norm_train(x, torch.zeros(C), torch.ones(C), **settings_)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: _train(torch.ones(1, 3)), ValueError, r"x: shape is \(1, 3\), 1 values per channel; training needs"),
        (lambda: _train(torch.ones(0, 3)), ValueError, "0 values per channel"),
        (lambda: _train(torch.ones(1, 3, 1, 1)), ValueError, "1 values per channel"),
        (lambda: _train(torch.ones(3)), ValueError, r"x: shape is \(3,\), must be \(N, C\)"),
        (lambda: _train(torch.ones(2, 3).long()), TypeError, "x: dtype is torch.int64"),
        (lambda: _train(torch.ones(2, 3), momentum=1.5), ValueError, "momentum: got 1.5, must be 0 to 1"),
        (lambda: _train(torch.ones(2, 3), eps=-1.0), ValueError, "eps: got -1.0"),
        (
            lambda: batch_norm_eval(torch.ones(2, 3), torch.zeros(2), torch.ones(3)),
            ValueError,
            "running_mean: shape is",
        ),
        (lambda: batch_norm_eval(torch.ones(2, 3), torch.zeros(3), torch.ones(1)), ValueError, "running_var: shape is"),
        (lambda: BatchNorm(0), ValueError, "num_features: got 0"),
        (lambda: BatchNorm(3, momentum=-0.1), ValueError, "momentum: got -0.1"),
    ],
)
def test_what_it_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_refused_batch_leaves_the_module_as_it_was():
    module = BatchNorm(3)
    before = {name: t.clone() for name, t in module.state_dict().items()}
    with pytest.raises(ValueError, match="1 values per channel"):
        module(torch.ones(1, 3))
    for name, t in module.state_dict().items():
        same(t, before[name])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_cuda(dtype):
    x, *others = inputs(16, 3, 4)
    x, others = x.to("cuda", dtype), [t.cuda() for t in others]
    exact = [t.cpu() for t in batch_norm_train(x.double(), *others)]
    for a, b in zip(batch_norm_train(x, *others), exact):
        assert a.is_cuda
        close(a.double().cpu(), b, atol=4 * max(torch.finfo(dtype).eps, 1e-12), rtol=2 * torch.finfo(dtype).eps)
