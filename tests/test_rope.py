"""lib.rope: frequencies, angles, the rotation in both layouts, and the way from one layout to the other."""

import math
import re

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.rope import (
    LAYOUTS,
    apply_rope,
    half_to_interleaved,
    interleaved_to_half,
    rope_angles,
    rope_frequencies,
    rotate_half,
    rotate_interleaved,
)
from tests.checks import DTYPES, close, compiles, compiles_to_native_code, f64, leaves_inputs_alone, same, spread

BOTH = pytest.mark.parametrize("layout", LAYOUTS)
PI = math.pi


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rope(x, positions, layout="half", **settings_):
    """x (..., T, D) at the given positions."""
    return apply_rope(
        x, *rope_angles(torch.as_tensor(positions), rope_frequencies(x.shape[-1], **settings_)), layout=layout
    )


seeds = st.integers(0, 2**32 - 1)
positions_ = st.integers(0, 100_000)
few = settings(max_examples=30)


# Frequencies, by hand


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"head_dim": 2}, [1]),
        ({"head_dim": 4}, [1, 1e-2]),  # 10⁴ to the power −2/4. With i running over even numbers it would be 10⁻⁴
        ({"head_dim": 8}, [1, 1e-1, 1e-2, 1e-3]),
        ({"head_dim": 8, "base": 16.0}, [1, 1 / 2, 1 / 4, 1 / 8]),
        ({"head_dim": 4, "base": 500_000.0}, [1, 1 / math.sqrt(500_000)]),
        ({"head_dim": 8, "rotary_dim": 4}, [1, 1e-2]),  # the exponent's D is the number of rotated features
        ({"head_dim": 8, "rotary_dim": 8}, [1, 1e-1, 1e-2, 1e-3]),
    ],
)
def test_frequencies(arguments, expected):
    frequencies = rope_frequencies(**arguments)
    assert frequencies.dtype == torch.float64
    close(frequencies, expected, atol=0, rtol=1e-15)


def test_frequencies_come_on_the_device_asked_for():
    assert rope_frequencies(8, device="meta").device.type == "meta"
    assert rope_frequencies(8, device=torch.device("cpu")).device.type == "cpu"


@pytest.mark.parametrize("base", [1e4, 5e5, 1e6])
def test_frequencies_to_the_last_digits(base):
    with mpmath.workdps(40):
        exact = [float(mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / 128)) for i in range(64)]
    close(rope_frequencies(128, base=base), exact, atol=0, rtol=4e-16)


# Angles, by hand


def test_angles_of_sixty_degrees():
    cos, sin = rope_angles(torch.arange(4), f64([PI / 3]))
    root = math.sqrt(3) / 2
    close(cos, [[1], [1 / 2], [-1 / 2], [-1]], atol=1e-15)
    close(sin, [[0], [root], [root], [0]], atol=1e-15)


def test_each_position_is_multiplied_by_each_frequency():
    cos, sin = rope_angles(torch.tensor([0, 1, 2]), f64([PI / 2, PI]))
    close(cos, [[1, 1], [0, -1], [-1, 1]], atol=1e-15)
    close(sin, [[0, 0], [1, 0], [0, 0]], atol=1e-15)


