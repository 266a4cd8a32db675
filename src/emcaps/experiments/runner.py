"""Train what an experiment lacks, in one process or several.

A run that is finished is skipped, an interrupted one is resumed, and one that another process is at work on is left to
that process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from emcaps.config import RunConfig
from emcaps.data.splits import load_tested
from emcaps.experiments.measured_run import train_and_measure, write_failure
from emcaps.experiments.processes import Bar, work_together
from emcaps.experiments.records import Rows, check_settings, is_finished, read_records, run_folder
from emcaps.names import check_name, first_of
from emcaps.report.progress import counting_bar
from emcaps.train import NotFiniteError, load_network, train
from emcaps.train.device import start_work
from emcaps.train.evaluate import NotFiniteScoresError, evaluate_split, write_evaluations
from emcaps.train.run_folder import CONFIG, MANY_CROPS, WEIGHTS, BusyRunError, only_user
from emcaps.train.teachers import missing_teachers


class Training(NamedTuple):
    """How an experiment trains the runs that it lacks."""

    seeds: Sequence[int]
    jobs: int = 1
    """The number of processes."""
    device: str = "auto"
    data_folder: Path | None = None
    part: tuple[int, int] = (1, 1)
    """(I, N): train every Nth run, from the Ith on, and leave the rest to other machines."""
    keep_failures: bool = False
    """Record a run whose loss, weights or answers are not finite, and train the others, instead of stopping."""


class _Plan(NamedTuple):
    """The runs of an experiment, for each of its processes."""

    rows: Rows
    each: Sequence[tuple[str, int]]
    """(row, seed) in the order in which they are trained."""
    runs: Path
    measured: bool
    failures: bool

    def is_finished(self, row: str, seed: int) -> bool:
        return is_finished(run_folder(self.runs, row, seed), measured=self.measured, failures=self.failures)

    def missing_teachers(self, row: str, seed: int) -> list[Path]:
        """The weights that the run would learn from, and that are not there."""
        return missing_teachers(self.rows[row], run_folder(self.runs, row, seed))


def train_missing(rows: Rows, names: Sequence[str], runs: Path, how: Training, *, measured: bool = False) -> None:
    """Train the named rows with every seed, except for runs that are finished; `measured` measures routing, too.

    Each process takes the next run that no other is at work on, so more processes may join at any time by the same
    call. Runs that have teachers come last, and only those whose teachers have weights by then.
    """
    for name in names:
        check_name("row", name, rows)
    each = [(name, seed) for seed in how.seeds for name in names]  # the first seed of every row, then the second
    each = each[how.part[0] - 1 :: how.part[1]]
    for name, seed in each:
        if (run_folder(runs, name, seed) / CONFIG).exists():
            check_settings(rows, name, run_folder(runs, name, seed))
    plan = _Plan(dict(rows), each, runs, measured, how.keep_failures)
    taught = [one for one in each if rows[one[0]].train.teachers]
    first = [one for one in each if one not in taught]
    work_together(partial(_train_free_runs, plan._replace(each=first), how), how.jobs)
    if ready := [one for one in taught if not plan.missing_teachers(*one)]:
        work_together(partial(_train_free_runs, plan._replace(each=ready), how), how.jobs)
    left = [one for one in each if not plan.is_finished(*one)]
    if busy := [f"{name}, seed {seed}" for name, seed in left if not plan.missing_teachers(name, seed)]:
        print(f"left to other processes: {'; '.join(busy)}. Ask again when they are done.", file=sys.stderr)
    waiting = {f"{name}, seed {seed}": missing for name, seed in left if (missing := plan.missing_teachers(name, seed))}
    if waiting:
        teachers = list(dict.fromkeys(str(path) for missing in waiting.values() for path in missing))
        print(f"not trained: {'; '.join(waiting)}. Ask again when there is {first_of(teachers)}.", file=sys.stderr)


def lacking_teachers(rows: Rows, names: Sequence[str], runs: Path, how: Training) -> dict[str, list[Path]]:
    """The teachers of the named rows, by row, that neither have weights nor are among the runs to be trained."""
    plan = _Plan(rows, [(name, seed) for name in names for seed in how.seeds], runs, False, how.keep_failures)
    missing = [one for one in plan.each if not plan.is_finished(*one)]
    coming = {Path(os.path.normpath(run_folder(runs, *one))) for one in missing}
    lacking: dict[str, list[Path]] = {}
    for name, seed in missing:
        if found := [path for path in plan.missing_teachers(name, seed) if coming.isdisjoint((path, path.parent))]:
            lacking.setdefault(name, []).extend(found)
    return lacking


def _train_free_runs(plan: _Plan, how: Training, number: int, bar: Bar) -> None:
    """Do the part of process `number`: every run that is free, from a place of its own in the list."""
    start = number * len(plan.each) // how.jobs
    train_run: Callable[..., None] = (
        train_and_measure if plan.measured else _train_or_record if how.keep_failures else _train
    )
    for name, seed in [*plan.each[start:], *plan.each[:start]]:
        if plan.is_finished(name, seed):
            continue
        with suppress(BusyRunError), only_user(claim_folder(plan.runs, name, seed)):
            if plan.is_finished(name, seed):  # by a process that was at work on it until now
                continue
            done = sum(plan.is_finished(*one) for one in plan.each)
            config = plan.rows[name].override({"train.seed": seed})
            with bar(f"{name}, seed {seed} ({done} of {len(plan.each)} done)", config.train.steps) as show:
                train_run(
                    config,
                    run_folder(plan.runs, name, seed),
                    device=how.device,
                    data_folder=how.data_folder,
                    on_progress=show,
                )


def claim_folder(runs: Path, row: str, seed: int) -> Path:
    """The folder beside a run's own whose lock a process holds while it trains and measures the run.

    The lock in the run's own folder would not do: training lets go of it before the last measurement.
    """
    return runs / row / f".seed{seed}"


def _train(config: RunConfig, folder: Path, **how: Any) -> None:
    if not train(config, folder, resume=(folder / CONFIG).exists(), **how).complete:
        raise KeyboardInterrupt


def _train_or_record(config: RunConfig, folder: Path, **how: Any) -> None:
    try:
        _train(config, folder, **how)
    except (NotFiniteError, NotFiniteScoresError) as error:
        write_failure(folder, error, config)


def evaluate_many_crops(rows: Rows, names: Sequence[str], runs: Path, how: Training) -> None:
    """Evaluate the finished runs of the named rows with 13 crops an image, where that is missing and weights exist."""
    place = start_work(how.device)
    for name in names:
        for record in read_records(rows, name, runs):
            if record.many_crops is None and (record.folder / WEIGHTS).exists():
                network, config, step = load_network(record.folder / WEIGHTS, place)
                with counting_bar(f"{name}, seed {record.seed}, 13 crops", "images") as show:
                    found = evaluate_split(network, load_tested(config.data, how.data_folder), config, place, 13, show)
                write_evaluations(record.folder / MANY_CROPS, found, step, crops=13)
