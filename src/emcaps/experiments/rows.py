"""Experiments made of rows: named configs, each trained with one or more seeds, and what their finished runs found.

Runs lie in FOLDER/ROW/seedN. A run that is complete is not done again, an interrupted one goes on, and one that another
process is at work on is left to it.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from emcaps.config import RunConfig
from emcaps.data.splits import load_tested
from emcaps.experiments.processes import Bar, work_together
from emcaps.names import check_name, first_of
from emcaps.report.progress import counting_bar
from emcaps.train import load_network, train
from emcaps.train.device import start_work
from emcaps.train.evaluate import evaluate_split, write_evaluations
from emcaps.train.run_folder import (
    CONFIG,
    EVALUATION,
    METRICS,
    WEIGHTS,
    TakenRunError,
    is_busy,
    read_config,
    read_evaluation,
    read_metrics,
)

Rows = Mapping[str, RunConfig]
MANY_CROPS = "evaluation-13-crops.json"
"""A file of the run folder, beside that of one crop."""


class Record(NamedTuple):
    """What one finished run found."""

    folder: Path
    seed: int
    accuracy: float
    """At the last step, in percent."""
    seconds: float
    curve: tuple[tuple[int, float, float], ...]
    """(step, test accuracy in percent, seconds) while training: the seconds at the first row of metrics that is not
    before the step, so never too few for the training; the evaluation itself comes after."""
    many_crops: float | None = None
    """Accuracy at the last step with 13 crops an image, in percent, where that was evaluated."""

    def steps_to(self, accuracy: float) -> int | None:
        """Until an evaluation first found this accuracy, in percent; None if none did."""
        return next((step for step, found, _ in self.curve if found >= accuracy), None)


def run_folder(runs: Path, row: str, seed: int) -> Path:
    return runs / row / f"seed{seed}"


def train_row(rows: Rows, row: str, seed: int, runs: Path, **how: Any) -> None:
    """Train one row with one seed; `how` goes to `emcaps.train.train`."""
    check_name("row", row, rows)
    folder = run_folder(runs, row, seed)
    config = rows[row].override({"train.seed": seed})
    if not train(config, folder, resume=(folder / CONFIG).exists(), **how).complete:
        raise KeyboardInterrupt


def read_records(rows: Rows, row: str, runs: Path) -> list[Record]:
    """Every finished run of a row, by seed; a run whose settings are not the row's is refused."""
    check_name("row", row, rows)
    records = []
    for folder in sorted((runs / row).glob("seed*")):
        if not (folder / EVALUATION).exists():
            continue
        config, metrics = read_config(folder), read_metrics(folder)
        if config != rows[row].override({"train.seed": config.train.seed}):
            raise ValueError(
                f"the run in {folder} has other settings than row {row!r} asks for: train it again in another folder"
            )
        if folder != run_folder(runs, row, config.train.seed):
            raise ValueError(
                f"the run in {folder} has seed {config.train.seed}: a copy would count twice, so remove it"
            )
        accuracy, step = read_evaluation(folder / EVALUATION)
        seconds = {m["step"]: m["seconds"] for m in metrics if "seconds" in m}
        if step != config.train.steps or step not in seconds:
            raise ValueError(
                f"the run in {folder} is not whole: its {METRICS} or {EVALUATION} lacks step {config.train.steps}; "
                "restore it from another copy"
            )
        curve = tuple(
            (
                m["step"],
                100 * m["test_accuracy"],
                min(seconds[step] for step in seconds if step >= m["step"]),
            )
            for m in metrics
            if "test_accuracy" in m
        )
        many_crops = None
        if (folder / MANY_CROPS).exists():
            many, found_at = read_evaluation(folder / MANY_CROPS)
            many_crops = 100 * many if found_at == config.train.steps else None
        records.append(Record(folder, config.train.seed, 100 * accuracy, max(seconds.values()), curve, many_crops))
    return sorted(records, key=lambda record: record.seed)


def evaluate_many_crops(rows: Rows, names: Sequence[str], runs: Path, *, device: str, data_folder: Path | None) -> None:
    """With 13 crops an image, every finished run of the named rows that was not yet, if its weights are there."""
    place = start_work(device)
    for name in names:
        for record in read_records(rows, name, runs):
            if record.many_crops is None and (record.folder / WEIGHTS).exists():
                network, config, step = load_network(record.folder / WEIGHTS, place)
                with counting_bar(f"{name}, seed {record.seed}, 13 crops", "images") as show:
                    found = evaluate_split(network, load_tested(config.data, data_folder), config, place, 13, show)
                write_evaluations(record.folder / MANY_CROPS, found, step, crops=13)


def mean_and_spread(records: Sequence[Record]) -> str:
    """Of the accuracies, in percent; a dash without runs."""
    return spread([record.accuracy for record in records], 2) if records else "-"


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and sample standard deviation, as "76.5 ± 1.2"; one value stands alone."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


def train_missing(
    rows: Rows, names: Sequence[str], seeds: Sequence[int], runs: Path, *, jobs: int = 1, **how: Any
) -> None:
    """Train the named rows with every seed, but for runs that are finished; `how` goes to `emcaps.train.train`.

    `jobs` processes at a time, of which this is one: each takes the next run that no other is at work on. So more
    processes may join at any time, by the same call.
    """
    for name in names:
        check_name("row", name, rows)
    each = [(name, seed) for seed in seeds for name in names]  # a first seed of every row, then the second
    work_together(partial(_train_free_runs, dict(rows), each, runs, how, jobs), jobs)
    if left := [f"{name}, seed {seed}" for name, seed in each if not _is_finished(runs, name, seed)]:
        print(f"left to other processes: {'; '.join(left)}. Ask again when they are done.", file=sys.stderr)


def _is_finished(runs: Path, row: str, seed: int) -> bool:
    return (run_folder(runs, row, seed) / EVALUATION).exists()


def _train_free_runs(
    rows: Rows,
    each: Sequence[tuple[str, int]],
    runs: Path,
    how: Mapping[str, Any],
    jobs: int,
    number: int,
    bar: Bar,
) -> None:
    """The part of process `number` of `jobs`: whatever is free, from a start of its own."""
    start = number * len(each) // jobs
    for name, seed in [*each[start:], *each[:start]]:
        if _is_finished(runs, name, seed) or is_busy(run_folder(runs, name, seed)):
            continue
        done = sum(_is_finished(runs, *one) for one in each)
        what = f"{name}, seed {seed} ({done} of {len(each)} done)"
        # Another process may still be quicker; then this one goes on to the next.
        with bar(what, rows[name].train.steps) as show, suppress(TakenRunError):
            train_row(rows, name, seed, runs, on_progress=show, **how)


def finished(rows: Rows, names: Sequence[str], runs: Path) -> dict[str, list[Record]]:
    """The records of the named rows; an error if there are none at all."""
    if not runs.is_dir():
        raise ValueError(f"there is no folder {runs}: name that of the runs with --runs; a checkout of emcaps has some")
    found = {name: read_records(rows, name, runs) for name in names}
    if not any(found.values()):
        raise ValueError(
            f"there are no finished runs of {first_of(names)} in {runs}: name another folder with --runs, train "
            "them (table2 and choices do with --train), or wait for those that are being trained"
        )
    return found