def test_angles_of_rows_of_positions():
    frequencies = rope_frequencies(6)
    rows = torch.tensor([[0, 1, 2], [7, 3, 100]])
    cos, sin = rope_angles(rows, frequencies)
    assert cos.shape == sin.shape == (2, 3, 3)
    for row in range(2):
        alone = rope_angles(rows[row], frequencies)
        close(cos[row], alone[0], atol=1e-15)
        close(sin[row], alone[1], atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_any_integers_are_positions(dtype):
    positions, frequencies = [0, 3, 200], rope_frequencies(8)
    cos, sin = rope_angles(torch.tensor(positions, dtype=dtype), frequencies)
    assert cos.dtype == sin.dtype == torch.float64
    close(cos[:, 0], [math.cos(m) for m in positions], atol=1e-15)
    close(sin[:, 1], [math.sin(m / 10) for m in positions], atol=1e-14)


FAR = [2047, 8191, 32767, 131071, 1048575, 2**24 + 1]


def test_phases_are_exact_far_out():
    # Errata N10: a float32 table is off by 7.7e-3 at 131071 and 6.2e-2 at 1048575. float64 rounds the frequency and the
    # product by 2⁻⁵³ of the phase each, which is 3e-10 at 1048575.
    cos, sin = rope_angles(torch.tensor(FAR), rope_frequencies(128))
    with mpmath.workdps(40):
        phases = [[m * mpmath.mpf(10_000) ** (-mpmath.mpf(i) / 64) for i in range(64)] for m in FAR]
        for actual, exact in ((cos, mpmath.cos), (sin, mpmath.sin)):
            error = (actual - f64([[float(exact(phase)) for phase in row] for row in phases])).abs()
            assert (error <= 3e-16 * f64(FAR).unsqueeze(-1)).all()


def test_float32_frequencies_keep_exact_phases():
    # The frequencies of a checkpoint are taken as they are; the product must not be rounded to float32 again.
    frequencies = rope_frequencies(8).float()
    for actual, expected in zip(
        rope_angles(torch.tensor(FAR), frequencies), rope_angles(torch.tensor(FAR), frequencies.double()), strict=True
    ):
        same(actual, expected)


def test_neighbours_far_out_differ_even_in_bfloat16():
    # Errata N11: a bfloat16 position table has equal rows at 4000 and 4001.
    exact = [-0.729946959549, 0.180756585148]
    cos, _ = rope_angles(torch.tensor([4000, 4001]), rope_frequencies(128))
    close(cos[:, 0], exact, atol=1e-12)
    cos, sin = rope_angles(torch.tensor([4000, 4001]), rope_frequencies(128), dtype=torch.bfloat16)
    assert cos.dtype == sin.dtype == torch.bfloat16
    same(cos[:, 0], f64(exact).bfloat16())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_table_is_the_float64_one_rounded_once(dtype):
    wide = rope_angles(torch.arange(5000), rope_frequencies(16))
    for narrow, exact in zip(rope_angles(torch.arange(5000), rope_frequencies(16), dtype=dtype), wide, strict=True):
        same(narrow, exact.to(dtype))


# Rotation, by hand


def test_quarter_and_half_turns():
    # The first frequency turns by 90°: (a, b) → (−b, a). The second by 180°: (a, b) → (−a, −b).
    x, angles = f64([[1, 2, 3, 4]]), rope_angles(torch.tensor([1]), f64([PI / 2, PI]))
    close(apply_rope(x, *angles, layout="half"), [[-3, -2, 1, -4]], atol=1e-15)  # pairs (1, 3) and (2, 4)
    close(apply_rope(x, *angles, layout="interleaved"), [[-2, 1, -3, -4]], atol=1e-15)  # pairs (1, 2) and (3, 4)
    same(apply_rope(x, *angles), apply_rope(x, *angles, layout="half"))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("interleaved", [-1.142639663748, 1.922075596544, 2.959850667913, 4.029799501669]),
        ("half", [-1.984110648556, 1.959900667497, 2.462377902412, 4.019799668335]),
    ],
)
def test_one_two_three_four_at_position_one(layout, expected):
    # Errata R20 and R22, case 35. By hand: pairs turn by 1 and by 0.01 radians, e.g. half: cos 1 − 3 sin 1.
    close(rope(f64([[1, 2, 3, 4]]), [1], layout), [expected], atol=1e-12)
    close(rope(f64([[1, 2, 3, 4]]), [0], layout), [[1, 2, 3, 4]], atol=0)


def test_interpolated_angles_of_position_three():
    # Errata R04: linear scaling by 2 turns position 3 by 1.5 and 0.015.
    cos, sin = rope_angles(torch.tensor([3]), rope_frequencies(4) / 2)
    close(cos, [[0.070737201668, 0.999887502109]], atol=1e-12)
    close(sin, [[0.997494986604, 0.014999437506]], atol=1e-12)
    close(
        apply_rope(f64([[1, 2, 3, 4]]), cos, sin),
        [[-2.921747758144, 1.939777254193, 1.209706591607, 4.029548883450]],
        atol=1e-12,
    )


