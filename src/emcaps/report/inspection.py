"""A trained network looked at from outside and inside: its answers to the test images, its worst mistakes, its routing.

Dims: N images; C channels; H, W the sides of a crop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from emcaps.analysis.overlay import routing_overlays, shown_picture
from emcaps.analysis.sharpness import average, layer_statistics
from emcaps.analysis.warning_signs import LayerSigns, warning_signs
from emcaps.config import RunConfig
from emcaps.data.crops import centre_crop, evaluation_crops
from emcaps.data.prepared import Examples
from emcaps.data.splits import load_tested
from emcaps.data.tensors import to_tensors
from emcaps.nn import MatrixCapsNet
from emcaps.nn.classifier import class_scores
from emcaps.report.run_record import RunRecord
from emcaps.train.checkpoint import load_network
from emcaps.train.checks import check_fits
from emcaps.train.evaluate import Evaluation, errors_by_instance, evaluation_of, images_at_a_time
from emcaps.train.run_folder import is_data_of

QUICK_EXAMPLES = 256
"""How many test examples a quick look takes."""
ROUTED_IMAGES, QUICK_ROUTED_IMAGES, AT_A_TIME = 32, 16, 8
"""On how many images routing is measured, and on how many at once: a trace computes every vote in memory."""
MISTAKES, PICTURED = 12, 5
"""How many mistakes are shown, and of how many classes an image with its routing."""


class Mistake(NamedTuple):
    picture: npt.NDArray[np.uint8]
    """(H, W) or (H, W, 3): what the network saw, cropped."""
    true: int
    given: int
    scores: tuple[float, ...]
    """Of all classes."""
    viewpoint: str
    """Which view of which object it is; empty where that is not known."""


class RoutedPicture(NamedTuple):
    picture: npt.NDArray[np.uint8]
    overlays: npt.NDArray[np.uint8]
    """(iterations, H, W, 3)."""
    true: int
    given: int
    score: float


class Routing(NamedTuple):
    """What routing does inside the network."""

    images: int
    layers: dict[str, list[dict[str, Any]]]
    """For each layer and iteration: the figures of `layer_statistics`, `activation` and `active`."""
    signs: list[LayerSigns]
    gains: dict[str, float]
    """The learned gains of the poses that each layer reads; empty if poses are not scaled."""
    pictures: list[RoutedPicture]


class Inspection(NamedTuple):
    file: str
    step: int
    looked_at: int
    images: int
    """How many test images there are; `looked_at` are fewer if the look was quick."""
    evaluation: Evaluation
    mistakes: list[Mistake]
    routing: Routing | None
    """None for a network that does not route."""


def inspect_run(
    record: RunRecord,
    *,
    device: torch.device,
    data_folder: Path | None = None,
    quick: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Inspection | None:
    """Run the network of a run over its test images. If something is missing, a note of the record says what."""
    loaded = _load_network(record, device)
    if loaded is None:
        return None
    path, network, config, step = loaded
    try:
        examples = _test_examples(record, config, data_folder)
        chosen = _spread_out(len(examples.images), QUICK_EXAMPLES) if quick else None
        looked = examples if chosen is None else examples.select(chosen)
        images, labels = to_tensors(looked, config.data.view, device)
        scores = _scores(network, images, config, device, on_progress)
    except (ValueError, OSError) as error:
        record.notes.append(
            "The network was not run over the test images, so its worst mistakes and its routing are not shown: "
            f"{' '.join(str(error).split())}."
        )
        return None
    given = scores.argmax(-1)
    found = evaluation_of(given, labels.cpu(), config.network.classes)
    found = found._replace(instances=errors_by_instance(given, looked), names=examples.names)
    total = len(examples.images) * (len(images) // len(looked.images))
    _compare(record, found, len(images) == total, step)
    routing = None
    if isinstance(network, MatrixCapsNet):
        routing = _routing(network, images, labels, config, QUICK_ROUTED_IMAGES if quick else ROUTED_IMAGES)
    mistakes = _worst_mistakes(scores, images, labels, looked, config.data.crop)
    return Inspection(path.name, step, len(images), total, found, mistakes, routing)


def _load_network(record: RunRecord, device: torch.device) -> tuple[Path, nn.Module, RunConfig, int] | None:
    for path in record.weights:
        try:
            network, config, step = load_network(path, device)
        except (ValueError, OSError) as error:
            record.notes.append(f"{path.name} cannot be read: {' '.join(str(error).split())}.")
            continue
        return path, network.eval(), config, step
    return None


def _test_examples(record: RunRecord, config: RunConfig, data_folder: Path | None) -> Examples:
    examples = load_tested(config.data, data_folder)["test"]
    check_fits(config, examples)
    if not is_data_of(record.folder, {"test": examples}):
        record.notes.append("The test images that are here are not those that the run was tested with.")
    return examples


def _spread_out(count: int, most: int) -> npt.NDArray[np.int64]:
    """The numbers of `most` examples out of `count`, always the same ones, from all over the set."""
    order = np.random.default_rng(0).permutation(count)
    return np.sort(order[:most])


def _scores(
    network: nn.Module,
    images: Tensor,
    config: RunConfig,
    device: torch.device,
    on_progress: Callable[[int, int], None] | None,
) -> Tensor:
    """(N, classes): the scores of every image, on a CPU."""
    found, batch = [], images_at_a_time(config, device)
    for start in range(0, len(images), batch):
        some = evaluation_crops(images[start : start + batch], config.data.crop, 1, config.data.standardise)[:, 0]
        with torch.no_grad():
            found.append(class_scores(network(some)).float().cpu())
        if on_progress is not None:
            on_progress(min(start + batch, len(images)), len(images))
    scores = torch.cat(found)
    if not scores.isfinite().all():
        raise ValueError("the network gives infinite or NaN scores: its weights are of no use")
    return scores


def _compare(record: RunRecord, found: Evaluation, whole: bool, step: int) -> None:
    """Note if the network does not give the answers here that evaluation.json has."""
    recorded = record.evaluations.get("test")
    if recorded and whole and step == record.config.train.steps and abs(recorded.accuracy - found.accuracy) > 0.005:
        record.notes.append(
            f"Here the network gives {100 * found.accuracy:.2f} % right answers, and the run recorded "
            f"{100 * recorded.accuracy:.2f} %: data or weights have changed since."
        )


def _worst_mistakes(scores: Tensor, images: Tensor, labels: Tensor, examples: Examples, crop: int) -> list[Mistake]:
    """The wrong answers whose score is furthest above that of the true class, the worst first."""
    labels = labels.cpu()
    given = scores.argmax(-1)
    margin = scores.amax(-1) - scores.gather(-1, labels[:, None])[:, 0]
    wrong = (given != labels).nonzero()[:, 0]
    worst = wrong[margin[wrong].argsort(descending=True, stable=True)][:MISTAKES].tolist()
    views = len(images) // len(examples.images)
    return [
        Mistake(
            shown_picture(centre_crop(images[number : number + 1], crop)[0]),
            int(labels[number]),
            int(given[number]),
            tuple(scores[number].tolist()),
            _viewpoint(examples, number // views, number % views if views > 1 else None),
        )
        for number in worst
    ]


def _viewpoint(examples: Examples, number: int, camera: int | None) -> str:
    labels = [
        f"{name} {array[number]}" for name, array in examples.arrays.items() if name not in ("images", "category")
    ]
    return ", ".join(labels + ([] if camera is None else [("left", "right")[camera] + " camera"]))


def _routing(network: MatrixCapsNet, images: Tensor, labels: Tensor, config: RunConfig, most: int) -> Routing:
    chosen = torch.from_numpy(_spread_out(len(images), most)).to(images.device)
    chosen = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0)).to(chosen.device)]
    crops = evaluation_crops(images[chosen], config.data.crop, 1, config.data.standardise)[:, 0]
    batches = [_statistics(network, batch) for batch in crops.split(AT_A_TIME)]
    gain = getattr(network, "pose_gain", None)
    return Routing(
        len(chosen),
        average(batches),
        warning_signs(network, crops[:QUICK_ROUTED_IMAGES]),
        {} if gain is None else dict(zip(network.routed_names, gain.tolist(), strict=True)),
        _pictures(network, images, labels, config),
    )


@torch.no_grad()
def _statistics(network: MatrixCapsNet, crops: Tensor) -> dict[str, list[dict[str, Any]]]:
    trace = network.trace(crops)
    children, found = trace.primary_caps.activation, {}
    for name, layer, steps in zip(network.routed_names, network.routed, trace.routed, strict=True):
        found[name] = layer_statistics(layer, steps, children)
        for row, step in zip(found[name], steps, strict=True):
            row["activation"] = float(step.activation.mean())
            row["active"] = float((step.activation > 0.5).float().mean())
        children = steps[-1].activation
    return found


@torch.no_grad()
def _pictures(network: MatrixCapsNet, images: Tensor, labels: Tensor, config: RunConfig) -> list[RoutedPicture]:
    """An image of each of the first classes, from the middle of its list."""
    of_class = [(labels == number).nonzero()[:, 0] for number in range(config.network.classes)]
    chosen = [int(found[len(found) // 2]) for found in of_class if len(found)][:PICTURED]
    crops = evaluation_crops(images[chosen], config.data.crop, 1, config.data.standardise)[:, 0]
    trace = network.trace(crops)
    seen = centre_crop(images[chosen], config.data.crop)
    overlays = routing_overlays(network, trace, seen)
    scores = trace.class_caps[-1].activation
    return [
        RoutedPicture(
            shown_picture(seen[place]),
            overlays[place],
            int(labels[number]),
            int(scores[place].argmax()),
            float(scores[place].max()),
        )
        for place, number in enumerate(chosen)
    ]


def reduced(pixels: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """The picture with at most `side` rows, by leaving out rows and columns evenly."""
    every = math.ceil(pixels.shape[0] / side)
    return np.ascontiguousarray(pixels[::every, ::every])


def layers_of(measurement: dict[str, Any]) -> dict[str, Sequence[dict[str, Any]]]:
    """The layers of one entry of routing.json that have the figures which the page shows."""
    found: dict[str, Sequence[dict[str, Any]]] = {}
    for name, rows in measurement["layers"].items():
        if isinstance(rows, list) and all(isinstance(row, dict) and "entropy" in row for row in rows):
            found[name] = rows
    return found
