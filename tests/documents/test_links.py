"""Every relative link of every page leads to a file, and to a heading or a line of code where it names one."""

import pytest

from documents.links import PAGES, anchors_of, links_of
from emcaps.documents.recorded import ROOT


def broken_links(page, text):
    """The targets that are not there."""
    broken = []
    for _, target in links_of(text):
        if ":" in target:
            continue  # another site
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path
        if path and not file.exists():
            broken.append(target)
            continue
        content = file.read_text(encoding="utf-8") if path and anchor else text
        places = anchors_of(content) if file.suffix != ".py" else {f"L{n + 1}" for n in range(content.count("\n"))}
        if anchor and anchor not in places:
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    assert broken_links(page, (ROOT / page).read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found():
    text = (
        "# A `page`: with words\n"
        "[file](recipe.md) [no file](none.md) [heading](recipe.md#stereo) [no heading](recipe.md#none)\n"
        "[line](../tests/patterns.py#L1) [no line](../tests/patterns.py#L9999)\n"
        "[here](#a-page-with-words) [not here](#none) [elsewhere](https://example.org/none)\n"
        "```\n[in code](none.md)\n```\n![picture](images/none.png)\n"
    )
    assert broken_links("docs/page.md", text) == [
        "none.md",
        "recipe.md#none",
        "../tests/patterns.py#L9999",
        "#none",
        "images/none.png",
    ]


def test_headings_with_the_same_words_are_counted():
    assert anchors_of("# One\n## One\n## One & two\n## [Linked](x.md)\n") == {"one", "one-1", "one--two", "linked"}
