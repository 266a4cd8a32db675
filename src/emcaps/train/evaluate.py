"""Evaluation: accuracy and confusion matrix of a network on a set of images, with one centre crop or several."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from emcaps.config import RunConfig
from emcaps.data.crops import evaluation_crops
from emcaps.data.prepared import CATEGORIES, Examples
from emcaps.data.tensors import to_tensors
from emcaps.files import check_replaces, write_json
from emcaps.nn.classifier import class_scores, class_shares
from emcaps.nn.geometry import routed_layers
from emcaps.routing.availability import choose_implementation
from emcaps.train import distributed
from emcaps.train.checks import check_fits

logger = logging.getLogger("emcaps")

REFERENCE_MEMORY = 16 * 2**30
"""Bytes of a GPU that an evaluation with the reference implementation may use, if they are free."""


class NotFiniteScoresError(ValueError):
    """A network gave infinite or NaN scores to an image."""


class InstanceErrors(NamedTuple):
    """How often one object was not recognised."""

    category: str
    instance: int
    images: int
    wrong: int
    mostly: str
    """The wrong answer that was given most often; empty if none was."""
    times: int
    """How often that wrong answer was given."""


class Evaluation(NamedTuple):
    """How many images a network gets right, and what it takes the others for."""

    accuracy: float
    """Share of right answers, 0 to 1."""
    images: int
    confusion: list[list[int]]
    """Counts: `confusion[true class][given class]`."""
    instances: tuple[InstanceErrors, ...] = ()
    """The errors on each object, most errors first; empty where the objects are not known."""
    names: tuple[str, ...] = ()
    """The names of the classes, in the order of the confusion matrix; empty where they are not known."""


def evaluate(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    crop: int,
    classes: int,
    crops: int = 1,
    standardised: str = "image",
    batch_size: int = 256,
    on_progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluate on images uint8 (N, C, H, W) and labels (N,). The normalised scores of several crops are summed."""
    given = answers(
        network,
        images,
        crop=crop,
        crops=crops,
        standardised=standardised,
        batch_size=batch_size,
        on_progress=on_progress,
    )
    return evaluation_of(given, labels, classes)


def evaluation_of(given: Tensor, labels: Tensor, classes: int) -> Evaluation:
    """Accuracy and confusion matrix of the answers `given` (N,) to images of the classes `labels` (N,)."""
    counts = torch.bincount(labels * classes + given, minlength=classes * classes)
    confusion: list[list[int]] = counts.view(classes, classes).tolist()
    right = sum(confusion[label][label] for label in range(classes))
    return Evaluation(right / len(labels), len(labels), confusion)


