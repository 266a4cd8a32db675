"""What each of the three pitfalls of Gritzman (2019) costs: runs with one mistake each, and routing inside them.

The mistakes are switches of the network: no variance floor, no scaling of the data, no competition between positions.
Networks with more and fewer parent types show, besides, how many parents live on one child (section 2.1 there).

Runs of the tiny network are short, for a CPU, and tested on held-out training instances. Runs of the small network are
for a GPU and tested on the test set. They have a twelfth of the steps of Table 2's and its recipe in stereo, except for
soft routing and the learning rate of the betas.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emcaps.analysis.sharpness import LAYERS, average
from emcaps.config import RunConfig, preset
from emcaps.experiments import iterations
from emcaps.experiments.records import Record, finished, runs_link, spread
from emcaps.experiments.runner import Training, train_missing
from emcaps.experiments.table2 import BEST, BEST_BY_VIEW
from emcaps.files import atomic_write
from emcaps.names import check_name
from emcaps.nn.summary import summarise
from emcaps.report.figures import check_matplotlib, new_figure
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.tables import plain_table

NO_FLOOR: dict[str, Any] = {"network.variance_floor": 0.0}
NO_SCALING: dict[str, Any] = {"network.data_scaling": "none"}
NO_COMPETITION: dict[str, Any] = {"network.competition": "types"}
LOW_LAMBDA: dict[str, Any] = {"network.final_lambda": 0.01}
"""How published code gets by without scaling."""
MISTAKES: dict[str, dict[str, Any]] = {
    "correct": {},
    "no-floor": NO_FLOOR,
    "no-scaling": NO_SCALING,
    "no-competition": NO_COMPETITION,
    "all-three": NO_FLOOR | NO_SCALING | NO_COMPETITION,
    "low-lambda": NO_SCALING | LOW_LAMBDA,
    "all-low-lambda": NO_FLOOR | NO_SCALING | NO_COMPETITION | LOW_LAMBDA,
}
ITERATIONS = (2, 3)
TYPES = (2, 4, 8, 16, 32)
"""The numbers of parent types of both convolutional layers: they vary the number of children per parent."""
VARIANTS: dict[str, dict[str, Any]] = {
    f"{mistake}-it{count}": changes | {"network.iterations": count}
    for count in ITERATIONS
    for mistake, changes in MISTAKES.items()
} | {
    f"types-{types}": {"network.iterations": 4, "network.conv1_types": types, "network.conv2_types": types}
    for types in TYPES
}


SMALL_STEPS = 3000
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": iterations.SETTINGS,
    "small": BEST
    | BEST_BY_VIEW["stereo"]
    | {
        "data.view": "stereo",
        "train.beta_rate": 10.0,  # with 30, three iterations of the correct routing lose
        "train.steps": SMALL_STEPS,
        "train.margin_steps": SMALL_STEPS // 2,
        "train.eval_every": 0,
        "train.log_every": 100,
        "train.checkpoint_every": 1000,
    },
}
"""The settings by network."""


def rows_on(dataset: str, network: str = "tiny") -> dict[str, RunConfig]:
    """Every variant of a network, trained on this data set."""
    check_name("network", network, SETTINGS)
    return {
        variant: preset(network).override(SETTINGS[network] | changes | {"data.dataset": dataset})
        for variant, changes in VARIANTS.items()
    }


def run_pitfalls(
    runs: Path,
    console: Console,
    dataset: str,
    network: str = "tiny",
    *,
    train: Training | None = None,
    figures: Path | None = None,
) -> None:
    """Show tables of the runs in `runs` and draw into `figures`, after training and measuring what is missing if
    `train` says how."""
    rows = rows_on(dataset, network)
    if figures is not None:
        check_matplotlib()
    if train is not None:
        train_missing(rows, list(rows), runs, train, measured=True)
    found = finished(rows, list(rows), runs, measured=True)
    console.print(accuracy_table(found, network))
    console.print(ratio_table(found, network))
    link = runs_link(runs)
    print(markdown_accuracies(found, link), markdown_ratios(found, network, link), sep="\n\n")
    if figures is not None:
        for path in draw_figures(found, figures, network):
            console.print(f"figure: {path}", markup=False)


def accuracy_table(found: Mapping[str, Sequence[Record]], network: str) -> Table:
    """What each mistake costs and does to routing; all columns but the first are of the runs that did not fail."""
    table = plain_table(f"{network.capitalize()} network, at the end of training, mean and spread over seeds")
    headers = ("variant", "failed", "accuracy,\n%", "one\nchild,\n%", "useful\ninputs,\n%", "given", "posi-\ntions")
    table.collapse_padding = True  # to fit into 80 columns
    for column in headers:
        table.add_column(column, justify="left" if column == "variant" else "right", no_wrap=True)
    for variant, runs in found.items():
        if runs and not variant.startswith("types-"):
            table.add_row(variant, *accuracy_row(runs))
    return table


def accuracy_row(runs: Sequence[Record]) -> list[str]:
    """The failures; the accuracy on unseen instances; the parents with one child, by convolutional layer; the inputs
    of the logistic function between -5 and 5, by layer; what a child of conv_caps2 gives in all, and to how many
    positions."""
    whole = [run for run in runs if run.failed_by is None]
    row = [f"{len(runs) - len(whole)} of {len(runs)}"]
    if not whole:
        return [*row, *["-"] * 5]
    layers = average([run.routing[-1]["layers"] for run in whole])
    return [
        *row,
        _accuracy(whole),
        ", ".join(f"{100 * layers[layer][-1]['lone_parents']:.1f}" for layer in LAYERS[:2]),
        ", ".join(f"{100 * layers[layer][-1]['logit_useful']:.0f}" for layer in LAYERS),
        f"{layers['conv_caps2'][-1]['assigned']:.2f}",
        f"{layers['conv_caps2'][-1]['positions']:.2f}",
    ]


def _accuracy(whole: Sequence[Record]) -> str:
    return spread([run.accuracy for run in whole], 1)


def ratio_table(found: Mapping[str, Sequence[Record]], network: str) -> Table:
    """The parents that live on one child, in percent, by number of parent types, layer and iteration."""
    table = plain_table("Parents that live on one child, %, with 4 iterations")
    table.collapse_padding = True
    moments = (*(f"it {number}" for number in (1, 2, 3, 4)), "it 4 at\nstart")
    for column in ("types", "accuracy,\n%", "layer", "children\nper parent", *moments):
        table.add_column(column, justify="left" if column in ("types", "layer") else "right", no_wrap=True)
    for row in ratio_rows(found, network):
        table.add_row(*row)
    return table


def ratio_rows(found: Mapping[str, Sequence[Record]], network: str) -> list[list[str]]:
    """Types, accuracy on unseen instances, layer and children per parent; then the parents with one child, by
    iteration after training, and in the last iteration before training."""
    rows = []
    for types in TYPES:
        whole = [run for run in found[f"types-{types}"] if run.failed_by is None]
        for layer in LAYERS[:2] if whole else ():
            start, end = (average([run.routing[when]["layers"][layer] for run in whole]) for when in (0, -1))
            shares = [f"{100 * row['lone_parents']:.1f}" for row in (*end, start[-1])]
            rows.append([str(types), _accuracy(whole), layer, f"{mean_data(types, network)[layer]:.2f}", *shares])
    return rows


def markdown_accuracies(found: Mapping[str, Sequence[Record]], link: str) -> str:
    """The table of mistakes for the page, with links to the runs under `link`."""
    header = (
        "variant",
        "failed",
        "accuracy, %",
        "parents with one child, %",
        "useful inputs, %",
        "given",
        "positions",
    )
    rows = [
        [markdown_link(variant, link + variant), *accuracy_row(runs)]
        for variant, runs in found.items()
        if runs and not variant.startswith("types-")
    ]
    return markdown_table(header, rows)


def markdown_ratios(found: Mapping[str, Sequence[Record]], network: str, link: str) -> str:
    """The table of parent types for the page, with links to the runs under `link`."""
    header = ("parent types", "accuracy, %", "layer", "children per parent", "iteration 1", "2", "3", "4")
    rows = [[markdown_link(types, f"{link}types-{types}"), *cells] for types, *cells in ratio_rows(found, network)]
    return markdown_table((*header, "4, untrained"), rows, left=(2,))


def mean_data(types: int, network: str) -> dict[str, float]:
    """The children per parent, by layer, in the network with this many parent types."""
    config = rows_on("toys", network)[f"types-{types}"]
    rows = summarise(config.network, config.data.image_channels, config.data.crop)
    return {row.layer: row.mean_data for row in rows if row.mean_data is not None}


def draw_figures(found: Mapping[str, Sequence[Record]], folder: Path, network: str) -> list[Path]:
    """Draw inputs of the logistic function by layer, and, by iteration, parents with one child and positions that share
    a child; returns the files' paths."""
    paths = []
    pictures: dict[str, Callable[[Any], None]] = {
        "logits": lambda figure: _draw_logits(figure, found),
        "one-child": lambda figure: _draw_one_child(figure, found, network),
        "positions": lambda figure: _draw_positions(figure, found),
    }
    for name, draw in pictures.items():
        paths.append(folder / f"pitfalls-{network}-{name}.png")
        figure = new_figure((11, 4.2))
        draw(figure)
        with atomic_write(paths[-1]) as temporary:
            figure.savefig(temporary, dpi=110, format="png")
    return paths


