"""The site builds without a warning, its links and anchors lead somewhere, and reading it needs no network."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from emcaps.documents.recorded import ROOT

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that a browser loads, and the attribute that says from where."""


class Found(HTMLParser):
    """What a page links to and loads, what can be linked to in it, and what a screen reader needs."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors, self.languages, self.without_words = [], [], set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values.get("id"), values.get("name")} - {None}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get(LOADS.get(tag)):
            self.loads.append(values[LOADS[tag]])
        if tag == "html":
            self.languages.append(values.get("lang"))
        if (tag == "img" and not values.get("alt")) or (tag == "iframe" and not values.get("title")):
            self.without_words.append(values.get("src"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quick = os.environ | {"EMCAPS_SITE": "quick"}
    done = subprocess.run(command, cwd=ROOT, env=quick, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Found(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}


def broken(pages, page, target):
    """Whether a link within the site leads to no file or to no anchor."""
    address = urlsplit(target)
    if address.scheme or address.netloc:
        return False
    path = (page.parent / unquote(address.path)).resolve() if address.path else page
    if path.is_dir():
        path /= "index.html"
    anchor = unquote(address.fragment)
    missing = anchor and path in pages and anchor not in pages[path].anchors
    return not path.is_file() or bool(missing)


def test_every_link_and_anchor_of_the_site_is_there(pages):
    assert len(pages) > 25
    targets = [(page, target) for page, found in pages.items() for target in found.links + found.loads]
    assert [f"{page.name}: {target}" for page, target in targets if broken(pages, page, target)] == []


def test_a_broken_link_of_the_site_is_found(site, pages):
    page = site / "guide.html"
    for target, expected in {
        "definition.html#three-pitfalls": False,
        "definition.html#none": True,
        "none.html": True,
        "#none": True,
        "https://example.org": False,
    }.items():
        assert broken(pages, page, target) is expected, target


def test_reading_the_site_loads_nothing_from_elsewhere(site, pages):
    elsewhere = re.compile(r"^(https?:)?//")
    assert [target for found in pages.values() for target in found.loads if elsewhere.match(target)] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert "font-family" in styles
    assert re.findall(r"""(?:url\(|@import)\s*["']?(?:https?:)?//[^)]*""", styles) == []
    # The theme would ask a code host for the number of stars if it knew the repository's address.
    assert not any('data-md-component="source"' in path.read_text(encoding="utf-8") for path in pages)


def test_every_page_names_its_language_and_describes_its_pictures(pages):
    assert {tuple(found.languages) for path, found in pages.items() if path.name != "explorer.html"} == {("en",)}
    assert {page.name: found.without_words for page, found in pages.items() if found.without_words} == {}


def test_the_search_index_is_a_script_that_a_page_from_disk_can_load(site):
    assert (site / "search/search_index.js").read_text(encoding="utf-8").startswith("var __index = {")
    assert 'src="site/iframe-worker.js"' in (site / "index.html").read_text(encoding="utf-8")


@pytest.fixture
def site_code(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    return importlib.import_module


@pytest.mark.parametrize(
    ("page", "target", "expected"),
    [
        ("guide.md", "definition.md#three-pitfalls", "definition.md#three-pitfalls"),
        ("guide.md", "../src/emcaps/weights/README.md", "model-card.md"),
        ("tutorials/routing.md", "../../README.md", "../index.md"),
        ("tutorials/routing.md", "../images/cost.png", "../images/cost.png"),
        ("index.md", "docs/guide.md#the-demo", "guide.md#the-demo"),
        ("model-card.md", "../../../docs/recipe.md", "recipe.md"),
        ("guide.md", "../results/demo/small", "REPOSITORY/tree/main/results/demo/small"),
        ("definition.md", "../src/emcaps/config.py#L48", "REPOSITORY/blob/main/src/emcaps/config.py#L48"),
        ("guide.md", "https://example.org/a", "https://example.org/a"),
        ("guide.md", "../none.md", "../none.md"),
        ("guide.md", "#here", "#here"),
    ],
)
def test_a_link_of_the_repository_leads_to_a_page_of_the_site_or_to_the_repository(site_code, page, target, expected):
    hooks = site_code("hooks")
    assert hooks.site_link(target, page) == expected.replace("REPOSITORY", hooks.REPOSITORY)
    code = f"```\n[x]({target})\n```"
    text = f"[x]({target})\n{code}\n"
    assert hooks.site_links(text, page) == f"[x]({hooks.site_link(target, page)})\n{code}\n"


def test_every_command_and_option_is_on_the_page_of_the_command_line(site_code):
    page = site_code("site_commands").commands_page()
    for expected in ("## emcaps train\n", "## emcaps data import\n", "`--batch-size <int>`", "$ emcaps describe small"):
        assert expected in page


@pytest.mark.parametrize("module", ["emcaps.nn", "emcaps.routing", "emcaps.train"])
def test_the_reference_describes_all_public_names_of_a_package(site_code, module):
    assert sorted(site_code("site_api").NAMES[module]) == importlib.import_module(module).__all__


def described(api):
    """Every object of the reference, by its whole name."""
    for module, names in api.NAMES.items():
        for name in names:
            below, _, last = name.rpartition(".")
            yield f"{module}.{name}", getattr(importlib.import_module(f"{module}.{below}".rstrip(".")), last)


def test_the_examples_of_the_reference_give_what_they_show(site_code):
    ran = 0
    for name, thing in described(site_code("site_api")):
        for example in doctest.DocTestFinder(recurse=False).find(thing, name, globs={}):
            result = doctest.DocTestRunner().run(example)
            assert result.failed == 0, name
            ran += result.attempted
    assert ran > 10


def test_the_explorer_is_embedded(site):
    assert (site / "explorer.html").stat().st_size > 300_000
    assert 'src="explorer.html"' in (site / "see-it-route.html").read_text(encoding="utf-8")
    assert "see-it-route.html" in (site / "index.html").read_text(encoding="utf-8")
