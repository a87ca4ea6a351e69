"""What an exercise is: a statement, a signature, cases, hints, and programs that must pass or fail.

CONTRIBUTING.md shows how to add one. Each lies in a file of its own, `exercises/NAME.py`, which defines `exercise`.
"""

import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lib.practice.language import Text

PARTS = {
    "foundations": Text("Foundations", "基础"),
    "normalisation": Text("Normalisation", "归一化"),
    "positions": Text("Positions", "位置编码"),
    "rl": Text("Reinforcement learning", "强化学习"),
}


class Call(NamedTuple):
    """Arguments of one call. init: for a module, the arguments of its constructor."""

    args: tuple
    kwargs: dict[str, Any]
    init: dict[str, Any] | None = None


def call(*args, **kwargs) -> Call:
    """`call(x, base=100.0)`: the arguments of one call."""
    return Call(args, kwargs)


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normal random numbers in float64, the same at every run; the global seed is not touched."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, dtype=torch.float64, generator=generator)


@dataclass(frozen=True)
class Case:
    """One thing that the judge looks at, with the name that the verdict lists.

    make: the arguments, made anew each time. see: the label in the chapter that explains it. tolerance: relative and,
    unless atol is given, absolute; for dtypes, at least some units in the last place. wrt: the names of the arguments whose gradients are compared (None: all that are floating
    point).
    """

    name: Text
    kind: str
    make: Callable[[], Call]
    see: str = ""
    tolerance: float = 1e-6
    atol: float | None = None
    same_dtype: bool = True
    wrt: tuple[str, ...] | None = None
    dtypes: tuple[torch.dtype, ...] = ()
    error: type[Exception] = ValueError
    operations: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Program:
    """A program that the judge must accept, or refuse on the case meant for it."""

    function: Callable
    name: str
    why: Text
    fails: str = ""


@dataclass
class Exercise:
    """An exercise. Cases and programs are added by its methods, in the same file.

    reference: lib's own function; signature: its head, as the stub shows it; forbidden: bare names of the functions
    that would be the answer; skeleton: the whole stub where the signature and one `return None` do not make one: a class.
    """

    topic: str
    part: str
    title: Text
    statement: Text
    signature: str
    reference: Callable
    hints: tuple[Text, ...]
    difficulty: int
    asked: int
    forbidden: tuple[str, ...] = ()
    skeleton: str = ""
    seconds: float = 20.0
    name: str = ""
    cases: list[Case] = field(default_factory=list)
    solutions: list[Program] = field(default_factory=list)
    conventions: list[Program] = field(default_factory=list)
    wrongs: list[Program] = field(default_factory=list)

    def __post_init__(self):
        if self.part not in PARTS:
            raise ValueError(f"part: got {self.part!r}, must be one of {', '.join(PARTS)}")
        if not 1 <= len(self.hints) <= 3:
            raise ValueError(f"hints: got {len(self.hints)}, must be one to three")
        if not {self.difficulty, self.asked} <= {1, 2, 3}:
            raise ValueError(f"difficulty, asked: got {self.difficulty} and {self.asked}, must be 1 to 3")

    @property
    def function_name(self) -> str:
        """The name in the signature."""
        return self.signature.split("(")[0].split(":")[0].split()[-1]

    @property
    def minutes(self) -> int:
        """How long one may take in an interview."""
        return {1: 8, 2: 15, 3: 25}[self.difficulty]

    @property
    def stub(self) -> str:
        """The program that the reader starts from."""
        return self.skeleton or f"{self.signature}\n    return None  # your code here"

    def names(self, args: tuple) -> list[str]:
        """The names of positional arguments, as the reference has them."""
        function = self.reference.forward if isinstance(self.reference, type) else self.reference
        parameters = [name for name in inspect.signature(function).parameters if name != "self"]
        return parameters[: len(args)]

    def _case(self, kind: str, en: str, zh: str, make: Callable[[], Call], **settings) -> None:
        self.cases.append(Case(Text(en, zh), kind, make, **settings))

    def values(self, en: str, zh: str, make: Callable[[], Call], **settings) -> None:
        """The result equals the reference's."""
        self._case("values", en, zh, make, **settings)

    def gradients(self, en: str, zh: str, make: Callable[[], Call], **settings) -> None:
        """The gradients equal the reference's, in float64. wrt: of which arguments."""
        self._case("gradients", en, zh, make, **settings)

    def dtypes_kept(self, make: Callable[[], Call], *dtypes: torch.dtype, of: str = "", **settings) -> None:
        """The result has the reference's dtype, and its values to that precision, for each dtype of the input.

        of: what, where an exercise has several such cases.
        """
        dtypes = dtypes or (torch.float32, torch.bfloat16, torch.float16)
        shown = [str(dtype).removeprefix("torch.") for dtype in dtypes]
        en, zh = ", ".join(shown), "、".join(shown)
        self._case("dtypes", f"{of}, {en}" if of else en, f"{of}，{zh}" if of else zh, make, dtypes=dtypes, **settings)

    def device_kept(self, make: Callable[[], Call], **settings) -> None:
        """No tensor is made on a device of its own: it would not meet an input on the GPU."""
        self._case("device", "works where the input lies", "与输入在同一设备上", make, **settings)

    def refuses(self, en: str, zh: str, make: Callable[[], Call], error: type[Exception] = ValueError, **settings):
        """Bad input raises this error."""
        self._case("refuses", en, zh, make, error=error, **settings)

    def cost(self, en: str, zh: str, make: Callable[[], Call], *, operations: int, bytes: int, **settings) -> None:
        """At most so many operations on tensors, none of which makes a tensor of more bytes: counted, not timed."""
        self._case("cost", en, zh, make, operations=operations, bytes=bytes, **settings)

    def solution(self, en: str, zh: str):
        """Another right way to write it; the first one is what `solution()` shows."""
        return self._program(self.solutions, Text(en, zh))

    def convention(self, en: str, zh: str):
        """Another legitimate convention, complete; a submission must follow one of them in all cases."""
        return self._program(self.conventions, Text(en, zh))

    def wrong(self, en: str, zh: str, *, fails: str):
        """A mistake people make: what is wrong, and the English name of the case that must fail."""
        return self._program(self.wrongs, Text(en, zh), fails)

    def _program(self, programs: list[Program], why: Text, fails: str = ""):
        def add(function):
            programs.append(Program(function, function.__name__, why, fails))
            return function

        return add


def source_of(function: Callable) -> str:
    """The source of a solution, without its decorator."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(("def ", "class ")))
    return "\n".join(lines[start:])


def names() -> list[str]:
    """All exercises and drills, by the names of their files."""
    from lib.practice import exercises

    return sorted(module.name for module in pkgutil.iter_modules(exercises.__path__))


def load(name: str) -> Exercise:
    """The exercise of this name; ValueError with the names that exist."""
    if name not in names():
        known = ", ".join(names())
        raise ValueError(
            Text(
                f"no exercise is named {name!r}; there are {known}",
                f"没有名为 {name!r} 的练习；可选：{known}",
            ).__str__()
        )
    exercise = importlib.import_module(f"lib.practice.exercises.{name}").exercise
    exercise.name = name
    return exercise
