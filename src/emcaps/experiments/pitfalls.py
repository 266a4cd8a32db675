"""What each of the three pitfalls of Gritzman (2019) costs: runs with one mistake each, and routing inside them.

The mistakes are switches of the network: no variance floor, no scaling of the data, no competition between positions.
Beside them, networks with more and fewer parent types show how many parents live on one child (section 2.1 there).

With the tiny network runs are short, for a CPU, and tested on held-out training instances. With the small one they are
a twelfth as long as those of Table 2, for a GPU, with its recipe in stereo but for soft routing and the rate of the
betas, and tested on the test set.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emcaps.config import RunConfig, preset
from emcaps.experiments import iterations
from emcaps.experiments.inside import LAYERS, average
from emcaps.experiments.measured import Run, check_complete, measure_missing, read_complete_runs
from emcaps.experiments.rows import spread
from emcaps.experiments.table2 import BEST, BEST_BY_VIEW
from emcaps.files import atomic_write
from emcaps.names import check_name
from emcaps.nn.summary import summarise
from emcaps.report.figures import new_figure
from emcaps.report.tables import plain_table

SEEDS = (0, 1, 2)
NO_FLOOR: dict[str, Any] = {"network.variance_floor": 0.0}
NO_SCALING: dict[str, Any] = {"network.data_scaling": "none"}
NO_COMPETITION: dict[str, Any] = {"network.competition": "types"}
LOW_LAMBDA: dict[str, Any] = {"network.final_lambda": 0.01}
"""How published code lives without scaling."""
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
"""Types of parent of both convolutional layers, to vary how many children there are to a parent."""
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
"""By network."""


def variant_config(variant: str, seed: int, dataset: str, network: str = "tiny") -> RunConfig:
    check_name("variant", variant, VARIANTS)
    check_name("network", network, SETTINGS)
    settings = SETTINGS[network] | VARIANTS[variant]
    return preset(network).override(settings | {"data.dataset": dataset, "train.seed": seed})


def run_pitfalls(
    runs: Path,
    data_folder: Path | None,
    device: str,
    dataset: str,
    console: Console,
    figures: Path | None,
    network: str = "tiny",
    jobs: int = 1,
    *,
    train_first: bool,
) -> None:
    """Print tables of the runs in RUNS/VARIANT/seedN and draw into `figures`, after training and measuring what is
    missing if that is asked for."""
    check_name("network", network, SETTINGS)
    if train_first:
        config_of = partial(variant_config, dataset=dataset, network=network)
        measure_missing(runs, VARIANTS, SEEDS, config_of, device, data_folder, jobs)
    found = read_runs(runs, network)
    check_complete(found, runs)
    console.print(accuracy_table(found, network))
    console.print(ratio_table(found, network))
    link = f"{'' if runs.is_absolute() else '../'}{runs.as_posix()}/"  # for a page in docs/
    print(markdown_accuracies(found, link), markdown_ratios(found, network, link), sep="\n\n")
    if figures is not None:
        for path in draw_figures(found, figures, network):
            console.print(f"figure: {path}", markup=False)


def read_runs(runs: Path, network: str = "tiny") -> dict[str, list[Run]]:
    """Every complete run, by variant and seed."""
    return {name: read_complete_runs(runs / name, partial(variant_config, name, network=network)) for name in VARIANTS}


def accuracy_table(found: Mapping[str, Sequence[Run]], network: str) -> Table:
    """What each mistake costs, and what it does inside; of the runs that did not fail, but for the first column."""
    table = plain_table(f"{network.capitalize()} network, at the end of training, mean and spread over seeds")
    headers = ("variant", "failed", "unseen,\n%", "lone,\n%", "useful,\n%", "given", "places")
    table.collapse_padding = True  # so that 80 columns do
    for column in headers:
        table.add_column(column, justify="left" if column == "variant" else "right", no_wrap=True)
    for variant, runs in found.items():
        if runs and not variant.startswith("types-"):
            table.add_row(variant, *accuracy_row(runs))
    return table


def accuracy_row(runs: Sequence[Run]) -> list[str]:
    """Failures; accuracy on unseen instances; of the convolutional layers the parents with one child; of every layer
    the inputs of the logistic function between -5 and 5; what a child of conv_caps2 gives in all, to how many positions
    """
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


def _accuracy(whole: Sequence[Run]) -> str:
    return spread([100 * run.held_out for run in whole], 1)


def ratio_table(found: Mapping[str, Sequence[Run]], network: str) -> Table:
    """Parents that live on one child, in percent, by types of parent, layer and iteration."""
    table = plain_table("Parents that live on one child, %, with 4 iterations")
    table.collapse_padding = True
    moments = (*(f"it {number}" for number in (1, 2, 3, 4)), "it 4 at\nstart")
    for column in ("types", "unseen,\n%", "layer", "children\na parent", *moments):
        table.add_column(column, justify="left" if column in ("types", "layer") else "right", no_wrap=True)
    for row in ratio_rows(found, network):
        table.add_row(*row)
    return table


def ratio_rows(found: Mapping[str, Sequence[Run]], network: str) -> list[list[str]]:
    """Types, accuracy on unseen instances, layer, children to a parent; parents with one child by iteration at the end
    of training, and in the last iteration before it."""
    rows = []
    for types in TYPES:
        whole = [run for run in found[f"types-{types}"] if run.failed_by is None]
        for layer in LAYERS[:2] if whole else ():
            start, end = (average([run.routing[when]["layers"][layer] for run in whole]) for when in (0, -1))
            shares = [f"{100 * row['lone_parents']:.1f}" for row in (*end, start[-1])]
            rows.append([str(types), _accuracy(whole), layer, f"{mean_data(types, network)[layer]:.2f}", *shares])
    return rows


def markdown_accuracies(found: Mapping[str, Sequence[Run]], link: str) -> str:
    """The first table for a page, with links to the runs under `link`."""
    header = (
        "variant",
        "failed",
        "accuracy, %",
        "parents with one child, %",
        "useful inputs, %",
        "given",
        "positions",
    )
    lines = [f"| {' | '.join(header)} |", f"|---|{'--:|' * (len(header) - 1)}"]
    for variant, runs in found.items():
        if runs and not variant.startswith("types-"):
            lines.append(f"| [{variant}]({link}{variant}) | {' | '.join(accuracy_row(runs))} |")
    return "\n".join(lines)


def markdown_ratios(found: Mapping[str, Sequence[Run]], network: str, link: str) -> str:
    """The second one."""
    header = ("types of parent", "accuracy, %", "layer", "children to a parent", "iteration 1", "2", "3", "4")
    lines = [f"| {' | '.join(header)} | 4, untrained |", f"|--:|--:|---|{'--:|' * 6}"]
    for types, *cells in ratio_rows(found, network):
        lines.append(f"| [{types}]({link}types-{types}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def mean_data(types: int, network: str) -> dict[str, float]:
    """Children to a parent, by layer, of the network with so many types of parent."""
    config = variant_config(f"types-{types}", 0, "toys", network)
    rows = summarise(config.network, config.data.image_channels, config.data.crop)
    return {row.layer: row.mean_data for row in rows if row.mean_data is not None}


def draw_figures(found: Mapping[str, Sequence[Run]], folder: Path, network: str) -> list[Path]:
    """Inputs of the logistic function by layer; parents with one child, and positions that share a child, by iteration.

    Gives the pictures' paths.
    """
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


def _draw_logits(figure: Any, found: Mapping[str, Sequence[Run]]) -> None:
    """Bars from the 5th to the 95th percentile, a line at the median, at the start (pale) and at the end."""
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
    figure.axes[0].invert_yaxis()  # which all share: the correct one on top


def _draw_one_child(figure: Any, found: Mapping[str, Sequence[Run]], network: str) -> None:
    for axes, layer in zip(figure.subplots(1, 2, sharey=True), LAYERS[:2], strict=True):
        for types in TYPES:
            runs = [run for run in found[f"types-{types}"] if run.failed_by is None]
            if runs:
                lines = [[100 * row["lone_parents"] for row in run.routing[-1]["layers"][layer]] for run in runs]
                means = [statistics.fmean(values) for values in zip(*lines, strict=True)]
                label = f"{types} types, {mean_data(types, network)[layer]:.2g} children a parent"
                axes.plot(range(1, len(means) + 1), means, marker="o", label=label)
        axes.set_xticks((1, 2, 3, 4))
        axes.set_xlabel("iteration")
        axes.set_title(layer)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.axes[0].set_ylabel("parents that live on one child, %")


def _draw_positions(figure: Any, found: Mapping[str, Sequence[Run]]) -> None:
    """At the start of training (dashed) and at the end: over how many positions a child is spread in effect."""
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
    figure.axes[0].set_ylim(bottom=1)  # once both have their lines, whose scale they share
    figure.axes[0].legend()
    figure.axes[0].set_ylabel("positions that share a child, in effect")
