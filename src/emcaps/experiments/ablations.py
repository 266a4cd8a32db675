"""The ablations of Hinton et al. (2018), Table 1: iterations, poses, losses and coordinates, one change at a time.

Every row starts from the same recipe, that of Table 2 for three iterations, and changes what its name says. Nothing is
tuned for a row. (Table 2 itself has settings for each number of iterations; see choices.py.)

Runs of the tiny network are short, for a CPU, and tested on held-out training instances. Runs of the small network are
for a GPU and tested on the test set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from emcaps.config import RunConfig, preset
from emcaps.experiments import iterations
from emcaps.experiments.other_data import minutes
from emcaps.experiments.published import ABLATIONS
from emcaps.experiments.records import Record, finished, runs_link, spread
from emcaps.experiments.runner import Training, train_missing
from emcaps.experiments.table2 import BEST, BEST_BY_ITERATIONS, BEST_BY_VIEW, COMMON
from emcaps.names import check_name
from emcaps.nn.summary import parameters_of
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.tables import plain_table

TINY_STEPS = 1500
VECTOR: dict[str, Any] = {"network.pose": "vector"}
NO_COORDINATES: dict[str, Any] = {"network.coordinate_scale": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "it1": {"network.iterations": 1},
    "it2": {"network.iterations": 2},
    "it3": {},
    "it5": {"network.iterations": 5},
    "it3-vector": VECTOR,
    "it3-no-coordinates": NO_COORDINATES,
    "it3-vector-no-coordinates": VECTOR | NO_COORDINATES,
    "it3-margin": {"train.loss": "margin"},
    "it3-cross-entropy": {"train.loss": "cross_entropy"},
}
"""The rows of Hinton's table, in its order."""
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": iterations.SETTINGS
    | BEST_BY_ITERATIONS[3]
    | {"network.iterations": 3, "train.steps": TINY_STEPS, "train.margin_steps": TINY_STEPS},
    "small": COMMON
    | BEST
    | BEST_BY_VIEW["stereo"]
    | BEST_BY_ITERATIONS[3]
    | {"data.view": "stereo", "network.iterations": 3, "train.eval_every": 6000},
}
"""The recipe by network."""
HEADER = ("row", "iterations", "pose", "loss", "coordinates", "error, %", "runs", "parameters", "minutes a run")


def rows_on(dataset: str, network: str = "tiny") -> dict[str, RunConfig]:
    """Every row of a network, trained on this data set."""
    check_name("network", network, SETTINGS)
    return {
        row: preset(network).override(SETTINGS[network] | changes | {"data.dataset": dataset})
        for row, changes in VARIANTS.items()
    }


def run_ablations(
    runs: Path,
    console: Console,
    dataset: str,
    network: str = "tiny",
    names: Sequence[str] | None = None,
    *,
    train: Training | None = None,
) -> None:
    """Show the table of the runs in `runs`, after training what is missing if `train` says how."""
    rows = rows_on(dataset, network)
    chosen = list(names or rows)
    if train is not None:
        train_missing(rows, chosen, runs, train._replace(keep_failures=True))
    found = finished(rows, chosen, runs, failures=True)
    table = plain_table(f"{network.capitalize()} network, {dataset}, last step, mean and spread over seeds")
    for number, column in enumerate((*HEADER, "Hinton's error, %")):
        left = number in (0, 2, 3, 4)
        table.add_column(column.replace(" ", "\n"), justify="left" if left else "right", no_wrap=True)
    for row, records in found.items():
        table.add_row(row, *row_cells(rows[row], records), hinton(row))
    console.print(table)
    print(markdown_ablations(found, rows, runs_link(runs)))


def row_cells(config: RunConfig, records: Sequence[Record]) -> list[str]:
    """What a row varies, then its error, the number of its runs, its parameters and its time."""
    network = config.network
    whole = [record for record in records if record.failed_by is None]
    failed = f", {len(records) - len(whole)} failed" if len(whole) < len(records) else ""
    return [
        str(network.iterations),
        network.pose,
        config.train.loss.replace("_", " "),
        "yes" if network.coordinate_scale else "no",
        spread([100 - record.accuracy for record in whole], 2) if whole else "-",
        f"{len(records)}{failed}",
        f"{parameters_of(config):,}",
        minutes(whole) if whole else "-",
    ]


def hinton(row: str) -> str:
    """Hinton's error for a row, which is of his larger network."""
    return f"{ABLATIONS[row]:.1f}"


def markdown_ablations(found: Mapping[str, Sequence[Record]], rows: Mapping[str, RunConfig], link: str) -> str:
    """The table for a page, with links to the runs; a row without any has dashes."""
    lines = [
        [markdown_link(row, link + row) if records else row, *row_cells(rows[row], records), hinton(row)]
        for row, records in found.items()
    ]
    return markdown_table((*HEADER, "Hinton's error, %"), lines, left=(0, 2, 3, 4))