def answers(
    network: nn.Module,
    images: Tensor,
    *,
    crop: int,
    crops: int = 1,
    standardised: str = "image",
    batch_size: int = 256,
    on_progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """The class (N,) that the network gives to each of the images uint8 (N, C, H, W).

    Several processes (distributed.py) must all call this: they divide the images among them, and all get every answer.
    """
    if len(images) == 0:
        raise ValueError("there are no images to evaluate on")
    was_training = network.training
    network.eval()
    mine = distributed.share(len(images))
    finite = torch.ones((), dtype=torch.bool, device=images.device)
    given = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    try:
        start = mine.start
        while start < mine.stop:
            stop = min(start + batch_size, mine.stop)
            scores = _scores(network, images[start:stop], crop, crops, standardised)
            if scores is None:
                batch_size = _smaller(stop - start)
                continue
            finite &= scores.isfinite().all()
            given[start:stop] = scores.sum(1).argmax(-1)
            start = stop
            if on_progress is not None:
                on_progress((stop - mine.start) * distributed.size(), len(images))
    finally:
        network.train(was_training)
    not_finite = distributed.sum_over_processes(finite.logical_not().to(torch.int64))
    if not_finite:
        raise NotFiniteScoresError(
            "the network gives infinite or NaN scores, so there is no accuracy: its weights are of no use"
        )
    return distributed.sum_over_processes(given)


@torch.no_grad()
def _scores(network: nn.Module, images: Tensor, crop: int, crops: int, standardised: str) -> Tensor | None:
    """The scores (B, crops, classes) of some images; None if they are too many for the GPU's memory."""
    try:
        batch = evaluation_crops(images, crop, crops, standardised)
        scores: Tensor = class_scores(network(batch.flatten(0, 1))).unflatten(0, batch.shape[:2])
        if crops > 1:
            scores = class_shares(scores)
        return scores
    except torch.cuda.OutOfMemoryError:
        return None


def _smaller(images: int) -> int:
    """How many images to evaluate at once where so many were too many."""
    if images == 1:
        raise ValueError(
            "not even one image can be evaluated in the GPU's memory: end other programs that use it, or use --device "
            "cpu, or fewer crops"
        )
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    logger.info("%d images at once do not fit into the GPU's memory: %d are evaluated", images, images // 2)
    return images // 2


def errors_by_instance(given: Tensor, examples: Examples) -> tuple[InstanceErrors, ...]:
    """The errors on each object, most errors first; `given` holds the answers, numbered as `to_tensors` does."""
    if examples.instance is None:
        return ()
    names = examples.names
    answered = given.cpu().numpy().reshape(len(examples.category), -1)  # one column per camera
    found = []
    for category, instance in np.unique(np.stack([examples.category, examples.instance], 1), axis=0).tolist():
        asked = answered[(examples.category == category) & (examples.instance == instance)]
        wrong = asked[asked != category]
        counts = np.bincount(wrong, minlength=len(names))
        mostly = names[counts.argmax()] if wrong.size else ""
        found.append(InstanceErrors(names[category], instance, asked.size, wrong.size, mostly, int(counts.max())))
    return tuple(sorted(found, key=lambda one: -one.wrong))


def evaluate_split(
    network: nn.Module,
    tested: Mapping[str, Examples],
    config: RunConfig,
    device: torch.device,
    crops: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Evaluation]:
    """Evaluate on the examples that a split tests, by name: those of `Split.tested` or `load_tested`."""
    for examples in tested.values():
        check_fits(config, examples)
    results = {}
    for name, examples in tested.items():
        images, labels = to_tensors(examples, config.data.view, device)
        given = answers(
            network,
            images,
            crop=config.data.crop,
            crops=crops,
            standardised=config.data.standardise,
            batch_size=max(1, images_at_a_time(config, device) // max(1, crops)),
            on_progress=on_progress,
        )
        found = evaluation_of(given, labels, config.network.classes)
        results[name] = found._replace(instances=errors_by_instance(given, examples), names=examples.names)
    return results


def images_at_a_time(config: RunConfig, device: torch.device) -> int:
    """How many images to evaluate at once: many on a GPU, fewer if they are large or if every vote is kept."""
    if device.type != "cuda":
        return 32
    network, side = config.network, config.data.crop
    keeps_votes = network.pose == "vector" or choose_implementation(network.impl, device) == "reference"
    if network.kind == "cnn" or not keeps_votes:
        return max(1, 2048 * 32**2 // side**2)
    votes = sum(layer.edges for layer in routed_layers(network, side))
    bytes_each = 12 * 16 * 4  # the reference holds about 12 tensors of float32 votes, of 16 numbers each
    memory = min(REFERENCE_MEMORY, torch.cuda.mem_get_info(device)[0])
    return max(1, min(2048, memory // (votes * bytes_each)))


def check_is_evaluation(path: Path) -> None:
    """Raise ValueError if an evaluation would take the place of a folder, or of a file of another kind."""
    check_replaces(path, "evaluation", b"{", b'\n  "crops": ')  # a key of the whole object, as write_json indents it


def write_evaluations(
    path: Path, evaluations: dict[str, Evaluation], step: int, crops: int, by_instance: bool = False
) -> None:
    content: dict[str, Any] = {"step": step, "crops": crops}
    for name, result in evaluations.items():
        content[name] = {"accuracy": result.accuracy, "images": result.images, "confusion": result.confusion}
        if result.names not in ((), CATEGORIES):
            content[name]["names"] = list(result.names)
        if by_instance and result.instances:
            content[f"{name} instances"] = [one._asdict() for one in result.instances]
    write_json(path, content)
