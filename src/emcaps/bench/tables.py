"""Tables of the checks, and of implementations side by side: for the terminal, and as Markdown for a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from emcaps.bench.agreement import Check
from emcaps.bench.cases import COMPILED, FORWARD, FUSED, FUSED_GRAPH, NAMES, PLAIN, REFERENCE, Case, suite
from emcaps.bench.floors import floor_of
from emcaps.bench.rows import OK, OUT_OF_MEMORY, Row, newest
from emcaps.report.markdown import markdown_table
from emcaps.report.tables import plain_table

SLOW = (PLAIN, REFERENCE, COMPILED)
"""The implementations that the fused one is compared with."""
FLOOR_TITLES = ("ms", "share\n%", "bytes\nMB", "edges\nMB", "floor\nms", "over\nfloor")
"""Of the columns of numbers: see floors.Floor."""


class Comparison(NamedTuple):
    """One case, with the row of each implementation."""

    case: Case
    rows: dict[str, Row]

    def faster_than(self, other: str) -> float | None:
        """How many times faster the fused implementation is, by its quickest row; None if either was not timed."""
        fused = [row.median_ms for name in (FUSED, FUSED_GRAPH) if (row := self.timed(name)) and row.median_ms]
        base = self.timed(other)
        return base.median_ms / min(fused) if fused and base and base.median_ms else None

    def timed(self, name: str) -> Row | None:
        row = self.rows.get(name)
        return row if row is not None and row.status == OK else None


def compare(rows: Iterable[Row]) -> list[Comparison]:
    """One comparison for each case, in the order in which the cases were timed."""
    cases: dict[Case, dict[str, Row]] = {}
    for (case, name), row in newest(rows).items():
        cases.setdefault(case, {})[name] = row
    return [Comparison(case, found) for case, found in cases.items()]


def headline(rows: Iterable[Row]) -> list[Comparison]:
    """The comparisons of the headline's cases, as far as they were timed, in the headline's order."""
    order = suite("headline")
    return sorted((found for found in compare(rows) if found.case in order), key=lambda found: order.index(found.case))


def check_table(checks: Sequence[Check]) -> Table:
    table = plain_table("Against a float64 reference: outputs and all gradients, relative errors")
    table.collapse_padding = True  # so that 80 columns suffice
    for column, width in (("network", 10), ("implementation", 14), ("tensor nearest to its limit", 16)):
        table.add_column(column, min_width=width, overflow="fold")
    for column in ("error", "float32 reference", "limit"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for check in checks:
        numbers = (f"{value:.1e}" for value in (check.error, check.reference_error, check.limit))
        verdict = "ok" if check.passed else Text("FAILED", "bold red")
        worst = f"{check.worst} (of {check.tensors})"
        table.add_row(str(check.case), check.implementation, worst, *numbers, verdict)
    return table


def comparison_table(rows: Iterable[Row]) -> Table:
    """Every case, for the terminal."""
    comparisons = compare(rows)
    names = _names(comparisons)
    table = plain_table("Median ms")
    table.collapse_padding = True  # so that 80 columns suffice
    table.add_column("case")
    table.add_column("what", max_width=8, overflow="fold")  # as long as "forward+"
    for column in (*names, *_ratio_titles(names)):
        table.add_column(column, justify="right", min_width=max(map(len, column.split())))
    for comparison in comparisons:
        cells = _cells(comparison, names)
        table.add_row(_short(comparison.case), comparison.case.what, *cells)
    return table


def floor_table(rows: Iterable[Row]) -> Table:
    """The fused rows beside the machine's limits, for the terminal."""
    table = plain_table("Share of the arithmetic ceiling, bytes and edge numbers, least time")
    table.collapse_padding = True  # so that 80 columns suffice
    table.add_column("case")
    table.add_column("what", max_width=8, overflow="fold")  # as long as "forward+"
    table.add_column("by", max_width=6)
    for column in FLOOR_TITLES:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        if cells := floor_cells(row):
            table.add_row(_short(row.case), row.what, row.implementation, *cells)
    return table


def floor_cells(row: Row) -> tuple[str, ...]:
    """The numbers below FLOOR_TITLES; none of a row that is not shown there."""
    found = floor_of(row)
    if found is None or row.median_ms is None or row.implementation not in (FUSED, FUSED_GRAPH):
        return ()
    if row.routing != "triton" or row.what == FORWARD:
        return ()
    return (
        milliseconds(row.median_ms),
        f"{100 * found.share:.1f}",
        f"{found.megabytes:,.0f}",
        f"{found.edge_megabytes:,.0f}",
        milliseconds(found.milliseconds),
        f"{found.times:.1f}",
    )


def markdown_headline(rows: Sequence[Row], shown: Sequence[str] = NAMES) -> str:
    """The headline's cases, or all cases if none of those was timed, and below the table the machine and versions.

    `shown` are the implementations that have a column, if they were timed.
    """
    rows = [row for row in rows if row.implementation in shown]
    comparisons = headline(rows) or compare(rows)
    if not comparisons:
        raise ValueError("the table has no rows: run `emcaps bench` first")
    names = _names(comparisons)
    header = ("network", "what", *(f"{name}, ms" for name in names), *_ratio_titles(names))
    lines = [(str(found.case), found.case.what, *_cells(found, names)) for found in comparisons]
    measured_on = dict.fromkeys(_measured_on(row) for found in comparisons for row in found.rows.values())
    return "\n".join([markdown_table(header, lines, left=(0, 1)), "", *measured_on])


def milliseconds(value: float) -> str:
    """A time with three digits, such as 0.412, 3.29 or 120."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def ratio(value: float) -> str:
    return f"{value:.0f}x" if value >= 10 else f"{value:.1f}x"


def _short(case: Case) -> str:
    return str(case).replace("iterations", "it").replace("iteration", "it")


def _names(comparisons: Sequence[Comparison]) -> list[str]:
    return [name for name in NAMES if any(name in comparison.rows for comparison in comparisons)]


def _ratio_titles(names: Sequence[str]) -> list[str]:
    return [f"faster than {name}" for name in SLOW if name in names and FUSED in names]


def _cells(comparison: Comparison, names: Sequence[str]) -> list[str]:
    cells = [_time(comparison.rows.get(name)) for name in names]
    for name in SLOW:
        if name in names and FUSED in names:
            value = comparison.faster_than(name)
            cells.append("-" if value is None else ratio(value))
    return cells


def _time(row: Row | None) -> str:
    if row is None:
        return "-"
    if row.median_ms is None:
        return OUT_OF_MEMORY if row.status == OUT_OF_MEMORY else "failed"
    return milliseconds(row.median_ms)


def _measured_on(row: Row) -> str:
    versions = ", ".join(
        f"{name} {value}" for name, value in (("torch", row.torch), ("triton", row.triton), ("CUDA", row.cuda)) if value
    )
    commit = f", commit {row.commit[:12]}" if row.commit else ""
    return f"Measured on {row.device}; {versions}; float32, tf32 {row.tf32}; emcaps {row.emcaps}{commit}."
