"""How the best recipe of Table 2 was chosen: a few changes at a time, tested on held-out training instances.

Every row trains on four of the five training instances of each category and is tested on the fifth; its fold says which
one that is. The test set is never opened.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emcaps.config import RunConfig, preset
from emcaps.experiments.records import Record, finished, runs_link
from emcaps.experiments.runner import Training, train_missing
from emcaps.experiments.table2 import BEST_BY_ITERATIONS, SOFT
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.tables import plain_table

STEPS = 9000
FOLDS = {"stereo": (0, 1), "mono": (0, 1, 4)}
START: dict[str, Any] = {
    "data.dataset": "smallnorb",
    "data.split": "validation",
    "train.steps": STEPS,
    "train.learning_rate_schedule": "cosine",
    "train.warmup_steps": 200,
    "train.margin_schedule": "linear",
    "train.margin_steps": STEPS // 2,
    "train.weight_decay": 0.0,
    "train.log_every": 500,
    "train.checkpoint_every": 5000,
}


def _steps(number: int) -> dict[str, Any]:
    return {"train.steps": number, "train.margin_steps": number // 2}


CROP: dict[str, Any] = {
    "data.max_shift": 4,
    "train.mixup": 0.5,
    "data.standardise": "crop",
    "data.brightness": 0.0,
    "data.contrast_low": 1.0,
    "data.contrast_high": 1.0,
}
CLASS_4: dict[str, Any] = {"network.class_scale": 4.0}
BACKGROUND: dict[str, Any] = CROP | {
    "data.standardise": "background",
    "train.learning_rate": 6e-3,
    "train.beta_rate": 30.0,
}
SPLICE: dict[str, Any] = BACKGROUND | {"data.splice": 0.5}
CROP_SPLICE: dict[str, Any] = CROP | {"train.beta_rate": 30.0, "data.splice": 0.5}
THREE: dict[str, Any] = BEST_BY_ITERATIONS[3] | {"network.iterations": 3}
ONE: dict[str, Any] = BEST_BY_ITERATIONS[1] | {"network.iterations": 1}
STEREO: dict[str, dict[str, Any]] = {
    "crop": CROP,
    "beta-10": CROP | {"train.beta_rate": 10.0},
    "beta-30": CROP | {"train.beta_rate": 30.0},
    "beta-100": CROP | {"train.beta_rate": 100.0},
    "beta-30-batch-32": CROP | {"train.beta_rate": 30.0, "train.batch_size": 32} | _steps(2 * STEPS),
    "beta-30-long": CROP | {"train.beta_rate": 30.0} | _steps(2 * STEPS),
    "background": BACKGROUND,
    "splice": SPLICE,
    "crop-splice": CROP_SPLICE,
    "crop-splice-rate": CROP_SPLICE | {"train.learning_rate": 6e-3},
    "it3": CROP | {"network.iterations": 3},
    "it3-beta-10": CROP | {"network.iterations": 3, "train.beta_rate": 10.0},
    "it3-beta-30": CROP | {"network.iterations": 3, "train.beta_rate": 30.0},
    "it3-soft-beta-10": CROP | SOFT | {"network.iterations": 3, "train.beta_rate": 10.0},
    "it3-soft-beta-30": CROP | SOFT | {"network.iterations": 3, "train.beta_rate": 30.0},
    "it3-class-4-beta-10": CROP | SOFT | CLASS_4 | {"network.iterations": 3, "train.beta_rate": 10.0},
    "it3-class-4-beta-30": CROP | SOFT | CLASS_4 | {"network.iterations": 3, "train.beta_rate": 30.0},
    "it3-crop-splice": CROP_SPLICE | THREE,
    "it3-crop-splice-rate": CROP_SPLICE | THREE | {"train.learning_rate": 6e-3},
    "it1-beta-30": CROP | {"network.iterations": 1, "train.beta_rate": 30.0},
}
MONO: dict[str, dict[str, Any]] = {
    "background": BACKGROUND,
    "splice": SPLICE,
    "splice-all": SPLICE | {"data.splice": 1.0},
    "splice-long": SPLICE | _steps(2 * STEPS),
    "splice-lambda-2": SPLICE | {"network.final_lambda": 2.0},
    "it3-soft": SPLICE | THREE,
    "it1-whole": BACKGROUND | ONE,
    "it1": SPLICE | ONE,
    "it1-mixup": SPLICE | ONE | {"train.mixup": 0.5},
    "it1-lambda-10": SPLICE | ONE | {"network.final_lambda": 10.0},
}
VARIANTS = {"stereo": STEREO, "mono": MONO}
"""The settings of each variant, by view."""


def row_name(view: str, variant: str, fold: int) -> str:
    return f"{variant}-fold{fold}" if view == "stereo" else f"{view}-{variant}-fold{fold}"


ROWS: dict[str, RunConfig] = {
    row_name(view, variant, fold): preset("small").override(START | changes | {"data.view": view, "data.fold": fold})
    for view, variants in VARIANTS.items()
    for variant, changes in variants.items()
    for fold in FOLDS[view]
}


def run_choices(runs: Path, console: Console, *, train: Training | None = None) -> None:
    """Show the accuracy of each variant on its folds, after training what is missing if `train` says how."""
    if train is not None:
        train_missing(ROWS, list(ROWS), runs, train)
    found = finished(ROWS, list(ROWS), runs)
    for view in VARIANTS:
        console.print(variant_table(found, view))
    print(*(markdown_choices(found, view, runs_link(runs)) for view in VARIANTS), sep="\n\n")


def variant_table(found: Mapping[str, Sequence[Record]], view: str) -> Table:
    table = plain_table(f"Small network, {view}: % right of the held-out instances, last step")
    table.add_column("variant")
    for column in (*(f"fold {fold}" for fold in FOLDS[view]), "mean"):
        table.add_column(column, justify="right")
    for variant, accuracies in _accuracies(found, view).items():
        table.add_row(variant, *(_shown(value) for value in accuracies), _mean(accuracies))
    return table


def markdown_choices(found: Mapping[str, Sequence[Record]], view: str, link: str) -> str:
    """The table of a view for the page, with links to the runs."""
    folds = FOLDS[view]
    rows = []
    for variant, accuracies in _accuracies(found, view).items():
        cells = [
            "-" if value is None else markdown_link(_shown(value), link + row_name(view, variant, fold))
            for fold, value in zip(folds, accuracies, strict=True)
        ]
        rows.append([variant, *cells, _mean(accuracies)])
    return markdown_table([view, *(f"fold {fold}, %" for fold in folds), "mean, %"], rows)


def _accuracies(found: Mapping[str, Sequence[Record]], view: str) -> dict[str, list[float | None]]:
    """The mean over seeds for each variant and fold, None without a run; variants without any run are left out."""
    each = {variant: [found[row_name(view, variant, fold)] for fold in FOLDS[view]] for variant in VARIANTS[view]}
    return {
        variant: [statistics.mean(record.accuracy for record in records) if records else None for records in folds]
        for variant, folds in each.items()
        if any(folds)
    }


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _mean(accuracies: Sequence[float | None]) -> str:
    """The mean over all folds, or a dash: a mean over some would not compare."""
    known = [value for value in accuracies if value is not None]
    return _shown(statistics.mean(known) if len(known) == len(accuracies) else None)
