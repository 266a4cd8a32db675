"""Runs that are looked into while they train: a fixed set of images is routed at step 0 and at every checkpoint.

The run folder gets one more file, and another one if the run fails:

routing.json   per step: loss, gradient norm, and for each routed layer and iteration how sharp the routing is
failure.json   the step by which the loss, the weights or the answers to the test images were no longer finite
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from emcaps.config import RunConfig
from emcaps.data.crops import evaluation_crops
from emcaps.data.splits import load_split
from emcaps.data.tensors import to_tensors
from emcaps.experiments.inside import BATCH, measure
from emcaps.experiments.processes import Bar, work_together
from emcaps.experiments.rows import run_folder
from emcaps.files import write_json
from emcaps.names import first_of
from emcaps.nn import MatrixCapsNet, build_network
from emcaps.train import NotFiniteError, Progress, load_network, train
from emcaps.train.device import pick_device
from emcaps.train.evaluate import NotFiniteScoresError
from emcaps.train.randomness import seed_for
from emcaps.train.run_folder import (
    CHECKPOINT,
    CONFIG,
    EVALUATION,
    METRICS,
    WEIGHTS,
    read_config,
    read_evaluation,
    read_metrics,
)
from emcaps.train.schedules import margin_of
from emcaps.train.start import start_betas

ROUTING, FAILURE = "routing.json", "failure.json"
BATCHES = 4
"""Of BATCH images each, that routing is measured on: as large as the training batches of the tiny network's runs."""


def is_complete(folder: Path, config: RunConfig) -> bool:
    """Whether the run has failed, or is trained and measured to its last step; other settings are refused."""
    if not (folder / CONFIG).exists():
        return False
    if read_config(folder) != config:
        raise ValueError(f"the run in {folder} has other settings than this experiment: name another folder of runs")
    measured = [found["step"] for found in read_routing(folder)]
    return (folder / FAILURE).exists() or ((folder / EVALUATION).exists() and config.train.steps in measured)


def measure_missing(
    runs: Path,
    names: Iterable[str],
    seeds: Iterable[int],
    config_of: Callable[[str, int], RunConfig],
    device: str,
    data_folder: Path | None,
    jobs: int = 1,
) -> None:
    """Train and measure what is missing in RUNS/NAME/seedN, in `jobs` processes; `config_of` (name, seed) says how."""
    each = [(name, seed) for seed, name in itertools.product(seeds, names)]
    work_together(partial(_measure_part, runs, each, config_of, device, data_folder, jobs), jobs)


def _measure_part(
    runs: Path,
    each: Sequence[tuple[str, int]],
    config_of: Callable[[str, int], RunConfig],
    device: str,
    data_folder: Path | None,
    jobs: int,
    number: int,
    bar: Bar,
) -> None:
    """Every run whose turn it is: a run that is trained but not yet measured shows no one that it is being worked on,
    so that processes cannot take what is free."""
    for name, seed in each[number::jobs]:
        folder, config = run_folder(runs, name, seed), config_of(name, seed)
        if not is_complete(folder, config):
            with bar(f"{name}, seed {seed}", config.train.steps) as show:
                train_and_measure(config, folder, device=device, data_folder=data_folder, on_progress=show)


