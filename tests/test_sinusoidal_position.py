"""lib.sinusoidal_position: frequencies, vectors in both layouts and spacings, the sum, and the shift."""

import math
import re

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.sinusoidal_position import (
    LAYOUTS,
    add_sinusoidal_positions,
    shift_matrix,
    sinusoidal_frequencies,
    sinusoidal_positions,
)
from tests.checks import DTYPES, close, compiles, compiles_to_native_code, f64, leaves_inputs_alone, same, spread

few = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)
BOTH = pytest.mark.parametrize("layout", LAYOUTS)
DOUBLE = {"dtype": torch.float64}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def vectors(positions, hidden_size, **settings_):
    return sinusoidal_positions(torch.as_tensor(positions), hidden_size, **DOUBLE | settings_)


# Frequencies, by hand


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"hidden_size": 1}, [1]),
        ({"hidden_size": 2}, [1]),
        ({"hidden_size": 4}, [1, 1e-2]),
        ({"hidden_size": 8}, [1, 1e-1, 1e-2, 1e-3]),
        ({"hidden_size": 5}, [1, 10**-1.6, 10**-3.2]),  # 10⁴ to the power −2i/5
        ({"hidden_size": 8, "base": 16.0}, [1, 1 / 2, 1 / 4, 1 / 8]),
        ({"hidden_size": 4, "endpoint": True}, [1, 1e-4]),
        ({"hidden_size": 10, "endpoint": True}, [1, 1e-1, 1e-2, 1e-3, 1e-4]),
        ({"hidden_size": 6, "base": 100.0, "endpoint": True}, [1, 1e-1, 1e-2]),
    ],
)
def test_frequencies(arguments, expected):
    frequencies = sinusoidal_frequencies(**arguments)
    assert frequencies.dtype == torch.float64
    close(frequencies, expected, atol=0, rtol=2e-15)


def test_frequencies_come_on_the_device_asked_for():
    assert sinusoidal_frequencies(8, device="meta").device.type == "meta"
    assert sinusoidal_positions(torch.arange(3, device="meta"), 8).device.type == "meta"


# Vectors, by hand


@pytest.mark.parametrize(
    ("hidden_size", "expected"),
    [
        (4, [[0, 1, 0, 1], [0.8414709848, 0.5403023059, 0.009999833334, 0.9999500004]]),
        (5, [[0, 1, 0, 1, 0], [0.8414709848, 0.5403023059, 0.02511622291, 0.9996845379, 0.0006309573026]]),
    ],
)
def test_sine_and_cosine_of_a_pair_share_one_frequency(hidden_size, expected):
    """Even and odd width, positions 0 and 1."""
    close(vectors([0, 1], hidden_size), expected, atol=1e-10)


@pytest.mark.parametrize(
    ("hidden_size", "expected"),
    [
        (6, [0.141120008060, -0.989992496600, 0.138798101080, 0.990320699136, 0.006463259070, 0.999979112923]),
        (5, [0.141120008060, -0.989992496600, 0.075285292999, 0.997162035307, 0.001892870903]),
        (1, [0.141120008060]),
    ],
)
def test_position_three(hidden_size, expected):
    """An odd width drops the last cosine and nothing else."""
    close(vectors([3], hidden_size), [expected], atol=1e-12)


def test_layout_half_has_the_sines_first():
    sin, cos = [math.sin(3), math.sin(0.03)], [math.cos(3), math.cos(0.03)]
    close(vectors([3], 4, layout="half"), [sin + cos], atol=1e-15)
    frequencies = [3 * 10**-1.6, 3 * 10**-3.2]
    sin, cos = [math.sin(3), *map(math.sin, frequencies)], [math.cos(3), math.cos(frequencies[0])]
    close(vectors([3], 5, layout="half"), [sin + cos], atol=1e-15)


def test_the_endpoint_reaches_one_over_base():
    close(vectors([5], 4, endpoint=True), [[math.sin(5), math.cos(5), math.sin(5e-4), math.cos(5e-4)]], atol=1e-15)


def test_rows_of_positions_and_any_order():
    rows = torch.tensor([[0, 1, 2], [7, 3, 100_000]])
    together = vectors(rows, 6)
    assert together.shape == (2, 3, 6)
    for row in range(2):
        for t in range(3):
            close(together[row, t], vectors(rows[row, t : t + 1], 6)[0], atol=1e-15)
    assert vectors(torch.tensor([], dtype=torch.long), 6).shape == (0, 6)
    assert vectors(torch.tensor(3), 6).shape == (6,)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_any_integers_are_positions(dtype):
    same(vectors(torch.tensor([0, 3, 200], dtype=dtype), 7), vectors([0, 3, 200], 7))


FAR = [511, 4999, 32767, 131071, 1048575]


