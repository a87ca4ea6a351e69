"""The judge: run a submission on every case, beside the reference, and say what differs."""

import ast
import linecache
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from lib.practice.compare import GOT, Failure, compare, describe
from lib.practice.exercise import Call, Case, Exercise, source_of
from lib.practice.language import Text
from lib.practice.watch import State, Watch

INPUT = Text("input", "输入")
SAME = Text("the reference's convention", "参考实现的约定")


@dataclass
class Result:
    """A case, and its failure or None."""

    name: Text
    failure: Failure | None = None
    see: str = ""
    mistake: Text | None = None

    @property
    def passed(self) -> bool:
        return self.failure is None


@dataclass
class Verdict:
    """All cases of one exercise. empty: nothing was written yet. broken: why it could not be judged to the end."""

    exercise: str
    results: list[Result] = field(default_factory=list)
    convention: Text | None = None
    empty: bool = False
    broken: Text | None = None
    printed: str = ""
    bugs_left: list[int] | None = None

    @property
    def passed(self) -> bool:
        return bool(self.results) and not self.broken and all(r.passed for r in self.results)


@dataclass
class Seen:
    """What one call did."""

    output: Any = None
    gradients: dict[str, Tensor | None] | None = None
    error: Exception | None = None
    tensors: int = 0
    changed_inputs: list[str] = field(default_factory=list)
    forbidden: set[str] = field(default_factory=set)
    state: list[Text] = field(default_factory=list)
    operations: int = 0
    largest: int = 0
    mixed: str | None = None
    left: set[str] = field(default_factory=set)


def _nothing(self, x):
    return None


def is_stub(function: Callable) -> bool:
    """Whether nothing was written: the body is a docstring, `pass`, `...`, `return None` or a NotImplementedError.

    Of a module, whether its own `forward` gives back None and does nothing else.
    """
    if isinstance(function, type):
        written = vars(function).get("forward")
        code = getattr(written, "__code__", None)
        return code is not None and code.co_code == _nothing.__code__.co_code and not any(code.co_consts)
    try:
        tree = ast.parse(source_of(function)).body[0]
    except (OSError, TypeError, SyntaxError, StopIteration):
        return False
    body = [n for n in tree.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    if not body:
        return True
    if len(body) > 1:
        return False
    match body[0]:
        case ast.Pass() | ast.Return(value=None) | ast.Return(value=ast.Constant(value=None)):
            return True
        case ast.Raise(exc=ast.Name(id="NotImplementedError") | ast.Call(func=ast.Name(id="NotImplementedError"))):
            return True
    return False


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, value)


def _device(case: Case) -> str:
    """The GPU where the case is about devices and there is one."""
    return "cuda" if case.kind == "device" and torch.cuda.is_available() else "cpu"


def _fresh(case: Case, dtype: torch.dtype | None, with_gradients: bool) -> Call:
    """The arguments of a case, as leaves, on its device."""
    made, device = case.make(), _device(case)
    values = (made.args, made.kwargs)
    if dtype is not None:
        values = _cast(values, dtype)
    values = tree_map(lambda x: x.detach().clone().to(device) if isinstance(x, Tensor) else x, values)
    if with_gradients:
        values = tree_map(
            lambda x: x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x, values
        )
    return Call(values[0], values[1], made.init)


def _built(program: Callable, init: dict[str, Any] | None, reference: Callable, dtype, device) -> tuple[Callable, list]:
    """A function as it is; a module built with `init` and given the weights of the reference's, by their names."""
    if init is None:
        return program, []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = reference(**init).to(dtype or torch.float64).state_dict()
        module = program(**init)
    if not isinstance(module, nn.Module):
        raise TypeError(f"{getattr(program, '__name__', program)}: must be an nn.Module, is {type(module).__name__}")
    module = module.to(device, dtype or torch.float64)
    module.load_state_dict(weights)
    return module, [(f"weights.{name}", p) for name, p in module.named_parameters()]


