"""Blocks of a page that are generated. Each stands between two HTML comments, which a reader of the page does not see:

<!-- made by `make docs`: NAME -->
lines that the function of that name gives
<!-- end -->

A marker has a line to itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from emcaps.names import unknown_name

START = re.compile(r"<!-- made by `make docs`: (\S+) -->")
END = "<!-- end -->"
LIKE_A_START = "<!-- made by"


def fill_blocks(page: str, text: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """The text with every block made anew. `page` is the name that errors call it by."""
    lines: list[str] = []
    opened: tuple[str, int] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{page}, line {number}"
        start = START.fullmatch(line)
        if start is None and LIKE_A_START in line:
            raise ValueError(
                f"{where}: a marker is a line of its own, <!-- made by `make docs`: NAME -->, not {line!r}"
            )
        if start is not None:
            if opened is not None:
                raise ValueError(f"{where}: block {opened[0]!r} of line {opened[1]} is still open: write {END} before")
            if start[1] not in blocks:
                raise ValueError(f"{where}: {unknown_name('block', start[1], sorted(blocks))}")
            opened = start[1], number
            lines += [line, blocks[start[1]]()]
        elif line == END:
            if opened is None:
                raise ValueError(f"{where}: {END} closes no block: remove it, or write its first marker")
            opened = None
            lines.append(line)
        elif opened is None:
            lines.append(line)
    if opened is not None:
        raise ValueError(f"{page}, line {opened[1]}: block {opened[0]!r} is not closed: write {END} after it")
    return "\n".join(lines) + "\n"
