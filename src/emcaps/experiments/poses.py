"""How the pose of the class capsule moves when the toy turns: `emcaps experiment poses`.

A linear readout of azimuth and elevation is fitted on training instances and tested on new ones (analysis/readout.py).
It reads the 16 numbers of the true class's capsule and, beside them:

scores    the logarithms of all classes' scores
hidden    for a CNN: its last hidden layer, reduced to 16 numbers or whole
pixels    the image itself, reduced to 16 numbers: what needs no network
shuffled  the same numbers with shuffled viewpoints: what chance gives

A second readout is fitted on half of the views of one new instance and tested on the other half. It asks whether the
numbers change with the viewpoint at all, even if every instance has its own way or its own zero of the azimuth.

Each class has a readout of its own, for all of these alike, because each class capsule has a frame of its own.
Reduced means: the first 16 principal components of the class's training images.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

from emcaps.analysis.drawings import make_drawings
from emcaps.analysis.readout import (
    QUANTITIES,
    Numbers,
    Score,
    Views,
    circle,
    correlations,
    principal_components,
    read_new_objects,
    read_same_object,
)
from emcaps.config import DataConfig, RunConfig
from emcaps.data.crops import evaluation_crops
from emcaps.data.prepared import Examples
from emcaps.data.splits import VALIDATIONS, load_split
from emcaps.data.tensors import to_tensors
from emcaps.experiments.pose_drawings import draw_drawings, record_of
from emcaps.experiments.viewpoint_errors import degrees
from emcaps.files import atomic_write, read_json, write_json
from emcaps.nn import MatrixCapsNet
from emcaps.nn.baseline import BaselineCNN
from emcaps.nn.classifier import Classifier, class_scores
from emcaps.nn.geometry import POSE
from emcaps.report.figures import check_matplotlib, new_figure
from emcaps.report.markdown import markdown_table
from emcaps.report.tables import plain_table
from emcaps.routing import RoutingOutput
from emcaps.train import load_network
from emcaps.train.checks import check_fits
from emcaps.train.device import start_work
from emcaps.train.evaluate import images_at_a_time
from emcaps.weights import find_weights

IMAGES = 4000
"""How many training and test images are read, if there are as many."""
ANGLES = ("elevation", "sin azimuth", "cos azimuth", "sin 2 azimuth", "cos 2 azimuth")
"""What each number of the pose is correlated with. The last two are the same for front and back."""
SAME = ", same toy"
"""Marks the readouts that are fitted and tested on the same new instance."""
DIGITS = 4


class Part(NamedTuple):
    """What a network computes of N images, and what they show."""

    features: dict[str, Numbers]  # each (N, F)
    category: npt.NDArray[Any]  # (N,)
    azimuth: Numbers  # (N,), degrees
    elevation: Numbers  # (N,), degrees
    instance: npt.NDArray[Any]  # (N,)
    names: tuple[str, ...]


def run_poses(
    names: Sequence[str],
    console: Console,
    *,
    images: int = IMAGES,
    json: Path | None = None,
    figures: Path | None = None,
    device: str = "auto",
    data_folder: Path | None = None,
) -> None:
    """Show what can be read from the poses of these runs; write it to `json` and draw into `figures`, too."""
    if figures is not None:
        check_matplotlib()
    found = []
    for name in names:
        with console.status(f"reading {name}"):
            found.append(measure_poses(name, images=images, device=device, data_folder=data_folder))
    console.print(readout_table(found, NEW_TOYS, "Viewpoint of new instances"))
    console.print(readout_table(found, SAME_TOY, "Viewpoint within one new instance"))
    for one in found:
        if "correlations" in one:
            console.print(component_table(one))
    if json is not None:
        write_json(json, {"runs": found})
    if figures is not None:
        for path in draw_figures(found, figures):
            console.print(f"figure: {path}", markup=False)


def measure_poses(
    name: str, *, images: int = IMAGES, device: str = "auto", data_folder: Path | None = None
) -> dict[str, Any]:
    """What can be read from the network with this name, run folder or file."""
    place = start_work(device)
    network, config, step = load_network(find_weights(name), place)
    network.eval()
    split = load_split(all_viewpoints(config.data), data_folder)
    if not split.train.has_viewpoints:
        raise ValueError(
            f"{name} was trained on {config.data.dataset}, whose images have no labelled viewpoints: name a run on "
            "toys or smallnorb"
        )
    chosen = [_some(examples, images) for examples in (split.train, split.test)]
    train, test = (_computed(network, config, examples, place) for examples in chosen)
    readouts = {kind: _read(train, test, kind) for kind in kinds_of(train.features)}
    found: dict[str, Any] = {
        "name": label_of(name),
        "network": config.network.kind,
        "dataset": config.data.dataset,
        "split": config.data.split,
        "step": step,
        "images": {"train": len(train.category), "test": len(test.category)},
        "readouts": {kind: _mean(list(by_class.values())) for kind, by_class in readouts.items()},
    }
    if "pose" in readouts:
        found["by class"] = {name: _mean([scores]) for name, scores in readouts["pose"].items()}
        found |= _components(test)
    if isinstance(network, MatrixCapsNet) and network.decoder is not None:
        found["drawings"] = _drawings(network, config, chosen[1], test, place)
    return found


def _drawings(
    network: MatrixCapsNet, config: RunConfig, examples: Examples, part: Part, device: torch.device
) -> dict[str, Any]:
    """What the network's decoder draws of the first image of each class; `part` is what was computed of all examples.

    A pose is moved by its spread over all images of its class, so what is drawn does not depend on how many images the
    device computes at a time.
    """
    images, _ = to_tensors(examples, config.data.view, device)
    classes, first = np.unique(part.category, return_index=True)
    crops = evaluation_crops(images[first], config.data.crop, 1, config.data.standardise)[:, 0]
    spread = np.stack([part.features["pose"][part.category == label].std(0) for label in classes])
    drawings = make_drawings(network, crops, torch.tensor(classes).long().to(device), torch.tensor(spread).to(crops))
    return record_of(drawings, examples.names)


def label_of(name: str) -> str:
    """A short name: of an experiment's run, its row and its seed; of any other, its last part."""
    path = Path(name)
    return f"{path.parent.name}-{path.name}" if path.name.startswith("seed") else path.name.removesuffix(".safetensors")