def observe(exercise: Exercise, case: Case, program: Callable, dtype: torch.dtype | None = None) -> Seen:
    """Run a program on the arguments of a case and note what it does."""
    with_gradients = case.kind == "gradients"
    seen, state = Seen(), State()
    given = _fresh(case, dtype, with_gradients)
    labelled = list(zip(exercise.names(given.args), given.args)) + list(given.kwargs.items())
    leaves = [(label, x) for label, value in labelled for x in tree_leaves(value) if isinstance(x, Tensor)]
    seen.tensors = len(leaves)
    before = [(x.detach().clone(), x._version) for _, x in leaves]
    watch = Watch(exercise.forbidden, places=case.kind in ("device", "cost"))
    try:
        function, weights = _built(program, given.init, exercise.reference, dtype, _device(case))
        with watch:
            seen.output = function(*given.args, **given.kwargs)
        if with_gradients:
            wanted = [(n, x) for n, x in leaves + weights if x.requires_grad and (not case.wrt or n in case.wrt)]
            seen.gradients = _gradients(seen.output, wanted)
    except Exception as error:  # whatever a submission raises is a finding, not an accident
        seen.error = error
    seen.state = state.restore()
    for (label, x), (value, version) in zip(leaves, before):
        if x._version != version or not torch.equal(torch.nan_to_num(x.detach()), torch.nan_to_num(value)):
            seen.changed_inputs.append(label)
    seen.forbidden = watch.found
    seen.operations, seen.largest = watch.work.operations, watch.work.largest
    seen.mixed, seen.left = watch.calls.mixed, watch.calls.left
    if seen.mixed is None and any(watch.calls.is_homeless(x) for x in tree_leaves(seen.output)):
        seen.mixed = "return"
    return seen


def _gradients(output: Any, wanted: list[tuple[str, Tensor]]) -> dict[str, Tensor | None]:
    """Of the sum of all results, weighted 1, 2, 3 …: a plain sum would hide a gradient that lands on the wrong entry."""
    results = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
    if not results:
        return {name: None for name, _ in wanted}
    total = sum((x * torch.arange(1, x.numel() + 1, dtype=x.dtype).view(x.shape)).sum() for x in results)
    found = torch.autograd.grad(total, [x for _, x in wanted], allow_unused=True)
    return {name: g for (name, _), g in zip(wanted, found)}


def describe_call(exercise: Exercise, given: Call) -> str:
    """x (2, 3) float64, base=100."""
    shown = [f"{k} {describe(v)}" for k, v in zip(exercise.names(given.args), given.args)]
    shown += [f"{k}={describe(v)}" for k, v in given.kwargs.items()]
    return ", ".join(shown)


def _ours(frame: FrameType) -> bool:
    """Whether a frame belongs to the judge or to an installed package, not to the submission."""
    file = Path(frame.f_code.co_filename)
    return file.parent == Path(__file__).parent or "site-packages" in file.parts


