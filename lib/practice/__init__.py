"""Write it yourself: exercises with a judge that is itself tested.

`task("rope")` shows a task, `check("rope", apply_rope)` judges your function (or put `@check("rope")` above it),
`hint("rope")` helps a step at a time, `solution("rope")` shows one. `status()` lists what you have solved, `reset()`
forgets it. `task("bugs_rope")` is a program with bugs to find, and `reveal("bugs_rope")` shows one of them.
`interview(minutes=45)` draws tasks and keeps the time; `skip()` and `finish()` go on and end it. All of it speaks the
notebook's language; `set_language("zh")` changes that.
"""

import re
from collections.abc import Callable, Iterable

from lib.practice import catalogue as _catalogue
from lib.practice import progress as _progress
from lib.practice import session as _session
from lib.practice.audit import audit as _audit
from lib.practice.drill import Drill
from lib.practice.exercise import load, source_of
from lib.practice.judge import Verdict, is_stub
from lib.practice.language import Message, Text, set_language, show
from lib.practice.report import statement, status_text, verdict_text, where

__all__ = [
    "check",
    "finish",
    "hint",
    "interview",
    "overview",
    "reset",
    "reveal",
    "set_language",
    "skip",
    "solution",
    "status",
    "task",
]


def _say(en: str, zh: str) -> None:
    text = Text(en, zh)
    show(Message(lambda: str(text)))


def task(name: str) -> None:
    """Show the task; for a drill, the program to mend as well."""
    exercise = load(name)
    code = f"\n\n```python\n{exercise.stub}\n```" if isinstance(exercise, Drill) else ""
    show(Message(lambda: statement(exercise) + code, markdown=True))


def check(name: str, function: Callable | None = None):
    """Judge a function and show the verdict; with the name alone, a decorator: `@check("rope")`.

    The function runs in a process of its own, so that whatever it does, this session stays as it is.
    """
    if callable(name):
        raise TypeError(
            str(Text('check needs the name of an exercise: @check("rope")', 'check 要写明练习名：@check("rope")'))
        )
    load(name)
    if function is None:
        return _Decorator(name)
    if not callable(function):
        kind = type(function).__name__
        en = f"function: got {kind}, must be a function or a class: check({name!r}, f)"
        raise TypeError(str(Text(en, f"function：收到 {kind}，应为函数或类：check({name!r}, f)")))
    from lib.practice import isolation

    verdict = Verdict(name, empty=True) if is_stub(function) else isolation.run_isolated(name, function)
    attempt = None if verdict.empty else _progress.record(name, verdict.passed)
    show(Message(lambda: verdict_text(verdict, attempt)))
    if attempt:
        _in_interview(name, verdict.passed)
    return None


class _Decorator:
    """What `check("rope")` gives: it judges what it decorates, and where it is shown says what is missing."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self, function: Callable) -> Callable:
        check(self.name, function)
        return function

    def __repr__(self) -> str:
        name = load(self.name).function_name
        use = f'check("{self.name}", {name})'
        return str(Text(f"no function is given: {use}", f"没有给出函数：{use}"))


def hint(name: str) -> None:
    """The next hint; after the last one, where the chapter explains it."""
    exercise = load(name)
    with _progress.opened() as data:
        kept = _progress.entry(data, name)
        kept["hints"] = number = min(kept["hints"] + 1, len(exercise.hints))
    lines = exercise.hints[:number]
    last = number == len(exercise.hints)
    label = exercise.topic.replace("_", "-") + "-by-hand"

    def render() -> str:
        shown = [f"{i}. {text}" for i, text in enumerate(lines, start=1)]
        if last:
            shown.append(str(Text("That was the last one; now read ", "提示到此为止，接下来可以看")) + where(label))
        return "\n".join(shown)

    show(Message(render))


def solution(name: str) -> None:
    """A solution, as code; and which other conventions are accepted."""
    exercise = load(name)
    if isinstance(exercise, Drill):
        code = exercise.text(())
    else:
        program = exercise.solutions[0]
        code = re.sub(rf"\b{program.name}\b", exercise.function_name, source_of(program.function))
        if re.search(r"\bmath\.", code):
            code = f"import math\n\n\n{code}"
    others = exercise.conventions

    def render() -> str:
        text = f"```python\n{code}\n```"
        if others:
            text += "\n\n" + str(Text("Accepted as well: ", "同样接受：")) + "; ".join(str(c.why) for c in others)
        return text

    show(Message(render, markdown=True))


def reveal(name: str) -> None:
    """One bug of a drill, in the program's order; each call shows one more."""
    drill = load(name)
    if not isinstance(drill, Drill):
        raise ValueError(str(Text(f"name: {name!r} is no drill; hint({name!r}) helps there",
                                  f"name：{name!r} 不是找 bug 的题，请用 hint({name!r})")))  # fmt: skip
    with _progress.opened() as data:
        kept = _progress.entry(data, name)
        kept["revealed"] = number = min(kept["revealed"] + 1, len(drill.bugs))

    def render() -> str:
        lines = []
        for i, bug in enumerate(drill.bugs[:number], start=1):
            head = Text(f"bug {i} of {len(drill.bugs)}", f"第 {i} 个 bug，共 {len(drill.bugs)} 个")
            lines += [f"{head}: {bug.why}", *(f"  - {x}" for x in bug.wrong.strip().splitlines())]
            lines += [*(f"  + {x}" for x in bug.right.strip().splitlines()), f"  → {where(bug.see)}"]
        return "\n".join(lines)

    show(Message(render))


