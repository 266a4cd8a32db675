"""The demo: render toys, train the small capsule network and the CNN baseline, compare them, and draw pictures.

It takes minutes on two CPU cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from emcaps.config import RunConfig, preset
from emcaps.data.crops import evaluation_crops
from emcaps.data.prepared import CATEGORIES, load_prepared, prepared_path
from emcaps.data.tensors import to_tensors
from emcaps.data.toy_set import Views, write_toys
from emcaps.nn import MatrixCapsNet
from emcaps.nn.summary import parameters_of
from emcaps.report.figures import check_matplotlib
from emcaps.report.pictures import draw_contact_sheet, draw_routing
from emcaps.report.progress import counting_bar, training_bar
from emcaps.report.tables import confusion_table, plain_table
from emcaps.train import TrainResult, load_network, train
from emcaps.train.run_folder import CONFIG, WEIGHTS

VIEWS = Views(elevations=(0, 3, 6), azimuths=tuple(range(0, 36, 2)), lightings=(0, 3))
QUICK_VIEWS = Views(elevations=(0,), azimuths=(0, 18), lightings=(0,))
STEPS, QUICK_STEPS = 2400, 5
SETTINGS = {
    "data.view": "stereo",
    "train.steps": STEPS,
    "train.batch_size": 16,
    "train.decay_rate": 0.1,
    "train.decay_steps": STEPS,  # a short run ends at a tenth of the learning rate it began with
    "train.log_every": 20,
    "train.checkpoint_every": 100,
}
CAPSULES = "small"
RUNS = {CAPSULES: "capsules, small", "cnn": "CNN baseline"}
PARTS = ("train", "test")


def demo_config(name: str, *, quick: bool = False) -> RunConfig:
    return preset(name).override(SETTINGS | ({"train.steps": QUICK_STEPS} if quick else {}))


def run_demo(folder: Path, device: str, console: Console, *, quick: bool = False) -> None:
    """Leave everything in `folder`; what an earlier demo finished is not done again, what it began is resumed.

    A quick demo has a folder of its own inside, so that neither demo takes the other's data or runs for its own.
    """
    folder = folder / "quick" if quick else folder
    without_pictures = _reason_not_to_draw()  # asked first: the end of minutes of work is no time to find out
    data = folder / "data"
    if not all(prepared_path("toys", part, data).exists() for part in PARTS):
        with counting_bar("rendering", "toys") as on_progress:
            write_toys(data, views=QUICK_VIEWS if quick else VIEWS, on_progress=on_progress)
    if not without_pictures:
        sheet = folder / "toys.png"
        draw_contact_sheet({part: load_prepared(prepared_path("toys", part, data)) for part in PARTS}, sheet)
        console.print(f"toys: {sheet}", markup=False)

    results: dict[str, TrainResult] = {}
    outcomes = {}
    for name in RUNS:
        config = demo_config(name, quick=quick)
        run = folder / name
        with training_bar(f"training {name}", config.train.steps) as show:
            results[name] = train(
                config, run, device=device, data_folder=data, resume=(run / CONFIG).exists(), on_progress=show
            )
        if not results[name].complete:
            raise KeyboardInterrupt
        outcomes[name] = Outcome(config, results[name].seconds, results[name].evaluations["test"].accuracy)
    console.print(confusion_table(results[CAPSULES].evaluations["test"], CATEGORIES, "capsules on new instances, %"))
    console.print(comparison_table(outcomes))
    if without_pictures:
        console.print(f"{without_pictures}; the same command then draws them", markup=False)
    else:
        picture = folder / "routing.png"
        _draw(folder, data, picture)
        console.print(f"what the network sees and routes: {picture}", markup=False)


def _reason_not_to_draw() -> str:
    """Why there can be no pictures, with the remedy; empty if there can be."""
    try:
        check_matplotlib()
    except ValueError as error:
        return str(error)
    return ""


class Outcome(NamedTuple):
    """What the demo found of one network."""

    config: RunConfig
    seconds: float
    """The time of training."""
    accuracy: float
    """On the test toys, 0 to 1."""


def comparison_table(outcomes: Mapping[str, Outcome]) -> Table:
    """The networks of RUNS side by side."""
    table = plain_table("Accuracy on instances that were never seen in training")
    table.add_column("network")
    for column in ("parameters", "steps", "seconds", "images/s", "test accuracy"):
        table.add_column(column, justify="right")
    for name, (config, seconds, accuracy) in outcomes.items():
        table.add_row(
            RUNS[name],
            f"{parameters_of(config):,}",
            f"{config.train.steps:,}",
            f"{seconds:.0f}",
            f"{config.train.steps * config.train.batch_size / seconds:.0f}",
            f"{100 * accuracy:.1f} %",
        )
    return table


def _draw(folder: Path, data: Path, picture: Path) -> None:
    """Draw the routing of one test image of each category, from the middle of its list."""
    network, config, _ = load_network(folder / CAPSULES / WEIGHTS)
    assert isinstance(network, MatrixCapsNet)
    images, labels = to_tensors(
        load_prepared(prepared_path("toys", "test", data)), config.data.view, torch.device("cpu")
    )
    chosen = [int((labels == label).nonzero()[len(labels) // 15, 0]) for label in range(len(CATEGORIES))]
    crops = evaluation_crops(images[chosen], config.data.crop, standardised=config.data.standardise)[:, 0]
    draw_routing(network, crops, labels[chosen].tolist(), picture)