def all_viewpoints(data: DataConfig) -> DataConfig:
    """The same images at all viewpoints, without the test part if the run's own split never opened it."""
    return dataclasses.replace(data, split="validation" if data.split in VALIDATIONS else "standard")


def _some(examples: Examples, count: int) -> Examples:
    """At most `count` of the examples, drawn by a fixed seed."""
    drawn = np.random.default_rng(0).permutation(len(examples.category))[:count]
    return examples.select(np.sort(drawn))


def _computed(network: Classifier, config: RunConfig, examples: Examples, device: torch.device) -> Part:
    """The features of the examples; with mono, each camera is an image of its own."""
    check_fits(config, examples)
    images, labels = to_tensors(examples, config.data.view, device)
    batches: dict[str, list[Numbers]] = {}
    size = images_at_a_time(config, device)
    for start in range(0, len(images), size):
        crops = evaluation_crops(images[start : start + size], config.data.crop, 1, config.data.standardise)[:, 0]
        for kind, values in features_of(network, crops, labels[start : start + size]).items():
            batches.setdefault(kind, []).append(values.double().cpu().numpy())
    cameras = len(images) // len(examples.category)

    def each(values: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        assert values is not None
        return np.repeat(values, cameras)

    return Part(
        {kind: np.concatenate(values) for kind, values in batches.items()},
        each(examples.category),
        each(examples.azimuth) * 10.0,
        degrees("elevation", 0) + each(examples.elevation) * 5.0,
        each(examples.instance),
        examples.names,
    )


@torch.no_grad()
def features_of(network: Classifier, crops: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is read of each crop (N, C, H, W): the true class's pose or the hidden layer, the scores, and the pixels."""
    output = network(crops)
    found = {"scores": class_scores(output).clamp_min(1e-6).log(), "pixels": crops.flatten(1)}
    if isinstance(output, RoutingOutput):
        return {"pose": output.pose[torch.arange(len(labels)), labels].flatten(1)} | found
    assert isinstance(network, BaselineCNN)
    return {"hidden": network.hidden_units(crops)} | found


def kinds_of(features: Mapping[str, Numbers]) -> tuple[str, ...]:
    """The readouts of a network, as they are shown."""
    own = ("pose", "pose, shuffled") if "pose" in features else ("hidden, 16", "hidden, 16, shuffled", "hidden, all")
    return (*own, "scores", "pixels, 16")


def _read(train: Part, test: Part, kind: str) -> dict[str, dict[str, Score]]:
    """The scores of one kind of readout, by class and quantity."""
    name, _, how = kind.partition(", ")
    found = {}
    for label in np.unique(train.category).tolist():
        here, there = train.category == label, test.category == label
        features = train.features[name][here], test.features[name][there]
        if how.startswith("16"):
            features = principal_components(*features, POSE)
        shown = Views(features[0], train.azimuth[here], train.elevation[here], train.instance[here])
        tested = Views(features[1], test.azimuth[there], test.elevation[there], test.instance[there])
        known = tested
        if how.endswith("shuffled"):
            shown, known = shown.shuffled(label), tested.shuffled(label)
        scores = {quantity: read_new_objects(shown, tested, quantity) for quantity in QUANTITIES}
        scores |= {f"{quantity}{SAME}": read_same_object(known, quantity) for quantity in QUANTITIES}
        found[train.names[label]] = scores
    return found


def _mean(each: Sequence[Mapping[str, Score]]) -> dict[str, dict[str, float]]:
    """The mean over the classes, by quantity."""
    return {
        quantity: {
            key: round(statistics.fmean(getattr(scores[quantity], key) for scores in each), DIGITS)
            for key in Score._fields
        }
        for quantity in each[0]
    }


def _components(test: Part) -> dict[str, Any]:
    """How each number of the pose goes with the angles, and its mean at each azimuth, by class, on new instances."""
    going: dict[str, dict[str, list[float]]] = {}
    turning: dict[str, dict[str, list[float]]] = {}
    for label in np.unique(test.category):
        here = test.category == label
        pose, azimuth = test.features["pose"][here], test.azimuth[here]
        table = correlations(pose, np.column_stack([test.elevation[here], circle(azimuth), circle(azimuth, 180)]))
        going[test.names[label]] = {
            angle: table[:, number].round(DIGITS).tolist() for number, angle in enumerate(ANGLES)
        }
        turning[test.names[label]] = {
            f"{angle:.0f}": pose[azimuth == angle].mean(0).round(DIGITS).tolist() for angle in np.unique(azimuth)
        }
    return {"correlations": going, "pose by azimuth": turning}


def read_poses(path: Path) -> list[dict[str, Any]]:
    """What an earlier `--json` recorded."""
    runs = read_json(path).get("runs")
    if not isinstance(runs, list):
        raise ValueError(f"{path} holds no measurements of poses: make it with `emcaps experiment poses --json`")
    return runs


NEW_TOYS, SAME_TOY = QUANTITIES, tuple(f"{quantity}{SAME}" for quantity in QUANTITIES)


def readout_rows(found: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    """Network, what is read, and R² with the error in degrees."""
    return [
        [
            one["name"] if number == 0 else "",
            kind,
            *(_cell(scores[column]) for column in columns),
        ]
        for one in found
        for number, (kind, scores) in enumerate(one["readouts"].items())
    ]


def _cell(score: Mapping[str, float]) -> str:
    """R² and, in brackets, the error; what rounds to zero has no sign."""
    return f"{round(score['r2'], 2) + 0.0:.2f} ({score['error']:.0f}°)"


def readout_table(found: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str) -> Table:
    table = plain_table(f"{title}: R² (mean error), mean over the classes")
    table.collapse_padding = True
    for column in ("network", "read from", *columns):
        table.add_column(column.removesuffix(SAME), justify="right" if column in columns else "left", no_wrap=True)
    for row in readout_rows(found, columns):
        table.add_row(*row)
    return table


def markdown_readouts(found: Sequence[Mapping[str, Any]]) -> str:
    columns = (*NEW_TOYS, *SAME_TOY)
    return markdown_table(("network", "read from", *columns), readout_rows(found, columns), left=(0, 1))


def markdown_classes(one: Mapping[str, Any]) -> str:
    """What is read from the pose, class by class."""
    rows = [
        [name, *(_cell(scores[column]) for column in (*NEW_TOYS, *SAME_TOY))]
        for name, scores in one["by class"].items()
    ]
    return markdown_table(("class", *NEW_TOYS, *SAME_TOY), rows)


def component_rows(one: Mapping[str, Any]) -> list[list[str]]:
    """Each number of the pose by its place in the matrix, and the mean over the classes of its absolute correlations:
    signs are left out because each class has a frame of its own."""
    rows = []
    for number in range(POSE):
        means = [
            statistics.fmean(abs(of_class[angle][number]) for of_class in one["correlations"].values())
            for angle in ANGLES
        ]
        rows.append([f"row {number // 4 + 1}, column {number % 4 + 1}", *(f"{mean:.2f}" for mean in means)])
    return rows


def component_table(one: Mapping[str, Any]) -> Table:
    table = plain_table(f"{one['name']}: correlation of each number of the pose, absolute, mean over the classes")
    for column in ("number", *ANGLES):
        table.add_column(column, justify="left" if column == "number" else "right")
    for row in component_rows(one):
        table.add_row(*row)
    return table


def markdown_components(one: Mapping[str, Any]) -> str:
    return markdown_table(("number", *ANGLES), component_rows(one))


def draw_figures(found: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Pictures of each capsule network: correlations by class and the pose as the toys turn, and what is drawn."""
    paths = []
    for one in found:
        if "correlations" in one:
            paths.append(folder / f"poses-{one['name']}.png")
            _draw(one, paths[-1])
        if "drawings" in one:
            paths.append(folder / f"poses-{one['name']}-drawn.png")
            draw_drawings(one["drawings"], paths[-1])
    return paths


def _draw(one: Mapping[str, Any], path: Path) -> None:
    classes = list(one["correlations"])
    figure = new_figure((14, 6))
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.2))
    axes = left.subplots()
    rows = [(angle, name) for angle in ANGLES for name in classes]
    shown = axes.imshow(
        [one["correlations"][name][angle] for angle, name in rows], vmin=-1, vmax=1, cmap="RdBu", aspect="auto"
    )
    axes.set_yticks(range(len(rows)), [f"{name}, {angle}" for angle, name in rows], fontsize="small")
    axes.set_xticks(range(POSE), [f"{number // 4 + 1},{number % 4 + 1}" for number in range(POSE)], fontsize="small")
    axes.set_xlabel("number of the pose, by row and column")
    axes.set_title("correlation with the viewpoint")
    left.colorbar(shown, ax=axes)
    panels = right.subplots(4, 4, sharex=True)
    for number, panel in enumerate(panels.flat):
        for name in classes:
            turning = {float(angle): values[number] for angle, values in one["pose by azimuth"][name].items()}
            panel.plot(list(turning), list(turning.values()), label=name, linewidth=1)
        panel.tick_params(labelsize="x-small")
        panel.set_xticks((0, 180, 360))
    right.suptitle("each number of the class capsule's pose by azimuth, mean over new instances")
    right.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(classes))
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=100, format="png")
