"""The page on compatibility: what `make compat` found in each environment."""

from __future__ import annotations

import json
from typing import Any

from emcaps.documents.recorded import RESULTS
from emcaps.report.markdown import markdown_table

SHOWN = ("torch", "triton", "numpy", "numba")
"""Packages whose versions the table of environments shows."""


def environments(_results: str) -> str:
    rows = []
    for found in _records():
        python, _, what = found["name"].removeprefix("python").partition("-")
        versions = (found["versions"].get(name) or "-" for name in SHOWN)
        counts = (str(found[count]) for count in ("passed", "failed", "skipped"))
        rows.append((python, what, *versions, *counts))
    table = markdown_table(("Python", "versions", *SHOWN, "passed", "failed", "skipped"), rows, left=(0, 1))
    failures = [f"- {found['name']}: `{line[:200]}`" for found in _records() for line in found["failures"]]
    return "\n".join([table, *(["", "What failed:", "", *failures] if failures else [])])


def ranges(_results: str) -> str:
    """The lowest and highest version of every package in environments where nothing failed."""
    whole = [found["versions"] for found in _records() if not found["failed"]]
    rows = []
    for name in whole[0]:
        versions = sorted({versions[name] for versions in whole if versions.get(name)}, key=_order)
        rows.append((name, versions[0], versions[-1]))
    return markdown_table(("package", "lowest", "highest"), rows)


def _records() -> list[dict[str, Any]]:
    """Of all environments, by Python and by torch."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS / "compat").glob("*.json")]
    return sorted(found, key=lambda one: (_order(one["python"])[:2], _order(one["versions"]["torch"]), one["name"]))


def _order(version: str) -> tuple[int, ...]:
    """A version as numbers, for sorting; what follows the plus sign, as in 2.13.0+cpu, does not count."""
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdecimal())


BLOCKS = {"environments": environments, "ranges": ranges}
