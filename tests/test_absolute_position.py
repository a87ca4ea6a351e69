"""lib.absolute_position: position ids, the learned table, and the sum with the embeddings."""

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.absolute_position import (
    LearnedPosition,
    add_positions,
    learned_positions,
    position_ids,
    positions_from_mask,
)
from tests.checks import DTYPES, close, compiles, compiles_to_native_code, f64, leaves_inputs_alone, same, spread

few = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def module(max_positions: int = 8, hidden_size: int = 4, dtype=torch.float64, **settings_) -> LearnedPosition:
    torch.manual_seed(0)
    return LearnedPosition(max_positions, hidden_size, dtype=dtype, **settings_)


# Positions, by hand


@pytest.mark.parametrize(
    ("num_tokens", "offset", "expected"),
    [
        (4, 0, [0, 1, 2, 3]),
        (1, 7, [7]),
        (3, 5, [5, 6, 7]),
        (0, 5, []),
        (2, torch.tensor([0, 5, 2]), [[0, 1], [5, 6], [2, 3]]),
        (1, torch.tensor([3], dtype=torch.int32), [[3]]),
        (2, torch.tensor([200], dtype=torch.uint8), [[200, 201]]),
        (100, torch.tensor([200], dtype=torch.uint8), [list(range(200, 300))]),  # past 255: widened before the sum
    ],
)
def test_position_ids(num_tokens, offset, expected):
    ids = position_ids(num_tokens, offset=offset)
    assert ids.dtype == torch.int64
    assert ids.tolist() == expected


def test_position_ids_come_on_the_device_asked_for():
    assert position_ids(3, device="meta").device.type == "meta"
    assert position_ids(3, offset=2, device=torch.device("cpu")).device.type == "cpu"


def test_real_tokens_are_counted_in_each_row():
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 2, 2], [0, 0, 0, 0, 0]]
    assert positions_from_mask(mask).tolist() == expected
    assert positions_from_mask(mask).dtype == torch.int64
    assert positions_from_mask(mask[:, :0]).shape == (4, 0)


def test_a_row_for_each_position():
    weight = f64([[1, 2], [3, 4], [5, 6]])
    same(learned_positions(torch.tensor([2, 0, 2]), weight), f64([[5, 6], [1, 2], [5, 6]]))
    same(learned_positions(torch.tensor([[1], [2]]), weight), f64([[[3, 4]], [[5, 6]]]))
    assert learned_positions(torch.tensor([], dtype=torch.long), weight).shape == (0, 2)


def test_the_sum_by_hand():
    x, vectors = f64([[[1, 2], [3, 4]], [[5, 6], [7, 8]]]), f64([[10, 20], [30, 40]])
    same(add_positions(x, vectors), f64([[[11, 22], [33, 44]], [[15, 26], [37, 48]]]))
    same(add_positions(x, x), 2 * x)  # a row of vectors for each sequence
    same(add_positions(x[0], vectors), f64([[11, 22], [33, 44]]))


def test_the_module_by_hand():
    position = module(3, 2)
    with torch.no_grad():
        position.weight.copy_(f64([[10, 20], [30, 40], [50, 60]]))
    x = f64([[[1, 2]], [[3, 4]]])
    same(position(x).detach(), f64([[[11, 22]], [[13, 24]]]))
    same(position(x, offset=2).detach(), f64([[[51, 62]], [[53, 64]]]))
    same(position(x, offset=torch.tensor([1, 2])).detach(), f64([[[31, 42]], [[53, 64]]]))
    same(position(x, positions=torch.tensor([[2], [0]])).detach(), f64([[[51, 62]], [[13, 24]]]))


# Properties


@few
@given(seeds, st.integers(0, 6), st.integers(0, 6), st.integers(1, 3))
def test_any_chunking_gives_the_whole_sequence(seed, first, second, batch):
    """Prefill, then chunks with the cached length as offset: what decoding must give."""
    position, x = module(16, 3), normal(batch, first + second + 1, 3, seed=seed)
    parts = [x[:, :first], x[:, first : first + second], x[:, first + second :]]
    offsets = [0, first, first + second]
    pieces = [position(part, offset=offset) for part, offset in zip(parts, offsets)]
    same(torch.cat(pieces, 1), position(x))