def test_phases_are_exact_far_out():
    # A float32 table is off by 1.7e-4 below 5000. float64 rounds the frequency and the product by 2⁻⁵³ of the phase.
    with mpmath.workdps(40):
        phases = [[m * mpmath.mpf(10_000) ** (-mpmath.mpf(i) / 64) for i in range(64)] for m in FAR]
        exact = [[float(f(phase)) for phase in row for f in (mpmath.sin, mpmath.cos)] for row in phases]
    error = (vectors(FAR, 128) - f64(exact)).abs()
    assert (error <= 3e-16 * f64(FAR)[:, None]).all()


def test_a_float32_table_is_off_where_ours_is_not():
    """The usual lines, with float32 phases: 1.8e-5 off below position 512, 1.7e-4 below 5000."""
    m, frequencies = torch.arange(5000), torch.exp(torch.arange(0, 64, 2).float() * (-math.log(10_000.0) / 64))
    phases = m.float()[:, None] * frequencies
    error = (torch.stack((phases.sin(), phases.cos()), -1).flatten(-2) - vectors(m, 64)).abs()
    assert 1e-5 < error[:512].max() < 3e-5 and 1e-4 < error.max() < 3e-4
    same(sinusoidal_positions(m, 64), vectors(m, 64).float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_float64_vector_is_rounded_once(dtype):
    m = torch.arange(5000)
    same(sinusoidal_positions(m, 10, dtype=dtype), vectors(m, 10).to(dtype))
    assert sinusoidal_positions(m[:2], 10).dtype == torch.float32


def test_neighbours_far_out_differ_even_in_bfloat16():
    """Positions counted in bfloat16 collide above 256; vectors rounded to it do not."""
    assert torch.tensor(4000).bfloat16() == torch.tensor(4001).bfloat16()
    first, second = sinusoidal_positions(torch.tensor([4000, 4001]), 64, dtype=torch.bfloat16)
    assert (first - second).abs().max() > 0.5


# Properties


@few
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 16))
def test_the_dot_product_depends_on_the_distance_only(m, n, pairs):
    """Σ cos((m − n)·ωᵢ), at any place; C/2 at distance 0."""
    first, second = vectors([m, n], 2 * pairs)
    expected = ((m - n) * sinusoidal_frequencies(2 * pairs)).cos().sum()
    close(first @ second, expected, atol=1e-8)  # phases up to 1e6 are rounded by 1e-10, 32 products
    close(first @ first, float(pairs), atol=1e-12)


@few
@given(st.integers(0, 10**5), st.integers(-(10**5), 10**5), st.integers(1, 16), st.sampled_from([1e4, 5e5]))
def test_a_shift_is_the_same_matrix_everywhere(m, distance, pairs, base):
    matrix = shift_matrix(distance, sinusoidal_frequencies(2 * pairs, base=base))
    first, second = vectors([m, m + distance], 2 * pairs, base=base)
    close(matrix @ first, second, atol=1e-9)
    close(matrix @ matrix.T, torch.eye(2 * pairs), atol=1e-14)


def test_the_shift_by_hand():
    # One pair, a quarter turn: (sin, cos) → (cos, −sin).
    close(shift_matrix(1, f64([math.pi / 2])), [[0, 1], [-1, 0]], atol=1e-15)
    close(shift_matrix(0, sinusoidal_frequencies(4)), torch.eye(4), atol=0)
    blocks = shift_matrix(3, sinusoidal_frequencies(4))
    c, s = math.cos(0.03), math.sin(0.03)
    close(blocks[2:], [[0, 0, c, s], [0, 0, -s, c]], atol=1e-15)


@few
@given(st.integers(1, 33), st.sampled_from(LAYOUTS), st.sampled_from([None, 1, 4]))
def test_layouts_hold_the_same_numbers_and_lengths_are_bounded(hidden_size, layout, batch):
    positions = torch.arange(6) if batch is None else torch.arange(6).expand(batch, 6)
    made = vectors(positions, hidden_size, layout=layout)
    assert made.shape == (*positions.shape, hidden_size)
    assert made.abs().max() <= 1
    close(made.sort(-1).values, vectors(positions, hidden_size).sort(-1).values, atol=0)
    if hidden_size % 2 == 0:
        close(made.square().sum(-1), torch.full(positions.shape, hidden_size / 2), atol=1e-13)


def test_the_shift_needs_one_frequency_for_both():
    """With a frequency for each feature the dot product of neighbours depends on where they stand."""
    exponents = torch.arange(8, dtype=torch.float64) / 8
    phases = torch.arange(50, dtype=torch.float64)[:, None] * 10_000.0**-exponents
    each = torch.where(torch.arange(8) % 2 == 0, phases.sin(), phases.cos())
    ours = vectors(torch.arange(50), 8)
    for table, varies in ((ours, False), (each, True)):
        neighbours = (table[1:] * table[:-1]).sum(-1)
        assert ((neighbours.max() - neighbours.min()) > 0.1) == varies


