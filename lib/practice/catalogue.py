"""The table of all exercises, with what the audit of the judge found."""

from html import escape

from lib.practice.audit import Row
from lib.practice.drill import Drill
from lib.practice.exercise import PARTS, Exercise, load
from lib.practice.language import Text, stars, table

HEAD = (
    Text("exercise", "练习"),
    Text("difficulty", "难度"),
    Text("asked", "频率"),
    Text("wrong caught", "识破错误"),
    Text("right accepted", "接受正确"),
)


def by_part(exercises: list[Exercise]) -> list[tuple[Text, list[Exercise]]]:
    """The exercises under their part's caption, drills last."""

    def order(e: Exercise):
        return isinstance(e, Drill), e.topic, e.difficulty, e.name

    groups = [(caption, [e for e in exercises if e.part == part]) for part, caption in PARTS.items()]
    return [(caption, sorted(group, key=order)) for caption, group in groups if group]


def _cells(exercise: Exercise, row: Row) -> list[str]:
    counts = [f"{row.caught}/{row.wrong}", f"{row.accepted}/{row.right}"]
    return [stars(exercise.difficulty), stars(exercise.asked), *counts]


def _total(rows: list[Row]) -> str:
    caught, wrong, accepted, right = (
        sum(getattr(r, n) for r in rows) for n in ("caught", "wrong", "accepted", "right")
    )
    return str(
        Text(
            f"{len(rows)} exercises: {caught} of {wrong} wrong programs caught, {accepted} of {right} right ones accepted.",
            f"共 {len(rows)} 道练习：{wrong} 个错误程序识破 {caught} 个，{right} 个正确程序接受 {accepted} 个。",
        )
    )


def plain(rows: list[Row]) -> str:
    """For a terminal."""
    found = {row.name: row for row in rows}
    lines = [[str(cell) for cell in HEAD]]
    for caption, group in by_part([load(name) for name in found]):
        lines.append([str(caption)] + [""] * (len(HEAD) - 1))
        lines += [["  " + e.name, *_cells(e, found[e.name])] for e in group]
    return f"{table(lines)}\n\n{_total(rows)}"


def html(rows: list[Row]) -> str:
    """For a notebook and the site: each title leads to the exercise's notebook."""
    found = {row.name: row for row in rows}
    lines = ["<table>", "<thead><tr>" + "".join(f"<th>{escape(str(cell))}</th>" for cell in HEAD) + "</tr></thead>"]
    for caption, group in by_part([load(name) for name in found]):
        lines.append(f'<tbody><tr><th colspan="{len(HEAD)}">{escape(str(caption))}</th></tr>')
        for e in group:
            link = f'<a href="practice/{e.name}.ipynb">{escape(str(e.title))}</a><br><code>{e.name.replace("_", "_<wbr>")}</code>'
            lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in [link, *_cells(e, found[e.name])]) + "</tr>")
        lines.append("</tbody>")
    return "\n".join([*lines, "</table>", f"<p>{escape(_total(rows))}</p>"])