@few
@given(seeds, st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_left_padding_changes_no_real_token(seed, pads):
    position, tokens = module(16, 3), 4
    x = normal(len(pads), tokens, 3, seed=seed)
    mask = torch.arange(tokens + 5) >= torch.tensor(pads)[:, None]
    padded = torch.zeros(len(pads), tokens + 5, 3, dtype=torch.float64)
    for row, pad in enumerate(pads):
        padded[row, pad : pad + tokens] = x[row]
    placed = position(padded, positions=positions_from_mask(mask))
    for row, pad in enumerate(pads):
        same(placed[row, pad : pad + tokens], position(x[row]))


@few
@given(seeds)
def test_without_positions_attention_does_not_see_the_order(seed):
    """Permuted embeddings give permuted outputs; with positions they do not."""
    q, k, v = normal(3, 4, 4, seed=seed)
    x, order = normal(1, 5, 4, seed=seed + 1), torch.tensor([3, 1, 4, 0, 2])

    def attend(x):
        return F.scaled_dot_product_attention(x @ q, x @ k, x @ v)

    close(attend(x[:, order]), attend(x)[:, order], atol=1e-13)
    position = module(5, 4, std=1.0)
    assert (attend(position(x[:, order])) - attend(position(x))[:, order]).abs().max() > 1e-3


# Trusted implementations


def test_equals_embedding_in_value_and_gradient():
    weight, positions = normal(7, 3).requires_grad_(), torch.tensor([[0, 2, 2, 6], [5, 4, 3, 2]])
    x = normal(2, 4, 3, seed=1).requires_grad_()
    ours, theirs = add_positions(x, learned_positions(positions, weight)), x + F.embedding(positions, weight)
    same(ours, theirs)
    upstream = normal(2, 4, 3, seed=2)
    for actual, expected in zip(
        torch.autograd.grad(ours, (x, weight), upstream), torch.autograd.grad(theirs, (x, weight), upstream)
    ):
        same(actual, expected)


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def test_loads_gpt_2_and_gives_its_input_to_the_first_block(transformers):
    torch.manual_seed(0)
    gpt = transformers.GPT2Model(
        transformers.GPT2Config(n_positions=10, n_embd=8, n_layer=1, n_head=2, vocab_size=20)
    ).eval()
    position = LearnedPosition(10, 8)
    position.load_state_dict(gpt.wpe.state_dict())
    seen = []
    gpt.h[0].register_forward_pre_hook(lambda block, args: seen.append(args[0]))
    ids = torch.tensor([[3, 1, 4], [1, 5, 9]])
    with torch.no_grad():
        cache = gpt(ids, use_cache=True).cache
        gpt(ids[:, :2], cache=cache, use_cache=True)
        same(position(gpt.wte(ids)), seen[0])
        same(position(gpt.wte(ids[:, :2]), offset=3), seen[1])  # after three cached tokens


def test_equals_opt_without_its_two_extra_rows(transformers):
    torch.manual_seed(0)
    opt = transformers.models.opt.modeling_opt.OPTLearnedPositionalEmbedding(6, 4)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    ours = learned_positions(positions_from_mask(mask.bool()), opt.weight[2:])
    real = mask.bool()
    same(ours[real], opt(mask)[real])


def test_gpt_2_past_its_table(transformers):
    """What the module says in words, GPT-2 says with an IndexError."""
    config = transformers.GPT2Config(n_positions=4, n_embd=4, n_layer=1, n_head=1, vocab_size=9)
    with pytest.raises(IndexError):
        transformers.GPT2Model(config)(torch.zeros(1, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"^positions: got 0 to 4, must be in the table, 0 to 3"):
        module(4, 4)(normal(1, 5, 4))


# Gradients


def test_gradcheck():
    x, weight = normal(2, 3, 4).requires_grad_(), normal(5, 4, seed=1).requires_grad_()
    positions = torch.tensor([[0, 1, 4], [4, 4, 2]])
    torch.autograd.gradcheck(lambda x, w: add_positions(x, learned_positions(positions, w)), (x, weight))


def test_rows_that_no_sequence_reaches_get_no_gradient():
    position, x = module(8, 4), normal(3, 5, 4).requires_grad_()
    position(x).sum().backward()
    same(x.grad, torch.ones_like(x))
    close(position.weight.grad[:5], torch.full((5, 4), 3.0), atol=0)  # once for each row of the batch
    close(position.weight.grad[5:], torch.zeros(3, 4), atol=0)


# Dtypes, memory, compilation


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("table_dtype", DTYPES)
def test_summed_in_float32_or_better_and_returned_in_the_dtype_of_x(dtype, table_dtype):
    x, vectors = normal(2, 3, 4).to(dtype), normal(3, 4, seed=1).to(table_dtype)
    total = add_positions(x, vectors)
    assert total.dtype == dtype
    # float64 holds the sum of any two float32 exactly enough: then one rounding to float32, one to the dtype of x.
    exact = x.double() + vectors.double()
    wide = exact if torch.float64 in (dtype, table_dtype) else exact.float()
    same(total, wide.to(dtype))
    assert module(8, 4, dtype=table_dtype)(x).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_any_integers_are_positions(dtype):
    weight = normal(201, 3)
    same(learned_positions(torch.tensor([0, 100, 3, 200], dtype=dtype), weight),
         weight[[0, 100, 3, 200]])  # fmt: skip


def test_memory_layout_does_not_matter_and_inputs_stay():
    x, vectors, weight, positions = normal(2, 3, 4), normal(3, 4, seed=1), normal(6, 4, seed=2), torch.tensor([5, 0, 1])
    leaves_inputs_alone(add_positions, x, vectors)
    leaves_inputs_alone(learned_positions, positions, weight)
    leaves_inputs_alone(positions_from_mask, positions.bool()[None])
    leaves_inputs_alone(lambda offset: position_ids(3, offset=offset), positions)
    same(add_positions(spread(x), spread(vectors)), add_positions(x, vectors))
    same(learned_positions(spread(positions), spread(weight)), learned_positions(positions, weight))
    transposed = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert not transposed.is_contiguous()
    same(add_positions(transposed, vectors), add_positions(x, vectors))


def calls():
    x, weight, positions = normal(2, 3, 4), normal(6, 4, seed=1), torch.tensor([[0, 1, 2], [3, 5, 5]])
    position = module(6, 4)
    return {
        "position_ids": (lambda offset: position_ids(3, offset=offset), (torch.tensor([0, 4]),), {}),
        "positions_from_mask": (positions_from_mask, (positions > 0,), {}),
        "learned_positions": (learned_positions, (positions, weight), {}),
        "add_positions": (add_positions, (x, weight[:3]), {}),
        "module": (lambda x: position(x), (x,), {}),
        "module, offset": (lambda x: position(x, offset=3), (x,), {}),
        "module, offsets": (lambda x, offset: position(x, offset=offset), (x, torch.tensor([0, 3])), {}),
    }


@pytest.mark.parametrize("name", calls())
def test_compiles_to_one_graph(name):
    function, args, settings_ = calls()[name]
    compiles(function, *args, **settings_)


def test_compiles_to_native_code():
    function, args, settings_ = calls()["module, offset"]
    compiles_to_native_code(function, *args, **settings_)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in calls() if not name.startswith("module")])