def test_every_position_of_a_long_context_has_its_own_vector():
    table = sinusoidal_positions(torch.arange(10_000), 64)
    assert len(table.unique(dim=0)) == 10_000


@few
@given(seeds, st.integers(0, 6), st.integers(0, 6), st.sampled_from(LAYOUTS), st.sampled_from([3, 4]))
def test_any_chunking_gives_the_whole_sequence(seed, first, second, layout, hidden_size):
    x = normal(2, first + second + 1, hidden_size, seed=seed)
    parts = [x[:, :first], x[:, first : first + second], x[:, first + second :]]
    offsets = [0, first, torch.tensor([first + second] * 2)]
    pieces = [add_sinusoidal_positions(p, offset=o, layout=layout) for p, o in zip(parts, offsets)]
    close(torch.cat(pieces, 1), add_sinusoidal_positions(x, layout=layout), atol=1e-15)


def test_the_sum_is_the_vectors_on_top():
    x = normal(2, 3, 5)
    close(add_sinusoidal_positions(x), x + vectors([0, 1, 2], 5), atol=0)
    close(add_sinusoidal_positions(x, offset=7, base=100.0), x + vectors([7, 8, 9], 5, base=100.0), atol=0)
    rows = torch.tensor([[0, 0, 1], [4, 5, 6]])
    close(add_sinusoidal_positions(x, positions=rows), x + vectors(rows, 5), atol=0)
    close(add_sinusoidal_positions(x[0]), x[0] + vectors([0, 1, 2], 5), atol=0)


# Trusted implementations: all of them make float32 tables


@pytest.fixture(scope="module")
def models():
    return pytest.importorskip("transformers").models


@pytest.mark.parametrize("hidden_size", [8, 5, 1])
def test_equals_the_papers_formula_term_by_term(hidden_size):
    table = [
        [
            (np.sin if j % 2 == 0 else np.cos)(m / np.power(10_000.0, (j - j % 2) / hidden_size))
            for j in range(hidden_size)
        ]
        for m in range(300)
    ]
    close(vectors(torch.arange(300), hidden_size), f64(np.array(table)), atol=2e-13)  # 1/base^x against base^−x


@pytest.mark.parametrize("hidden_size", [8, 64, 5])
def test_equals_distilberts_table(models, hidden_size):
    table = torch.empty(512, hidden_size)
    models.distilbert.modeling_distilbert.create_sinusoidal_embeddings(512, hidden_size, table)
    close(sinusoidal_positions(torch.arange(512), hidden_size), table, atol=6e-8)  # half a unit in the last place


@pytest.mark.parametrize("hidden_size", [8, 64, 5])
def test_equals_marians_table_in_layout_half(models, hidden_size):
    module = models.marian.modeling_marian.MarianSinusoidalPositionalEmbedding(512, hidden_size)
    ours = sinusoidal_positions(torch.arange(512), hidden_size, layout="half")
    close(ours, module.create_weight(), atol=6e-8)


def test_equals_whispers_table_in_layout_half_with_endpoint(models):
    theirs = models.whisper.modeling_whisper.sinusoids(1500, 64)
    ours = sinusoidal_positions(torch.arange(1500), 64, layout="half", endpoint=True)
    close(ours[:8], theirs[:8], atol=1e-6)  # its phases are float32: up to 1500 · 1.2e-7 further out
    close(ours, theirs, atol=2e-4)


def test_equals_m2m_100s_table(models):
    make = models.m2m_100.modeling_m2m_100.M2M100SinusoidalPositionalEmbedding.get_embedding
    ours = sinusoidal_positions(torch.arange(512), 64, layout="half", endpoint=True)
    close(ours, make(512, 64), atol=7e-5)


def test_equals_marians_offset(models):
    module = models.marian.modeling_marian.MarianSinusoidalPositionalEmbedding(64, 8)
    with torch.no_grad():
        module.weight.copy_(module.create_weight())
    x = normal(2, 3, 8).float()
    theirs = x + module(x.shape, cache_length=10)
    close(add_sinusoidal_positions(x, offset=10, layout="half"), theirs, atol=3e-7)


# Gradients


@BOTH
def test_the_gradient_passes_unchanged(layout):
    x, upstream = normal(2, 3, 5).requires_grad_(), normal(2, 3, 5, seed=1)
    out = add_sinusoidal_positions(x, offset=2, layout=layout)
    same(torch.autograd.grad(out, x, upstream)[0], upstream)
    torch.autograd.gradcheck(lambda x: add_sinusoidal_positions(x, layout=layout), (x,))
    frequencies = normal(3, seed=2).requires_grad_()
    torch.autograd.gradcheck(lambda f: shift_matrix(3, f), (frequencies,))


