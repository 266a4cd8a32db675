"""Digits that are moved, turned, enlarged or slanted after training: how capsules and CNNs hold up.

All networks are trained on MNIST, in the same number of steps, and tested on the same changed test images:

centred  on the digits as they are, upright and in the middle of the image.
varied   on digits that are moved, turned, enlarged and slanted at random. It shows what of a difference is left when
         training shows such digits.

Every test image is changed by the same amount, in a direction of its own. "together" makes all changes at once, each by
up to an amount of its own, as affNIST does.

The capsule network has 2 iterations of routing. "capsules-it1" has 1, which assigns nothing anew, and "capsules-it3"
has 3. Each has the settings that Table 2 found for its number of iterations, so the rows differ in settings as
well as in routing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from emcaps.config import RunConfig, preset
from emcaps.data.augment import warp
from emcaps.data.builtin import NAMES
from emcaps.data.splits import load_tested
from emcaps.data.tensors import to_tensors
from emcaps.experiments.other_data import RECIPE
from emcaps.experiments.records import Record, finished, runs_link, spread
from emcaps.experiments.runner import Training, train_missing
from emcaps.experiments.table2 import BEST_BY_ITERATIONS
from emcaps.files import atomic_write, read_json, write_json
from emcaps.nn.summary import parameters_of
from emcaps.report.figures import check_matplotlib, new_figure
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.progress import counting_bar
from emcaps.report.tables import plain_table
from emcaps.train import load_network
from emcaps.train.device import start_work
from emcaps.train.evaluate import answers, images_at_a_time
from emcaps.train.run_folder import WEIGHTS

MOVED = "moved.json"
"""What a run's folder holds of this experiment: how many of the changed images the network got right."""
STEPS = 2000
SMALL_FLAT_CNN: dict[str, Any] = {"network.cnn_channels": 8, "network.cnn_hidden": 82}
"""The CNN at about the small network's number of parameters, for 28x28 images and ten classes."""
POOLED_CNN: dict[str, Any] = {"network.cnn_pooling": "mean", "network.cnn_hidden": 217}
"""The CNN with the channels of Hinton's, which averages them over all positions, at as many parameters."""
NETWORKS: dict[str, tuple[RunConfig, dict[str, Any]]] = {
    "capsules": (preset("small"), {}),
    "cnn": (preset("cnn"), {}),
    "small-cnn": (preset("cnn"), SMALL_FLAT_CNN),
    "pooled-cnn": (preset("cnn"), POOLED_CNN),
    "capsules-it1": (preset("small"), {"network.iterations": 1} | BEST_BY_ITERATIONS[1]),
    "capsules-it3": (preset("small"), {"network.iterations": 3} | BEST_BY_ITERATIONS[3]),
}
"""Each network's preset, and its settings beyond those that all share."""
TRAINED_ON: dict[str, dict[str, Any]] = {
    "centred": {},
    "varied": {"data.pad": 3, "data.turn": 20.0, "data.zoom": 0.2, "data.slant": 0.2},
}
ROWS: dict[str, RunConfig] = {
    f"{images}-{name}": network.override(
        RECIPE
        | {"data.dataset": "mnist", "data.names": NAMES["mnist"]}
        | {"train.steps": STEPS, "train.margin_steps": STEPS // 2, "train.eval_every": 0}
        | varied
        | own
    )
    for images, varied in TRAINED_ON.items()
    for name, (network, own) in NETWORKS.items()
}
CHANGES: dict[str, tuple[float, ...]] = {
    "shift": (0, 2, 3, 4, 5),
    "turn": (0, 15, 30, 45, 60),
    "zoom": (0.7, 0.85, 1, 1.15, 1.3),
    "slant": (0, 0.2, 0.4, 0.6),
}
"""What is changed, and by how much, in UNITS."""
UNITS = {"shift": "pixels", "turn": "degrees", "zoom": "times the size", "slant": "pixels sideways for each row down"}
UNCHANGED = {"shift": 0.0, "turn": 0.0, "zoom": 1.0, "slant": 0.0}
TOGETHER = {"shift": 3.0, "turn": 20.0, "zoom": 0.2, "slant": 0.2}
"""How far each change goes, at most, when all are made at once; digits become 1 / 1.2 to 1.2 times as large."""


def cases() -> dict[str, tuple[str, float]]:
    """Every way of changing the test images, by name: "unchanged", "shift 2", ... and "together"."""
    found: dict[str, tuple[str, float]] = {"unchanged": ("shift", 0.0)}
    found |= {
        f"{kind} {amount:g}": (kind, float(amount))
        for kind, amounts in CHANGES.items()
        for amount in amounts
        if amount != UNCHANGED[kind]
    }
    return found | {"together": ("together", 0.0)}


def changed(images: Tensor, kind: str, amount: float, generator: torch.Generator) -> Tensor:
    """The images (N, C, H, W) after a change of this kind, float32 grey levels.

    Each image is moved into a direction of its own, and turned and slanted to a side of its own.
    """
    shape = (len(images), 1, 1, 1)

    def uniform(least: float, most: float) -> Tensor:
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64).to(torch.float32)
        return (least + (most - least) * drawn).to(images.device)

    none, direction = torch.zeros(shape, device=images.device), uniform(0, 2 * math.pi)
    side = uniform(-1, 1).sign()
    distance, angle, scale, sideways = none, none, none + 1, none
    if kind == "shift":
        distance = none + amount
    elif kind == "turn":
        angle = side * math.radians(amount)
    elif kind == "zoom":
        scale = none + 1 / amount
    elif kind == "slant":
        sideways = side * amount
    else:
        most = math.log(1 + TOGETHER["zoom"])
        distance = TOGETHER["shift"] * uniform(0, 1).sqrt()  # every place within the circle is as likely
        angle = math.radians(TOGETHER["turn"]) * uniform(-1, 1)
        scale, sideways = uniform(-most, most).exp(), TOGETHER["slant"] * uniform(-1, 1)
    return warp(images, angle, scale, sideways, distance * direction.sin(), distance * direction.cos())


