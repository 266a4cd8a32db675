"""What a running benchmark shows: a heading for each case, a line for each of its rows as it comes, and a bar."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from emcaps.bench.cases import NAMES, Case
from emcaps.bench.rows import Row
from emcaps.bench.tables import milliseconds

NAME_WIDTH = max(map(len, NAMES)) + 2


class Screen(NamedTuple):
    bar: Progress
    task: TaskID

    def announce(self, doing: str) -> None:
        self.bar.update(self.task, doing=doing, refresh=True)

    def heading(self, case: Case) -> None:
        self.bar.console.print(f"{case}: {case.what}", style="bold", markup=False)

    def row(self, row: Row) -> None:
        self.bar.console.print(row_line(row), markup=False)
        self.bar.update(self.task, advance=1, refresh=True)


@contextmanager
def screen(console: Console, rows: int) -> Iterator[Screen]:
    """The bar is for a terminal only: a file or a pipe gets the lines."""
    bar = Progress(
        BarColumn(bar_width=12),
        TextColumn("{task.completed}/{task.total} rows"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}", markup=False),
        console=console,
        disable=not console.is_terminal,
        transient=True,
        auto_refresh=False,  # a thread that draws would disturb what is timed
    )
    with bar:
        yield Screen(bar, bar.add_task("", total=rows, doing=""))


def row_line(row: Row) -> str:
    """One row in 80 columns."""
    name = f"  {row.implementation:<{NAME_WIDTH}}"
    if row.median_ms is None or row.p20_ms is None or row.p80_ms is None:
        return name + row.status
    spread = f"({milliseconds(row.p20_ms)} to {milliseconds(row.p80_ms)})"
    memory = "" if row.peak_mib is None else f"{row.peak_mib:>8,.0f} MiB"
    share = "" if row.share_of_ceiling is None else f"{100 * row.share_of_ceiling:>5.1f} %"
    return f"{name}{milliseconds(row.median_ms):>7} ms {spread:<18}{row.images_per_s:>9,.0f} img/s{memory}{share}"
