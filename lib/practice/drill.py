"""Find the bugs: a program that looks right, with bugs planted in it. The judge says which of them are mended."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lib.practice.compare import Failure, compare
from lib.practice.exercise import Exercise
from lib.practice.judge import Result, Verdict, judge, observe
from lib.practice.language import Text


class Bug(NamedTuple):
    """A line of the right program, what stands in its place, why that is wrong, and the label that explains it."""

    right: str
    wrong: str
    why: Text
    see: str


@dataclass
class Drill(Exercise):
    """An exercise whose stub is a program with bugs. program: the right one, with its imports; bugs: in its order.

    `reference` is made from `program` and may be given as None.
    """

    program: str = ""
    bugs: tuple[Bug, ...] = ()

    def __post_init__(self):
        super().__post_init__()
        if not 3 <= len(self.bugs) <= 5:
            raise ValueError(f"bugs: got {len(self.bugs)}, must be three to five")
        for bug in self.bugs:
            if self.program.count(bug.right) != 1:
                raise ValueError(
                    f"bugs: {bug.right!r} stands {self.program.count(bug.right)} times in program, not once"
                )
        self.reference = self.mixture(())

    @property
    def stub(self) -> str:
        """The program with all its bugs."""
        return self.text(range(len(self.bugs)))

    def text(self, planted) -> str:
        """The program with the bugs of these numbers."""
        text = self.program
        for number in planted:
            text = text.replace(self.bugs[number].right, self.bugs[number].wrong)
        return text.strip()

    def mixture(self, planted) -> Callable:
        """The same, to be called."""
        scope: dict = {}
        exec(compile(self.text(planted), f"<{self.function_name}>", "exec"), scope)
        return scope[self.function_name]

    def mixtures(self):
        """All sets of bugs, the empty one first."""
        numbers = range(len(self.bugs))
        return itertools.chain.from_iterable(itertools.combinations(numbers, n) for n in range(len(self.bugs) + 1))

    def left(self, program: Callable) -> tuple[int, ...] | None:
        """The bugs that a program still has; None where it is neither the right program nor one with some of them."""
        cases = [case for case in self.cases if case.kind in ("values", "gradients")]
        seen = [observe(self, case, program) for case in cases]
        for planted in self.mixtures():
            candidate = self.mixture(planted)
            if all(_alike(case, observe(self, case, candidate), one) for case, one in zip(cases, seen)):
                return planted
        return None


def _alike(case, wanted, seen) -> bool:
    if wanted.error or seen.error:
        return type(wanted.error) is type(seen.error)
    if compare(wanted.output, seen.output, case.tolerance):
        return False
    if case.kind != "gradients":
        return True
    pairs = [(g, seen.gradients.get(name)) for name, g in wanted.gradients.items()]
    return all((a is None) == (b is None) and (a is None or not compare(a, b, case.tolerance)) for a, b in pairs)


def verdict_on(exercise: Exercise, program: Callable, tell: Callable[[Text], None] | None = None) -> Verdict:
    """The verdict on a submission, to an exercise or to a drill. tell: see `judge`."""
    return (judge_drill if isinstance(exercise, Drill) else judge)(exercise, program, tell)


def judge_drill(drill: Drill, program: Callable, tell: Callable[[Text], None] | None = None) -> Verdict:
    """One result a bug where the submission is the program with some of its bugs, else one a case."""
    if tell:
        tell(Text("comparing with every mixture of the bugs", "与各种 bug 组合逐一比较"))
    left = drill.left(program)
    verdict = Verdict(drill.name) if left else judge(drill, program, tell)
    if left is None:
        return verdict
    results = [result for result in verdict.results if not result.passed]  # mended, but something else is broken
    for number, bug in enumerate(drill.bugs):
        name = Text(f"bug {number + 1}", f"bug {number + 1}")
        if number in left:
            results.append(Result(name, Failure(Text("still there", "还在"))))
        else:
            found = Text(f"bug {number + 1}, mended: {bug.why.en}", f"bug {number + 1} 已修好：{bug.why.zh}")
            results.append(Result(found))
    return Verdict(drill.name, results, bugs_left=list(left))
