"""Why three routing iterations learn more slowly than two: short runs, and what routing does in them.

Each variant trains the tiny network for a few hundred steps with several seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emcaps.analysis.sharpness import BATCH, LAYERS, average
from emcaps.config import RunConfig, preset
from emcaps.experiments.records import Record, finished, spread
from emcaps.experiments.runner import Training, train_missing
from emcaps.files import atomic_write
from emcaps.report.figures import check_matplotlib, new_figure
from emcaps.report.tables import plain_table

STEPS = 500
SETTINGS: dict[str, Any] = {
    "data.view": "stereo",
    "data.split": "validation",
    "data.fold": 3,
    "train.steps": STEPS,
    "train.batch_size": 16,
    "train.margin_schedule": "linear",
    "train.margin_steps": STEPS,
    "train.warmup_steps": 100,
    "train.log_every": 25,
    "train.checkpoint_every": 100,
}
SCALE: dict[str, Any] = {"network.pose_scale": 0.5}
FLOOR: dict[str, Any] = {"network.variance_floor": 1.0}
BETAS: dict[str, Any] = {"network.betas": "half_active"}
FAST_BETAS: dict[str, Any] = {"train.beta_rate": 10.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "it1": {"network.iterations": 1},
    "it2": {"network.iterations": 2},
    "it3": {"network.iterations": 3},
    "it3-soft": {"network.iterations": 3} | SCALE | FLOOR | BETAS,
    "it2-soft": {"network.iterations": 2} | SCALE | FLOOR | BETAS,
    "it3-floor": {"network.iterations": 3} | FLOOR,
    "it3-scale": {"network.iterations": 3} | SCALE,
    "it3-betas": {"network.iterations": 3} | BETAS,
    "it3-scale-floor": {"network.iterations": 3} | SCALE | FLOOR,
    "it3-slow": {"network.iterations": 3, "train.learning_rate": 1e-3},
    "it2-fast-betas": {"network.iterations": 2} | FAST_BETAS,
    "it3-fast-betas": {"network.iterations": 3} | FAST_BETAS,
    "it3-soft-fast-betas": {"network.iterations": 3} | SCALE | FLOOR | BETAS | FAST_BETAS,
    "it3-soft-sharp-class": {"network.iterations": 3, "network.class_scale": 4.0} | SCALE | FLOOR | BETAS | FAST_BETAS,
}


def rows_on(dataset: str) -> dict[str, RunConfig]:
    """Every variant, trained on this data set."""
    return {
        variant: preset("tiny").override(SETTINGS | changes | {"data.dataset": dataset})
        for variant, changes in VARIANTS.items()
    }


def run_iterations(
    runs: Path, console: Console, dataset: str, *, train: Training | None = None, figures: Path | None = None
) -> None:
    """Show a table of the runs in `runs` and draw into `figures`, after training and measuring what is missing if
    `train` says how."""
    rows = rows_on(dataset)
    if figures is not None:
        check_matplotlib()
    if train is not None:
        train_missing(rows, list(rows), runs, train, measured=True)
    found = finished(rows, list(rows), runs, measured=True)
    console.print(_table(found))
    if figures is not None:
        for path in draw_figures(found, figures):
            console.print(f"figure: {path}", markup=False)


def _table(found: dict[str, list[Record]]) -> Table:
    """Accuracies in percent; the norm of a batch's gradient, and its cosine with another batch's; the effective number
    of children of a parent in both convolutional layers."""
    count = max((len(runs) for runs in found.values()), default=0)
    table = plain_table(f"Tiny network, {STEPS} steps, mean and spread of {count} seeds")
    for column in ("variant", "training", "held out", "gradient", "cosine", "children"):
        table.add_column(column, justify="left" if column == "variant" else "right")
    for variant, runs in found.items():
        if runs:
            layers = average([run.routing[-1]["layers"] for run in runs])
            table.add_row(
                variant,
                spread([run.training_accuracy for run in runs], 1),
                spread([run.accuracy for run in runs], 1),
                f"{statistics.fmean(run.gradient_norm for run in runs):.2f}",
                f"{statistics.fmean(run.gradient_cosine for run in runs):.2f}",
                " ".join(f"{layers[name][-1]['effective_children']:.1f}" for name in LAYERS[:2]),
            )
    return table


COLOURS = {
    "it1": "tab:gray",
    "it2": "tab:blue",
    "it3": "tab:red",
    "it3-soft": "tab:green",
    "it2-soft": "tab:cyan",
    "it3-floor": "tab:orange",
    "it3-scale": "tab:purple",
    "it3-betas": "tab:brown",
    "it3-scale-floor": "tab:olive",
    "it3-slow": "tab:pink",
}
MAIN = ("it1", "it2", "it3", "it2-soft", "it3-soft")
PARTS = ("it3", "it3-slow", "it3-betas", "it3-floor", "it3-scale", "it3-scale-floor", "it3-soft")
ROUTED = ("it2", "it3", "it3-soft")


def draw_figures(found: dict[str, list[Record]], folder: Path) -> list[Path]:
    """Draw learning curves, gradients over training, and routing by layer and iteration; returns the files' paths."""
    drawings = {"learning": _draw_learning, "gradients": _draw_gradients, "routing": _draw_routing}
    paths = []
    for name, draw in drawings.items():
        paths.append(folder / f"three-iterations-{name}.png")
        figure = new_figure((11, 6.4 if name == "routing" else 4.2))
        draw(figure, {variant: runs for variant, runs in found.items() if runs})
        with atomic_write(paths[-1]) as temporary:
            figure.savefig(temporary, dpi=110, format="png")
    return paths


