"""Every exercise: complete in both languages, and judged rightly on its own list of right and wrong programs."""

import inspect
import re
import warnings
from pathlib import Path

import pytest

from lib.practice import exercise as exercises
from lib.practice.audit import audit_one
from lib.practice.drill import Drill, verdict_on
from lib.practice.exercise import Exercise, load, names
from lib.practice.report import headings

ROOT = Path(__file__).resolve().parents[2]
ALL = names()
DRILLS = [name for name in ALL if isinstance(load(name), Drill)]
PLAIN = [name for name in ALL if name not in DRILLS]


def stub_of(exercise: Exercise):
    scope = {}
    exec(compile(exercise.stub, "<stub>", "exec"), scope)
    return scope[exercise.function_name]


def test_there_are_at_least_seven_and_three_drills():
    assert len(PLAIN) >= 7 and len(DRILLS) >= 3


@pytest.mark.parametrize("name", ALL)
def test_right_programs_pass_and_wrong_ones_fail_where_they_should(name):
    """No problems: every right program passes, every wrong one fails where it should, every case fails for some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = audit_one(load(name))
    assert not row.problems, "\n" + "\n".join(row.problems)
    assert (row.caught, row.accepted) == (row.wrong, row.right)
    assert row.wrong >= 6 and row.right >= (1 if name in DRILLS else 2)


@pytest.mark.parametrize("name", PLAIN)
def test_the_empty_stub_is_not_an_answer(name):
    exercise = load(name)
    verdict = verdict_on(exercise, stub_of(exercise))
    assert verdict.empty and not verdict.passed


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_as_given_has_all_its_bugs(name):
    drill = load(name)
    verdict = verdict_on(drill, stub_of(drill))
    assert verdict.bugs_left == list(range(len(drill.bugs))) and not verdict.passed


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_rewritten_in_other_words_is_accepted(name):
    """The judge looks at what a program does, not at its text."""
    drill = load(name)
    text = drill.text(()).replace(drill.function_name, "another_name")
    scope = {}
    exec(text, scope)
    assert verdict_on(drill, lambda *args, **kwargs: scope["another_name"](*args, **kwargs)).passed


def _labels(exercise):
    return {case.see for case in exercise.cases} | {bug.see for bug in getattr(exercise, "bugs", ())}


@pytest.mark.parametrize("name", ALL)
def test_what_a_verdict_points_to_is_in_both_languages(name):
    exercise = load(name)
    wanted = {label for label in _labels(exercise) if label} | {exercise.topic.replace("_", "-") + "-by-hand"}
    for code in ("en", "zh"):
        assert wanted <= headings(code).keys()
    if name in PLAIN:
        assert all(case.see for case in exercise.cases)


@pytest.mark.parametrize("name", ALL)
def test_it_is_written_in_both_languages(name):
    exercise = load(name)
    texts = [exercise.title, exercise.statement, *exercise.hints, *(c.name for c in exercise.cases)]
    texts += [p.why for p in exercise.solutions + exercise.conventions + exercise.wrongs]
    texts += [bug.why for bug in getattr(exercise, "bugs", ())]
    for text in texts:
        assert text.en.strip() and text.zh.strip()
    for text in [exercise.statement, *exercise.hints]:
        assert re.search("[\u4e00-\u9fff]", text.zh) and not re.search("[\u4e00-\u9fff]", text.en)
        calls = [set(re.findall(r"`[^`]+`", t)) for t in text]
        assert calls[0] == calls[1], "the languages name different things"
        assert not re.search("[\u4e00-\u9fff][A-Za-z0-9]|[A-Za-z0-9][\u4e00-\u9fff]", text.zh), text.zh


@pytest.mark.parametrize("name", ALL)
def test_the_statement_shows_the_signature(name):
    exercise = load(name)
    parameters = list(inspect.signature(stub_of(exercise)).parameters)
    assert set(parameters) <= set(inspect.signature(exercise.reference).parameters)
    for program in exercise.solutions + exercise.wrongs:
        assert list(inspect.signature(program.function).parameters) == parameters
    if name in PLAIN:
        assert f"`{exercise.signature.removeprefix('def ').removesuffix(':')}`" in exercise.statement.en


def test_case_names_are_unique():
    for name in ALL:
        found = [case.name.en for case in load(name).cases]
        assert len(found) == len(set(found)), name


def test_an_unknown_name_is_told_with_those_that_exist():
    with pytest.raises(ValueError, match="no exercise is named 'ropes'; there are .*rope_frequencies"):
        load("ropes")


SETTINGS = {"topic": "rope", "part": "positions", "title": None, "statement": None, "signature": "def f(x):",
            "reference": abs, "hints": (None,), "difficulty": 1, "asked": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"part": "poetry"}, "part: got 'poetry'"),
        ({"hints": ()}, "hints: got 0"),
        ({"difficulty": 4}, "difficulty, asked: got 4 and 1"),
    ],
)
def test_a_wrong_entry_is_refused(changed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        exercises.Exercise(**SETTINGS | changed)


def test_the_example_of_the_guide_for_contributors_is_right():
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    scope = {}
    exec(re.search(r"## Add an exercise.*?```python\n(.*?)```", guide, re.DOTALL)[1], scope)
    row = audit_one(scope["exercise"])
    assert not row.problems, "\n" + "\n".join(row.problems)
    assert (row.wrong, row.caught, row.right, row.accepted) == (2, 2, 2, 2)
