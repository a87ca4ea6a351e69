"""The judge judged: every exercise against its own list of right and wrong programs."""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from lib.practice.drill import Drill, verdict_on
from lib.practice.exercise import Exercise, Program, load, names
from lib.practice.judge import judge
from lib.practice.language import Text


class Row(NamedTuple):
    """How the judge did on one exercise. problems: what it got wrong, one line each."""

    name: str
    cases: int
    wrong: int
    caught: int
    right: int
    accepted: int
    problems: list[str]


def _detached(function):
    def detached(*args, **kwargs):
        return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, function(*args, **kwargs))

    return detached


def _rounded(function):
    def rounded(*args, **kwargs):
        return tree_map(
            lambda x: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x, function(*args, **kwargs)
        )

    return rounded


def _in_place(function):
    def in_place(*args, **kwargs):
        result = function(*args, **kwargs)
        with torch.no_grad():
            for x in tree_leaves((args, kwargs)):
                if isinstance(x, Tensor) and x.dtype != torch.bool:
                    x.mul_(1)
        return result

    return in_place


def _seeding(function):
    def seeding(*args, **kwargs):
        torch.manual_seed(0)
        return function(*args, **kwargs)

    return seeding


def _homeless(function):
    def homeless(*args, **kwargs):
        return tree_map(lambda x: x + torch.zeros(1) if isinstance(x, Tensor) else x, function(*args, **kwargs))

    return homeless


def _silent(function):
    def silent(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (ValueError, TypeError):
            return 0.0

    return silent


#: Faults that any function can have, made from the reference: what is wrong, and the kind or name of the case that must
#: fail; any case, where there is none.
GENERIC = {
    "detached": (_detached, "gradients"),
    "rounded to float32": (_rounded, ""),
    "changes its input": (_in_place, "inputs unchanged"),
    "seeds torch": (_seeding, "torch's global state unchanged"),
    "makes a tensor on the CPU": (_homeless, "device"),
    "swallows errors": (_silent, "refuses"),
}


def generic(exercise: Exercise, judged: list[str]) -> list[Program]:
    """The generic faults that this exercise has a case for. judged: the names of all that its verdict lists."""
    if isinstance(exercise.reference, type):
        return []
    kinds = {case.kind: case.name.en for case in reversed(exercise.cases)}
    programs = []
    for name, (spoil, where) in GENERIC.items():
        case = kinds.get(where, where)
        if case in judged or (not case and "gradients" in kinds):
            programs.append(Program(spoil(exercise.reference), name, Text(name, name), case))
    return programs


def audit_one(exercise: Exercise) -> Row:
    """Every right program accepted, every wrong one refused on the case meant for it, every case able to fail?"""
    if isinstance(exercise, Drill):
        return _audit_drill(exercise)
    right = [Program(exercise.reference, "reference", Text("", "")), *exercise.solutions, *exercise.conventions]
    problems, accepted, caught, idle, expected = [], 0, 0, {}, {}
    for program in right:
        verdict = judge(exercise, program.function, expected=expected)
        accepted += verdict.passed
        problems += [f"{program.name} is refused: {r.name.en}: {r.failure}" for r in verdict.results if not r.passed]
        idle = dict.fromkeys(r.name.en for r in verdict.results)
    for program in [*exercise.wrongs, *generic(exercise, list(idle))]:
        verdict = judge(exercise, program.function, expected=expected)
        failed = [r.name.en for r in verdict.results if not r.passed]
        idle = {name: None for name in idle if name not in failed}
        if program.fails in failed or (failed and not program.fails):
            caught += program in exercise.wrongs
        else:
            problems.append(f"{program.name} fails {failed}, not {program.fails!r}")
    problems += [f"{name!r} fails for no wrong program" for name in idle]
    return Row(exercise.name, len(exercise.cases), len(exercise.wrongs), caught, len(right), accepted, problems)


def _audit_drill(drill: Drill) -> Row:
    """The right program, and every mixture of the bugs told apart."""
    problems, caught, total = [], 0, 0
    for planted in drill.mixtures():
        left = drill.left(drill.mixture(planted))
        if left != planted:
            problems.append(f"bugs {planted} are taken for {left}")
        elif planted:
            caught += 1
        total += bool(planted)
    accepted = int(verdict_on(drill, drill.reference).passed)
    return Row(drill.name, len(drill.cases), total, caught, 1, accepted, problems)


def audit() -> list[Row]:
    """One row an exercise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # wrong programs divide by zero, and torch warns
        return [audit_one(load(name)) for name in names()]