def _draw_logits(figure: Any, found: Mapping[str, Sequence[Record]]) -> None:
    """Draw bars from the 5th to the 95th percentile with the median, at the start of training (pale) and at the end."""
    shown = [f"{mistake}-it2" for mistake in MISTAKES]
    for axes, layer in zip(figure.subplots(1, len(LAYERS), sharey=True), LAYERS, strict=True):
        for place, variant in enumerate(shown):
            for when, offset, alpha in ((0, -0.15, 0.35), (-1, 0.15, 1.0)):
                runs = [run for run in found[variant] if run.failed_by is None]
                if runs:
                    rows = average([run.routing[when]["layers"][layer][-1] for run in runs])
                    _, low, _, middle, _, high, _ = rows["logit_quantiles"]
                    colour = {"color": f"C{place}", "alpha": alpha}
                    axes.plot([low, high], [place + offset] * 2, linewidth=7, solid_capstyle="butt", **colour)
                    axes.plot([middle], [place + offset], "k|", markersize=9)
        axes.axvspan(-5, 5, color="0.9", zorder=0)
        axes.set_xscale("symlog", linthresh=5)
        axes.set_xticks((-5, 0, 5, 50, 500), ("-5", "0", "5", "50", "500"))
        axes.set_yticks(range(len(shown)), shown)
        axes.set_title(layer)
        axes.set_xlabel("input of the logistic function")
    figure.axes[0].invert_yaxis()  # shared by all axes: puts the correct one on top


