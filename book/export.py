"""Plain notebooks for Colab and Jupyter, one a chapter and language: prose, code, the stored outputs, a first cell that
finds lib.

MyST becomes ordinary Markdown. The converter knows the directives and roles that the book uses, and stops with the file
and the line at any other: raw MyST never reaches a reader.
"""

import re
import subprocess
from functools import cache
from pathlib import Path

import nbformat
from pybtex.database import Entry, parse_file

from book.page import LABEL, Cell, prose_lines, read_cells, relative
from book.project import (
    LANGUAGES,
    ROOT,
    BookError,
    chapters,
    exercises,
    page_path,
    pages,
    read_front_matter,
    repository,
    topics,
)
from book.stored import KERNEL, in_language, read, tags

WORDS = {
    "en": {
        "figure": "Figure {}",
        "note": "Note",
        "warning": "Warning",
        "tip": "Tip",
        "and": " and ",
        "others": " et al.",
        "stars": "Difficulty {} · asked in interviews {}",
        "chapter": "The chapter: [{}]({}).",
        "stuck": "Stuck? Take away a `#` and run. A hint comes at each call, three at most.",
        "paren": " ({})",
        "comma": ", ",
    },
    "zh": {
        "figure": "图 {}",
        "note": "注意",
        "warning": "警告",
        "tip": "提示",
        "and": "、",
        "others": " 等",
        "stars": "难度 {} · 面试频率 {}",
        "chapter": "对应章节：[{}]({})。",
        "stuck": "卡住了？去掉下面某一行的 `#` 再运行。每次给一条提示，最多三条。",
        "paren": "（{}）",
        "comma": "，",
    },
}
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}
JUDGE_PACKAGES = ["cloudpickle", "filelock", "platformdirs"]
DIRECTIVE = re.compile(r"^(:{3,}|`{3,})\{([\w:-]+)\} *(.*)$")
ROLE = re.compile(r"\{([\w:]+)\}`([^`]+)`")
TARGET = re.compile(r"^(.*?)\s*<([^>]+)>$", re.DOTALL)
EQUATION = re.compile(r"\$\$(.+?)\$\$ *\(([\w-]+)\)", re.DOTALL)
LINK = re.compile(r"\]\(([\w-]+)\.md(#[\w-]+)?\)")
RAW_MYST = re.compile(r"\{[\w:-]+\}`|^\s*:{3,}|^\([a-z0-9-]+\)=\s*$|^\s*`{3,}\{|^%|\$\$ *\([\w-]+\)", re.MULTILINE)


def stars(level: int) -> str:
    """2 → ★★☆."""
    return "★" * level + "☆" * (3 - level)


@cache
def bibliography() -> dict[str, Entry]:
    """The entries of references.bib."""
    return dict(parse_file(ROOT / "references.bib", bib_format="bibtex").entries)


@cache
def labels(language: str) -> dict[str, tuple[str, str]]:
    """Every label of the book: the page it stands on, and what a reference to it says."""
    found, numbers = {}, {name: number for number, name in enumerate(chapters(), start=1)}  # as the site counts them
    for page in pages():
        number, counts = numbers.get(page), {"equation": 0, "figure": 0}
        prefix = f"{number}." if number else ""
        for cell in read_cells(page_path(language, page)):
            figure = cell.metadata.get("mystnb", {}).get("figure", {})
            if name := figure.get("name"):
                counts["figure"] += 1
                found[name] = (page, WORDS[language]["figure"].format(f"{prefix}{counts['figure']}"))
            if cell.kind == "code":
                continue
            for match in EQUATION.finditer(cell.source):
                counts["equation"] += 1
                found[match[2]] = (page, f"{prefix}{counts['equation']}")
            lines = cell.source.split("\n")
            for index, line in prose_lines(cell.source):
                if (label := LABEL.match(line)) and index + 1 < len(lines):
                    found[label[1]] = (page, lines[index + 1].lstrip("# "))
    return found