@pytest.mark.parametrize(("layout", "partner"), [("half", 3), ("interleaved", 1)])
def test_the_first_frequency_turns_feature_0_towards_its_partner(layout, partner):
    # Errata I06: in layout half the fastest pair is (0, D/2), not (0, 1).
    expected = torch.zeros(1, 6, dtype=torch.float64)
    expected[0, 0], expected[0, partner] = math.cos(1), math.sin(1)
    close(rope(f64([[1, 0, 0, 0, 0, 0]]), [1], layout), expected, atol=1e-15)


def test_partial_rotary_leaves_the_rest():
    # Case 36: four of six features turn, at position 2 by 2 and 0.02: 1 cos 2 − 3 sin 2 = −3.144039117.
    expected = [[-3.144039117, 1.919605347, -0.3391430828, 4.03919736, 5, 6]]
    close(rope(f64([[1, 2, 3, 4, 5, 6]]), [2], rotary_dim=4), expected, atol=1e-9)
    # Interleaved: 1 cos 2 − 2 sin 2 and 2 cos 2 + 1 sin 2.
    turned = rope(f64([[1, 2, 3, 4, 5, 6]]), [2], "interleaved", rotary_dim=4)[0]
    close(turned[:2], [math.cos(2) - 2 * math.sin(2), 2 * math.cos(2) + math.sin(2)], atol=1e-15)
    close(turned[2:4], [3 * math.cos(0.02) - 4 * math.sin(0.02), 4 * math.cos(0.02) + 3 * math.sin(0.02)], atol=1e-15)
    same(turned[4:], f64([5, 6]))


def test_the_quarter_turn_of_halves():
    same(rotate_half(f64([1, 2, 3, 4, 5, 6])), f64([-4, -5, -6, 1, 2, 3]))
    same(rotate_half(f64([[1, 2], [3, 4]])), f64([[-2, 1], [-4, 3]]))


def test_the_complex_product():
    # (1 + 2j)(3 + 4j) = −5 + 10j; (5 + 6j)·j = −6 + 5j.
    same(rotate_interleaved(f64([[1, 2, 5, 6]]), f64([[3, 0]]), f64([[4, 1]])), f64([[-5, 10, -6, 5]]))


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2, 3])
@BOTH
def test_each_row_has_its_own_positions_and_all_heads_share_them(batch, heads, layout):
    # Errata R22 and M15: with B = H, head h must not turn by the positions of row h; no axis may appear.
    x = normal(batch, heads, 4, 6)
    positions = torch.tensor([[0, 1, 2, 3], [5, 6, 7, 8], [0, 0, 1, 2]])[:batch]
    cos, sin = rope_angles(positions, rope_frequencies(6))
    turned = apply_rope(x, cos, sin, layout=layout)
    assert turned.shape == x.shape
    for b in range(batch):
        for h in range(heads):
            # Another shape may take another path through the vector unit: one rounding of numbers up to 4.
            close(turned[b, h], apply_rope(x[b, h], cos[b], sin[b], layout=layout), atol=2e-15)


@BOTH
def test_a_cached_decode_step_equals_its_row_of_the_whole_sequence(layout):
    # Errata M14: one token at position 5 needs row 5, not the first row and not all seven.
    x = normal(2, 3, 7, 8)
    close(rope(x[:, :, 5:6], [5], layout), rope(x, torch.arange(7), layout)[:, :, 5:6], atol=2e-15)
    with pytest.raises(ValueError, match=r"^cos: .*\(7, 4\)"):
        apply_rope(x[:, :, :1], *rope_angles(torch.arange(7), rope_frequencies(8)), layout=layout)


# Properties


@few
@given(seeds, st.integers(1, 8), positions_, st.sampled_from(LAYOUTS))
def test_the_length_of_each_pair_is_kept(seed, pairs, position, layout):
    x = normal(1, 2 * pairs, seed=seed)
    turned = rope(x, [position], layout)
    axis, shape = (-1, (pairs, 2)) if layout == "interleaved" else (-2, (2, pairs))
    close(turned.view(shape).norm(dim=axis), x.view(shape).norm(dim=axis), atol=1e-14)


