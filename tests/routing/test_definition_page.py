"""The page of the definition links every equation to the line of the reference that computes it."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "definition.md"
LINK = re.compile(r"^\| \[\((\d)\)\]\((\S+reference\.py)#L(\d+)\) \|", re.MULTILINE)


def test_every_equation_links_to_its_line():
    links = LINK.findall(PAGE.read_text())
    assert [number for number, _, _ in links] == list("1234567")
    for number, file, line in links:
        lines = (PAGE.parent / file).read_text().splitlines()
        marked = [at for at, text in enumerate(lines, start=1) if f"# ({number})" in text]
        assert int(line) in marked, f"equation {number} is at {marked} of {file}; docs/definition.md links to {line}"
