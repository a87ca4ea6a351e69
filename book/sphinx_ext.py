"""Sphinx extension of the book: ids, title block, language link, search, offline mathematics."""

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from markupsafe import Markup
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms import SphinxTransform

from book.project import LANGUAGES, ROOT, STAMP, has_code, page_path, repository
from book.sphinx_search import ChineseSearch

ASSETS = ROOT / "book" / "assets"
TEMPLATES = ROOT / "book" / "templates"
COLAB = "https://colab.research.google.com/github/{repository}/blob/notebooks/{language}/{topic}.ipynb"
NUMBER = re.compile(r'<span class="section-number">.*?</span>')

LANGUAGE_TAGS = {"en": "en", "zh": "zh-CN"}
LANGUAGE_NAMES = {"en": "English", "zh": "中文"}
WORDS = {
    "en": {
        "difficulty": "Difficulty",
        "asked": "Asked",
        "stars": "{} of 3 stars",
        "colab": "Open in Colab",
        "notebook": "Notebook",
        "source": "Source",
        "block": "About this chapter",
        "switch": "This page in English",
    },
    "zh": {
        "difficulty": "难度",
        "asked": "面试频率",
        "stars": "{} 星，满分 3 星",
        "colab": "在 Colab 中打开",
        "notebook": "下载 notebook",
        "source": "源码",
        "block": "本章信息",
        "switch": "本页的中文版",
    },
}


def site_language(config: Config) -> str:
    """`en` or `zh`: the language of the site that is being built."""
    return "zh" if config.language.startswith("zh") else "en"


class LabelFirst(SphinxTransform):
    """The explicit label of a section is its first id, so that URLs are the same in both languages."""

    default_priority = 270  # after docutils has moved the labels onto the sections (260), before ids are read

    def apply(self, **kwargs: Any) -> None:
        """Sort the ids of each section: explicit labels first."""
        explicit = {self.document.nameids.get(name) for name, kept in self.document.nametypes.items() if kept}
        for section in self.document.findall(nodes.section):
            section["ids"].sort(key=lambda identifier: identifier not in explicit)


def set_paths(app: Sphinx, config: Config) -> None:
    """Point Sphinx at the book's assets, wherever the sources lie."""
    config.html_static_path = [*config.html_static_path, str(ASSETS)]
    config.templates_path = [str(TEMPLATES), *config.templates_path]
    config.html_favicon = str(ASSETS / "favicon.svg")
    config.mathjax_path = "mathjax/tex-chtml.js"


