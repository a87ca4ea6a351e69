"""The judge itself, on exercises made for the purpose."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.practice.compare import compare, describe
from lib.practice.exercise import Call, Exercise, call, numbers
from lib.practice.judge import is_stub, judge
from lib.practice.language import Text

T = Text("text", "文字")


def exercise(reference, forbidden=(), signature="def f(x):"):
    return Exercise(
        topic="rope", part="positions", title=T, statement=T, signature=signature, reference=reference, hints=(T,),
        difficulty=1, asked=1, forbidden=forbidden, name="toy",
    )  # fmt: skip


def failed(verdict):
    return [result.name.en for result in verdict.results if not result.passed]


def softmax(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


@pytest.fixture
def toy():
    toy = exercise(softmax, forbidden=("softmax", "log_softmax", "logsumexp", "kl_divergence"))
    toy.values("a row", "一行", lambda: call(numbers(1, 3)))
    toy.gradients("gradients", "梯度", lambda: call(numbers(2, 3)))
    toy.dtypes_kept(lambda: call(numbers(2, 3)), tolerance=1e-2)
    toy.device_kept(lambda: call(numbers(2, 3)))
    return toy


BY_HAND = "written by hand, without softmax, log_softmax, logsumexp, kl_divergence"


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: x.softmax(-1),
        lambda x: F.softmax(x, -1),
        lambda x: nn.Softmax(-1)(x),
        lambda x: getattr(x, "soft" + "max")(-1),
        lambda x: next(iter(map(functools.partial(torch.softmax, dim=-1), [x]))),
        lambda x: torch.ops.aten._softmax(x, -1, False),
        lambda x: torch.ops.aten.softmax(x, -1),
        lambda x: torch.special.softmax(x, -1),
        lambda x: (x - x.logsumexp(-1, keepdim=True)).exp(),
        lambda x: F.log_softmax(x, -1).exp(),
        lambda x: torch.vmap(lambda row: torch.softmax(row, -1))(x),
    ],
    ids=["torch", "method", "functional", "module", "getattr", "map", "aten", "aten composite", "special", "logsumexp",
         "log_softmax", "vmap"],
)  # fmt: skip
def test_a_forbidden_call_is_seen_however_it_is_reached(toy, program):
    assert failed(judge(toy, program)) == [BY_HAND]


def test_a_forbidden_function_written_in_python_is_seen(toy):
    def program(x):
        p = torch.distributions.Categorical(logits=x.detach())
        torch.distributions.kl_divergence(p, p)
        return softmax(x)

    assert BY_HAND in failed(judge(toy, program))


def test_a_function_of_the_readers_own_may_have_the_name(toy):
    def softmax(x):
        e = (x - x.amax(-1, keepdim=True)).exp()
        return e / e.sum(-1, keepdim=True)

    def program(x):
        return softmax(x)

    assert judge(toy, program).passed


def _unshifted_table(x):
    return softmax(x) * torch.ones(3)


def _scalar(x):
    return softmax(x) * torch.tensor(1.0)


def _moved(x):
    return softmax(x) * torch.ones(3).to(x.device)


def _like(x):
    return softmax(x) * torch.ones_like(x)


def _indexed(x):
    return softmax(x)[..., torch.arange(3)]


def _python_list(x):
    return softmax(x) + torch.zeros(x.shape).numpy().sum().item()


@pytest.mark.parametrize("program", [_scalar, _moved, _like, _indexed, _python_list])
def test_what_works_on_a_gpu_passes_for_devices(toy, program):
    assert "works where the input lies" not in failed(judge(toy, program))


@pytest.mark.parametrize(
    "program",
    [
        _unshifted_table,
        lambda x: softmax(x) * 0 + torch.arange(3),
        lambda x: torch.zeros(x.shape),
        lambda x: softmax(x) * 0 + torch.stack([torch.tensor(1.0)] * 3),
        lambda x: softmax(x) + x.detach().numpy().sum(),
    ],
)
def test_a_tensor_made_on_the_cpu_fails_for_devices(toy, program):
    assert "works where the input lies" in failed(judge(toy, program))


def test_changes_of_torch_are_told_and_undone(toy):
    before = torch.get_rng_state(), torch.exp

    def program(x):
        torch.manual_seed(3)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.exp = torch.sin
        return softmax(x)

    verdict = judge(toy, program)
    failure = next(r.failure for r in verdict.results if r.name.en == "torch's global state unchanged")
    for word in ("torch.set_default_dtype", "torch.set_grad_enabled", "torch.exp", "the random seed"):
        assert word in failure.what.en
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled() and torch.exp is before[1]
    assert torch.equal(torch.get_rng_state(), before[0])


def test_inputs_must_not_change(toy):
    assert failed(judge(toy, lambda x: (x.detach().mul_(1), softmax(x))[1])) == ["inputs unchanged"]


def test_one_convention_must_hold_in_all_cases():
    toy = exercise(lambda x: x.std())
    toy.values("four", "四", lambda: call(numbers(4)))
    toy.values("five", "五", lambda: call(numbers(5)))
    toy.convention("by n", "除以 n")(lambda x: x.std(correction=0))
    assert judge(toy, lambda x: x.std()).convention.en == "the reference's convention"
    assert judge(toy, lambda x: x.std(correction=0)).convention.en == "by n"
    assert len(failed(judge(toy, lambda x: x.std(correction=x.numel() % 2)))) == 1


def test_a_constant_must_get_no_gradient():
    toy = exercise(lambda x, y: x * y.detach(), signature="def f(x, y):")
    toy.gradients("gradients", "梯度", lambda: call(numbers(2), numbers(2, seed=1)))
    assert judge(toy, lambda x, y: x * y.detach()).passed
    failure = judge(toy, lambda x, y: x * y).results[0].failure
    assert failure.what.en == "gradient to y, which must be constant"
    assert "no gradient reaches x" in judge(toy, lambda x, y: (x * y).detach()).results[0].failure.what.en


def test_cost_counts_operations_and_bytes():
    toy = exercise(lambda x: x.sum(-1))
    toy.cost("no loop", "没有循环", lambda: call(numbers(50, 4)), operations=8, bytes=4096)
    assert judge(toy, lambda x: x.sum(-1)).passed
    loop = judge(toy, lambda x: torch.stack([row.sum() for row in x])).results[0].failure
    assert "too many operations" in loop.what.en
    large = judge(toy, lambda x: (x[:, :, None] + torch.zeros_like(x)[:, None]).diagonal(dim1=1, dim2=2).sum(-1))
    assert "one tensor is too large" in large.results[0].failure.what.en
    for outside in (lambda x: x.new_tensor([sum(r) for r in x.tolist()]), lambda x: x.new_tensor(x.numpy().sum(-1))):
        assert "the numbers leave torch" in judge(toy, outside).results[0].failure.what.en


def test_a_native_operator_is_no_way_round():
    toy = exercise(lambda x: F.layer_norm(x, x.shape[-1:]), forbidden=("layer_norm",))
    toy.values("a row", "一行", lambda: call(numbers(2, 3)))
    for program in (lambda x: torch.native_layer_norm(x, [3], None, None, 1e-5)[0], nn.LayerNorm(3).double()):
        assert failed(judge(toy, program)) == ["written by hand, without layer_norm"]


def test_refusals():
    def reference(x):
        if x < 0:
            raise ValueError("x")
        return x

    toy = exercise(reference)
    toy.refuses("below zero", "负数", lambda: call(-1))
    assert judge(toy, reference).passed
    assert "no ValueError is raised" in judge(toy, lambda x: x).results[0].failure.what.en
    assert "raises an error" in judge(toy, lambda x: x.nothing).results[0].failure.what.en


def test_a_known_mistake_is_recognised(toy):
    @toy.wrong("the sum is forgotten", "忘了求和", fails="a row")
    def unnormalised(x):
        return (x - x.amax(-1, keepdim=True)).exp()

    verdict = judge(toy, lambda x: (x - x.max()).exp(), tell=lambda name: None)
    assert verdict.results[0].mistake.en == "the sum is forgotten"
    assert judge(toy, lambda x: x * 0).results[0].mistake is None


class Scale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(size))

    def forward(self, x):
        return self.gain * x


class OtherName(Scale):
    def __init__(self, size):
        super().__init__(size)
        self.weight = nn.Parameter(self.gain.detach())
        del self.gain


class Shifted(Scale):
    def forward(self, x):
        return (self.gain + 1) * x


class Frozen(Scale):
    def forward(self, x):
        return self.gain.detach() * x


@pytest.fixture
def module():
    toy = exercise(Scale, signature="class Scale(nn.Module):")
    toy.values("a row", "一行", lambda: Call((numbers(3),), {}, {"size": 3}))
    toy.gradients("gradients", "梯度", lambda: Call((numbers(3),), {}, {"size": 3}))
    return toy


def test_a_module_is_given_the_references_weights(module):
    class Mine(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.gain = nn.Parameter(torch.zeros(size))

        def forward(self, x):
            return x * self.gain

    assert judge(module, Mine).passed
    assert "a row" in failed(judge(module, Shifted))
    assert failed(judge(module, Frozen)) == ["gradients"]
    wrong_names = judge(module, OtherName).results[0].failure
    assert "gain" in str(wrong_names.lines)
    assert "nn.Module" in str(judge(module, lambda size: 3).results[0].failure.lines)


@pytest.mark.parametrize(
    ("expected", "got", "what"),
    [
        (torch.zeros(2), None, "nothing is returned"),
        (torch.zeros(2), 0.0, "another type of result"),
        (torch.zeros(2), torch.zeros(3), "another shape"),
        (torch.zeros(2), torch.zeros(2, 1), "another shape"),
        (torch.zeros(2), torch.zeros(2).double(), "another dtype"),
        (torch.zeros(2), torch.zeros(2).long(), "another dtype"),
        (torch.zeros(2), torch.tensor([0, torch.nan]), "1 of 2 numbers differ"),
        (torch.zeros(()), torch.tensor(1.0), "another value"),
        ((torch.zeros(1), 2), (torch.zeros(1),), "another type of result"),
        ((torch.zeros(1), 2), (torch.zeros(1), 3), "another value"),
        (1.0, True, "another type of result"),
        (1.0, 1.1, "another value"),
        ("a", "b", "another value"),
        (True, False, "another value"),
    ],
)
def test_comparison(expected, got, what):
    assert compare(expected, expected, 1e-9) is None
    assert compare(expected, got, 1e-9).what.en == what


def test_numbers_that_look_alike_are_told_apart():
    failure = compare(torch.tensor(1.0).double(), torch.tensor(1.00001).double(), 1e-9)
    assert "1.0e-05, allowed 1e-09" in str(failure.lines)


def test_values_are_told_in_short():
    assert describe(torch.tensor([1.0, 2.0])) == "[1, 2] ((2,) float32)"
    assert describe(torch.zeros(3, 4)) == "(3, 4) float32"
    assert describe("x" * 100).endswith("…")


def _documented(x):
    """A docstring alone."""


def _dots(x): ...


def _raises(x):
    raise NotImplementedError("todo")


def _pass(x):
    pass


def _none(x):
    """Says something."""
    return None  # noqa: RET501


def _works(x):
    return x


def _one_line(x):
    x = None
    return x  # noqa: RET504


class Empty(nn.Module):
    def __init__(self, size):
        super().__init__()

    def forward(self, x):
        return None


def test_a_module_whose_forward_gives_nothing_is_not_written_yet(module):
    assert judge(module, Empty).empty and not judge(module, Shifted).empty
    assert is_stub(Empty) and not any(map(is_stub, (Scale, Frozen, nn.Module, nn.Identity)))


def test_stubs():
    assert all(map(is_stub, (_documented, _dots, _raises, _pass, _none)))
    assert not any(map(is_stub, (_works, _one_line, torch.exp, abs)))


def test_a_function_that_always_returns_none_is_not_written_yet(toy):
    assert judge(toy, _one_line).empty


@pytest.mark.gpu
def test_on_a_gpu_the_device_is_real(toy):
    assert judge(toy, softmax).passed
    assert "works where the input lies" in failed(judge(toy, lambda x: softmax(x).cpu()))
