"""Tasks, drills, solutions, and the mock interview."""

import re

import pytest
import torch

import lib.practice as practice
from lib.practice import progress, session
from lib.practice.drill import verdict_on
from lib.practice.exercise import load, names
from lib.practice.language import CHINESE, Message, Text
from lib.practice.report import verdict_text


def shown(capsys):
    return capsys.readouterr().out


def test_a_task_shows_statement_and_levels(capsys):
    practice.task("grpo_advantages")
    text = shown(capsys)
    assert load("grpo_advantages").statement.en in text
    assert "Difficulty ★☆☆ · asked ★★★ · about 8 minutes" in text and "Not allowed: `layer_norm`" in text


def test_a_solution_is_a_program_that_passes(capsys):
    for name in names():
        practice.solution(name)
        code = re.search(r"```python\n(.*?)```", shown(capsys), re.DOTALL)[1]
        scope = {"torch": torch, "nn": torch.nn}  # what a notebook imports
        exec(code, scope)
        function = next(v for k, v in reversed(scope.items()) if callable(v) and k != "__builtins__")
        assert verdict_on(load(name), function).passed, name


def test_bugs_are_revealed_one_by_one(capsys):
    drill = load("bugs_rope")
    for number in range(1, len(drill.bugs) + 2):
        practice.reveal("bugs_rope")
        text = shown(capsys)
        assert text.count(" of 4: ") == min(number, 4)
    for bug in drill.bugs:
        assert bug.why.en in text and f"+ {bug.right.strip()}" in text
    with pytest.raises(ValueError, match="'rope' is no drill"):
        practice.reveal("rope")


def test_a_drill_says_how_many_are_found(capsys):
    drill = load("bugs_rope")
    practice.check("bugs_rope", drill.mixture((1, 3)))
    text = shown(capsys)
    assert "2 of 4 bugs mended" in text and "✓ bug 1, mended: the exponent is 2i/D" in text
    assert "✗ bug 2: still there\n" in text
    practice.check("bugs_rope", drill.reference)
    assert "4 of 4 bugs mended" in shown(capsys)


def test_a_drill_with_all_bugs_mended_and_another_fault_says_so():
    """Mended, but it seeds torch: not accepted, and told why."""
    drill = load("bugs_rope")

    def seeding(*args, **kwargs):
        torch.manual_seed(0)
        return drill.reference(*args, **kwargs)

    verdict = verdict_on(drill, seeding)
    assert verdict.bugs_left == [] and not verdict.passed
    text = verdict_text(verdict)
    assert "4 of 4 bugs mended, but something else is wrong" in text
    assert "✗ torch's global state unchanged: changed: the random seed" in text


def test_every_failure_says_why():
    """However many there are, and whether or not there is anything to show below."""

    def poor(logprobs, old_logprobs, ref_logprobs, advantages, mask, *, beta=0.04, clip=0.2):
        logprobs.detach().mul_(2)
        torch.manual_seed(0)
        return torch.zeros(())

    verdict = verdict_on(load("grpo_loss"), poor)
    text = verdict_text(verdict)
    failed = [result for result in verdict.results if not result.passed]
    assert len(failed) > 5
    for result in failed:
        assert (
            f"✗ {result.name}: {result.failure.what}" in text or f"✗ {result.name}\n      {result.failure.what}" in text
        )


def test_what_is_missing_in_a_call_is_told(capsys):
    assert repr(practice.check("rope")) == 'no function is given: check("rope", apply_rope)'
    with pytest.raises(TypeError, match='check needs the name of an exercise: @check\\("rope"\\)'):
        practice.check(lambda: 0)
    assert practice.check("rope_frequencies")(load("rope_frequencies").reference) is load("rope_frequencies").reference
    assert "right, all" in shown(capsys)


def test_errors_speak_the_readers_language():
    practice.set_language("zh")
    for call in (practice.skip, practice.finish):
        with pytest.raises(ValueError, match="没有进行中的面试"):
            call()
    with pytest.raises(ValueError, match="minutes：收到 3"):
        practice.interview(3)
    with pytest.raises(ValueError, match="找 bug"):
        practice.reveal("rope")


def test_a_solution_imports_what_it_uses(capsys):
    practice.solution("warmup_cosine")
    assert shown(capsys).startswith("```python\nimport math\n")


