"""The built documentation works offline: formulas, search, figures and links load nothing from other hosts."""

import html
import html.parser
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
from functools import partial
from pathlib import Path

import pytest

import sb3_per
from tests.helpers.project import ROOT

FIGURES = sorted(
    path.relative_to(ROOT / "docs").as_posix()
    for pattern in ("*.png", "*.svg")
    for path in (ROOT / "docs").rglob(pattern)
    if "_build" not in path.parts
)

# Words that a reader searches for, and the page that has the answer.
SOUGHT = [("alpha", "settings"), ("beta", "settings"), ("PERDQN", "algorithms"), ("cpprb", "troubleshooting")]


class Page(html.parser.HTMLParser):
    """Links and anchors of a page, and the files that a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.tags: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = {name: value or "" for name, value in attributes}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "shortcut icon", "preload", "preconnect"):
            self.loaded.append(given.get("href", ""))
        elif tag in ("script", "img", "source", "iframe", "object", "embed"):
            self.loaded.append(given.get("src") or given.get("data") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("sphinx")
    pytest.importorskip("latex2mathml")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-d", str(folder / "trees")]
    done = subprocess.run([*build, str(ROOT / "docs"), str(folder / "html")], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr  # -W makes a page without a link to it an error, too
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def search_index(site: Path) -> dict:
    text = (site / "searchindex.js").read_text()
    return json.loads(re.fullmatch(r"Search\.setIndex\((.*)\);?\s*", text, re.DOTALL)[1])


@pytest.mark.slow
def test_pages_load_nothing_from_other_hosts(site, pages):
    for path, page in pages.items():
        for address in page.loaded:
            assert not re.match(r"(\w+:)?//", address), f"{path.name} loads {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", style.read_text()), style


@pytest.mark.slow
def test_links_and_figures_exist(site, pages):
    missing = []
    for path, page in pages.items():
        for address in (*page.links, *page.loaded):
            parts = urllib.parse.urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
                missing.append((path.name, address))
    assert missing == []


@pytest.mark.slow
def test_api_has_every_public_name(site, pages):
    documented = {anchor.rpartition(".")[2] for anchor in pages[site / "api.html"].anchors if anchor.startswith("sb3_per.")}
    assert set(sb3_per.__all__) - documented == set()


@pytest.mark.slow
def test_formulas_become_mathml(site, pages):
    """No formula is left in LaTeX."""
    assert pages[site / "developer_guide.html"].tags.count("math") >= 15
    for path in pages:
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        assert not re.search(r"\\(frac|alpha|beta|delta|sum|mathrm)\b", text), path.name


def text_of(path: Path) -> str:
    """Return the words of a page, without its code."""
    text = re.sub(r"<(pre|code|script|style|svg)\b.*?</\1>", " ", path.read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


@pytest.mark.slow
def test_options_keep_their_two_hyphens(pages):
    """A dash before a word would be an option that nobody can copy."""
    for path in pages:
        assert re.findall(r"(?<!\w)[\N{EN DASH}\N{EM DASH}]\w+", text_of(path)) == [], path.name


@pytest.mark.slow
def test_commands_of_the_api_page_are_code(site):
    assert re.findall(r"(?:sb3-per|python -m sb3_per\S*) [a-z]+.*", text_of(site / "api.html")) == []


@pytest.mark.slow
def test_long_pages_begin_with_a_table_of_contents(site, pages):
    """Each of its entries is a link to a section of the page, or to a class or function."""
    for path, page in pages.items():
        headings = len(re.findall(r"<h[23]\b", path.read_text()))
        contents = re.search(r'<div class="page-contents.*?</div>', path.read_text(), re.DOTALL)
        if headings < 10 or path.name in ("genindex.html", "py-modindex.html"):
            continue
        assert contents is not None, path.name
        links = re.findall(r'href="#([^"]+)"', contents[0])
        assert len(links) >= headings, path.name
        assert set(map(urllib.parse.unquote, links)) <= page.anchors, path.name
    assert "#sb3_per.PERSAC" in (site / "api.html").read_text().partition("page-contents")[2].partition("</div>")[0]


@pytest.mark.slow
@pytest.mark.parametrize(("word", "page"), SOUGHT)
def test_the_search_index_finds_the_right_page(site, word, page):
    index = search_index(site)
    hits: set[int] = set()
    for table in ("terms", "titleterms"):
        found = index[table].get(word.lower(), [])
        hits.update(found if isinstance(found, list) else [found])
    assert page in {index["docnames"][hit] for hit in hits}


def in_chromium(address: str, *options: str) -> str:
    """Return a page after its scripts have run. The browser finds no host but this one."""
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=60000"]
    alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    return subprocess.run([*browser, alone, *options, address], capture_output=True, text=True, timeout=300, check=True).stdout


needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")


@pytest.mark.slow
@needs_chromium
def test_search_works_from_a_folder_in_a_browser(site):
    assert 'href="settings.html' in in_chromium((site / "search.html").as_uri() + "?q=beta")


# Open page after page at the width of a phone, and report on formulas, figures and widths.
PROBE = r"""
<!DOCTYPE html><pre id="report"></pre><script type="module">
const frame = document.createElement("iframe");
frame.style = "width: 390px; height: 800px; border: 0";
document.body.append(frame);
const open = address => new Promise(loaded => { frame.onload = () => loaded(frame.contentDocument); frame.src = address; });
const size = element => { const box = element.getBoundingClientRect(); return Math.min(box.width, box.height); };
const scrolls = element => ["auto", "scroll"].includes(getComputedStyle(element).overflowX)
    || (element.tagName !== "ARTICLE" && scrolls(element.parentElement));