def train_and_measure(
    config: RunConfig,
    folder: Path,
    *,
    device: str = "auto",
    data_folder: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """One run, with routing.json: at the start, at every checkpoint, and at the end. Nothing if it is complete."""
    if is_complete(folder, config):
        return
    place = pick_device(device)
    images, labels = to_tensors(load_split(config.data, data_folder).train, config.data.view, place)
    crops, categories = choose_crops(images, labels, config)

    def record(network: torch.nn.Module, step: int) -> None:
        assert isinstance(network, MatrixCapsNet)
        found = measure(network, crops, categories, margin_of(config.train, step)) | {"step": step}
        kept = [one for one in read_routing(folder) if one["step"] != step]
        write_json(folder / ROUTING, sorted([*kept, found], key=lambda one: int(one["step"])))

    def watch(progress: Progress) -> None:
        # The checkpoint of this very step has just been written; the last step's comes later, with the weights.
        if progress.step < config.train.steps and progress.step % config.train.checkpoint_every == 0:
            record(load_network(folder / CHECKPOINT, place)[0], progress.step)
        if on_progress is not None:
            on_progress(progress)

    resume = (folder / CONFIG).exists()
    try:
        result = train(config, folder, device=device, data_folder=data_folder, resume=resume, on_progress=watch)
    except (NotFiniteError, NotFiniteScoresError) as error:
        record(_fresh_network(config, images), 0)
        failed_by = error.step if isinstance(error, NotFiniteError) else config.train.steps
        write_json(folder / FAILURE, {"step": failed_by})
        return
    if not result.complete:
        raise KeyboardInterrupt
    record(_fresh_network(config, images), 0)
    record(load_network(folder / WEIGHTS, place)[0], config.train.steps)


def choose_crops(images: Tensor, labels: Tensor, config: RunConfig) -> tuple[Tensor, Tensor]:
    """The crops of training images that routing is measured on, always the same ones, and their labels."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    chosen = order[: BATCHES * BATCH].to(images.device)
    crops = evaluation_crops(images[chosen], config.data.crop, standardised=config.data.standardise)[:, 0]
    return crops, labels[chosen]


def _fresh_network(config: RunConfig, images: Tensor) -> torch.nn.Module:
    """The network that training started from."""
    with torch.random.fork_rng(devices=[images.device] if images.device.type == "cuda" else []):
        torch.manual_seed(seed_for(config.train.seed, "network"))
        network = build_network(config.network, config.data.image_channels, config.data.crop).to(images.device)
    start_betas(network, images, config)
    return network


class Run(NamedTuple):
    """What one complete run found; accuracies are NaN if it failed."""

    folder: Path
    curve: list[tuple[int, float]]
    """(step, training accuracy since the row before), 0 to 1."""
    late: float
    """Training accuracy over the last fifth of the steps, 0 to 1."""
    held_out: float
    """Accuracy on instances that it was not trained on, of the validation or test split, at the last step, 0 to 1."""
    routing: list[dict[str, Any]]
    """The measurements of routing.json, by step."""
    failed_by: int | None
    """The step by which it had failed."""

    @property
    def gradient_norm(self) -> float:
        """Of a batch; median over the measurements after the start."""
        return _median_after_start(self.routing, "gradient_norm")

    @property
    def gradient_cosine(self) -> float:
        return _median_after_start(self.routing, "gradient_cosine")


def _median_after_start(routing: Sequence[dict[str, Any]], key: str) -> float:
    return float(statistics.median(found[key] for found in routing if found["step"]))


def read_routing(folder: Path) -> list[dict[str, Any]]:
    path = folder / ROUTING
    if not path.exists():
        return []
    try:
        found: list[dict[str, Any]] = json.loads(path.read_bytes())
        if not all(isinstance(one["step"], int) for one in found):
            raise ValueError("a measurement without a step")
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}): restore it from another copy") from error
    return found


def read_run(folder: Path) -> Run:
    """A complete run."""
    steps = read_config(folder).train.steps
    rows = [row for row in read_metrics(folder) if "accuracy" in row]
    curve = [(row["step"], row["accuracy"]) for row in rows]
    if (folder / FAILURE).exists():
        failed_by = json.loads((folder / FAILURE).read_text(encoding="utf-8"))["step"]
        return Run(folder, curve, math.nan, math.nan, read_routing(folder), failed_by)
    if not rows or rows[-1]["step"] != steps:
        raise ValueError(f"{folder / METRICS} is not whole: it lacks step {steps}; restore it from another copy")
    late = statistics.fmean(row["accuracy"] for row in rows if row["step"] > 0.8 * steps)
    held_out, _ = read_evaluation(folder / EVALUATION)
    return Run(folder, curve, late, held_out, read_routing(folder), None)


def check_complete(found: Mapping[str, Sequence[Run]], runs: Path) -> None:
    """Every variant has a run, or an error says which has none."""
    if lacking := [name for name, each in found.items() if not each]:
        raise ValueError(
            f"there are no complete runs of {first_of(lacking)} in {runs}: train them with --train, or name another "
            "folder with --runs"
        )


def read_complete_runs(folder: Path, config_of: Callable[[int, str], RunConfig]) -> list[Run]:
    """Every complete run in FOLDER/seedN, by seed; `config_of` (seed, data set) says what settings it must have."""
    found = []
    for run in sorted(folder.glob("seed*")):
        if (run / CONFIG).exists():
            config = read_config(run)
            if is_complete(run, config_of(config.train.seed, config.data.dataset)):
                found.append(read_run(run))
    return found
