"""The built site in a real browser, as a reader meets it: both languages, light and dark, desktop and phone."""

import gzip
import os
import shutil
import threading
from functools import partial
from http.server import ThreadingHTTPServer
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from book.project import LANGUAGES, chapters, pages
from book.serve import Handler

FIRST_VIEW = 700 * 1024  # bytes, gzipped, MathJax included
PACKED = (".woff", ".woff2", ".png")  # gzip gains nothing on these
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
VIEWS = {
    "desktop light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "desktop dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone light": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
    "phone dark": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}
SEARCHES = [
    ("en", "importance ratio", "grpo"),
    ("en", "interleaved", "rope"),
    ("en", "Schulman", "kl_estimators"),
    ("zh", "旋转位置编码", "rope"),
    ("zh", "重要性比率", "grpo"),
    ("zh", "估计量", "kl_estimators"),
    ("zh", "RoPE", "rope"),
]


def chromium() -> str | None:
    """Debian's chromium, or Chrome under one of its names."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


pytestmark = pytest.mark.skipif(
    not chromium() and not os.environ.get("REQUIRE_BROWSER"),
    reason="no Chromium found: install it (Debian, Ubuntu: apt install chromium) to run the browser tests",
)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)


@pytest.fixture(scope="module")
def address(site):
    """Where the built site is served."""
    handler = partial(Handler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Visit:
    """A page that is open, with all that it asked for and complained about."""

    def __init__(self, page, address):
        self.page, self.address = page, address
        self.external, self.complaints, self.bytes = [], [], 0
        page.on("request", self._request)
        page.on("response", self._response)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _request(self, request):
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.external.append(request.url)

    def _response(self, response):
        if response.status >= 400:
            self.complaints.append(f"{response.status} {response.url}")
        elif response.url.startswith(self.address) and response.status == 200:
            body = response.body()
            self.bytes += len(body) if response.url.endswith(PACKED) else len(gzip.compress(body, 6))

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, path):
        self.page.goto(f"{self.address}/{path}")
        self.page.wait_for_load_state("networkidle")
        self.page.evaluate("() => window.MathJax?.startup?.promise")
        return self


@pytest.fixture
def visit(browser, address, request):
    context = browser.new_context(**VIEWS[getattr(request, "param", "desktop light")])
    yield Visit(context.new_page(), address)
    context.close()


# axe takes half a minute for a chapter's 12 000 elements: one token of each colour and a few formulas stand for all.
ONE_OF_EACH_KIND = """() => {
  const seen = new Set();
  for (const token of document.querySelectorAll('div.highlight pre span')) {
    if (seen.has(token.className)) token.replaceWith(...token.childNodes);
    seen.add(token.className);
  }
  document.querySelectorAll('pre').forEach(block => block.normalize());
  [...document.querySelectorAll('mjx-container')].slice(8).forEach(formula => formula.remove());
}"""
IS_DARK = """dark => {
  const colour = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3);
  return (Math.max(...colour.map(Number)) < 80) === dark;
}"""
AXE_VIEW = {"en": "desktop light", "zh": "phone dark"}
FIGURES = """() => [...document.querySelectorAll('main figure img')].map(
  image => [image.naturalWidth, image.naturalHeight, image.width, image.height])"""


def _check_figures(page, name):
    """On a phone a figure keeps its shape and fits."""
    shapes = page.evaluate(FIGURES)
    assert len(shapes) >= 4 * (name in chapters())
    for natural_width, natural_height, width, height in shapes:
        assert 0 < width <= 390
        assert abs(width / height - natural_width / natural_height) < 0.03


def _check_axe(page):
    page.evaluate(ONE_OF_EACH_KIND)
    violations = Axe().run(page, options={"preload": False}).response["violations"]
    assert not violations, [(v["id"], [node["target"] for node in v["nodes"]][:5]) for v in violations]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", pages())
def test_page(visit, language, name):
    """0 requests elsewhere, 0 console messages, a light first view, nothing beyond the edge, 0 axe violations.

    The page is loaded once; width and theme then change under it. axe needs seconds for a chapter: the two languages,
    whose structure is the same, share the widths and the themes between them.
    """
    page = visit.open(f"{language}/{name}.html").page
    assert 0 < visit.bytes <= FIRST_VIEW, f"the first view is {visit.bytes / 1024:.0f} KB"
    for view, settings in VIEWS.items():
        page.emulate_media(color_scheme=settings["color_scheme"])
        page.set_viewport_size(settings["viewport"])
        page.wait_for_function(IS_DARK, arg=view.endswith("dark"))
        width = page.evaluate("() => [document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1], f"{view}: the page scrolls sideways: {width[0]} of {width[1]} px"
        if view.startswith("phone"):
            _check_figures(page, name)
        if view == AXE_VIEW[language] or (view in AXE_VIEW.values() and name not in chapters()):
            _check_axe(page)
    assert visit.external == []
    assert visit.complaints == []


@pytest.mark.parametrize("visit", ["desktop dark"], indirect=True)
def test_dark_mode_turns_figures_dark_but_not_heat_maps(visit):
    page = visit.open("en/rope.html").page
    plot, heat_map = (
        page.evaluate(f"""() => {{
            const style = getComputedStyle(document.querySelector('main figure img{which}'));
            return [style.filter, style.backgroundColor];
        }}""")
        for which in (":not(.heat-map)", ".heat-map")
    )
    assert "invert(0.93)" in plot[0] and plot[1] == "rgba(0, 0, 0, 0)"
    assert heat_map == ["none", "rgb(233, 237, 236)"]  # bright must stay bright


@pytest.mark.parametrize(("visit", "language"), [("desktop light", "en"), ("phone light", "zh")], indirect=["visit"])
def test_the_language_link_keeps_the_place(visit, language):
    other = next(tongue for tongue in LANGUAGES if tongue != language)
    page = visit.open(f"{language}/rope.html#rope-pitfalls").page
    link = page.locator(f"a[hreflang^='{other}']:visible").first
    link.click()
    page.wait_for_url(f"**/{other}/rope.html#rope-pitfalls")
    top = page.evaluate("() => document.getElementById('rope-pitfalls').getBoundingClientRect().top")
    assert -50 < top < 300


@pytest.mark.parametrize(("language", "query", "wanted"), SEARCHES)
def test_search_finds(visit, language, query, wanted):
    page = visit.open(f"{language}/search.html?q={quote(query)}").page
    page.wait_for_selector("#search-results li a", timeout=20_000)
    found = page.eval_on_selector_all("#search-results li a", "links => links.map(a => a.getAttribute('href'))")
    assert any(link.split(".html")[0].split("/")[-1] == wanted for link in found), found


def test_search_does_not_find_what_is_not_there(visit):
    page = visit.open(f"zh/search.html?q={quote('菠萝披萨')}").page
    page.wait_for_timeout(1500)
    assert page.locator("#search-results li a").count() == 0


@pytest.mark.parametrize(("locale", "language"), [("en-GB", "en"), ("zh-CN", "zh"), ("zh-TW", "zh"), ("fr-FR", "en")])
def test_the_root_page_leads_to_the_readers_language(browser, address, locale, language):
    context = browser.new_context(locale=locale)
    page = context.new_page()
    page.goto(f"{address}/index.html")
    page.wait_for_url(f"**/{language}/**")
    context.close()


def test_the_root_page_works_without_javascript(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/index.html")
    links = [link.get_attribute("href").removeprefix("./").split("/")[0] for link in page.locator("a").all()]
    assert set(links) >= set(LANGUAGES)
    context.close()