def _people(entry: Entry, language: str) -> str:
    """Su et al. / Su 等."""
    names = [" ".join(person.prelast_names + person.last_names) or str(person) for person in entry.persons["author"]]
    names = [name.strip("{}") for name in names]
    if len(names) > 2 or "others" in names:
        return names[0] + WORDS[language]["others"]
    return WORDS[language]["and"].join(names)


def _url(entry: Entry) -> str:
    fields = entry.fields
    if "eprint" in fields:
        return f"https://arxiv.org/abs/{fields['eprint']}"
    return f"https://doi.org/{fields['doi']}" if "doi" in fields else fields.get("url", "")


def _cite(role: str, keys: str, language: str) -> str:
    known, links = bibliography(), []
    for key in (key.strip() for key in keys.split(",")):
        if key not in known:
            raise KeyError(f"references.bib has no entry '{key}'")
        people, year = _people(known[key], language), known[key].fields.get("year", "")
        text = people + WORDS[language]["paren"].format(year) if role == "cite:t" else f"{people}, {year}"
        links.append(f"[{text}]({_url(known[key])})")
    return "; ".join(links) if role == "cite:t" else f"({'; '.join(links)})"


def _reference(cited: list[str], language: str) -> str:
    """The entries that a chapter cites, as a list."""
    items = []
    for key in sorted(set(cited)):
        entry = bibliography()[key]
        title = re.sub(r"[{}]", "", entry.fields["title"])
        items.append(f"- {_people(entry, language)}. [{title}]({_url(entry)}). {entry.fields.get('year', '')}.")
    return "\n".join(items)


class Converter:
    """MyST Markdown of one page to plain Markdown."""

    def __init__(self, page: str, language: str):
        self.page, self.language, self.words = page, language, WORDS[language]
        self.cited: list[str] = []

    def convert(self, cell: Cell) -> str:
        """One Markdown cell; BookError with the file and line at what it does not know."""
        where = f"{relative(page_path(self.language, self.page))}:{cell.line}"
        try:
            text = "\n".join(self._blocks(cell.source.split("\n")))
            text = EQUATION.sub(lambda m: f"$${m[1]} \\tag{{{self._label(m[2])[1]}}}$$", text)
            text = self._outside_code(text)
        except KeyError as error:
            raise BookError(f"{where}: {error.args[0]}") from None
        prose = "\n".join(line for _, line in prose_lines(re.sub(r"`[^`\n{]*`", "", text)))
        if found := RAW_MYST.search(prose):
            raise BookError(f"{where}: raw MyST would remain in the exported notebook: '{found[0].strip()}'")
        return text.strip()

    def _outside_code(self, text: str) -> str:
        """Roles and links replaced, but not inside fenced code."""
        prose = {index for index, _ in prose_lines(text)}
        lines = text.split("\n")
        for index in prose:
            lines[index] = LINK.sub(self._link, ROLE.sub(self._role, lines[index]))
        return "\n".join(lines)

    def _blocks(self, lines: list[str]) -> list[str]:
        """Labels dropped, directives turned into quotes and details."""
        done: list[str] = []
        index = 0
        while index < len(lines):
            line = lines[index]
            if LABEL.match(line):
                index += 1
                continue
            if not (opening := DIRECTIVE.match(line)):
                done.append(line)
                index += 1
                continue
            end = next((n for n in range(index + 1, len(lines)) if lines[n].rstrip() == opening[1]), len(lines))
            done += self._directive(opening[2], opening[3], lines[index + 1 : end])
            index = end + 1
        return done

    def _directive(self, name: str, title: str, body: list[str]) -> list[str]:
        while body and re.match(r"^:[\w-]+:", body[0]):
            body = body[1:]
        if name == "bibliography":
            return [_reference(self.cited, self.language)]
        if name == "math":
            return ["$$", *body, "$$"]
        if name == "dropdown":
            return ["<details>", f"<summary>{title}</summary>", "", *self._blocks(body), "", "</details>"]
        if name in ("note", "warning", "tip"):
            if title:
                raise KeyError(f"'{name}' takes no title: the site would run it into the text; begin with **bold**")
            head = f"**{self.words[name]}**"
            return [f"> {line}".rstrip() for line in [head, "", *self._blocks(body)]]
        raise KeyError(f"the exporter knows no directive '{name}'")

    def _label(self, label: str) -> tuple[str, str]:
        found = labels(self.language).get(label)
        if found is None:
            raise KeyError(f"no label '{label}' in the book")
        return found

    def _role(self, match: re.Match) -> str:
        role, content = match[1], match[2]
        explicit = TARGET.match(content)
        text, target = (explicit[1], explicit[2]) if explicit else ("", content)
        if role in ("cite:t", "cite:p", "cite"):
            self.cited += [key.strip() for key in content.split(",")]
            return _cite(role, content, self.language)
        if role == "eq":
            return f"({self._label(target)[1]})"
        if role == "doc":
            return self._to_page(text or target, target)
        if role in ("ref", "numref"):
            page, title = self._label(target)
            text = text.replace("%s", title) or title
            return text if page == self.page else self._to_page(text, page)
        raise KeyError(f"the exporter knows no role '{role}'")

    def _to_page(self, text: str, page: str) -> str:
        return f"[{text}]({page}.ipynb)" if page in topics() else text

    def _link(self, match: re.Match) -> str:
        if match[1] in topics():
            return f"]({match[1]}.ipynb)"
        name = repository()
        base = f"https://github.com/{name}/blob/main/chapters/{self.language}/" if name else ""
        return f"]({base}{match[1]}.md)"


