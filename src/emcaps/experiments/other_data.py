"""Sets of pictures other than smallNORB: what the small network reaches on them, in how many minutes.

The settings were chosen on a held-out tenth of the training images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emcaps.config import RunConfig, preset
from emcaps.data.builtin import NAMES
from emcaps.experiments.records import Record, finished, mean_and_spread, runs_link
from emcaps.experiments.runner import Training, train_missing
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.tables import plain_table


def _steps(number: int) -> dict[str, Any]:
    return {"train.steps": number, "train.margin_steps": number // 2, "train.eval_every": number // 10}


RECIPE: dict[str, Any] = {
    "data.channels": 1,
    "data.size": 28,
    "data.crop": 28,
    "data.brightness": 0.0,
    "data.contrast_low": 1.0,
    "data.contrast_high": 1.0,
    "data.standardise": "background",
    "network.classes": 10,
    "train.learning_rate_schedule": "cosine",
    "train.margin_schedule": "linear",
    "train.warmup_steps": 200,
    "train.weight_decay": 0.0,
    "train.beta_rate": 30.0,
}
LONG: dict[str, Any] = _steps(60_000) | {
    "train.log_every": 2000,
    "train.checkpoint_every": 10_000,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "mnist": LONG | {"data.dataset": "mnist", "data.pad": 2, "data.turn": 15.0, "data.zoom": 0.15, "data.slant": 0.2},
    "mnist-quick": _steps(2000) | {"data.dataset": "mnist", "train.eval_every": 0},
    "fashion-mnist": LONG | {"data.dataset": "fashion-mnist", "data.pad": 1, "data.mirror": 0.5},
}
ROWS: dict[str, RunConfig] = {
    row: preset("small").override(RECIPE | changes | {"data.names": NAMES[changes["data.dataset"]]})
    for row, changes in SETTINGS.items()
}
"""Each row is trained with several seeds. The quick one is for a CPU, and takes a few minutes on two cores."""


def run_other_data(runs: Path, console: Console, names: Sequence[str], *, train: Training | None = None) -> None:
    """Show the accuracy of each row, after training what is missing if `train` says how."""
    if train is not None:
        train_missing(ROWS, names, runs, train)
    found = finished(ROWS, names, runs)
    console.print(_row_table(found))
    print(markdown_rows(found, runs_link(runs)))


def _row_table(found: Mapping[str, Sequence[Record]]) -> Table:
    table = plain_table("Small network, last step, % of the test images")
    for column in ("row", "seeds", "mean", "minutes a run"):
        table.add_column(column, justify="left" if column == "row" else "right")
    for row, records in found.items():
        if records:
            table.add_row(row, str(len(records)), mean_and_spread(records), minutes(records))
    return table


def markdown_rows(found: Mapping[str, Sequence[Record]], link: str) -> str:
    """The table for the page: every seed by itself, with a link to its run, and their mean."""
    rows = []
    for row, records in found.items():
        if records:
            each = [markdown_link(f"{one.accuracy:.2f}", f"{link}{row}/{one.folder.name}") for one in records]
            steps = f"{ROWS[row].train.steps:,}"
            mean = f"{markdown_link(mean_and_spread(records), link + row)} (n = {len(records)})"
            rows.append((row, steps, mean, ", ".join(each), minutes(records)))
    header = ("row", "steps", "test accuracy, %", "by seed, %", "minutes a run")
    return markdown_table(header, rows)


def minutes(records: Sequence[Record]) -> str:
    """The time of the fastest run, since others may have shared their device."""
    return f"{min(record.seconds for record in records) / 60:.1f}"