def test_cuda_equals_cpu(name):
    function, args, settings_ = calls()[name]
    ours = function(*[x.cuda() for x in args], **settings_)
    assert ours.device.type == "cuda"
    close(ours.cpu(), function(*args, **settings_), atol=1e-15)


@pytest.mark.gpu
def test_the_module_works_on_cuda():
    position = module(8, 4)
    x = normal(2, 3, 4)
    expected = position(x, offset=2).detach()
    close(position.cuda()(x.cuda(), offset=2).detach().cpu(), expected, atol=1e-15)
    with pytest.raises(ValueError, match=r"^positions: got 6 to 8"):  # not a device-side assert, which ends the process
        position(x.cuda(), offset=6)


# The weights at the start


def test_initial_weights():
    weight = LearnedPosition(1000, 100).weight
    assert weight.dtype == torch.float32 and weight.requires_grad
    assert abs(weight.std().item() / 0.02 - 1) < 0.02 and abs(weight.mean().item()) < 5e-4  # 1e5 draws: 0.2 %
    assert set(dict(LearnedPosition(3, 2).named_parameters())) == {"weight"} == set(LearnedPosition(3, 2).state_dict())
    assert LearnedPosition(3, 2, device="meta", dtype=torch.bfloat16).weight.device.type == "meta"
    assert LearnedPosition(3, 2, std=0.0).weight.abs().max() == 0


# Checks of arguments: the message names the argument and the value


def test_token_ids_are_not_embeddings():
    # (1, 6) ids and a table of 6 × 6 would be broadcast to (1, 6, 6) in silence.
    ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
    assert (ids + normal(6, 6)).shape == (6, 6)
    for refused in (lambda: module(6, 6)(ids), lambda: add_positions(ids, normal(6, 6))):
        with pytest.raises(TypeError, match=r"^x: .*int64.*embedded first"):
            refused()


