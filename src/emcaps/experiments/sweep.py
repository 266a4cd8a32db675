"""A sweep: every combination of some settings, each trained with several seeds, and a table of what they reached.

The combination train.learning_rate=1e-3, network.iterations=2 is the row "learning_rate=1e-3,iterations=2", and its run
with seed 0 lies in RUNS/learning_rate=1e-3,iterations=2/seed0.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from emcaps.config import DATASETS, RunConfig
from emcaps.data.prepared import SIDE, Examples
from emcaps.data.splits import load_split
from emcaps.experiments.records import Record, Rows, mean_and_spread, read_records
from emcaps.experiments.runner import Training, train_missing
from emcaps.report.tables import plain_table
from emcaps.train.checks import check_fits, fill_in

Grid = Mapping[str, Sequence[str]]
"""The values of each setting, as the command line has them: {"network.iterations": ["2", "3"]}."""

UNSAFE = re.compile(r"[^\w.+-]+")
"""What a folder's name should not have in it."""
NO_VIEWS = Examples(np.empty((0, 2, SIDE, SIDE), np.uint8), np.empty(0, np.int16), elevation=np.empty(0, np.int16))
"""Examples like those of toys and smallNORB: the sides, cameras and classes that a config must fit."""


def run_sweep(
    base: RunConfig, grid: Grid, runs: Path, console: Console, how: Training, *, name: str = "run", look: bool = False
) -> None:
    """Train what is missing, unless `look` is set, and show the accuracy of each row, the best first.

    `name` is that of the only row if the grid is empty.
    """
    rows = sweep_rows(base, grid, name, how.data_folder)
    if not look:
        train_missing(rows, list(rows), runs, how)
    found = {row: read_records(rows, row, runs, failures=True) for row in rows}
    if not any(found.values()):
        raise ValueError(f"there are no finished runs of this sweep in {runs}: name their folder, or leave out --look")
    console.print(sweep_table(found, grid))


def sweep_rows(base: RunConfig, grid: Grid, name: str, data_folder: Path | None = None) -> Rows:
    """The config of each combination, by the row's name; the last setting changes fastest."""
    rows: dict[str, RunConfig] = {}
    for values in itertools.product(*grid.values()):
        row = _row_name(grid, values) or name
        config = base.override(dict(zip(grid, values, strict=True)))
        if config in rows.values():
            raise ValueError(f"two values of the grid are the same setting, {row}: leave out one of them")
        if row in rows:
            raise ValueError(f"two values of the grid would share the folder {row}: name one of them differently")
        rows[row] = config
    return {row: _filled_in(config, data_folder) for row, config in rows.items()}


def _filled_in(config: RunConfig, data_folder: Path | None) -> RunConfig:
    """The config as the run will write it down, with what it learns from its data."""
    if config.data.dataset in DATASETS:  # whose images are known
        check_fits(config, NO_VIEWS)
        return config
    examples = load_split(config.data, data_folder).train
    filled = fill_in(config, examples, data_folder)
    check_fits(filled, examples)  # now, and not when the runs before it are trained
    return filled


def _row_name(grid: Grid, values: Sequence[str]) -> str:
    """A name that can be a folder's. A setting is named without its section, unless two would be the same."""
    short = [setting.rpartition(".")[2] for setting in grid]
    names = [key if short.count(key) == 1 else setting for key, setting in zip(short, grid, strict=True)]
    return ",".join(f"{key}={UNSAFE.sub('-', value)}" for key, value in zip(names, values, strict=True))


def sweep_table(found: Mapping[str, Sequence[Record]], grid: Grid) -> Table:
    """A line for each combination that has a finished run, the highest mean first; runs that diverged last."""
    table = plain_table("Accuracy at the last step, % of the tested images: mean ± standard deviation over n runs")
    for column in (*grid, "accuracy", "n", "diverged", "minutes a run"):
        table.add_column(column, justify="right")
    lines = []
    for values, records in zip(itertools.product(*grid.values()), found.values(), strict=True):
        whole = [record for record in records if record.failed_by is None]
        mean = math.fsum(record.accuracy for record in whole) / len(whole) if whole else -math.inf
        if records:
            minutes = f"{max(record.seconds for record in records) / 60:.1f}"
            diverged = str(len(records) - len(whole) or "")
            lines.append((mean, (*values, mean_and_spread(whole), str(len(whole)), diverged, minutes)))
    for _, cells in sorted(lines, key=lambda line: -line[0]):
        table.add_row(*cells)
    return table
