"""The Python of a tutorial, run from the page itself: what the page shows and draws is what its own code gives."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from emcaps.documents.recorded import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


class Ran(NamedTuple):
    """What the blocks of a page did."""

    names: dict[str, Any]
    """All variables at the end."""
    printed: list[str]
    """By block."""


def python_blocks(text: str) -> list[str]:
    """The code of every Python block of a page."""
    return BLOCK.findall(text)


@cache
def run_page(page: str) -> Ran:
    """Run the Python blocks of a page of this checkout one after another, as one program."""
    names: dict[str, Any] = {}
    printed = []
    for number, code in enumerate(python_blocks((ROOT / page).read_text(encoding="utf-8")), start=1):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code, f"{page}, block {number}", "exec"), names)
        printed.append(output.getvalue())
    return Ran(names, printed)


def printed_blocks(page: str, count: int) -> dict[str, Callable[[str], str]]:
    """Makers of the blocks printed-1, printed-2, ... of a page: what its Python blocks print."""

    def shown(number: int, _results: str) -> str:
        return f"```\n{run_page(page).printed[number].rstrip()}\n```"

    return {f"printed-{number + 1}": partial(shown, number) for number in range(count)}