def _requirements(names: list[str]) -> dict[str, str]:
    """Module → pinned requirement, from requirements.txt."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE))
    if missing := [name for name in names if name not in pins]:
        raise BookError(f"requirements.txt pins no '{missing[0]}', which a chapter's front matter requires")
    return {name.replace("-", "_"): f"{name}=={pins[name]}" for name in names}


def _bootstrap(requires: list[str], url: str, commit: str, language: str) -> str:
    text = (ROOT / "book" / "bootstrap.py").read_text(encoding="utf-8").strip()
    text = text.replace("@REPOSITORY@", url).replace("@COMMIT@", commit).replace("@LANGUAGE@", language)
    packages = _requirements([*requires, *JUDGE_PACKAGES])
    return text.replace("{}  # @PACKAGES@", repr(packages).replace("'", '"'))


def _code(source: str, id: str, **metadata) -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell(source, id=id, metadata=nbformat.from_dict(metadata))


def _set_up(requires: list[str], url: str, commit: str, language: str) -> nbformat.NotebookNode:
    """The cell that finds lib, folded: it is no part of what the reader came for."""
    return _code(_bootstrap(requires, url, commit, language), "set-up", **FOLDED)


def _notebook(cells: list[nbformat.NotebookNode], *, gpu: bool = False) -> nbformat.NotebookNode:
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}, "colab": {"provenance": []}}
    if gpu:
        metadata["accelerator"] = "GPU"
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def head_commit() -> str:
    """The commit that is checked out; empty outside git or before the first commit."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def export(topic: str, language: str, url: str, commit: str) -> nbformat.NotebookNode:
    """One chapter as a notebook that runs anywhere. url: the repository to clone, or empty."""
    path = page_path(language, topic)
    settings = read_front_matter(path)
    converter, words = Converter(topic, language), WORDS[language]
    stored = iter(read(topic).cells)
    cells = [_set_up(settings.get("requires", []), url, commit, language)]
    for number, cell in enumerate(read_cells(path)):
        if cell.kind == "markdown":
            text = converter.convert(cell)
            if number == 0:
                head, _, rest = text.partition("\n")
                level = [stars(settings.get(key, 1)) for key in ("difficulty", "asked")]
                text = f"{head}\n\n*{words['stars'].format(*level)}*\n{rest}"
            cells.append(nbformat.v4.new_markdown_cell(text, id=f"prose-{number:02d}"))
            continue
        run = next(stored)
        new = nbformat.v4.new_code_cell(
            cell.source, id=f"code-{number:02d}", outputs=in_language(run.outputs, language)
        )
        new.execution_count = run.execution_count
        if {"hide-input", "hide-cell", "remove-input"} & set(tags(cell)):
            new.metadata = nbformat.from_dict(FOLDED)
        if "hide-cell" in tags(cell):  # a solution, which no front end folds by itself: to see it, run it
            new.outputs, new.execution_count = [], None
        cells.append(new)
        if figure := cell.metadata.get("mystnb", {}).get("figure"):
            name = labels(language)[figure["name"]][1]
            caption = converter.convert(Cell("markdown", figure["caption"], cell.metadata, cell.line))
            cells.append(nbformat.v4.new_markdown_cell(f"**{name}**　{caption}", id=f"caption-{number:02d}"))
    return _notebook(cells, gpu=settings.get("gpu", False))


