"""Verdicts, statements and tables as text, in the language that is being spoken."""

import re
from functools import cache
from pathlib import Path

from lib.practice.catalogue import by_part
from lib.practice.exercise import Exercise, load, names
from lib.practice.judge import Result, Verdict
from lib.practice.language import Text, language, pad, stars, table, width

CHAPTERS = Path(__file__).resolve().parents[2] / "chapters"
SHOWN = 3  # failures told in full
PRINTED = 10  # lines of what a submission prints
LINE = 110  # columns
COLON = Text(": ", "：")


@cache
def headings(code: str) -> dict[str, tuple[str, str]]:
    """Label → (chapter, heading), of one language; empty where lib stands without the chapters."""
    found = {}
    for page in sorted((CHAPTERS / code).glob("*.md")):
        for label, title in re.findall(r"^\(([\w-]+)\)=\n#+ +(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            found[label] = (page.stem, title.strip())
    return found


def where(label: str) -> str:
    """What to read: 'chapter rope, "Two layouts"'."""
    if label not in headings(language()):
        return label
    page, title = headings(language())[label]
    return str(Text(f"chapter {page}, “{title}”", f"章节 {page}，“{title}”"))


def _results(results: list[Result]) -> list[str]:
    """A line a case; the first failures in full, the others in short."""
    lines, full, before = [], 0, None
    for result in results:
        if result.passed:
            lines.append(f"  ✓ {result.name}")
            continue
        what, details = result.failure.what, result.failure.lines
        if details and what == before and "error" in what.en:
            lines.append(f"  ✗ {result.name}{COLON}{Text('the same as above', '同上')}")
        elif details and full < SHOWN:
            lines += [f"  ✗ {result.name}", f"      {what}", *_details(result)]
            full += 1
        else:
            lines += [f"  ✗ {result.name}{COLON}{what}", *([] if details else _details(result))]
        before = what
    return lines


def _details(result: Result) -> list[str]:
    lines, failure = [], result.failure
    columns = max((width(str(label)) for label, _ in failure.lines), default=0)
    for label, value in failure.lines:
        text = f"      {pad(str(label), columns)}  {value!s}"
        lines.append(text if width(text) <= 2 * LINE else text[: 2 * LINE] + "…")
    if result.mistake:
        lines.append(
            "      " + str(Text("this is what comes out when: ", "这正是下面这种写法的结果：")) + str(result.mistake)
        )
    if result.see:
        lines.append("      → " + where(result.see))
    return lines


def verdict_text(verdict: Verdict, attempt: int | None = None) -> str:
    """The verdict, case by case."""
    exercise = load(verdict.exercise)
    head = f"{verdict.exercise}: "
    if verdict.empty:
        return head + str(
            Text(
                f"not yet, {exercise.function_name} returns nothing.\n"
                f'Write it and run this again; hint("{verdict.exercise}") helps.',
                f'还没写，{exercise.function_name} 没有返回值。\n写好后再运行一次；需要提示就用 hint("{verdict.exercise}")。',
            )
        )
    if verdict.broken:
        return head + str(verdict.broken) + _printed(verdict)
    passed = sum(r.passed for r in verdict.results)
    total = len(verdict.results)
    if verdict.bugs_left is not None:
        bugs = len(exercise.bugs)
        mended = bugs - len(verdict.bugs_left)
        summary = Text(f"{mended} of {bugs} bugs mended", f"{bugs} 个 bug 修好了 {mended} 个")
        if mended == bugs and not verdict.passed:
            summary = Text(f"{summary.en}, but something else is wrong", f"{summary.zh}，但还有别的问题")
    elif verdict.passed:
        summary = Text(f"right, all {total} checks pass", f"正确，{total} 项检查全部通过")
    else:
        summary = Text(f"{passed} of {total} checks pass", f"{total} 项检查通过了 {passed} 项")
    tries = Text(f" (attempt {attempt})", f"（第 {attempt} 次）") if attempt else ""
    lines = [f"{head}{summary}{tries}", *_results(verdict.results)]
    if verdict.convention and verdict.passed:
        lines.append(str(Text("Convention: ", "约定：")) + str(verdict.convention))
    if verdict.bugs_left:
        lines.append(
            str(
                Text(
                    f'reveal("{verdict.exercise}") shows one of them.', f'reveal("{verdict.exercise}") 会揭晓其中一个。'
                )
            )
        )
    return "\n".join(lines) + _printed(verdict)


def _printed(verdict: Verdict) -> str:
    if not verdict.printed:
        return ""
    head = Text("Your function printed:", "函数打印的内容：")
    lines = [line if width(line) <= LINE else line[:LINE] + "…" for line in verdict.printed.splitlines()]
    more = ["  …"] if len(lines) > PRINTED else []
    return "\n".join([f"\n{head}", *(f"  | {line}" for line in lines[:PRINTED]), *more])


def statement(exercise: Exercise) -> str:
    """The task in Markdown: what, conventions, the stub."""
    level = Text(
        f"Difficulty {stars(exercise.difficulty)} · asked {stars(exercise.asked)} · about {exercise.minutes} minutes",
        f"难度 {stars(exercise.difficulty)} · 面试频率 {stars(exercise.asked)} · 约 {exercise.minutes} 分钟",
    )
    text = f"**{exercise.title}**　{level}\n\n{exercise.statement}"
    if any(case.kind == "device" for case in exercise.cases):
        text += str(Text("\n- Works on a GPU as well: new tensors are made where the inputs lie.",
                         "\n- GPU 上也要能用：新建的张量与输入在同一设备上。"))  # fmt: skip
    if exercise.forbidden:
        calls = [f"`{name}`" for name in exercise.forbidden]
        text += "\n\n" + str(Text(f"Not allowed: {', '.join(calls)}.", f"不能调用：{'、'.join(calls)}。"))
    return text


def status_text(kept: dict[str, dict], only: tuple[str, ...] = ()) -> str:
    """All exercises by part: what is solved, and in how many attempts."""
    head = (
        Text("exercise", "练习"),
        Text("title", "题目"),
        Text("difficulty", "难度"),
        Text("asked", "频率"),
        Text("solved", "通过"),
        Text("attempts", "次数"),
    )
    rows, solved = [[str(cell) for cell in head]], 0
    chosen = [load(name) for name in only or names()]
    for caption, group in by_part(chosen):
        rows.append([str(caption)] + [""] * (len(head) - 1))
        for e in group:
            mine = kept.get(e.name, {})
            solved += bool(mine.get("solved"))
            mark = "✓" if mine.get("solved") else "·"
            facts = [stars(e.difficulty), stars(e.asked), mark, str(mine.get("attempts", 0))]
            rows.append(["  " + e.name, str(e.title), *facts])
    total = Text(f"{solved} of {len(chosen)} solved", f"共 {len(chosen)} 题，已通过 {solved} 题")
    return f"{table(rows)}\n\n{total}"
