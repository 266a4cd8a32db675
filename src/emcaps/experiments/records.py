"""What the finished runs of an experiment found.

An experiment consists of rows: named configs, each trained with one or more seeds. The run of a row with seed N lies in
RUNS/ROW/seedN. train.run_folder says which files it may hold.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from emcaps.config import RunConfig
from emcaps.files import read_json
from emcaps.names import check_name, first_of
from emcaps.train.run_folder import (
    EVALUATION,
    FAILURE,
    MANY_CROPS,
    METRICS,
    OF_LAST_WEIGHTS,
    read_config,
    read_evaluation,
    read_metrics,
    read_routing,
)

Rows = Mapping[str, RunConfig]


class Record(NamedTuple):
    """What one finished run found. Accuracies are in percent, and NaN if the run failed."""

    folder: Path
    seed: int
    accuracy: float
    """The accuracy on the test part of the split at the last step."""
    seconds: float
    curve: tuple[tuple[int, float, float], ...]
    """(step, test accuracy, seconds) of each evaluation while training. The seconds are those of the first row of
    metrics at the step or after it, so they are never too few for the training; the evaluation comes after them."""
    many_crops: float | None = None
    """The accuracy at the last step with 13 crops an image, if that was evaluated."""
    training_curve: tuple[tuple[int, float], ...] = ()
    """(step, training accuracy since the row before)."""
    training_accuracy: float = math.nan
    """The training accuracy over the last fifth of the steps."""
    routing: tuple[dict[str, Any], ...] = ()
    """The measurements of routing.json, by step; empty if routing was not measured."""
    failed_by: int | None = None
    """The step by which the run had failed, if it did."""
    familiar_curve: tuple[tuple[int, float], ...] = ()
    """(step, accuracy on familiar viewpoints) of each evaluation; empty for splits without novel viewpoints."""
    of_last_weights: float | None = None
    """The accuracy of the last step's weights, where `accuracy` is that of an average of weights."""

    def steps_to(self, accuracy: float) -> int | None:
        """The step of the first evaluation that found this accuracy, in percent; None if none did."""
        return next((step for step, found, _ in self.curve if found >= accuracy), None)

    @property
    def gradient_norm(self) -> float:
        """The norm of a batch's gradient, as the median of the measurements after step 0."""
        return self._median_after_start("gradient_norm")

    @property
    def gradient_cosine(self) -> float:
        """The cosine of two batches' gradients, as the median of the measurements after step 0."""
        return self._median_after_start("gradient_cosine")

    def _median_after_start(self, key: str) -> float:
        return float(statistics.median(found[key] for found in self.routing if found["step"]))


def run_folder(runs: Path, row: str, seed: int) -> Path:
    return runs / row / f"seed{seed}"


def check_settings(rows: Rows, row: str, folder: Path, *, any_data: bool = False) -> RunConfig:
    """The settings of a row's run; an error if they are not the row's, or if the folder is named after another seed."""
    config = read_config(folder)
    own: dict[str, Any] = {"train.seed": config.train.seed}
    if any_data:
        own["data.dataset"] = config.data.dataset
    if config != rows[row].override(own):
        raise ValueError(
            f"the run in {folder} has other settings than row {row!r} asks for: name another folder with --runs"
        )
    if folder != run_folder(folder.parent.parent, row, config.train.seed):
        raise ValueError(f"the run in {folder} has seed {config.train.seed}: a copy would count twice, so remove it")
    return config


def is_finished(folder: Path, *, measured: bool, failures: bool = False) -> bool:
    """Whether a run is trained and evaluated and, where routing is measured, measured to its last step.

    A run that failed is finished where routing is measured, or where `failures` count.
    """
    if (measured or failures) and (folder / FAILURE).exists():
        return True
    if not measured:
        return (folder / EVALUATION).exists()
    if not (folder / EVALUATION).exists():
        return False
    return read_config(folder).train.steps in [found["step"] for found in read_routing(folder)]


