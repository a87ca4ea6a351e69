"""The built site as files: links, anchors, mathematics, sizes, and what must stand beside the pages."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from book.project import LANGUAGES, chapters, exercises, pages, topics


class Page(HTMLParser):
    """The ids, links and text of an HTML page."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.links, self.text, self.stack = set(), [], [], []
        self.skipped = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids.add(found.get("id"))
        self.links += [found[key] for key in ("href", "src") if found.get(key)]
        self.skipped += tag in ("script", "style", "pre", "code") or "math" in (found.get("class") or "").split()
        self.stack.append((tag, self.skipped))

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop()[0] != tag:
            pass
        self.skipped = self.stack[-1][1] if self.stack else 0

    def handle_data(self, data):
        if not self.skipped:
            self.text.append(data)


@cache
def parse(path: Path) -> Page:
    return Page(path)


def html_files(site: Path) -> list[Path]:
    """The pages; the theme leaves templates of its own in _static."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)


def target(page: Path, link: str, site: Path) -> Path | None:
    """The file a link leads to; None for one that leaves the site."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or link.startswith("//"):
        return None
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return path / "index.html" if path.is_dir() else path


def test_links_and_anchors_lead_somewhere(site):
    broken = []
    for page in html_files(site):
        for link in parse(page).links:
            path = target(page, link, site)
            if path is None:
                continue
            anchor = unquote(urlsplit(link).fragment)
            where = f"{page.relative_to(site)} → {link}"
            if not path.is_file() or site not in path.parents:
                broken.append(f"{where}: no such file")
            elif anchor and path.suffix == ".html" and anchor not in parse(path).ids:
                broken.append(f"{where}: no such anchor")
    assert not broken, "\n".join(sorted(set(broken)))


def test_file_names_match_in_case(site):
    """A disk that is blind to case would hide what fails online."""
    names = {str(path) for path in site.rglob("*")}
    for page in html_files(site):
        for link in parse(page).links:
            path = target(page, link, site)
            assert path is None or str(path) in names, f"{page.name} → {link}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_is_there_in_its_language(site, language):
    for page in pages():
        text = (site / language / f"{page}.html").read_text(encoding="utf-8")
        assert re.search(rf'<html[^>]* lang="{"zh" if language == "zh" else "en"}', text), page


def test_headings_have_the_same_anchors_in_both_languages(site):
    section = re.compile(r'<section[^>]* id="([^"]+)"')
    for page in pages():
        en, zh = (section.findall((site / language / f"{page}.html").read_text("utf-8")) for language in LANGUAGES)
        assert en == zh, page


@pytest.mark.parametrize("language", LANGUAGES)
def test_mathematics_is_typeset(site, language):
    for topic in chapters():
        page = site / language / f"{topic}.html"
        assert 'class="math' in page.read_text(encoding="utf-8"), topic
        text = "".join(parse(page).text)
        assert "$" not in text, f"{topic}: raw mathematics: {text[max(0, text.find('$') - 40) :][:80]!r}"


@pytest.mark.parametrize("language", LANGUAGES)
def test_figures_have_captions_and_alternative_texts(site, language):
    for topic in chapters():
        text = (site / language / f"{topic}.html").read_text(encoding="utf-8")
        figures = re.findall(r"<figure.*?</figure>", text, re.DOTALL)
        assert len(figures) >= 4, topic
        for figure in figures:
            assert "<figcaption" in figure
            alternative = re.search(r'alt="([^"]*)"', figure)[1]
            assert len(alternative) > 10 and "/" not in alternative, alternative


def test_the_outputs_are_those_of_the_stored_run(site):
    """No cell was left without its output, and none shows an error."""
    for language in LANGUAGES:
        for topic in chapters():
            text = (site / language / f"{topic}.html").read_text(encoding="utf-8")
            assert text.count("cell_output") >= 5, topic
            assert "Traceback (most recent call last)" not in text, topic


def test_nothing_is_missing_beside_the_pages(site):
    for name in (".nojekyll", "index.html"):
        assert (site / name).is_file(), name
    for topic in chapters():
        assert (site / "lib" / f"{topic}.py.txt").is_file()
    for language in LANGUAGES:
        for name in [*topics(), *(f"practice/{exercise}" for exercise in exercises())]:
            assert (site / "notebooks" / language / f"{name}.ipynb").is_file()


def test_colab_links_open_notebooks(site):
    for page in html_files(site):
        for link in parse(page).links:
            if "colab.research.google.com" in link:
                assert re.fullmatch(
                    r"https://colab\.research\.google\.com/github/[\w.-]+/[\w.-]+/blob/notebooks/(en|zh)/\w+\.ipynb",
                    link,
                )