def _raised(error: Exception) -> Failure:
    """An exception of the submission, with the line that raised it."""
    lines = [(Text("error", "报错"), f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")]
    own = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not _ours(frame)]
    if own:
        frame, number = own[-1]
        text = linecache.getline(frame.f_code.co_filename, number, frame.f_globals).strip()
        lines.append((Text("in line", "出错行"), f"{number}: {text}"))
    return Failure(Text("it raises an error", "运行时报错"), tuple(lines))


def _judge_values(case: Case, seen: Seen, wanted: Seen) -> Failure | None:
    return compare(wanted.output, seen.output, case.tolerance, case.same_dtype, case.atol)


def _judge_gradients(case: Case, seen: Seen, wanted: Seen) -> Failure | None:
    for name, gradient in wanted.gradients.items():
        got = seen.gradients.get(name)
        if gradient is None or not gradient.any():
            if got is None or not got.any():
                continue
            what = Text(f"gradient to {name}, which must be constant", f"{name} 应视为常数，却收到了梯度")
            return Failure(what, ((GOT, describe(got)),))
        if got is None:
            return Failure(Text(f"no gradient reaches {name}", f"没有梯度传到 {name}"))
        if failure := compare(gradient, got, case.tolerance):
            what = Text(f"gradient with respect to {name}: {failure.what.en}", f"对 {name} 的梯度：{failure.what.zh}")
            return Failure(what, failure.lines)
    return None


def _judge_device(case: Case, seen: Seen, wanted: Seen) -> Failure | None:
    if seen.left - {"tolist"}:
        return Failure(
            Text("an input is made a numpy array, which fails on a GPU", "输入转成了 numpy 数组，在 GPU 上会报错")
        )
    if seen.mixed is None:
        return None
    if seen.mixed == "return":
        what = Text("the result was made without the input's device", "返回值没有放在输入所在的设备上")
    else:
        what = Text(
            f"{seen.mixed} meets a tensor that was made without device=; it lies on the CPU, the input on the GPU",
            f"{seen.mixed} 用到了创建时没写 device= 的张量：它在 CPU 上，输入却在 GPU 上",
        )
    return Failure(what)


def _judge_cost(case: Case, seen: Seen, wanted: Seen) -> Failure | None:
    if failure := _judge_values(case, seen, wanted):
        return failure
    if seen.left:
        return Failure(
            Text("the numbers leave torch, for a list or a numpy array", "数据离开了 torch，转成了列表或 numpy 数组")
        )
    if seen.operations > case.operations:
        what = Text("too many operations: is there a loop?", "运算次数太多：是不是写了循环？")
        return Failure(what, ((Text("allowed", "上限"), str(case.operations)), (GOT, str(seen.operations))))
    if seen.largest > case.bytes:
        what = Text("one tensor is too large", "有一个中间张量太大")
        units = tuple(f"{n / 1024:.0f} KiB" for n in (case.bytes, seen.largest))
        return Failure(what, ((Text("allowed", "上限"), units[0]), (GOT, units[1])))
    return None


_JUDGES = {
    "values": _judge_values,
    "gradients": _judge_gradients,
    "dtypes": _judge_values,
    "device": _judge_device,
    "cost": _judge_cost,
}


class _Run:
    """One submission on one exercise."""

    def __init__(self, exercise: Exercise, program: Callable, expected: dict[tuple, Seen]):
        self.exercise, self.program, self.expected = exercise, program, expected
        self.seen: list[Seen] = []

    def case(self, case: Case, references: list[Callable]) -> list[Failure | None]:
        """The failure of the case by each convention."""
        if case.kind == "refuses":
            return [self._refuses(case)] * len(references)
        found = [None] * len(references)
        for dtype in case.dtypes or (None,):
            seen = observe(self.exercise, case, self.program, dtype)
            self.seen.append(seen)
            for i, reference in enumerate(references):
                if found[i] is None:
                    found[i] = self._compare(case, seen, reference, dtype)
        return found

    def _compare(self, case: Case, seen: Seen, reference: Callable, dtype) -> Failure | None:
        if seen.error:
            return self._with_input(case, _raised(seen.error))
        wanted = self._wanted(case, reference, dtype)
        if dtype is not None:  # some units in the last place of the result, which may be wider than the input
            eps = [torch.finfo(x.dtype).eps for x in tree_leaves(wanted.output) if x.is_floating_point()]
            case = replace(case, tolerance=max(case.tolerance, 4 * max(eps, default=0.0)))
        failure = _JUDGES[case.kind](case, seen, wanted)
        return self._with_input(case, failure) if failure else None

    def _wanted(self, case: Case, reference: Callable, dtype) -> Seen:
        """What a reference does, run once."""
        key = case.name, reference, dtype
        if key not in self.expected:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the reader is told of his own
                self.expected[key] = observe(self.exercise, case, reference, dtype)
        if error := self.expected[key].error:
            raise RuntimeError(f"{self.exercise.name}: the reference fails on '{case.name.en}'") from error
        return self.expected[key]

    def _refuses(self, case: Case) -> Failure | None:
        seen = observe(self.exercise, case, self.program)
        self.seen.append(seen)
        if isinstance(seen.error, case.error):
            return None
        if seen.error:
            return self._with_input(case, _raised(seen.error))
        what = Text(f"no {case.error.__name__} is raised", f"没有抛出 {case.error.__name__}")
        return self._with_input(case, Failure(what, ((GOT, describe(seen.output)),)))

    def _with_input(self, case: Case, failure: Failure) -> Failure:
        given = describe_call(self.exercise, case.make())
        return Failure(failure.what, ((INPUT, given), *failure.lines)) if given else failure

    def conduct(self) -> list[Result]:
        """What holds for all calls together."""
        see = "guide-practise"
        results = []
        changed = sorted({name for seen in self.seen for name in seen.changed_inputs})
        failure = Failure(Text(f"changed in place: {', '.join(changed)}", f"被原地修改：{'、'.join(changed)}"))
        if any(seen.tensors for seen in self.seen):
            results.append(Result(Text("inputs unchanged", "不修改输入"), failure if changed else None, see))
        state = sorted({name for seen in self.seen for name in seen.state})
        en, zh = ", ".join(name.en for name in state), "、".join(name.zh for name in state)
        failure = Failure(Text(f"changed: {en}", f"改动了：{zh}"))
        results.append(
            Result(Text("torch's global state unchanged", "不改 torch 的全局状态"), failure if state else None, see)
        )
        if self.exercise.forbidden:
            used = sorted({name for seen in self.seen for name in seen.forbidden})
            failure = Failure(Text(f"calls {', '.join(used)}", f"调用了 {'、'.join(used)}"))
            named = ", ".join(self.exercise.forbidden)
            name = Text(f"written by hand, without {named}", f"自己写，不调用 {named}")
            results.append(Result(name, failure if used else None, see))
        return results


def judge(
    exercise: Exercise,
    program: Callable,
    tell: Callable[[Text], None] | None = None,
    expected: dict[tuple, Seen] | None = None,
) -> Verdict:
    """The verdict on a submission. tell: called with the name of each case before it runs; without it, no known mistake
    is looked for. expected: what the references did, kept from one submission to the next.
    """
    if is_stub(program):
        return Verdict(exercise.name, empty=True)
    references = [exercise.reference, *(c.function for c in exercise.conventions)]
    run, table = _Run(exercise, program, {} if expected is None else expected), []
    for case in exercise.cases:
        if tell:
            tell(case.name)
        table.append(run.case(case, references))
    if all(seen.output is None and not seen.error for seen in run.seen):
        return Verdict(exercise.name, empty=True)
    passes = [sum(row[i] is None for row in table) for i in range(len(references))]
    best = passes.index(max(passes))
    results = [Result(c.name, row[best], c.see) for c, row in zip(exercise.cases, table)]
    for case, result in zip(exercise.cases, results):
        if tell and not result.passed:
            result.mistake = recognise(exercise, case, program)
    verdict = Verdict(exercise.name, results + run.conduct())
    if exercise.conventions:
        verdict.convention = exercise.conventions[best - 1].why if best else SAME
    return verdict


def recognise(exercise: Exercise, case: Case, program: Callable) -> Text | None:
    """The known mistake that gives this very result."""
    if case.kind != "values":
        return None
    got = observe(exercise, case, program)
    if got.error or got.output is None:
        return None
    for wrong in exercise.wrongs:
        theirs = observe(exercise, case, wrong.function)
        if not theirs.error and compare(theirs.output, got.output, 1e-9) is None:
            return wrong.why
    return None
