"""Sets of pictures other than smallNORB: what capsule networks and a CNN reach on them, in how many minutes.

The settings for MNIST and Fashion-MNIST were chosen with the small network, on a held-out tenth of the training images.
Those for CIFAR-10 were not chosen by anything: they are the images that are usual for it, with the same schedules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emcaps.config import RunConfig, preset
from emcaps.data.builtin import NAMES
from emcaps.experiments.records import Record, finished, mean_and_spread, runs_link
from emcaps.experiments.runner import Training, train_missing
from emcaps.nn.summary import parameters_of
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.tables import plain_table


def _steps(number: int) -> dict[str, Any]:
    return {"train.steps": number, "train.margin_steps": number // 2, "train.eval_every": number // 10}


RECIPE: dict[str, Any] = {
    "data.channels": 1,
    "data.size": 28,
    "data.crop": 28,
    "data.brightness": 0.0,
    "data.contrast_low": 1.0,
    "data.contrast_high": 1.0,
    "data.standardise": "background",
    "network.classes": 10,
    "train.learning_rate_schedule": "cosine",
    "train.margin_schedule": "linear",
    "train.warmup_steps": 200,
    "train.weight_decay": 0.0,
    "train.beta_rate": 30.0,
}
LONG: dict[str, Any] = _steps(60_000) | {
    "train.log_every": 2000,
    "train.checkpoint_every": 10_000,
}
COLOUR: dict[str, Any] = {"data.channels": 3, "data.size": 32, "data.crop": 32, "data.standardise": "image"}
QUICK: dict[str, Any] = _steps(2000) | {"train.eval_every": 0}
VARIED: dict[str, dict[str, Any]] = {
    "mnist": {"data.pad": 2, "data.turn": 15.0, "data.zoom": 0.15, "data.slant": 0.2},
    "fashion-mnist": {"data.pad": 1, "data.mirror": 0.5},
    "cifar10": COLOUR | {"data.pad": 4, "data.mirror": 0.5},
}
"""The training images of each set, and how they are varied."""
PLAIN: dict[str, dict[str, Any]] = {"mnist": {}, "cifar10": COLOUR | {"data.mirror": 0.5}}
"""The training images of the quick rows, by set."""
NETWORKS: dict[str, RunConfig] = {"": preset("small"), "-full": preset("full"), "-cnn": preset("cnn")}
"""The networks, by the ending of their rows. Each has the loss and the learning rate of its preset."""


def _row(dataset: str, network: RunConfig, settings: dict[str, Any]) -> RunConfig:
    return network.override(RECIPE | settings | {"data.dataset": dataset, "data.names": NAMES[dataset]})


ROWS: dict[str, RunConfig] = {
    f"{dataset}{ending}": _row(dataset, network, images | LONG)
    for dataset, images in VARIED.items()
    for ending, network in NETWORKS.items()
}
ROWS |= {
    f"{dataset}-quick{ending}": _row(dataset, NETWORKS[ending], images | QUICK)
    for dataset, images in PLAIN.items()
    for ending in ("", "-cnn")
}
"""Each row is trained with several seeds. The quick ones are for a CPU, and take a few minutes on two cores."""
# The CNN with as many parameters as the capsules; for MNIST it is a row of moved_digits.py.
ROWS["cifar10-quick-small-cnn"] = ROWS["cifar10-quick-cnn"].override(
    {"network.cnn_channels": 8, "network.cnn_hidden": 65}
)
# Hinton et al. had this network for CIFAR-10: the full one, with 256 channels in its first layer.
ROWS["cifar10-wide"] = ROWS["cifar10-full"].override({"network.conv_channels": 256})


def run_other_data(runs: Path, console: Console, names: Sequence[str], *, train: Training | None = None) -> None:
    """Show the accuracy of each row, after training what is missing if `train` says how."""
    if train is not None:
        train_missing(ROWS, names, runs, train)
    found = finished(ROWS, names, runs)
    console.print(_row_table(found))
    print(markdown_rows(found, runs_link(runs)))


def _row_table(found: Mapping[str, Sequence[Record]]) -> Table:
    table = plain_table("Last step, % of the test images")
    for column in ("row", "parameters", "seeds", "mean", "minutes a run"):
        table.add_column(column, justify="left" if column == "row" else "right")
    for row, records in found.items():
        if records:
            table.add_row(
                row, f"{parameters_of(ROWS[row]):,}", str(len(records)), mean_and_spread(records), minutes(records)
            )
    return table


def markdown_rows(found: Mapping[str, Sequence[Record]], link: str) -> str:
    """The table for the page: every seed by itself, with a link to its run, and their mean."""
    rows = []
    for row, records in found.items():
        if records:
            each = [markdown_link(f"{one.accuracy:.2f}", f"{link}{row}/{one.folder.name}") for one in records]
            steps = f"{ROWS[row].train.steps:,}"
            mean = f"{markdown_link(mean_and_spread(records), link + row)} (n = {len(records)})"
            rows.append((row, f"{parameters_of(ROWS[row]):,}", steps, mean, ", ".join(each), minutes(records)))
    header = ("row", "parameters", "steps", "test accuracy, %", "by seed, %", "minutes a run")
    return markdown_table(header, rows)


def minutes(records: Sequence[Record]) -> str:
    """The time of the fastest run, since others may have shared their device."""
    return f"{min(record.seconds for record in records) / 60:.1f}"