const report = { pages: {}, hits: {} };
const ids = {}, links = new Set();
for (const name of PAGES) {
    const page = await open(name);
    const figures = [...page.querySelectorAll("article img[src*=_images]")];
    report.pages[name] = {
        formulas: [...page.querySelectorAll("math")].map(size),
        figures: figures.map(image => [image.getAttribute("src"), image.naturalWidth, size(image)]),
        width: page.documentElement.scrollWidth,
        cut: [...page.querySelectorAll("pre")].filter(block => block.scrollWidth > block.clientWidth).length,
        tables: [...page.querySelectorAll("table.docutils")].filter(table => !table.querySelector("th:nth-child(4)"))
            .filter(table => table.scrollWidth > table.parentElement.clientWidth).length,
        uncontained: [...page.querySelectorAll("table.docutils, table.dataframe")]
            .filter(table => table.scrollWidth > 390 && !scrolls(table.parentElement)).length,
        wide: [...page.querySelectorAll("article img, article svg")]
            .filter(image => image.getBoundingClientRect().right > 390).length,
    };
    ids[page.location.pathname] = new Set([...page.querySelectorAll("[id]")].map(element => element.id));
    for (const link of page.querySelectorAll("a[href]"))
        if (link.origin === location.origin) links.add(link.href);
}
report.dead = [];
for (const link of links) {
    const { pathname, hash } = new URL(link);
    const id = decodeURIComponent(hash.slice(1));
    const found = pathname in ids ? !id || ids[pathname].has(id) : (await fetch(link)).ok;
    if (!found) report.dead.push(link);
}
for (const word of WORDS) {
    const page = await open("search.html?q=" + word);
    for (let i = 0; i < 100 && !page.querySelector("#search-results p.search-summary")?.innerText.match(/\d/); i++)
        await new Promise(done => setTimeout(done, 100));
    report.hits[word] = [...page.querySelectorAll("#search-results li a")].map(link => link.getAttribute("href"));
}
document.querySelector("#report").innerText = JSON.stringify(report);
</script>
"""


@pytest.fixture(scope="module")
def probed(site, pages) -> dict:
    """Open the site in a browser, from a local server, and return what it measured."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    names = [path.relative_to(site).as_posix() for path in pages]
    words = [word for word, _ in SOUGHT]
    (site / "probe.html").write_text(PROBE.replace("PAGES", json.dumps(names)).replace("WORDS", json.dumps(words)))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        found = in_chromium(f"http://127.0.0.1:{server.server_port}/probe.html")
        server.shutdown()
        thread.join()
    text = re.search(r'<pre id="report">(.+?)</pre>', found, re.DOTALL)
    assert text, found[:2000]
    return json.loads(html.unescape(text[1]))


@pytest.mark.slow
@needs_chromium
def test_formulas_and_figures_in_a_browser(probed, pages):
    """Every formula and figure has a size. On a phone, no page is too wide and no line of code is cut."""
    assert len(probed["pages"]) == len(pages)
    for name, page in probed["pages"].items():
        assert all(size > 4 for size in page["formulas"]), name
        for source, width, shown in page["figures"]:
            assert width > 0 and shown > 100, (name, source)
        assert page["width"] <= 390, name
        assert page["cut"] == 0, name
        assert page["tables"] == 0, name  # with up to three columns, no table has to be scrolled
        assert page["uncontained"] == 0, name  # a wider one scrolls in its own box
        assert page["wide"] == 0, name
    assert len(probed["pages"]["developer_guide.html"]["formulas"]) >= 15
    shown = {Path(source).name for page in probed["pages"].values() for source, *_ in page["figures"]}
    assert shown >= {Path(figure).name for figure in FIGURES}


@pytest.mark.slow
@needs_chromium
def test_links_and_search_in_a_browser(probed):
    assert probed["dead"] == []
    for word, page in SOUGHT:
        assert any(hit.startswith(f"{page}.html") for hit in probed["hits"][word]), word