# Dtypes, memory, compilation


@BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_summed_in_float32_or_better_and_returned_in_the_dtype_of_x(layout, dtype):
    x = normal(2, 4, 6).to(dtype)
    total = add_sinusoidal_positions(x, offset=4000, layout=layout)
    assert total.dtype == dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    same(total, (x.to(wide) + vectors(torch.arange(4000, 4004), 6, layout=layout).to(wide)).to(dtype))


def test_memory_layout_does_not_matter_and_inputs_stay():
    x, positions = normal(2, 3, 6), torch.tensor([[0, 5, 2], [9, 9, 9]])
    leaves_inputs_alone(add_sinusoidal_positions, x, positions=positions)
    leaves_inputs_alone(sinusoidal_positions, positions, 6)
    leaves_inputs_alone(shift_matrix, 3, sinusoidal_frequencies(6))
    expected = add_sinusoidal_positions(x, positions=positions)
    same(add_sinusoidal_positions(spread(x), positions=spread(positions)), expected)
    same(sinusoidal_positions(positions.T, 6).transpose(0, 1), sinusoidal_positions(positions, 6))


def calls():
    x, positions = normal(2, 3, 6), torch.tensor([[0, 5, 2], [9, 9, 9]])
    return {
        "sinusoidal_frequencies": (sinusoidal_frequencies, (7,), {}),
        "interleaved": (sinusoidal_positions, (positions, 7), {**DOUBLE}),
        "half, endpoint": (sinusoidal_positions, (positions, 8), {"layout": "half", "endpoint": True, **DOUBLE}),
        "sum": (add_sinusoidal_positions, (x,), {}),
        "sum, offset": (add_sinusoidal_positions, (x,), {"offset": 5}),
        "sum, positions": (lambda x, p: add_sinusoidal_positions(x, positions=p), (x, positions), {}),
        "shift_matrix": (lambda f: shift_matrix(3, f), (sinusoidal_frequencies(6),), {}),
    }


@pytest.mark.parametrize("name", calls())
def test_compiles_to_one_graph(name):
    function, args, settings_ = calls()[name]
    compiles(function, *args, **settings_)


def test_compiles_to_native_code():
    function, args, settings_ = calls()["sum, positions"]
    compiles_to_native_code(function, *args, **settings_)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in calls() if name != "sinusoidal_frequencies"])
def test_cuda_equals_cpu(name):
    function, args, settings_ = calls()[name]
    ours = function(*[x.cuda() if isinstance(x, torch.Tensor) else x for x in args], **settings_)
    assert ours.device.type == "cuda"
    close(ours.cpu(), function(*args, **settings_), atol=1e-14)


# Checks of arguments: the message names the argument and the value


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_below_one_is_refused(size):
    with pytest.raises(ValueError, match=rf"^hidden_size: got {size}"):
        vectors([0], size)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_endpoint_needs_an_even_size_from_four(size):
    with pytest.raises(ValueError, match=rf"^hidden_size: got {size}.*endpoint"):
        vectors([0], size, endpoint=True)


@pytest.mark.parametrize("base", [1.0, 0.5, -10_000.0])
def test_a_base_of_at_most_one_is_refused(base):
    with pytest.raises(ValueError, match=rf"^base: got {re.escape(str(base))}"):
        vectors([0], 4, base=base)


@pytest.mark.parametrize("layout", ["Half", "sin", None])
def test_an_unknown_layout_is_refused(layout):
    with pytest.raises(ValueError, match=rf"^layout: got {layout!r}.*'interleaved', 'half'"):
        vectors([0], 4, layout=layout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_positions_are_integers(dtype):
    with pytest.raises(TypeError, match=rf"^positions: .*{dtype}"):
        vectors(torch.ones(3, dtype=dtype), 4)


def test_token_ids_are_not_embeddings():
    with pytest.raises(TypeError, match=r"^x: .*int64"):
        add_sinusoidal_positions(torch.tensor([[3, 1, 4]]))
    with pytest.raises(ValueError, match=r"^x: shape is \(6,\)"):
        add_sinusoidal_positions(torch.zeros(6))


def test_other_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"^vectors: .*\(7, 4\).*\(2, 1, 4\)"):  # one token, seven positions
        add_sinusoidal_positions(torch.zeros(2, 1, 4), positions=torch.arange(7))
    with pytest.raises(ValueError, match=r"^offset: got 2 beside positions"):
        add_sinusoidal_positions(torch.zeros(1, 1, 4), offset=2, positions=torch.tensor([2]))
    with pytest.raises(ValueError, match=r"^offset: got -2"):
        add_sinusoidal_positions(torch.zeros(1, 1, 4), offset=-2)
    with pytest.raises(ValueError, match=r"^frequencies: shape is \(1, 2\)"):
        shift_matrix(1, sinusoidal_frequencies(4)[None])
