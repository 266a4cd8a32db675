"""One run whose routing is measured while it trains.

A fixed set of training images is routed at step 0, at every checkpoint and at the last step; routing.json in the run's
folder gets the measurements. A run that fails because its loss, weights or answers are not finite is recorded in
failure.json.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from emcaps.analysis.sharpness import fixed_crops, measure
from emcaps.config import RunConfig
from emcaps.data.splits import load_split
from emcaps.data.tensors import to_tensors
from emcaps.files import write_json
from emcaps.nn import MatrixCapsNet
from emcaps.train import NotFiniteError, Progress, load_network, train
from emcaps.train.device import pick_device
from emcaps.train.evaluate import NotFiniteScoresError
from emcaps.train.run_folder import CHECKPOINT, CONFIG, FAILURE, ROUTING, WEIGHTS, read_routing
from emcaps.train.schedules import margin_of
from emcaps.train.start import start_network


def train_and_measure(
    config: RunConfig,
    folder: Path,
    *,
    device: str = "auto",
    data_folder: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Train one run, or resume it, and measure its routing."""
    place = pick_device(device)
    images, labels = to_tensors(load_split(config.data, data_folder).train, config.data.view, place)
    crops, categories = fixed_crops(images, labels, config.data)

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
        record(start_network(config, images), 0)
        write_failure(folder, error, config)
        return
    if not result.complete:
        raise KeyboardInterrupt
    record(start_network(config, images), 0)
    record(load_network(folder / WEIGHTS, place)[0], config.train.steps)


def write_failure(folder: Path, error: Exception, config: RunConfig) -> None:
    """Record that a run failed, so that it counts as finished."""
    failed_by = error.step if isinstance(error, NotFiniteError) else config.train.steps
    write_json(folder / FAILURE, {"step": failed_by})
