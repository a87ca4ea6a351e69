"""A mock interview: tasks drawn by how often they are asked, a clock, and a summary at the end."""

import random
import time
from collections.abc import Iterable
from typing import Any

from lib.practice.drill import Drill
from lib.practice.exercise import Exercise, load, names
from lib.practice.language import Text, table


def draw(minutes: float, topics: Iterable[str] | None, seed: int | None) -> list[str]:
    """Tasks that fit the time, easy ones first; each is as likely as it is often asked."""
    every = [load(name) for name in names()]
    known = sorted({e.topic for e in every})
    wanted = set(topics or known)
    if unknown := wanted - set(known):
        got, allowed = ", ".join(sorted(unknown)), ", ".join(known)
        raise ValueError(
            str(Text(f"topics: got {got}, must be among {allowed}", f"topics：收到 {got}，可选：{allowed}"))
        )
    pool = [e for e in every if e.topic in wanted]
    shortest = min(e.minutes for e in pool)
    if minutes < shortest:
        en = f"minutes: got {minutes:g}, must be at least {shortest}, the time of the shortest task"
        zh = f"minutes：收到 {minutes:g}，至少要 {shortest}，即最短一题的用时"
        raise ValueError(str(Text(en, zh)))
    chance, chosen, left = random.Random(seed), [], minutes
    while fitting := [e for e in pool if e.minutes <= left and e not in chosen]:
        task = chance.choices(fitting, [e.asked**2 for e in fitting])[0]
        chosen.append(task)
        left -= task.minutes
    return [e.name for e in sorted(chosen, key=lambda e: (e.difficulty, isinstance(e, Drill)))]


def start(minutes: float, topics: Iterable[str] | None, seed: int | None) -> dict[str, Any]:
    """What is kept of a running interview. Times are in seconds since 1970, so a restarted kernel changes nothing."""
    tasks = draw(minutes, topics, seed)
    now = time.time()
    return {"started": now, "minutes": minutes, "tasks": tasks, "at": 0, "since": now, "done": {}}


def current(state: dict[str, Any] | None) -> Exercise | None:
    """The task at hand, or None."""
    return load(state["tasks"][state["at"]]) if state and state["at"] < len(state["tasks"]) else None


def seconds_left(state: dict[str, Any]) -> float:
    """Below zero: it is over."""
    return state["started"] + 60 * state["minutes"] - time.time()


def note(state: dict[str, Any], outcome: str) -> None:
    """Close the task at hand as 'solved', 'late', 'skipped' or 'unsolved', and go on to the next one."""
    now = time.time()
    state["done"][state["tasks"][state["at"]]] = {"outcome": outcome, "seconds": now - state["since"]}
    state["at"] += 1
    state["since"] = now


def summary(state: dict[str, Any]) -> str:
    """Each task, its outcome, the time it took and the time it should take."""
    words = {
        "solved": Text("solved", "通过"),
        "late": Text("solved late", "超时通过"),
        "skipped": Text("skipped", "跳过"),
        "unsolved": Text("not solved", "未通过"),
        "": Text("not reached", "未做"),
    }
    rows = [
        [
            str(t)
            for t in (
                Text("task", "题目"),
                Text("outcome", "结果"),
                Text("minutes", "用时（分）"),
                Text("planned", "计划（分）"),
            )
        ]
    ]
    solved = 0
    for name in state["tasks"]:
        done = state["done"].get(name, {"outcome": "", "seconds": 0})
        solved += done["outcome"] == "solved"
        rows.append([name, str(words[done["outcome"]]), f"{done['seconds'] / 60:.1f}", str(load(name).minutes)])
    total = Text(
        f"{solved} of {len(state['tasks'])} solved in time, {(time.time() - state['started']) / 60:.1f} minutes",
        f"共 {len(state['tasks'])} 题，按时通过 {solved} 题，用时 {(time.time() - state['started']) / 60:.1f} 分钟",
    )
    return f"{table(rows)}\n\n{total}"