def read_records(rows: Rows, row: str, runs: Path, *, measured: bool = False, failures: bool = False) -> list[Record]:
    """Every finished run of a row, by seed; a run whose settings are not the row's is refused.

    Runs whose routing was measured may have been trained on any data set.
    """
    check_name("row", row, rows)
    records = []
    for folder in sorted((runs / row).glob("seed*")):
        if is_finished(folder, measured=measured, failures=failures):
            config = check_settings(rows, row, folder, any_data=measured)
            records.append(_read_record(folder, config))
    return sorted(records, key=lambda record: record.seed)


def finished(
    rows: Rows, names: Sequence[str], runs: Path, *, measured: bool = False, failures: bool = False
) -> dict[str, list[Record]]:
    """The records of the named rows, with those that failed if `failures` count; an error if there are none at all."""
    if not runs.is_dir():
        raise ValueError(
            f"there is no folder {runs}: name the folder of runs with --runs; recorded runs come with a checkout of "
            "emcaps, and `emcaps experiment` trains new ones with --train"
        )
    found = {name: read_records(rows, name, runs, measured=measured, failures=failures) for name in names}
    if not any(found.values()):
        raise ValueError(
            f"there are no finished runs of {first_of(names)} in {runs}: name another folder with --runs, train them "
            "with --train, or wait for those that are being trained"
        )
    return found


def runs_link(runs: Path) -> str:
    """What links to runs start with on a page in docs/: the folder, as seen from there."""
    return f"{'' if runs.is_absolute() else '../'}{runs.as_posix()}/"


def mean_and_spread(records: Sequence[Record]) -> str:
    """The accuracies' mean and spread, in percent; a dash without runs."""
    return spread([record.accuracy for record in records], 2) if records else "-"


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and sample standard deviation, as "76.5 ± 1.2"; one value stands alone."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


def _read_record(folder: Path, config: RunConfig) -> Record:
    steps, metrics = config.train.steps, read_metrics(folder)
    seconds = {row["step"]: row["seconds"] for row in metrics if "seconds" in row}
    training = [(row["step"], 100 * row["accuracy"]) for row in metrics if "accuracy" in row]
    if (folder / FAILURE).exists():
        failed_by = read_json(folder / FAILURE).get("step")
        if not isinstance(failed_by, int):
            raise ValueError(f"{folder / FAILURE} is damaged (it holds no step): restore it from another copy")
        return Record(
            folder,
            config.train.seed,
            math.nan,
            max(seconds.values(), default=math.nan),
            (),
            training_curve=tuple(training),
            routing=read_routing(folder),
            failed_by=failed_by,
        )
    accuracy, step = read_evaluation(folder / EVALUATION)
    of_last = f"test_{OF_LAST_WEIGHTS}"
    if step != steps or step not in seconds:
        raise ValueError(
            f"the run in {folder} is not whole: its {METRICS} or {EVALUATION} lacks step {steps}; restore it from "
            "another copy"
        )
    return Record(
        folder,
        config.train.seed,
        100 * accuracy,
        max(seconds.values()),
        tuple(
            (row["step"], 100 * row["test_accuracy"], min(seconds[at] for at in seconds if at >= row["step"]))
            for row in metrics
            if "test_accuracy" in row
        ),
        _many_crops(folder, steps),
        tuple(training),
        statistics.fmean(accuracy for step, accuracy in training if step > 0.8 * steps),
        read_routing(folder),
        familiar_curve=tuple(
            (row["step"], 100 * row["familiar_accuracy"]) for row in metrics if "familiar_accuracy" in row
        ),
        of_last_weights=next((100 * row[of_last] for row in reversed(metrics) if of_last in row), None),
    )


def _many_crops(folder: Path, steps: int) -> float | None:
    """The accuracy with 13 crops, if it was evaluated at the last step."""
    if not (folder / MANY_CROPS).exists():
        return None
    accuracy, step = read_evaluation(folder / MANY_CROPS)
    return 100 * accuracy if step == steps else None