@pytest.mark.parametrize("shape", [(4,), (1, 2, 3, 4)])
def test_embeddings_have_two_or_three_axes(shape):
    with pytest.raises(ValueError, match=rf"^x: .*{re.escape(str(shape))}"):
        add_positions(torch.zeros(shape), torch.zeros(shape))
    with pytest.raises(ValueError, match=rf"^x: .*{re.escape(str(shape))}"):
        module()(torch.zeros(shape))


@pytest.mark.parametrize(
    ("x_shape", "vector_shape"),
    [
        ((2, 1, 4), (7, 4)),  # one decoded token would become seven
        ((2, 3, 4), (1, 4)),  # one vector would serve three tokens
        ((1, 3, 4), (2, 3, 4)),  # one row would become two
        ((2, 3, 4), (4,)),
        ((2, 3, 4), (3, 1)),
        ((2, 3, 4), (3, 5)),
        ((3, 3, 4), (3, 1, 4)),  # a vector for each row of the batch
    ],
)
def test_a_silent_broadcast_is_refused(x_shape, vector_shape):
    with pytest.raises(ValueError, match=rf"^vectors: .*{re.escape(str(vector_shape))}.*{re.escape(str(x_shape))}"):
        add_positions(torch.zeros(x_shape), torch.zeros(vector_shape))


def test_another_hidden_size_is_refused():
    with pytest.raises(ValueError, match=r"^vectors: .*\(3, 4\).*\(2, 3, 5\)"):
        module()(torch.zeros(2, 3, 5))


@pytest.mark.parametrize(
    ("positions", "told"),
    [([-1, 2], "-1 to 2"), ([0, 8], "0 to 8"), ([[3], [9]], "3 to 9")],
)
def test_a_position_without_a_row_is_refused(positions, told):
    # weight[-1] would be the last row, without an error.
    with pytest.raises(ValueError, match=rf"^positions: got {told}, must be in the table, 0 to 7"):
        learned_positions(torch.tensor(positions), normal(8, 4))


@pytest.mark.parametrize("offset", [6, torch.tensor([0, 6])])
def test_decoding_past_the_table_is_refused(offset):
    position = module(8, 4)
    assert position(torch.zeros(2, 2, 4), offset=offset).shape == (2, 2, 4)
    with pytest.raises(ValueError, match=r"^positions: got \d to 8, must be in the table, 0 to 7"):
        position(torch.zeros(2, 3, 4), offset=offset)


@pytest.mark.parametrize("offset", [-1, torch.tensor([2, -1])])
def test_a_negative_offset_is_refused(offset):
    with pytest.raises(ValueError, match=r"^offset: got -1.*at least 0"):
        position_ids(2, offset=offset)


def test_other_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"^num_tokens: got -1"):
        position_ids(-1)
    with pytest.raises(ValueError, match=r"^offset: shape is \(1, 2\)"):
        position_ids(2, offset=torch.tensor([[0, 1]]))
    with pytest.raises(TypeError, match=r"^offset: dtype is torch.float32"):
        position_ids(2, offset=torch.tensor([1.0]))
    with pytest.raises(ValueError, match=r"^offset: got 3 beside positions"):
        module()(torch.zeros(1, 1, 4), offset=3, positions=torch.tensor([3]))
    with pytest.raises(ValueError, match=r"^offset: got tensor.*beside positions"):
        module()(torch.zeros(1, 1, 4), offset=torch.tensor([0]), positions=torch.tensor([3]))
    with pytest.raises(ValueError, match=r"^weight: shape is \(4,\)"):
        learned_positions(torch.tensor([0]), torch.zeros(4))
    with pytest.raises(TypeError, match=r"^mask: dtype is torch.int64"):
        positions_from_mask(torch.ones(1, 2, dtype=torch.long))
    for bad in ({"max_positions": 0, "hidden_size": 2}, {"max_positions": 2, "hidden_size": -1}):
        name, value = next((n, v) for n, v in bad.items() if v <= 0)
        with pytest.raises(ValueError, match=rf"^{name}: got {value}"):
            LearnedPosition(**bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_positions_are_integers(dtype):
    with pytest.raises(TypeError, match=rf"^positions: .*{dtype}"):
        learned_positions(torch.ones(3, dtype=dtype), torch.zeros(4, 2))