def test_the_chinese_travels_with_an_output():
    text = Text("one", "一")
    bundle = Message(lambda: str(text), markdown=True)._repr_mimebundle_()
    assert bundle["text/plain"] == bundle["text/markdown"] == "one"
    assert bundle[CHINESE] == {"text/plain": "一", "text/markdown": "一"}


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def time(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(session, "time", clock)
    return clock


def test_drawing_fits_the_time_and_is_repeatable():
    for minutes in (8, 20, 45, 90):
        tasks = session.draw(minutes, None, seed=1)
        assert 0 < sum(load(name).minutes for name in tasks) <= minutes
        assert tasks == session.draw(minutes, None, seed=1) and len(tasks) == len(set(tasks))
    assert {load(name).topic for name in session.draw(60, ["rope"], seed=0)} == {"rope"}


def test_what_is_often_asked_is_drawn_more_often():
    first = [name for seed in range(300) for name in session.draw(8, None, seed)]
    asked = {name: first.count(name) for name in set(first)}
    assert asked["rope_frequencies"] > asked["grpo_normalizers"]


@pytest.mark.parametrize(
    ("minutes", "topics", "message"),
    [(3, None, "minutes: got 3, must be at least 8"), (45, ["poetry"], "topics: got poetry, must be among")],
)
def test_what_cannot_be_drawn_is_told(minutes, topics, message):
    with pytest.raises(ValueError, match=message):
        practice.interview(minutes, topics)


def test_an_interview_from_beginning_to_end(clock, capsys):
    practice.interview(40, "rope", seed=2)
    state = progress.read()["interview"]
    tasks = state["tasks"]
    assert len(tasks) >= 2 and f"Task 1 of {len(tasks)}, 40 minutes left" in shown(capsys)
    clock.now += 300
    practice.check(tasks[0], lambda *a, **k: 0)
    assert "Task 2" not in shown(capsys)
    practice.check(tasks[0], load(tasks[0]).reference)
    assert f"Task 2 of {len(tasks)}, 35 minutes left" in shown(capsys)
    clock.now += 60
    for _ in tasks[1:]:
        practice.skip()
    text = shown(capsys)
    assert f"1 of {len(tasks)} solved in time" in text and "5.0" in text and "skipped" in text
    assert progress.read()["interview"] is None
    for call in (practice.skip, practice.finish):
        with pytest.raises(ValueError, match="no interview is running"):
            call()


def test_time_is_up(clock, capsys):
    practice.interview(40, "rope", seed=2)
    tasks = progress.read()["interview"]["tasks"]
    clock.now += 41 * 60
    practice.check(tasks[0], load(tasks[0]).reference)
    text = shown(capsys)
    assert "Time is up." in text and "solved late" in text and "not reached" in text and "0 of" in text
    assert progress.read()["interview"] is None


def test_a_task_begun_and_not_solved_is_told_apart_from_one_not_reached(clock, capsys):
    practice.interview(40, "rope", seed=2)
    tasks = progress.read()["interview"]["tasks"]
    clock.now += 60
    practice.check(tasks[0], lambda *a, **k: 0)
    practice.finish()
    rows = {line.split()[0]: line for line in shown(capsys).splitlines() if line.strip()}
    assert "not solved" in rows[tasks[0]] and "1.0" in rows[tasks[0]] and "not reached" in rows[tasks[1]]


def test_another_exercise_does_not_move_the_interview(capsys):
    practice.interview(40, "rope", seed=2)
    before = progress.read()["interview"]
    practice.check("grpo_advantages", load("grpo_advantages").reference)
    assert progress.read()["interview"] == before


def test_the_overview_refuses_a_judge_that_fails(monkeypatch, capsys):
    from lib.practice import audit

    monkeypatch.setattr(audit, "names", lambda: ["rope_frequencies"])
    practice.overview()
    assert "1 exercises: 10 of 10 wrong programs caught" in shown(capsys)
    exercise = load("rope_frequencies")
    monkeypatch.setattr(exercise, "cases", exercise.cases[:1])
    with pytest.raises(RuntimeError, match="the judge fails its own tests:\nrope_frequencies: .* fails"):
        practice.overview()
