"""Table 2 of Gritzman (2019): smallNORB by the small and the full network, trained from scratch, over several seeds.

The rows differ in their recipe:

faithful  the paper's network, loss and schedules, except that lambda is 1 here and 0.01 there. The schedules run ten
          times faster, so that 12,000 steps stand for 120,000.
paper     "faithful" with the schedules at the paper's own speed, for 150,000 steps.
code      "paper" with the learning rate of Gritzman's code, which decays over 20,000 steps instead of 2,000, for
          280,000 steps.
best      chosen on held-out training instances (choices.py). It routes by the same definition: with one iteration at a
          final lambda of 5, with three or five at a variance floor of 1 instead of 1e-4 and with scaled poses. Rows
          that were not tried there copy others: the full network copies the small one, 5 iterations copy 3, and 1
          iteration in stereo copies 1 in mono.
long      "best" with twice as many steps, or four times as many for the full network.
averaged  "long" with a learning rate that falls to a fifth instead of 0, and the mean of the weights over the last half
          of the steps: chosen on held-out training instances (candidates.py) for mono with 2 iterations alone.
longest   "long" with twice as many steps again; in mono with crops at most 2 pixels off the centre instead of 4. On
          held-out training instances such crops gained 0.9 ± 0.5 points with 2 iterations, over four of the five folds
          with one seed each, in short runs (docs/recipe.md).

The CNNs have the images and steps of "best", "long" and "averaged", too, with their own loss and learning rate. They
separate what capsules contribute from what the recipe contributes. The small CNN has as many parameters as the small
capsule network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from emcaps.config import RunConfig, preset
from emcaps.experiments.published import FIGURES
from emcaps.experiments.records import Record, finished, mean_and_spread, runs_link, spread
from emcaps.experiments.runner import Training, evaluate_many_crops, train_missing
from emcaps.nn.summary import parameters_of
from emcaps.report.figures import check_matplotlib
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.tables import plain_table

FAITHFUL_STEPS = 12_000
SPEED_UP = 10
TRAINING_IMAGES = {"mono": 48_600, "stereo": 24_300}
GOALS = tuple(
    FIGURES[title].accuracy for title in ("Gritzman, small, mono, 2 iterations", "Hinton, small, stereo, 3 iterations")
)
"""The tables show how many steps reach these accuracies, in percent."""
SMOOTHING = 0.25
"""The smoothing of the paper's Figure 6."""
COMMON: dict[str, Any] = {
    "data.dataset": "smallnorb",
    "train.eval_every": 1200,  # for Figure 6 alone: the table shows the last step's accuracy
    "train.log_every": 200,  # a divisor of eval_every, so that the time to an accuracy is exact
    "train.checkpoint_every": 5000,
}
FAITHFUL: dict[str, Any] = {
    "train.steps": FAITHFUL_STEPS,
    "train.decay_steps": 2000 // SPEED_UP,
    "train.margin_steps": 50_000 // SPEED_UP,
}
PAPER: dict[str, Any] = {
    "train.steps": 150_000,
    "train.decay_steps": 2000,
    "train.margin_steps": 50_000,
    "train.eval_every": 5000,
    "train.log_every": 1000,
}
CODE: dict[str, Any] = PAPER | {"train.steps": 280_000, "train.decay_steps": 20_000}
CNN: dict[str, Any] = {"train.steps": 9000, "train.decay_steps": 2000 // SPEED_UP}
SMALL_CNN: dict[str, Any] = {"network.cnn_channels": 8, "network.cnn_hidden": 63}
"""The CNN at about the small network's number of parameters: a quarter of its channels, a sixteenth of its units."""
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
"""A softer E-step, with which three iterations learn faster; see docs/three-iterations.md."""
BEST_BY_ITERATIONS: dict[int, dict[str, Any]] = {
    # In the first iteration, here the only one, lambda is 0.05 times final_lambda: with 1 that is too little.
    1: {"network.final_lambda": 5.0, "train.beta_rate": 3.0, "train.mixup": 0.0},
    2: {},
    3: SOFT | {"train.beta_rate": 10.0},
    5: SOFT | {"train.beta_rate": 10.0},
}


BEST_FULL: dict[str, Any] = {"train.steps": 24_000, "train.margin_steps": 12_000}
"""Fewer steps: with 3 iterations a step of the full network takes four times as long as one of the small network."""
LONG: dict[str, dict[str, Any]] = {
    "mono": {"train.steps": 80_000, "train.margin_steps": 40_000, "train.eval_every": 8000},
    "stereo": {"train.steps": 72_000, "train.margin_steps": 36_000, "train.eval_every": 4800},
}
"""The settings by view."""
LONGEST: dict[str, dict[str, Any]] = {
    "mono": {
        "train.steps": 160_000,
        "train.margin_steps": 80_000,
        "train.eval_every": 16_000,
        "data.max_shift": 2,
    },
    "stereo": {"train.steps": 144_000, "train.margin_steps": 72_000, "train.eval_every": 9600},
}
"""The settings by view."""
LONG_FULL: dict[str, Any] = {"train.steps": 96_000, "train.margin_steps": 48_000, "train.eval_every": 9600}


def averaged(steps: int) -> dict[str, Any]:
    """Settings that average weights: the learning rate falls to a fifth in these steps, so that they keep moving."""
    return {
        "train.learning_rate_schedule": "exponential",
        "train.decay_rate": 0.2,
        "train.decay_steps": steps,
        "train.average": 0.5,
    }


def _capsules(recipe: str, network: str, view: str, iterations: int) -> RunConfig:
    settings = {"faithful": FAITHFUL, "paper": PAPER, "code": CODE}.get(recipe, {})
    if recipe in ("best", "long", "averaged", "longest"):
        settings = BEST | BEST_BY_VIEW[view] | BEST_BY_ITERATIONS[iterations] | (BEST_FULL if network == "full" else {})
    if recipe in ("long", "averaged"):
        settings |= LONG[view] if network == "small" else LONG_FULL
    if recipe == "averaged":
        settings |= averaged(settings["train.steps"])
    if recipe == "longest":
        settings |= LONGEST[view]
    return preset(network).override(COMMON | settings | {"data.view": view, "network.iterations": iterations})


def _cnn(recipe: str, size: str, view: str) -> RunConfig:
    settings = BEST | BEST_BY_VIEW[view] | {"train.learning_rate": preset("cnn").train.learning_rate}
    settings |= (LONG[view] if recipe != "best" else {}) | (SMALL_CNN if size == "small-cnn" else {})
    settings |= averaged(settings["train.steps"]) if recipe == "averaged" else {}
    return preset("cnn").override(COMMON | settings | {"data.view": view})


def row_name(recipe: str, network: str, view: str, iterations: int) -> str:
    """Such as "best-full-stereo-it2"; the small network is not mentioned."""
    return f"{recipe}-{view}-it{iterations}" if network == "small" else f"{recipe}-{network}-{view}-it{iterations}"


ROWS: dict[str, RunConfig] = {
    row_name(recipe, network, view, iterations): _capsules(recipe, network, view, iterations)
    for recipe, network, view, all_iterations in (
        ("faithful", "small", "mono", (1, 2, 3)),
        ("faithful", "small", "stereo", (3,)),
        ("faithful", "full", "stereo", (3,)),
        ("paper", "small", "mono", (1, 2, 3)),
        ("paper", "small", "stereo", (3,)),
        ("paper", "full", "stereo", (3,)),
        ("code", "small", "mono", (1, 2, 3)),
        ("code", "small", "stereo", (3,)),
        ("best", "small", "mono", (1, 2, 3)),
        ("best", "small", "stereo", (1, 2, 3, 5)),
        ("best", "full", "stereo", (2, 3)),
        ("long", "small", "mono", (2, 3)),
        ("long", "small", "stereo", (2, 3)),
        ("long", "full", "stereo", (2,)),
        ("averaged", "small", "mono", (2,)),
        ("longest", "small", "mono", (2, 3)),
        ("longest", "small", "stereo", (3,)),
    )
    for iterations in all_iterations
}
ROWS["cnn-stereo"] = preset("cnn").override(COMMON | CNN | {"data.view": "stereo"})
ROWS |= {
    f"{recipe}-{size}-{view}": _cnn(recipe, size, view)
    for recipe, views in (("best", ("stereo", "mono")), ("long", ("stereo", "mono")), ("averaged", ("mono",)))
    for size in ("cnn", "small-cnn")
    for view in views
}
"""Each row is trained with several seeds."""


RECIPES = ("faithful", "paper", "code", "best", "long", "averaged", "longest")
"""The columns of the table; the plain CNN counts as faithful."""


class Published(NamedTuple):
    """A published figure, and the row "best" of the task here that it belongs to."""

    figure: str
    row: str
    remark: str = ""
    """How their task differs from ours."""


PUBLISHED = (
    Published("Gritzman, small, mono, 1 iteration", "best-mono-it1"),
    Published("Gritzman, small, mono, 2 iterations", "best-mono-it2"),
    Published("Gritzman, small, mono, 3 iterations", "best-mono-it3"),
    Published("yl-1993, small, mono, 1 iteration", "best-mono-it1"),
    Published("yl-1993, small, mono, 2 iterations", "best-mono-it2"),
    Published("yl-1993, small, mono, 3 iterations", "best-mono-it3"),
    Published("www0wwwjs1, mono, 2 iterations", "best-mono-it2"),
    Published("Hinton, small, stereo, 3 iterations", "best-stereo-it3"),
    Published("Hinton, small, stereo, 3 iterations", "best-stereo-it2", "with 3 iterations"),
    Published("Hinton, CNN, stereo", "best-cnn-stereo"),
    Published("Officium, full, stereo, 3 iterations", "best-full-stereo-it3"),
    Published("Hinton, full, stereo, 3 iterations", "best-full-stereo-it3"),
    Published("Hinton, full, stereo, 2 iterations", "best-full-stereo-it2"),
    Published("Hinton, full, stereo, 3 iterations", "best-full-stereo-it2", "with 3 iterations"),
    Published("Hinton, full, stereo, 5 iterations", "best-stereo-it5", "full network"),
)


class Task(NamedTuple):
    """What is compared: rows that differ in the recipe alone. Tasks sort as the table shows them."""

    kind: str
    full: bool
    """Whether it is the larger of the two networks of its kind."""
    view: str
    iterations: int

    def __str__(self) -> str:
        if self.kind == "cnn":
            return f"{'CNN' if self.full else 'small CNN'}, {self.view}"
        size = "full" if self.full else "small"
        return f"{size}, {self.view}, {self.iterations} iteration{'s' if self.iterations > 1 else ''}"


def is_full(config: RunConfig) -> bool:
    """Whether a config is of the full network, not of the small one; of a CNN, whether it is Hinton's."""
    if config.network.kind == "cnn":
        return config.network.cnn_channels == preset("cnn").network.cnn_channels
    return config.network.primary_types == preset("full").network.primary_types


def task_of(row: str) -> Task:
    config = ROWS[row]
    return Task(config.network.kind, is_full(config), config.data.view, config.network.iterations)


def markdown_published(found: Mapping[str, Sequence[Record]], link: str) -> str:
    """Each task once: our recipes that have runs, with links to them, beside all that others published."""
    tasks: dict[Task, dict[str, str]] = {}
    for row in ROWS:
        recipe = row.split("-")[0]
        recipe = recipe if recipe in RECIPES else "faithful"
        tasks.setdefault(task_of(row), {})[recipe] = row

    def ours(row: str) -> str:
        records = found.get(row)
        return f"{markdown_link(mean_and_spread(records), link + row)} (n = {len(records)})" if records else "-"

    recipes = [name for name in RECIPES if any(found.get(of_task.get(name, "")) for of_task in tasks.values())]
    rows = []
    for task, by_recipe in sorted(tasks.items()):
        if any(found.get(row) for row in by_recipe.values()):
            theirs = [_theirs(one) for one in PUBLISHED if one.row in by_recipe.values()]
            rows.append((str(task), *(ours(by_recipe.get(name, "")) for name in recipes), "; ".join(theirs) or "-"))
    header = ("network", *(f"{recipe}, %" for recipe in recipes), "published, %")
    return markdown_table(header, rows, left=(0, len(header) - 1))


def _theirs(one: Published) -> str:
    """Such as "98.2 Hinton (with 3 iterations)", with a link to the source."""
    figure = FIGURES[one.figure]
    name = markdown_link(figure.who, figure.source.link)
    return f"{figure.accuracy} {name}{f' ({one.remark})' if one.remark else ''}"


def markdown_rows(found: Mapping[str, Sequence[Record]], link: str) -> str:
    """Our rows with their cost in steps: runs may share a device, so their times say little (see cost.py)."""
    goals = [f"steps to {goal} %" for goal in GOALS]
    header = ["row", "parameters", "steps", "passes", *goals, "test accuracy, %", "13 crops, %"]
    rows = []
    for name, records in found.items():
        if records:
            train, images = ROWS[name].train, TRAINING_IMAGES[ROWS[name].data.view]
            rows.append(
                [
                    markdown_link(name, link + name),
                    f"{parameters_of(ROWS[name]):,}",
                    f"{train.steps:,}",
                    f"{train.steps * train.batch_size / images:.0f}",
                    *(_steps_to(goal, records) for goal in GOALS),
                    mean_and_spread(records),
                    _many_crops(records),
                ]
            )
    return markdown_table(header, rows)


def run_table2(
    runs: Path, console: Console, names: Sequence[str], *, train: Training | None = None, figure: Path | None = None
) -> None:
    """Show the tables of the runs in `runs`, after training those that are missing if `train` says how."""
    if figure is not None:
        check_matplotlib()
    if train is not None:
        train_missing(ROWS, names, runs, train)
        evaluate_many_crops(ROWS, names, runs, train)
    found = finished(ROWS, names, runs)
    console.print(_row_table(found))
    link = runs_link(runs)
    print(markdown_published(found, link), markdown_rows(found, link), sep="\n\n")
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
    table = plain_table("smallNORB, last step, % of the test set; steps by which all seeds had got there")
    table.collapse_padding = True  # to fit into 80 columns
    for column in ("row", "mean", "13 crops", *(f"steps to\n{goal} %" for goal in GOALS)):
        table.add_column(column, justify="left" if column == "row" else "right", no_wrap=True)
    for name, records in found.items():
        if records:
            steps = (_steps_to(goal, records) for goal in GOALS)
            table.add_row(name, mean_and_spread(records), _many_crops(records), *steps)
    return table


def _many_crops(records: Sequence[Record]) -> str:
    """The accuracy with 13 crops, if every seed has it: a mean over some would not compare."""
    values = [record.many_crops for record in records if record.many_crops is not None]
    return spread(values, 2) if len(values) == len(records) else "-"


def _steps_to(goal: float, records: Sequence[Record]) -> str:
    """The step by which an evaluation of every run had found this accuracy, or how many runs got there if not all."""
    reached = [steps for record in records if (steps := record.steps_to(goal)) is not None]
    if len(reached) < len(records):
        return f"{len(reached)} of {len(records)}" if reached else "-"
    return f"{max(reached):,}"
