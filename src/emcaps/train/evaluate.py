"""Evaluation: accuracy and confusion matrix of a network on a set of images, with one centre crop or several."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from emcaps.config import RunConfig
from emcaps.data.augment import evaluation_crops, to_tensors
from emcaps.data.splits import Split
from emcaps.routing import RoutingOutput, parent_grid
from emcaps.routing.dispatch import choose_implementation
from emcaps.train.run_folder import write_json

REFERENCE_MEMORY = 16 * 2**30
"""Bytes on a GPU that an evaluation by the reference implementation may take, if they are free."""


class Evaluation(NamedTuple):
    accuracy: float
    """Share of right answers, 0 to 1."""
    images: int
    confusion: list[list[int]]
    """confusion[true class][given class], counts."""


def class_scores(output: RoutingOutput | Tensor) -> Tensor:
    """(B, classes): activations of class capsules, or the probabilities that logits stand for."""
    return output.activation if isinstance(output, RoutingOutput) else output.softmax(-1)


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
    """images uint8 (N, channels, 48, 48), labels (N,). With several crops, their normalised scores are summed."""
    if len(images) == 0:
        raise ValueError("there are no images to evaluate on")
    was_training = network.training
    network.eval()
    finite = torch.ones((), dtype=torch.bool, device=images.device)
    counts = torch.zeros(classes * classes, dtype=torch.int64, device=images.device)
    try:
        for start in range(0, len(images), batch_size):
            batch = evaluation_crops(images[start : start + batch_size], crop, crops, standardised)
            with torch.no_grad():
                scores = class_scores(network(batch.flatten(0, 1))).unflatten(0, batch.shape[:2])
            if crops > 1:
                scores = scores / scores.sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)
            finite &= scores.isfinite().all()
            given = scores.sum(1).argmax(-1)
            counts += torch.bincount(labels[start : start + batch_size] * classes + given, minlength=classes * classes)
            if on_progress is not None:
                on_progress(min(start + batch_size, len(images)), len(images))
    finally:
        network.train(was_training)
    if not finite:
        raise ValueError("the network gives infinite or NaN scores, so there is no accuracy: its weights are of no use")
    confusion: list[list[int]] = counts.view(classes, classes).tolist()
    right = sum(confusion[label][label] for label in range(classes))
    return Evaluation(right / len(images), len(images), confusion)


def evaluate_split(
    network: nn.Module,
    split: Split,
    config: RunConfig,
    device: torch.device,
    crops: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Evaluation]:
    """Evaluate on the split's test examples and, for novel viewpoints, on its familiar ones."""
    results = {}
    for name, examples in (("test", split.test), ("familiar", split.familiar)):
        if examples is not None:
            images, labels = to_tensors(examples, config.data.view, device)
            results[name] = evaluate(
                network,
                images,
                labels,
                crop=config.data.crop,
                classes=config.network.classes,
                crops=crops,
                standardised=config.data.standardise,
                batch_size=max(1, images_at_a_time(config, device) // max(1, crops)),
                on_progress=on_progress,
            )
    return results


def images_at_a_time(config: RunConfig, device: torch.device) -> int:
    """How many images to evaluate at once: many on a GPU, fewer if they are large or if every vote is kept."""
    if device.type != "cuda":
        return 32
    network, side = config.network, config.data.crop
    if network.kind == "cnn" or choose_implementation(network.impl, device) != "reference":
        return max(1, 2048 * 32**2 // side**2)
    first = parent_grid((side + 1) // 2, kernel=3, stride=2)  # after the convolution of stride 2
    second = parent_grid(first, kernel=3, stride=1)
    votes = (
        9 * network.conv1_types * (math.prod(first) * network.primary_types + math.prod(second) * network.conv2_types)
    )
    bytes_each = 12 * 16 * 4  # the reference holds about 12 tensors of float32 votes, of 16 numbers each
    memory = min(REFERENCE_MEMORY, torch.cuda.mem_get_info(device)[0])
    return max(1, min(2048, memory // (votes * bytes_each)))


def write_evaluations(path: Path, evaluations: dict[str, Evaluation], step: int, crops: int) -> None:
    write_json(path, {"step": step, "crops": crops} | {name: result._asdict() for name, result in evaluations.items()})