def status(*names: str) -> None:
    """What is solved, by part; with names, these alone."""
    chosen = tuple(load(name).name for name in names)
    kept = _progress.read()["exercises"]
    show(Message(lambda: status_text(kept, chosen)))


def overview() -> None:
    """All exercises in a table, with what the judge makes of their right and wrong programs (it takes some seconds)."""
    rows = _audit()
    if problems := [f"{row.name}: {problem}" for row in rows for problem in row.problems]:
        raise RuntimeError("the judge fails its own tests:\n" + "\n".join(problems))
    show(Message(lambda: _catalogue.plain(rows), html=lambda: _catalogue.html(rows)))


def reset(name: str | None = None) -> None:
    """Forget the progress of one exercise, or of all; the old file is kept."""
    if name is not None:
        load(name)
    kept = _progress.clear(name)
    if kept is None:
        _say("There is no progress yet.", "还没有进度。")
    else:
        _say(f"Forgotten. The old file is {kept}.", f"已清空，旧文件保留在 {kept}。")


def interview(minutes: float = 45, topics: Iterable[str] | None = None, *, seed: int | None = None) -> None:
    """Draw tasks for so many minutes, of these topics or of all, and begin with the first. seed: the same tasks again."""
    topics = [topics] if isinstance(topics, str) else topics
    state = _session.start(minutes, topics, seed)
    with _progress.opened() as data:
        data["interview"] = state
    number = len(state["tasks"])
    _say(
        f"{number} {'task' if number == 1 else 'tasks'} in {minutes:g} minutes; the clock is running. check(…) takes your answer, skip() passes, "
        "finish() ends it.",
        f"{minutes:g} 分钟，{number} 道题，计时开始。check(…) 交卷，skip() 跳过本题，finish() 结束面试。",
    )
    _next_task(state)


def _next_task(state: dict) -> None:
    exercise, late = _session.current(state), _session.seconds_left(state) < 0
    if late:
        _say("Time is up.", "时间到。")
    if exercise is None or late:
        finish()
        return
    left, number, total = _session.seconds_left(state) / 60, state["at"] + 1, len(state["tasks"])
    _say(f"Task {number} of {total}, {left:.0f} minutes left", f"第 {number} 题，共 {total} 题，还剩 {left:.0f} 分钟")
    show(Message(lambda: f"{statement(exercise)}\n\n```python\n{exercise.stub}\n```", markdown=True))


def _in_interview(name: str, passed: bool) -> None:
    """An attempt at the task at hand: solved, it leads on; after the time is up, it ends the interview."""
    with _progress.opened() as data:
        state = data["interview"]
        exercise = _session.current(state)
        if exercise is None or exercise.name != name:
            return
        late = _session.seconds_left(state) < 0
        if passed:
            _session.note(state, "late" if late else "solved")
    if late or passed:
        _next_task(state)


def _no_interview() -> ValueError:
    return ValueError(
        str(Text("no interview is running; interview() begins one", "没有进行中的面试；interview() 开始一场"))
    )


def skip() -> None:
    """Leave the task at hand and go on to the next one."""
    with _progress.opened() as data:
        state = data["interview"]
        if _session.current(state) is None:
            raise _no_interview()
        _session.note(state, "skipped")
    _next_task(state)


def finish() -> None:
    """End the interview and sum it up."""
    with _progress.opened() as data:
        state, data["interview"] = data["interview"], None
    if state is None:
        raise _no_interview()
    if _session.current(state) is not None:
        _session.note(state, "unsolved")
    show(Message(lambda: _session.summary(state)))
