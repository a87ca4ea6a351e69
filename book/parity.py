"""Two languages, one book: what must be equal in both, and whether the Chinese still says what the English says.

`python -m book.parity` lists the problems; `--accept [PAGE …]` records that the Chinese of those pages has been brought
up to date with the English (`make translated`).
"""

import argparse
import ast
import hashlib
import json
import re
import sys
from itertools import zip_longest

from book.page import Section, code_cells, prose_lines, relative, sections
from book.project import CHAPTERS, BookError, chapters, page_path, pages
from book.stored import tags

TRANSLATED = CHAPTERS / "zh" / "translated.json"
PARTS = ("formula", "by-hand", "check", "behaviour", "pitfalls", "cost", "exercise", "interview", "references")
DIRECTIVE = re.compile(r"^ {0,3}(?::{3,}|`{3,})\{([\w:-]+)\}", re.MULTILINE)
EQUATION = re.compile(r"\$\$(.+?)\$\$(?: *\(([\w-]+)\))?", re.DOTALL)
ROLE = re.compile(r"\{([\w:]+)\}`(?:[^`<]*<)?([^`>]+)>?`")
DISCOURAGED = ("令牌", "代币", "变压器", "鲁棒", "让我们", "值得注意的是", "总而言之", "地面真值")
HAN = r"[\u4e00-\u9fff]"
SPACING = re.compile(rf"{HAN}[A-Za-z0-9]|[A-Za-z0-9]{HAN}")
BOLD_PUNCTUATION = re.compile(r"\*\*[^*\n]*[，。：；！？、）”]\*\*(?=[\u4e00-\u9fff])")
MATH_OR_CODE = re.compile(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|\{[\w:]+\}`[^`]*`|<[^>]*>")


def _prose(section: Section) -> str:
    return "\n".join(cell.source for cell in section.cells if cell.kind == "markdown")


def _structure(section: Section) -> dict[str, list]:
    """What must be the same in both languages, by the name that a message gives it."""
    prose = _prose(section)
    shown = [cell.metadata.get("mystnb", {}) for cell in section.cells if cell.kind == "code"]
    figures = [(s["figure"]["name"], s.get("image", {}).get("classes")) for s in shown if "figure" in s]
    roles = ROLE.findall(prose)
    return {
        "directives": DIRECTIVE.findall(prose),
        "equations": [(" ".join(tex.split()), label) for tex, label in EQUATION.findall(prose)],
        "citations": sorted(target for role, target in roles if role.startswith("cite")),
        "cross-references": sorted(target for role, target in roles if role in ("eq", "numref", "ref", "doc")),
        "figures": figures,
        "code cells": [len([cell for cell in section.cells if cell.kind == "code"])],
    }


def _numbered(sections_: list[Section]) -> dict[str, Section]:
    return {section.label: section for section in sections_ if section.label}


def compare(page: str) -> list[str]:
    """What differs between the two languages of a page, one line each, naming the file and the line."""
    paths = {language: page_path(language, page) for language in ("en", "zh")}
    if missing := [relative(path) for path in paths.values() if not path.is_file()]:
        return [f"{path} is missing: every page exists in both languages" for path in missing]
    en, zh = sections(paths["en"]), sections(paths["zh"])
    problems = [
        f"{relative(paths[language])}:{section.line}: heading '{section.title}' has no label: put (name)= before it"
        for language, found in (("en", en), ("zh", zh))
        for section in found
        if section.level and not section.label
    ]
    ours, theirs = _numbered(en), _numbered(zh)
    problems += [
        f"{relative(paths['zh'])}: section ({label})= is missing (chapters/en/{page}.md:{ours[label].line} has it)"
        for label in ours.keys() - theirs.keys()
    ]
    problems += [
        f"{relative(paths['zh'])}:{theirs[label].line}: section ({label})= is not in the English"
        for label in theirs.keys() - ours.keys()
    ]
    if problems:
        return problems
    for a, b in zip(en, zh, strict=True):
        where = f"{relative(paths['zh'])}:{b.line}"
        if (a.label, a.level) != (b.label, b.level):
            return [f"{where}: ({b.label})= of level {b.level} stands where the English has ({a.label})= of {a.level}"]
        left, right = _structure(a), _structure(b)
        problems += [
            f"{where}: § {b.title}: {name} differ: English {left[name]}, Chinese {right[name]}"
            for name in left
            if left[name] != right[name]
        ]
    return problems + compare_code(page) + check_chinese(page)


def compare_code(page: str) -> list[str]:
    """Code cells that are not the same program with the same tags in both languages."""
    en, zh = code_cells(page_path("en", page)), code_cells(page_path("zh", page))
    problems = []
    for number, (a, b) in enumerate(zip_longest(en, zh)):
        if a is None or b is None:
            return [*problems, f"chapters/zh/{page}.md: {len(zh)} code cells, the English has {len(en)}"]
        where = f"chapters/zh/{page}.md:{b.line}: code cell {number}"
        if tags(a) != tags(b):
            problems.append(f"{where}: tags {tags(b)}, the English has {tags(a)}")
        if ast.dump(ast.parse(a.source)) != ast.dump(ast.parse(b.source)):
            problems.append(f"{where} is not the program of chapters/en/{page}.md:{a.line}")
    return problems


def check_chinese(page: str) -> list[str]:
    """What the glossary and Chinese typography forbid: terms, missing spaces, soft breaks, bold that fails."""
    path, problems = page_path("zh", page), []
    for section in sections(path):
        for cell in section.cells:
            if cell.kind == "code":
                continue
            previous = ""
            for index, line in prose_lines(cell.source):
                where = f"{relative(path)}:{cell.line + index}"
                plain = MATH_OR_CODE.sub("", line)
                problems += [f"{where}: '{word}' is not a term of this book" for word in DISCOURAGED if word in plain]
                if found := SPACING.search(plain):
                    problems.append(f"{where}: a space is missing in '{found[0]}'")
                if found := BOLD_PUNCTUATION.search(line):
                    problems.append(f"{where}: '{found[0]}': put the punctuation outside the bold")
                if re.search(rf"[{HAN[1:-1]}，。、；：]$", previous) and re.match(rf"[{HAN[1:-1]}]", line):
                    problems.append(f"{where}: one paragraph a line: a soft break shows as a space")
                previous = "" if line.startswith(":::") else line
    return problems


def check_parts(topic: str) -> list[str]:
    """A chapter has its ten parts in order, and at least four figures."""
    path, stem = page_path("en", topic), topic.replace("_", "-")
    found = sections(path)
    labels = [section.label for section in found if section.level <= 2]
    wanted = [stem, *(f"{stem}-{part}" for part in PARTS)]
    problems = [] if labels == wanted else [f"{relative(path)}: parts are {labels}, must be {wanted}"]
    figures = sum(len(_structure(section)["figures"]) for section in found)
    return problems + ([] if figures >= 4 else [f"{relative(path)}: {figures} figures, must be at least 4"])


def prose_hashes(page: str) -> dict[str, str]:
    """A hash of the English prose of each section, captions and alternative texts included, by label."""
    hashes = {}
    for section in sections(page_path("en", page)):
        captions = [
            repr(c.metadata.get("mystnb")) for c in section.cells if c.kind == "code" and "mystnb" in c.metadata
        ]
        text = "\n".join([section.title, " ".join(_prose(section).split()), *captions])
        hashes[section.label or ""] = hashlib.sha256(text.encode()).hexdigest()[:12]
    return hashes


def _accepted() -> dict[str, dict[str, str]]:
    try:
        return json.loads(TRANSLATED.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        raise BookError(f"{relative(TRANSLATED)}:{error.lineno}: not valid JSON: {error.msg}") from None


def stale(page: str) -> list[str]:
    """The sections whose English changed since the Chinese was written against it."""
    accepted, now = _accepted().get(page, {}), prose_hashes(page)
    titles = {section.label or "": (section.title, section.line) for section in sections(page_path("en", page))}
    return [
        f"stale: zh/{page}.md § {titles[label][0]}: chapters/en/{page}.md:{titles[label][1]} changed; "
        f"bring the Chinese up to date, then run make translated PAGE={page}"
        for label, value in now.items()
        if accepted.get(label) != value
    ]


def accept(names: list[str]) -> None:
    """Record the present English of these pages as the one that their Chinese says."""
    known = {page: hashes for page, hashes in _accepted().items() if page in pages()}
    known |= {page: prose_hashes(page) for page in names}
    text = json.dumps(known, indent=1, sort_keys=True) + "\n"
    temporary = TRANSLATED.with_suffix(".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(TRANSLATED)


def problems(page: str) -> list[str]:
    """All that is wrong with one page."""
    return compare(page) + stale(page) + (check_parts(page) if page in chapters() else [])


def main() -> int:
    """List what differs between the languages, or accept pages as up to date."""
    parser = argparse.ArgumentParser(prog="python -m book.parity", description=main.__doc__)
    parser.add_argument("--accept", nargs="*", metavar="PAGE", help="pages brought up to date; none named: all")
    arguments = parser.parse_args()
    if arguments.accept is None:
        found = [problem for page in pages() for problem in problems(page)]
        print("\n".join(found) or f"{len(pages())} pages agree in both languages")
        return 1 if found else 0
    names = arguments.accept or pages()
    if unknown := set(names) - set(pages()):
        raise BookError(f"no page named {', '.join(sorted(unknown))}; there are {', '.join(pages())}")
    if found := [problem for page in names for problem in compare(page)]:
        print("\n".join(found))
        return 1
    accept(names)
    print(f"accepted: {', '.join(names)} ({relative(TRANSLATED)})")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BookError as error:
        sys.exit(f"error: {error}")