def export_exercise(name: str, language: str, url: str, commit: str) -> nbformat.NotebookNode:
    """An exercise: the statement, the stub, the check; hints and a solution for who wants them."""
    from lib.practice.drill import Drill
    from lib.practice.exercise import load
    from lib.practice.language import speaking
    from lib.practice.report import statement

    exercise, words = load(name), WORDS[language]
    with speaking(language):
        title = str(exercise.title)
        text = statement(exercise).removeprefix(f"**{title}**　")
    drill = isinstance(exercise, Drill)
    calls = ["check", "hint", *(["reveal"] if drill else []), "solution"]
    stub = exercise.stub if exercise.stub.startswith("import ") else f"import torch\n\n\n{exercise.stub}"
    chapter = words["chapter"].format(
        labels(language)[exercise.topic.replace("_", "-")][1], f"../{exercise.topic}.ipynb"
    )
    return _notebook(
        [
            _set_up([], url, commit, language),
            nbformat.v4.new_markdown_cell(f"# {title}\n\n{text}\n\n{chapter}", id="statement"),
            _code(stub, "stub"),
            _code(f'from lib.practice import {", ".join(calls)}\n\ncheck("{name}", {exercise.function_name})', "check"),
            nbformat.v4.new_markdown_cell(words["stuck"], id="stuck"),
            _code("\n".join(f'# {call}("{name}")' for call in calls[1:]), "helps"),
        ]
    )


def export_all(folder: Path, *, url: str | None = None, commit: str | None = None) -> list[Path]:
    """Every chapter in both languages as folder/LANGUAGE/TOPIC.ipynb, every exercise as
    folder/LANGUAGE/practice/NAME.ipynb; the files written.

    url and commit: the repository that the first cell clones, by default the one on GitHub that this checkout knows,
    at the present commit.
    """
    name = repository()
    url = url if url is not None else (f"https://github.com/{name}" if name else "")
    commit = commit if commit is not None else head_commit()
    if (ROOT / "references.bib").stat().st_size == 0:
        raise BookError("references.bib is empty")
    written = []
    for language in LANGUAGES:
        (folder / language).mkdir(parents=True, exist_ok=True)
        for topic in topics():
            path = folder / language / f"{topic}.ipynb"
            written.append(_save(export(topic, language, url, commit), path))
        (folder / language / "practice").mkdir(exist_ok=True)
        for name in exercises():
            path = folder / language / "practice" / f"{name}.ipynb"
            written.append(_save(export_exercise(name, language, url, commit), path))
    return written


def _save(notebook: nbformat.NotebookNode, path: Path) -> Path:
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    return path