def describe_figures(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """A figure whose image has no alternative text gets its caption; without that it would be the file name."""
    for figure in doctree.findall(nodes.figure):
        caption = next(figure.findall(nodes.caption), None)
        for image in figure.findall(nodes.image):
            if caption is not None and not image.get("alt"):
                image["alt"] = " ".join(caption.astext().split())


def stars(count: Any) -> str | None:
    """3 of 3 stars as text; None when the front matter names no number from 1 to 3."""
    return "★" * int(count) + "☆" * (3 - int(count)) if str(count) in {"1", "2", "3"} else None


def title_block(app: Sphinx, pagename: str, context: dict[str, Any]) -> str:
    """The line of facts and links below the title of a chapter that has code cells; else empty."""
    language, topic = site_language(app.config), pagename.rpartition("/")[2]
    if not has_code(page_path(language, topic)):
        return ""
    meta, words, owner = context.get("meta") or {}, WORDS[language], repository()
    facts = [
        {"name": words[key], "stars": stars(meta.get(key)), "spoken": words["stars"].format(meta.get(key))}
        for key in ("difficulty", "asked")
        if stars(meta.get(key))
    ]
    links = []
    if owner:
        url = COLAB.format(repository=owner, language=language, topic=topic)
        links.append({"kind": "colab", "url": url, "text": words["colab"]})
    if app.config.book_site:
        up = "../" * (pagename.count("/") + 1)
        notebook = f"{up}notebooks/{language}/{topic}.ipynb"
        links.append({"kind": "notebook", "url": notebook, "text": words["notebook"], "download": True})
        if (ROOT / "lib" / f"{topic}.py").is_file():
            links.append(
                {"kind": "source", "url": f"{up}lib/{topic}.py.txt", "text": f"{words['source']} lib/{topic}.py"}
            )
    return app.builder.templates.render("title-block.html", {"facts": facts, "links": links, "label": words["block"]})


def language_links(app: Sphinx, pagename: str) -> dict[str, Any]:
    """What the templates need to link to the same page in each language."""
    if not app.config.book_site:
        return {}
    here = site_language(app.config)
    other = next(language for language in LANGUAGES if language != here)
    up = "../" * (pagename.count("/") + 1)
    return {
        "other_language": other,
        "other_name": LANGUAGE_NAMES[other],
        "other_title": WORDS[other]["switch"],
        "alternates": [(LANGUAGE_TAGS[code], f"{up}{code}/{pagename}.html", code) for code in LANGUAGES],
    }


def description(doctree: nodes.document | None) -> str:
    """The first paragraph of a page, cut to the length that a search engine shows."""
    paragraph = next(doctree.findall(nodes.paragraph), None) if doctree else None
    text = " ".join(paragraph.astext().split()) if paragraph else ""
    return text if len(text) <= 160 else text[:157].rstrip() + "…"


def repair(body: str) -> str:
    """Mend what docutils and myst-nb write for screen readers."""
    body = body.replace('role="doc-biblioentry"', 'role="listitem"')  # deprecated, and not allowed in a list
    return body.replace(' aria-label="Toggle hidden content"', "")  # always English; the visible text says it


def add_context(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Hand the book's own values to the templates of a page."""
    context.update(
        language_links(app, pagename), site_code=site_language(app.config), words=WORDS[site_language(app.config)]
    )
    context["description"] = description(doctree)
    if not app.env.get_domain("math").data["has_equations"].get(pagename):  # Sphinx asks the pages below as well
        context["script_files"] = [file for file in context["script_files"] if "mathjax" not in str(file.filename)]
    if "body" in context and doctree is not None:
        body = repair(context["body"]).replace("</h1>", "</h1>\n" + title_block(app, pagename, context), 1)
        context["body"] = Markup(body)


def plain_titles(app: Sphinx) -> list[tuple[str, dict[str, Any], str]]:
    """Index titles without their numbers; with them, search takes page and heading for two results."""
    if indexer := getattr(app.builder, "indexer", None):
        indexer._titles = {page: NUMBER.sub("", title or "") for page, title in indexer._titles.items()}
    return []


def copy_mathjax(app: Sphinx, error: Exception | None) -> None:
    """Copy the part of MathJax that pages load: no request leaves the site."""
    if error or app.builder.format != "html":
        return
    spec = find_spec("sphinx-mathjax-offline")
    source = Path(spec.origin).parent / "static" / "mathjax"
    target = Path(app.outdir) / "_static" / "mathjax"
    shutil.copytree(source / "output/chtml/fonts/woff-v2", target / "output/chtml/fonts/woff-v2", dirs_exist_ok=True)
    shutil.copytree(source / "input/tex/extensions", target / "input/tex/extensions", dirs_exist_ok=True)
    shutil.copy2(source / "tex-chtml.js", target)


def drop_unused(app: Sphinx, error: Exception | None) -> None:
    """Take out what no page of the book loads: icon fonts, source maps."""
    static = Path(app.outdir) / "_static"
    if error or app.builder.format != "html":
        return
    shutil.rmtree(static / "vendor", ignore_errors=True)
    for file in [*static.rglob("*.map"), *static.glob("scripts/fontawesome.js*")]:
        file.unlink(missing_ok=True)
    if not app.config.book_site:  # a plain `jupyter-book build .` has written over the site of `make book`
        (Path(app.outdir) / STAMP).unlink(missing_ok=True)


def forbid_kernels(app: Sphinx) -> None:
    """In a build from stored outputs, a page without them is an error; no kernel starts."""
    if not app.config.book_site:
        return
    from myst_nb.core.execute import cache

    def refuse(notebook: Any, **_: Any) -> None:
        raise RuntimeError("a page has no stored outputs for its code cells: run make notebooks")

    cache.single_nb_execution = refuse


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    path = os.environ.get("PYTHONPATH", "")
    if str(ROOT) not in path.split(os.pathsep):  # kernels of a plain `jupyter-book build .` import lib
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), path]))
    app.add_config_value("book_site", False, "env", bool)
    app.add_search_language(ChineseSearch)
    app.add_transform(LabelFirst)
    app.add_css_file("book.css", priority=900)
    app.add_js_file("book.js", loading_method="defer")
    app.connect("config-inited", set_paths)
    app.connect("builder-inited", forbid_kernels)
    app.connect("doctree-resolved", describe_figures)
    app.connect("html-page-context", add_context, priority=900)
    app.connect("html-collect-pages", plain_titles)
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", drop_unused)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