def _draw_learning(figure: Any, found: dict[str, list[Record]]) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, variants, title in ((left, MAIN, "iterations, plain and soft"), (right, PARTS, "parts of the remedy")):
        for variant in variants:
            _draw_band(axes, variant, [run.training_curve for run in found.get(variant, [])])
        _finish(axes, title, "step")
    left.set_ylabel("training accuracy, %")


def _draw_gradients(figure: Any, found: dict[str, list[Record]]) -> None:
    left, right = figure.subplots(1, 2)
    for axes, key, title in (
        (left, "gradient_norm", f"norm of the gradient of {BATCH} images"),
        (right, "gradient_cosine", "cosine of the gradients of two batches"),
    ):
        for variant in MAIN:
            curves = [[(at["step"], at[key]) for at in run.routing] for run in found.get(variant, [])]
            _draw_band(axes, variant, curves)
        _finish(axes, title, "step")
    left.set_yscale("log")


def _draw_routing(figure: Any, found: dict[str, list[Record]]) -> None:
    """Draw the effective children of a parent above, and below the gradient of the loss by each iteration's
    assignments."""
    grid = figure.subplots(2, len(LAYERS), sharey="row")
    for row, (key, label) in enumerate(
        (("effective_children", "effective children of a parent"), ("assignment_gradient", "gradient by assignments"))
    ):
        for axes, layer in zip(grid[row], LAYERS, strict=True):
            for variant in ROUTED:
                for when, style in ((0, ":"), (-1, "-")):
                    curves = [_by_iteration(run.routing[when]["layers"][layer], key) for run in found.get(variant, [])]
                    name = f"{variant}, {'end' if when else 'start'}"
                    _draw_band(axes, variant, curves, label=name, linestyle=style, marker="o", markersize=4)
            axes.set_yscale("log")
            axes.set_xticks((1, 2, 3))
            axes.set_xlim(0.8, 3.2)
            _finish(axes, layer, "iteration", legend=layer == LAYERS[0])
        grid[row][0].set_ylabel(label)


def _by_iteration(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(number, row[key]) for number, row in enumerate(rows, start=1) if row[key] is not None]


def _draw_band(axes: Any, variant: str, curves: Sequence[Sequence[tuple[int, float]]], **style: Any) -> None:
    """Draw the mean over runs as a line, and the range from the least to the greatest as a band."""
    if not curves:
        return
    places = [place for place, _ in curves[0]]
    columns = [[value for _, value in column] for column in zip(*curves, strict=True)]
    style = {"label": variant} | style
    axes.plot(places, [statistics.fmean(column) for column in columns], color=COLOURS[variant], **style)
    lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
    axes.fill_between(places, lowest, highest, color=COLOURS[variant], alpha=0.12, linewidth=0)


def _finish(axes: Any, title: str, below: str, legend: bool = True) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(below)
    axes.grid(alpha=0.3)
    if legend:
        axes.legend(fontsize=8)
