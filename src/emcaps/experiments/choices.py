"""How the best recipe of Table 2 was chosen: one change at a time, tested on held-out training instances.

Every row trains on four of the five training instances of each category and is tested on the fifth, the fold; the test
set is never opened.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emcaps.config import RunConfig, preset
from emcaps.experiments.rows import Record, finished, train_missing
from emcaps.experiments.table2 import SOFT
from emcaps.report.tables import plain_table

STEPS = 9000
FOLDS = (0, 1)
START: dict[str, Any] = {
    "data.dataset": "smallnorb",
    "data.split": "validation",
    "data.view": "stereo",
    "train.steps": STEPS,
    "train.decay": "cosine",
    "train.warmup_steps": 200,
    "train.margin": "linear",
    "train.margin_steps": STEPS // 2,
    "train.weight_decay": 0.0,
    "train.log_every": 500,
    "train.checkpoint_every": 5000,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "start": {},
    "lambda-3": {"network.final_lambda": 3.0},
    "lambda-0.5": {"network.final_lambda": 0.5},
    "shift-4": {"data.max_shift": 4},
    "mixup": {"train.mixup": 0.5},
    "shift-4-mixup": {"data.max_shift": 4, "train.mixup": 0.5},
    "it3": {"network.iterations": 3},
    "it3-soft": {"network.iterations": 3} | SOFT,
}
ROWS: dict[str, RunConfig] = {
    f"{variant}-fold{fold}": preset("small").override(START | changes | {"data.fold": fold})
    for variant, changes in VARIANTS.items()
    for fold in FOLDS
}


def run_choices(runs: Path, console: Console, *, train_first: bool, device: str, data_folder: Path | None) -> None:
    """Show how each variant does on its folds, after training what is missing if that is asked for."""
    if train_first:
        train_missing(ROWS, list(ROWS), (0,), runs, device=device, data_folder=data_folder)
    console.print(variant_table(finished(ROWS, list(ROWS), runs)))


def variant_table(found: dict[str, list[Record]]) -> Table:
    table = plain_table("Small network, stereo: % right of the held-out instances, last step")
    table.add_column("variant")
    for column in (*(f"fold {fold}" for fold in FOLDS), "mean"):
        table.add_column(column, justify="right")
    for variant in VARIANTS:
        each = [found[f"{variant}-fold{fold}"] for fold in FOLDS]
        if all(each):
            accuracies = [statistics.mean(record.accuracy for record in records) for records in each]
            table.add_row(variant, *(f"{value:.1f}" for value in (*accuracies, statistics.mean(accuracies))))
    return table