@few
@given(seeds, st.integers(1, 8), st.integers(0, 4000), st.integers(0, 4000), positions_, st.sampled_from(LAYOUTS))
def test_the_dot_product_depends_on_the_distance_only(seed, pairs, m, n, shift, layout):
    query, key = normal(2, 1, 2 * pairs, seed=seed)

    def score(m, n):
        return (rope(query, [m], layout) * rope(key, [n], layout)).sum()

    # Sixteen products of normal numbers, phases up to 1e5 rounded by 1e-11.
    close(score(m + shift, n + shift), score(m, n), atol=1e-9)


@few
@given(st.integers(0, 4000), st.integers(0, 4000))
def test_the_dot_product_turns_the_key_by_its_position_less_the_querys(m, n):
    # D = 2: a unit vector at position p points at angle p. Key at right angles to the query: sin m cos n − cos m sin n
    # with a minus, the sine of n − m with a minus.
    for layout in LAYOUTS:
        query, same_way, across = (rope(f64([v]), [p], layout)[0] for v, p in (([1, 0], m), ([1, 0], n), ([0, 1], n)))
        close(query @ same_way, math.cos(n - m), atol=1e-11)
        close(query @ across, -math.sin(n - m), atol=1e-11)


@few
@given(seeds, positions_, positions_, st.sampled_from(LAYOUTS), st.sampled_from([None, 2, 6]))
def test_rotations_add_up_and_undo_each_other(seed, m, n, layout, rotary_dim):
    x = normal(1, 8, seed=seed)
    twice = rope(rope(x, [m], layout, rotary_dim=rotary_dim), [n], layout, rotary_dim=rotary_dim)
    close(twice, rope(x, [m + n], layout, rotary_dim=rotary_dim), atol=1e-9)
    close(rope(twice, [-m - n], layout, rotary_dim=rotary_dim), x, atol=1e-9)


@few
@given(seeds, st.sampled_from(LAYOUTS))
def test_position_zero_changes_nothing(seed, layout):
    x = normal(3, 8, seed=seed)
    same(rope(x, [0, 0, 0], layout), x)


@few
@given(seeds, positions_, st.sampled_from([2, 4, 6, 8]))
def test_layouts_are_one_rotation_up_to_the_order_of_features(seed, position, rotary_dim):
    # Case 35: half(P x) = P interleaved(x), with P the evens, then the odds. The weights' reordering is this P.
    x = normal(1, 8, seed=seed)
    order = interleaved_to_half(torch.arange(8), 1, rotary_dim=rotary_dim)
    close(
        rope(x[:, order], [position], "half", rotary_dim=rotary_dim),
        rope(x, [position], "interleaved", rotary_dim=rotary_dim)[:, order],
        atol=1e-14,
    )


@few
@given(seeds, st.sampled_from(LAYOUTS), st.sampled_from([1, 3]))
def test_each_position_is_treated_alone(seed, layout, heads):
    x, positions = normal(2, heads, 5, 6, seed=seed), torch.tensor([3, 0, 7, 7, 100])
    turned = rope(x, positions, layout)
    for t in range(5):
        close(turned[..., t : t + 1, :], rope(x[..., t : t + 1, :], positions[t : t + 1], layout), atol=2e-15)


def test_mixing_the_layouts_is_another_function():
    x = normal(1, 8)
    assert (rope(x, [3], "half") - rope(x, [3], "interleaved")).abs().max() > 0.1


# Weights from one layout to the other


def test_reordered_rows_by_hand():
    rows = torch.arange(12)  # two heads of six features
    same(interleaved_to_half(rows, 2), torch.tensor([0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]))
    same(half_to_interleaved(rows, 2), torch.tensor([0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]))
    same(interleaved_to_half(torch.arange(8), 1, rotary_dim=6), torch.tensor([0, 2, 4, 1, 3, 5, 6, 7]))
    same(half_to_interleaved(torch.arange(8), 1, rotary_dim=6), torch.tensor([0, 3, 1, 4, 2, 5, 6, 7]))


