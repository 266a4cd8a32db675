"""The pages of the repository, and the links in them."""

import re

from emcaps.documents.recorded import ROOT

PATTERNS = ("*.md", "docs/**/*.md", "results/*.md", "src/**/*.md", "tests/**/*.md")
PAGES = sorted({str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern)})
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")


def links_of(text: str) -> list[tuple[str, str]]:
    """(shown text, target) of every link and picture outside of code."""
    return [(" ".join(shown.split()), target) for shown, target in LINK.findall(FENCED.sub("", text))]


def anchors_of(text: str) -> set[str]:
    """What a link to a heading of the page may name, as GitHub makes it: in lower case, without punctuation."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", FENCED.sub("", text), re.M):
        plain = LINK.sub(r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        repeats = sum(1 for anchor in anchors if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", anchor))
        anchors.add(f"{slug}-{repeats}" if repeats else slug)
    return anchors
