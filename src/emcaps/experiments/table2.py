"""Table 2 of Gritzman (2019): smallNORB by the small and the full network, trained from scratch, over several seeds.

"faithful" is the paper's network, loss and schedules, but for lambda, which is 1 here and 0.01 there; the schedules'
clocks are ten times faster, so that 12,000 steps stand for 120,000. "best" was chosen on held-out training instances
(choices.py); its routing is the same definition, with one iteration at a final lambda of 5, and with three or five at a
variance floor of 1 instead of 1e-4 and with poses scaled to suit. Rows that were not tried there copy others: the full
network the small one, 5 iterations 3, and 1 iteration in stereo that in mono. "long" is "best" in twice as many steps,
or four times as many for the full network. The CNN has the images and steps of "best" too, with its own loss and
learning rate: that tells what capsules are worth from what the recipe is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from emcaps.config import RunConfig, preset
from emcaps.experiments.rows import Record, evaluate_many_crops, finished, mean_and_spread, spread, train_missing

FAITHFUL_STEPS = 12_000
SPEED_UP = 10
TRAINING_IMAGES = {"mono": 48_600, "stereo": 24_300}
GOALS = (95.4, 97.8)
"""Accuracies, in percent, that the steps to are shown of: Gritzman's and Hinton's of the small network."""
SMOOTHING = 0.25
"""Of the paper's Figure 6."""
COMMON: dict[str, Any] = {
    "data.dataset": "smallnorb",
    "train.eval_every": 1200,  # for Figure 6 alone: the table has the last step's accuracy
    "train.log_every": 200,  # a divisor, so that the time to an accuracy is exact
    "train.checkpoint_every": 5000,
}
FAITHFUL: dict[str, Any] = {
    "train.steps": FAITHFUL_STEPS,
    "train.decay_steps": 2000 // SPEED_UP,
    "train.margin_steps": 50_000 // SPEED_UP,
}
CNN: dict[str, Any] = {"train.steps": 9000, "train.decay_steps": 2000 // SPEED_UP}
BEST: dict[str, Any] = {
    "data.max_shift": 4,
    "data.brightness": 0.0,
    "data.contrast_low": 1.0,
    "data.contrast_high": 1.0,
    "data.splice": 0.5,
    "train.mixup": 0.5,
    "train.beta_rate": 30.0,
    "train.learning_rate_schedule": "cosine",
    "train.warmup_steps": 200,
    "train.margin_schedule": "linear",
    "train.weight_decay": 0.0,
}
BEST_BY_VIEW: dict[str, dict[str, Any]] = {
    "mono": {
        "data.standardise": "background",
        "train.learning_rate": 6e-3,
        "train.steps": 40_000,
        "train.margin_steps": 20_000,
        "train.eval_every": 4000,
    },
    "stereo": {
        "data.standardise": "crop",
        "train.steps": 36_000,
        "train.margin_steps": 18_000,
        "train.eval_every": 2400,
    },
}
SOFT: dict[str, Any] = {"network.pose_scale": 0.5, "network.variance_floor": 1.0, "network.betas": "half_active"}
"""Three iterations with these learn faster than without: a softer E-step. See docs/three-iterations.md."""
BEST_BY_ITERATIONS: dict[int, dict[str, Any]] = {
    # lambda is 0.05 times final_lambda in the first iteration, which is the last here: too little at 1
    1: {"network.final_lambda": 5.0, "train.beta_rate": 3.0, "train.mixup": 0.0},
    2: {},
    3: SOFT | {"train.beta_rate": 10.0},
    5: SOFT | {"train.beta_rate": 10.0},
}


BEST_FULL: dict[str, Any] = {"train.steps": 24_000, "train.margin_steps": 12_000}
"""With 3 iterations a step of the full network costs four times as much as one of the small network."""
LONG: dict[str, dict[str, Any]] = {
    "mono": {"train.steps": 80_000, "train.margin_steps": 40_000, "train.eval_every": 8000},
    "stereo": {"train.steps": 72_000, "train.margin_steps": 36_000, "train.eval_every": 4800},
}
"""By view."""
LONG_FULL: dict[str, Any] = {"train.steps": 96_000, "train.margin_steps": 48_000, "train.eval_every": 9600}


def _capsules(recipe: str, network: str, view: str, iterations: int) -> RunConfig:
    settings = FAITHFUL
    if recipe != "faithful":
        settings = BEST | BEST_BY_VIEW[view] | BEST_BY_ITERATIONS[iterations] | (BEST_FULL if network == "full" else {})
    if recipe == "long":
        settings |= LONG[view] if network == "small" else LONG_FULL
    return preset(network).override(COMMON | settings | {"data.view": view, "network.iterations": iterations})


def row_name(recipe: str, network: str, view: str, iterations: int) -> str:
    """The small network goes without saying."""
    return f"{recipe}-{view}-it{iterations}" if network == "small" else f"{recipe}-{network}-{view}-it{iterations}"


ROWS: dict[str, RunConfig] = {
    row_name(recipe, network, view, iterations): _capsules(recipe, network, view, iterations)
    for recipe, network, view, all_iterations in (
        ("faithful", "small", "mono", (1, 2, 3)),
        ("faithful", "small", "stereo", (3,)),
        ("faithful", "full", "stereo", (3,)),
        ("best", "small", "mono", (1, 2, 3)),
        ("best", "small", "stereo", (1, 2, 3, 5)),
        ("best", "full", "stereo", (2, 3)),
        ("long", "small", "mono", (2, 3)),
        ("long", "small", "stereo", (2, 3)),
        ("long", "full", "stereo", (2,)),
    )
    for iterations in all_iterations
} | {
    "cnn-stereo": preset("cnn").override(COMMON | CNN | {"data.view": "stereo"}),
    "best-cnn-stereo": preset("cnn").override(COMMON | BEST | BEST_BY_VIEW["stereo"] | {"data.view": "stereo"}),
}
"""What is trained, each with several seeds."""


class Published(NamedTuple):
    """A row of the paper's table, and the rows here that answer it."""

    who: str
    accuracy: float
    faithful: str = ""
    best: str = ""
    long: str = ""


PUBLISHED = (
    Published("Gritzman, mono, 1 iteration", 86.2, "faithful-mono-it1", "best-mono-it1"),
    Published("Gritzman, mono, 2 iterations", 95.4, "faithful-mono-it2", "best-mono-it2", "long-mono-it2"),
    Published("Gritzman, mono, 3 iterations", 93.7, "faithful-mono-it3", "best-mono-it3", "long-mono-it3"),
    Published("yl-1993, mono, 1 iteration", 74.8, "faithful-mono-it1", "best-mono-it1"),
    Published("yl-1993, mono, 2 iterations", 89.5, "faithful-mono-it2", "best-mono-it2", "long-mono-it2"),
    Published("yl-1993, mono, 3 iterations", 82.5, "faithful-mono-it3", "best-mono-it3", "long-mono-it3"),
    Published("www0wwwjs1, mono, 2 iterations", 91.8, "faithful-mono-it2", "best-mono-it2", "long-mono-it2"),
    Published("Hinton, small, stereo, 3 iterations", 97.8, "faithful-stereo-it3", "best-stereo-it3", "long-stereo-it3"),
    Published("Hinton, small, stereo (his 3 iterations; ours 2)", 97.8, "", "best-stereo-it2", "long-stereo-it2"),
    Published("Hinton, CNN, stereo", 94.8, "cnn-stereo", "best-cnn-stereo"),
    Published("Officium, full, stereo, 3 iterations", 90.9, "faithful-full-stereo-it3", "best-full-stereo-it3"),
    Published("Hinton, full, stereo, 3 iterations", 98.2, "faithful-full-stereo-it3", "best-full-stereo-it3"),
    Published(
        "Hinton, full, stereo (his 3 iterations; ours 2)", 98.2, "", "best-full-stereo-it2", "long-full-stereo-it2"
    ),
    Published("Hinton, full, stereo, 2 iterations", 97.8, "", "best-full-stereo-it2", "long-full-stereo-it2"),
    Published("Hinton, full, stereo, 5 iterations (ours small)", 96.1, "", "best-stereo-it5"),
)


def markdown_table(found: Mapping[str, Sequence[Record]], link: str = "results/table2/") -> str:
    """The table of the README: published rows beside ours, each of our figures with a link to its runs."""

    def ours(row: str) -> str:
        records = found.get(row)
        return f"[{mean_and_spread(records)}]({link}{row}) (n = {len(records)})" if records else "-"

    lines = ["| published | accuracy, % | faithful, % | best, % | long, % |", "|---|--:|--:|--:|--:|"]
    lines += [f"| {p.who} | {p.accuracy} | {ours(p.faithful)} | {ours(p.best)} | {ours(p.long)} |" for p in PUBLISHED]
    return "\n".join(lines)


def markdown_rows(found: Mapping[str, Sequence[Record]], link: str = "results/table2/") -> str:
    """Our rows with what they cost in steps: runs may share a device, so that their times say little (see cost.py)."""
    header = [
        "row",
        "parameters",
        "steps",
        "passes",
        *(f"steps to {goal} %" for goal in GOALS),
        "test accuracy, %",
        "13 crops, %",
    ]
    lines = [f"| {' | '.join(header)} |", f"|---|{'--:|' * (len(header) - 1)}"]
    for name, records in found.items():
        if records:
            train, images = ROWS[name].train, TRAINING_IMAGES[ROWS[name].data.view]
            cells = [
                f"{count_row_parameters(name):,}",
                f"{train.steps:,}",
                f"{train.steps * train.batch_size / images:.0f}",
                *(_steps_to(goal, records) for goal in GOALS),
                mean_and_spread(records),
                _many_crops(records),
            ]
            lines.append(f"| [{name}]({link}{name}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def run_table2(
    runs: Path,
    names: Sequence[str],
    seeds: Sequence[int],
    console: Console,
    *,
    train_first: bool,
    jobs: int = 1,
    device: str,
    data_folder: Path | None,
    figure: Path | None,
) -> None:
    """Show the table of the runs in `runs`, after training those that are missing if that is asked for."""
    if train_first:
        train_missing(ROWS, names, seeds, runs, jobs=jobs, device=device, data_folder=data_folder)
        evaluate_many_crops(ROWS, names, runs, device=device, data_folder=data_folder)
    found = finished(ROWS, names, runs)
    console.print(_row_table(found))
    print(markdown_table(found), markdown_rows(found), sep="\n\n")
    if figure is not None:
        draw_figure6(found, figure)
        console.print(f"test accuracy over training: {figure}", markup=False)


def draw_figure6(found: Mapping[str, Sequence[Record]], path: Path) -> None:
    """Figure 6 of the paper: mono test accuracy over passes through the training set, by iterations."""
    from emcaps.report.curves import draw_curves

    curves = {}
    for row, records in found.items():
        config = ROWS[row]
        if records and config.network.kind == "capsules" and config.data.view == "mono":
            passes = config.train.batch_size / TRAINING_IMAGES["mono"]
            curves[row] = [[(step * passes, accuracy) for step, accuracy, _ in record.curve] for record in records]
    if not curves:
        raise ValueError("the figure needs runs of mono capsule networks, and there are none: train them with --train")
    draw_curves(curves, path, "passes over the training set", "test accuracy, %", SMOOTHING)


def _row_table(found: Mapping[str, Sequence[Record]]) -> Table:
    from emcaps.report.tables import plain_table

    table = plain_table("smallNORB, last step, % of the test set; steps by which all seeds had got there")
    table.collapse_padding = True  # so that 80 columns do
    for column in ("row", "mean", "13 crops", *(f"steps to\n{goal} %" for goal in GOALS)):
        table.add_column(column, justify="left" if column == "row" else "right", no_wrap=True)
    for name, records in found.items():
        if records:
            steps = (_steps_to(goal, records) for goal in GOALS)
            table.add_row(name, mean_and_spread(records), _many_crops(records), *steps)
    return table


def _many_crops(records: Sequence[Record]) -> str:
    """Of all seeds or none: a mean over some would not compare."""
    values = [record.many_crops for record in records if record.many_crops is not None]
    return spread(values, 2) if len(values) == len(records) else "-"


def count_row_parameters(row: str) -> int:
    from emcaps.nn import build_network
    from emcaps.nn.summary import count_parameters

    config = ROWS[row]
    return count_parameters(build_network(config.network, config.data.image_channels, config.data.crop))


def _steps_to(goal: float, records: Sequence[Record]) -> str:
    """By when every run had got there at some evaluation; or how many did, if not all."""
    reached = [steps for record in records if (steps := record.steps_to(goal)) is not None]
    if len(reached) < len(records):
        return f"{len(reached)} of {len(records)}" if reached else "-"
    return f"{max(reached):,}"