@pytest.mark.parametrize("rotary_dim", [None, 2, 6])
@pytest.mark.parametrize("shape", [(24,), (24, 5)])
def test_reordering_back_restores_the_weights(shape, rotary_dim):
    weight = normal(*shape)
    same(half_to_interleaved(interleaved_to_half(weight, 3, rotary_dim=rotary_dim), 3, rotary_dim=rotary_dim), weight)
    same(interleaved_to_half(half_to_interleaved(weight, 3, rotary_dim=rotary_dim), 3, rotary_dim=rotary_dim), weight)


@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_reordered_weights_give_the_scores_they_were_trained_for(rotary_dim):
    heads, head_dim, hidden = 2, 6, 5
    x, q_weight, k_weight = normal(4, hidden), normal(12, hidden, seed=1), normal(12, hidden, seed=2)
    q_bias, k_bias = normal(2, 12, seed=3)

    def scores(layout, move):
        q, k = (
            (x @ move(w).T + move(b)).view(4, heads, head_dim).transpose(0, 1)
            for w, b in ((q_weight, q_bias), (k_weight, k_bias))
        )
        q, k = (rope(z, torch.arange(4), layout, rotary_dim=rotary_dim) for z in (q, k))
        return q @ k.mT  # (H, T, T)

    trained = scores("interleaved", lambda w: w)
    close(scores("half", lambda w: interleaved_to_half(w, heads, rotary_dim=rotary_dim)), trained, atol=1e-13)
    assert (scores("half", lambda w: w) - trained).abs().max() > 0.1  # without the reordering it is another model


# Trusted implementations


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


@pytest.mark.parametrize("base", [1e4, 5e5])
def test_equals_llamas_table(transformers, base):
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": base}
    )
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    close(rope_frequencies(16, base=base).float(), module.inv_freq, atol=0, rtol=3e-7)  # its power is in float32
    positions = torch.tensor([[0, 1, 2, 63], [5, 6, 7, 8]])
    cos, sin = module(torch.zeros(1), positions)  # (B, T, D): each angle twice
    ours = rope_angles(positions, rope_frequencies(16, base=base), dtype=torch.float32)
    for actual, expected in zip(ours, (cos, sin), strict=True):
        close(torch.cat((actual, actual), -1), expected, atol=1e-5)  # float32 phases up to 63: 63 · 1.2e-7