def _draw_one_child(figure: Any, found: Mapping[str, Sequence[Record]], network: str) -> None:
    for axes, layer in zip(figure.subplots(1, 2, sharey=True), LAYERS[:2], strict=True):
        for types in TYPES:
            runs = [run for run in found[f"types-{types}"] if run.failed_by is None]
            if runs:
                lines = [[100 * row["lone_parents"] for row in run.routing[-1]["layers"][layer]] for run in runs]
                means = [statistics.fmean(values) for values in zip(*lines, strict=True)]
                label = f"{types} types, {mean_data(types, network)[layer]:.2g} children per parent"
                axes.plot(range(1, len(means) + 1), means, marker="o", label=label)
        axes.set_xticks((1, 2, 3, 4))
        axes.set_xlabel("iteration")
        axes.set_title(layer)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    figure.axes[0].set_ylabel("parents that live on one child, %")


def _draw_positions(figure: Any, found: Mapping[str, Sequence[Record]]) -> None:
    """Draw the effective number of positions that share a child, at the start of training (dashed) and at the end."""
    for axes, layer in zip(figure.subplots(1, 2, sharey=True), LAYERS[:2], strict=True):
        for colour, variant in enumerate(("correct-it3", "no-competition-it3")):
            runs = [run for run in found[variant] if run.failed_by is None]
            for when, style, moment in ((0, "--", "start"), (-1, "-", "end")):
                if runs:
                    rows = average([run.routing[when]["layers"][layer] for run in runs])
                    spread_over = [row["positions"] for row in rows]
                    line = {"color": f"C{colour}", "linestyle": style, "marker": "o"}
                    axes.plot(range(1, len(rows) + 1), spread_over, label=f"{variant}, {moment}", **line)
        axes.set_xticks((1, 2, 3))
        axes.set_xlabel("iteration")
        axes.set_title(layer)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylim(bottom=1)  # after both have their lines, because they share a scale
    if figure.axes[0].lines:
        figure.axes[0].legend()
    figure.axes[0].set_ylabel("effective number of positions of a child")