def run_moved(
    runs: Path,
    console: Console,
    names: Sequence[str],
    *,
    train: Training | None = None,
    figure: Path | None = None,
) -> None:
    """Show how many of the changed images each row gets right, after training and testing what is missing."""
    if figure is not None:
        check_matplotlib()
    if train is not None:
        train_missing(ROWS, names, runs, train)
        for records in finished(ROWS, names, runs).values():
            measure(records, train.device, train.data_folder)
    found = finished(ROWS, names, runs)
    console.print(_table(found))
    print(markdown_moved(found, runs_link(runs)))
    if figure is not None:
        draw_moved(found, figure)
        console.print(f"accuracy by change: {figure}", markup=False)


def measure(records: Sequence[Record], device: str, data_folder: Path | None) -> None:
    """Write moved.json for the runs that have weights and lack it. All networks get the same changed images."""
    place = start_work(device)
    for run in records:
        if (run.folder / MOVED).exists() or not (run.folder / WEIGHTS).exists():
            continue
        network, config, step = load_network(run.folder / WEIGHTS, place)
        images, labels = to_tensors(load_tested(config.data, data_folder)["test"], config.data.view, place)
        right = {}
        with counting_bar(f"{run.folder.parent.name}, seed {run.seed}, changed digits", "ways") as show:
            for number, (name, (kind, amount)) in enumerate(cases().items(), start=1):
                given = answers(
                    network,
                    changed(images, kind, amount, torch.Generator().manual_seed(number)),
                    crop=config.data.crop,
                    standardised=config.data.standardise,
                    batch_size=images_at_a_time(config, place),
                )
                right[name] = int((given == labels).sum())
                show(number, len(cases()))
        write_json(run.folder / MOVED, {"step": step, "images": len(images), "right": right})


def read_moved(folder: Path) -> dict[str, float]:
    """The accuracy of a run in percent, by case; empty if it was not measured."""
    path = folder / MOVED
    if not path.exists():
        return {}
    content = read_json(path)
    try:
        images = int(content["images"])
        found = {name: 100 * int(content["right"][name]) / images for name in cases()}
        if any(not 0 <= accuracy <= 100 for accuracy in found.values()):
            raise ValueError("more right answers than images")
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{path} is damaged ({error}): restore it from another copy") from error
    return found


def measured(found: Mapping[str, Sequence[Record]]) -> dict[str, list[dict[str, float]]]:
    """The accuracies of every run that was measured, by row; rows without one are left out."""
    each = {row: [one for record in records if (one := read_moved(record.folder))] for row, records in found.items()}
    return {row: runs for row, runs in each.items() if runs}


def _table(found: Mapping[str, Sequence[Record]]) -> Table:
    table = plain_table("MNIST, changed after training: % of the test digits")
    table.add_column("change")
    each = measured(found)
    for row, runs in each.items():
        table.add_column(f"{row}\n(n = {len(runs)})", justify="right")
    for case in cases():
        table.add_row(case, *(spread([run[case] for run in runs], 1) for runs in each.values()))
    return table


def markdown_moved(found: Mapping[str, Sequence[Record]], link: str) -> str:
    """The table for the page: a line for each change, a column for each row, with a link to its runs."""
    each = measured(found)
    header = ("change", *(f"{markdown_link(row, link + row)}, %" for row in each))
    lines = [(case, *(spread([run[case] for run in runs], 1) for runs in each.values())) for case in cases()]
    counts = ("seeds", *(str(len(runs)) for runs in each.values()))
    sizes = ("parameters", *(f"{parameters_of(ROWS[row]):,}" for row in each))
    return markdown_table(header, [sizes, counts, *lines])


def draw_moved(found: Mapping[str, Sequence[Record]], path: Path) -> None:
    """Accuracy against the amount of each change, above for networks trained on centred digits, below on varied ones.

    Lines are means over seeds, bands their range.
    """
    each = measured(found)
    if not each:
        raise ValueError("the figure needs runs that were tested on changed digits, and there are none: add --train")
    trained_on = [images for images in TRAINED_ON if any(row.startswith(f"{images}-") for row in each)]
    figure = new_figure((14, 3.6 * len(trained_on)))
    panels = figure.subplots(len(trained_on), len(CHANGES), sharey=True, squeeze=False)
    for images, row_of_panels in zip(trained_on, panels, strict=True):
        for axes, (kind, amounts) in zip(row_of_panels, CHANGES.items(), strict=True):
            names = ["unchanged" if amount == UNCHANGED[kind] else f"{kind} {amount:g}" for amount in amounts]
            for number, network in enumerate(NETWORKS):
                if (runs := each.get(f"{images}-{network}")) is None:
                    continue
                columns = [[run[name] for run in runs] for name in names]
                look: dict[str, Any] = {"color": f"C{number}"}
                mean = [sum(column) / len(column) for column in columns]
                axes.plot(amounts, mean, label=f"{network} (n = {len(runs)})", **look)
                axes.fill_between(
                    amounts, list(map(min, columns)), list(map(max, columns)), alpha=0.2, linewidth=0, **look
                )
            axes.set_xlabel(f"{kind}, {UNITS[kind]}")
            axes.grid(alpha=0.3)
        row_of_panels[0].set_ylabel(f"trained on {images} digits\n% right")
        row_of_panels[0].legend(fontsize="small")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=100, format="png")