def test_equals_llamas_rotation_in_value_and_gradient(transformers):
    trusted = transformers.models.llama.modeling_llama.apply_rotary_pos_emb
    q, k = normal(2, 4, 5, 8).requires_grad_(), normal(2, 2, 5, 8, seed=1).requires_grad_()
    cos, sin = rope_angles(torch.tensor([[0, 1, 2, 3, 4], [3, 4, 5, 90, 7]]), rope_frequencies(8))
    theirs = trusted(q, k, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
    ours = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
    weights = normal(2, 4, 5, 8, seed=2), normal(2, 2, 5, 8, seed=3)
    for actual, expected, leaf, weight in zip(ours, theirs, (q, k), weights, strict=True):
        close(actual, expected, atol=1e-15)
        gradients = [torch.autograd.grad((out * weight).sum(), leaf)[0] for out in (actual, expected)]
        close(*gradients, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_llama_4_in_value_and_gradient(transformers, dtype):
    trusted = transformers.models.llama4.modeling_llama4.apply_rotary_emb
    cos, sin = rope_angles(torch.tensor([[0, 1, 2], [7, 8, 90]]), rope_frequencies(8), dtype=torch.float32)
    q, k = normal(2, 4, 3, 8).to(dtype).requires_grad_(), normal(2, 2, 3, 8, seed=1).to(dtype).requires_grad_()
    theirs = trusted(q.transpose(1, 2), k.transpose(1, 2), torch.complex(cos, sin))  # Llama 4: (B, T, H, D)
    # Numbers up to 4 in either memory layout: two roundings of float32, of which bfloat16 may make one of its own.
    tolerance = 2 * torch.finfo(dtype).eps * 2
    for expected, leaf in zip(theirs, (q, k), strict=True):
        actual, expected = apply_rope(leaf, cos, sin, layout="interleaved"), expected.transpose(1, 2)
        assert actual.dtype == dtype
        close(actual, expected, atol=tolerance)
        weight = normal(*leaf.shape, seed=2).to(dtype)
        close(*(torch.autograd.grad((x * weight).sum(), leaf)[0] for x in (actual, expected)), atol=tolerance)


def test_equals_gpt_js_rotation_in_float64(transformers):
    trusted = transformers.models.gptj.modeling_gptj.apply_rotary_pos_emb
    x = normal(2, 3, 5, 8)
    cos, sin = rope_angles(torch.tensor([[0, 1, 2, 3, 4], [3, 4, 5, 90, 7]]), rope_frequencies(8))
    theirs = trusted(x.transpose(1, 2), sin, cos).transpose(1, 2)
    close(apply_rope(x, cos, sin, layout="interleaved"), theirs, atol=1e-15)


def test_equals_gpt_neoxs_partial_rotation(transformers):
    module = transformers.models.gpt_neox.modeling_gpt_neox
    config = transformers.GPTNeoXConfig(
        hidden_size=64,
        num_attention_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
    )
    frequencies = rope_frequencies(16, rotary_dim=4)
    close(frequencies.float(), module.GPTNeoXRotaryEmbedding(config).inv_freq, atol=0, rtol=1e-7)
    x, (cos, sin) = normal(2, 4, 5, 16), rope_angles(torch.arange(5).expand(2, 5), frequencies)
    theirs, _ = module.apply_rotary_pos_emb(x, x, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
    close(apply_rope(x, cos, sin), theirs, atol=1e-15)


# Gradients


@BOTH
@pytest.mark.parametrize("rotary_dim", [None, 2])
def test_gradcheck(layout, rotary_dim):
    angles = rope_angles(torch.arange(3), rope_frequencies(4, rotary_dim=rotary_dim))
    leaf = normal(2, 3, 4).requires_grad_()
    torch.autograd.gradcheck(lambda x: apply_rope(x, *angles, layout=layout), (leaf,))
    if layout == "interleaved" and rotary_dim is None:
        torch.autograd.gradcheck(lambda x: rotate_interleaved(x, *angles), (leaf,))
        torch.autograd.gradcheck(rotate_half, (leaf,))
        torch.autograd.gradcheck(lambda w: interleaved_to_half(w, 2), (normal(8, 3).requires_grad_(),))


@BOTH
@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_the_gradient_is_turned_back(layout, rotary_dim):
    # The transpose of a rotation is its inverse: what arrives is turned by the negative positions.
    x, arriving, positions = normal(3, 6).requires_grad_(), normal(3, 6, seed=1), torch.tensor([1, 5, 1000])
    (gradient,) = torch.autograd.grad(rope(x, positions, layout, rotary_dim=rotary_dim), x, arriving)
    close(gradient, rope(arriving, -positions, layout, rotary_dim=rotary_dim), atol=1e-15)


# Dtypes, memory, compilation


@BOTH
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table_dtype", DTYPES)
def test_computed_in_float32_or_better_and_returned_in_the_dtype_of_x(layout, dtype, table_dtype):
    x = normal(2, 3, 4, 10).to(dtype)
    cos, sin = rope_angles(torch.arange(4), rope_frequencies(10, rotary_dim=8), dtype=table_dtype)
    turned = apply_rope(x, cos, sin, layout=layout)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    same(turned, apply_rope(x.to(wide), cos.to(wide), sin.to(wide), layout=layout).to(dtype))
    # Two products and a sum of numbers up to 4: three roundings of 2⁻²⁴ · 4, then one of the output's own.
    exact = apply_rope(x.double(), cos.double(), sin.double(), layout=layout)
    if dtype in (torch.float64, torch.float32):
        close(turned.double(), exact, atol=2 * torch.finfo(dtype).eps * 4)
    same(turned[..., 8:], x[..., 8:])


@BOTH
def test_memory_layout_does_not_matter_and_inputs_stay(layout):
    x = normal(2, 3, 4, 8)
    angles = rope_angles(torch.arange(8).view(2, 4), rope_frequencies(8))
    expected = apply_rope(x, *angles, layout=layout)
    leaves_inputs_alone(apply_rope, x, *angles, layout=layout)
    close(apply_rope(spread(x), *map(spread, angles), layout=layout), expected, atol=1e-15)
    projected = x.transpose(1, 2).contiguous().transpose(1, 2)  # as the view of a projection (B, T, H, D) comes
    assert not projected.is_contiguous()
    close(apply_rope(projected, *angles, layout=layout), expected, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_keep_their_dtype_and_stay(dtype):
    weight = normal(8, 4).to(dtype)
    for move in (interleaved_to_half, half_to_interleaved):
        leaves_inputs_alone(move, weight, 2)
        assert move(weight, 2).dtype == dtype
        same(move(spread(weight), 2), move(weight, 2))


def test_helpers_leave_their_inputs():
    cos, sin = rope_angles(torch.arange(3), rope_frequencies(4))
    leaves_inputs_alone(rotate_half, normal(3, 4))
    leaves_inputs_alone(rotate_interleaved, normal(3, 4), cos, sin)
    leaves_inputs_alone(rope_angles, torch.arange(3), rope_frequencies(4))


def calls():
    x, frequencies = normal(2, 3, 4, 8), rope_frequencies(8)
    angles, rows = rope_angles(torch.arange(4), frequencies), rope_angles(torch.arange(8).view(2, 4), frequencies)
    return {
        "rope_frequencies": (rope_frequencies, (8,), {"rotary_dim": 6}),
        "rope_angles": (rope_angles, (torch.arange(4), frequencies), {"max_positions": 4}),
        "rotate_half": (rotate_half, (x,), {}),
        "rotate_interleaved": (rotate_interleaved, (x, *angles), {}),
        "half": (apply_rope, (x, *angles), {}),
        "half, rows": (apply_rope, (x, *rows), {"layout": "half"}),
        "interleaved": (apply_rope, (x, *angles), {"layout": "interleaved"}),
        "interleaved, rows": (apply_rope, (x, *rows), {"layout": "interleaved"}),
        "interleaved_to_half": (interleaved_to_half, (x[0, 0].T, 2), {}),
        "half_to_interleaved": (half_to_interleaved, (x[0, 0].T, 2), {"rotary_dim": 2}),
    }


@pytest.mark.parametrize("name", calls())
def test_compiles_to_one_graph(name):
    function, args, settings_ = calls()[name]
    compiles(function, *args, **settings_)


def test_compiles_to_native_code():
    function, args, settings_ = calls()["half, rows"]
    compiles_to_native_code(function, *args, **settings_)


# Checks of arguments: the message names the argument and the value


@pytest.mark.parametrize("dim", [5, 0, -2])
def test_features_turn_in_pairs(dim):
    with pytest.raises(ValueError, match=rf"^rotary_dim: .*{dim}.*even"):
        rope_frequencies(dim)
    with pytest.raises(ValueError, match=rf"^rotary_dim: .*{dim}.*even"):
        rope_frequencies(8, rotary_dim=dim)
    for move in (interleaved_to_half, half_to_interleaved):
        with pytest.raises(ValueError, match=rf"^rotary_dim: .*{dim}.*even"):
            move(torch.zeros(8), 1, rotary_dim=dim)


def test_no_more_features_turn_than_there_are():
    with pytest.raises(ValueError, match=r"^rotary_dim: .*10.*8"):
        rope_frequencies(8, rotary_dim=10)
    for move in (interleaved_to_half, half_to_interleaved):
        with pytest.raises(ValueError, match=r"^rotary_dim: .*6.*4"):
            move(torch.zeros(8), 2, rotary_dim=6)
        with pytest.raises(ValueError, match=r"^rotary_dim: .*3"):
            move(torch.zeros(6), 2)  # a head of three features
    with pytest.raises(ValueError, match=r"^cos: .*3 angles.*6 features.*4"):
        apply_rope(normal(5, 4), *rope_angles(torch.arange(5), rope_frequencies(6)))


@pytest.mark.parametrize("base", [1.0, 0.5, 0.0, -10_000.0])
def test_a_base_of_at_most_one_is_refused(base):
    with pytest.raises(ValueError, match=rf"^base: .*{re.escape(str(base))}"):
        rope_frequencies(8, base=base)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_positions_are_integers(dtype):
    with pytest.raises(TypeError, match=rf"^positions: .*{dtype}"):
        rope_angles(torch.ones(3, dtype=dtype), rope_frequencies(4))


def test_frequencies_are_one_axis():
    with pytest.raises(ValueError, match=r"^frequencies: .*\(1, 2\)"):
        rope_angles(torch.arange(3), rope_frequencies(4).unsqueeze(0))


def test_positions_stay_in_the_context():
    frequencies = rope_frequencies(4)
    rope_angles(torch.tensor([0, 7]), frequencies, max_positions=8)
    rope_angles(torch.tensor([], dtype=torch.long), frequencies, max_positions=8)
    rope_angles(torch.tensor([-1, 8]), frequencies)  # unbounded: without a context there is nothing to leave
    with pytest.raises(ValueError, match=r"^positions: 3 to 8 .*0 to 7"):
        rope_angles(torch.tensor([3, 8]), frequencies, max_positions=8)
    with pytest.raises(ValueError, match=r"^positions: -1 to 3 .*0 to 7"):
        rope_angles(torch.tensor([[3], [-1]]), frequencies, max_positions=8)


@pytest.mark.parametrize("layout", ["Half", "neox", None])
def test_an_unknown_layout_is_refused(layout):
    with pytest.raises(ValueError, match=rf"^layout: .*{layout!r}.*'half', 'interleaved'"):
        rope(normal(1, 4), [0], layout)


def test_x_is_floating_point():
    with pytest.raises(TypeError, match=r"^x: .*int64"):
        rope(torch.zeros(1, 4, dtype=torch.long), [0])


@pytest.mark.parametrize(
    ("x_shape", "angles_shape"),
    [
        ((3, 4), (7, 2)),  # errata R20: three tokens, a table of seven rows
        ((1, 4), (7, 2)),  # one token would be copied to seven rows
        ((3, 4), (1, 2)),  # one angle would serve three tokens
        ((3, 4), (2,)),  # no axis of tokens
        ((4,), (4, 2)),
        ((2, 3, 5, 4), (1, 2, 5, 2)),  # with a batch and a head axis
    ],
)
def test_tokens_and_angles_must_match(x_shape, angles_shape):
    angles = torch.zeros(angles_shape)
    with pytest.raises(ValueError, match=rf"^cos: .*{re.escape(str(angles_shape))}.*{re.escape(str(x_shape))}"):
        apply_rope(torch.zeros(x_shape), angles, angles)


@pytest.mark.parametrize("x_shape", [(3, 5, 4), (3, 2, 5, 4), (1, 2, 5, 4), (5, 4), (2, 1, 2, 5, 4)])
def test_rows_of_angles_need_their_rows_of_x(x_shape):
    angles = torch.zeros(2, 5, 2)
    with pytest.raises(ValueError, match=rf"^cos: .*\(2, 5, 2\).*{re.escape(str(x_shape))}"):
        apply_rope(torch.zeros(x_shape), angles, angles)


def test_cos_and_sin_have_one_shape():
    with pytest.raises(ValueError, match=r"^sin: .*\(3, 1\).*\(3, 2\)"):
        apply_rope(torch.zeros(3, 4), torch.zeros(3, 2), torch.zeros(3, 1))


@pytest.mark.parametrize("heads", [0, -1, 3])
def test_heads_divide_the_rows(heads):
    for move in (interleaved_to_half, half_to_interleaved):
        with pytest.raises(ValueError, match=rf"^num_heads: .*{heads}.*8"):
            move(torch.zeros(8, 2), heads)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in calls() if name != "rope_frequencies"])
def test_cuda_equals_cpu(name):
    function, args, settings_ = calls()[name]
    actual = function(*[x.cuda() if isinstance(x, torch.Tensor) else x for x in args], **settings_)
    for ours, theirs in zip(actual, function(*args, **settings_), strict=True):
        assert ours.device.type == "cuda"
        close(ours.cpu(), theirs, atol=1e-14)


@pytest.mark.gpu
def test_frequencies_on_cuda_equal_those_on_the_cpu():
    close(rope_frequencies(128, device="cuda").cpu(), rope_frequencies(128), atol=0, rtol=1e-14)


def test_a_quarter_turn_of_an_odd_number_of_features_is_refused():
    with pytest.raises(ValueError, match=r"^x: .*5 features"):
        rotate_half(torch.arange(5.0))
