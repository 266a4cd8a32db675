"""Novel viewpoints: capsules against CNNs that were trained on a third of the azimuths or elevations.

Two comparisons, both on the test instances, shown at the trained viewpoints ("familiar") and at the others ("novel"):

last step  the errors of the last step.
matched    Hinton's protocol: both networks are compared where they are equally good on familiar viewpoints. Of a
           capsule row and a CNN row, the one whose last step is better on familiar viewpoints, by the mean over its
           seeds, is stopped early: each of its runs at its first evaluation that is as good as the other row's mean.
           In the paper, that is always the capsule network.

On smallNORB the recipes are those of Table 2 in stereo (table2.py), with as many passes over a third of the images:

faithful   the paper's loss and schedules, ten times faster.
best       the recipe that was chosen on held-out training instances.

On toys there is one short recipe, "quick", with which the tiny network takes minutes on a CPU.

With `validation`, nothing but training instances at trained viewpoints is trained or tested on (data/splits.py). That
is where a recipe for novel viewpoints may be chosen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from emcaps.config import DATASETS, RunConfig, preset
from emcaps.data.splits import TRAINED_VIEWPOINTS
from emcaps.experiments.records import Record, finished, runs_link, spread
from emcaps.experiments.runner import Training, train_missing
from emcaps.experiments.table2 import BEST, BEST_BY_ITERATIONS, BEST_BY_VIEW, FAITHFUL, SMALL_CNN
from emcaps.experiments.viewpoint_errors import Errors, draw_viewpoints, errors_of, measure_viewpoints
from emcaps.names import check_name
from emcaps.nn.summary import parameters_of
from emcaps.report.figures import check_matplotlib
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.tables import plain_table

STEPS, QUICK_STEPS = 12_000, 800
COMMON: dict[str, Any] = {"data.dataset": "smallnorb", "data.view": "stereo"}
RECIPES: dict[str, dict[str, Any]] = {
    "faithful": FAITHFUL,
    "best": BEST | BEST_BY_VIEW["stereo"] | {"train.margin_steps": STEPS // 2},
}
LENGTH: dict[str, Any] = {
    "train.steps": STEPS,
    "train.eval_every": 400,  # often, since the matched comparison stops runs at an evaluation
    "train.log_every": 200,
    "train.checkpoint_every": 4000,
}
QUICK: dict[str, Any] = {
    "data.view": "stereo",
    "train.steps": QUICK_STEPS,
    "train.batch_size": 32,
    "train.decay_rate": 0.1,
    "train.decay_steps": QUICK_STEPS,  # a short run ends at a tenth of the learning rate it began with
    "train.warmup_steps": 100,
    "train.margin_schedule": "linear",
    "train.margin_steps": QUICK_STEPS // 2,
    "train.eval_every": 80,
    "train.log_every": 20,
    "train.checkpoint_every": 200,
}
TINY_CNN: dict[str, Any] = {"network.cnn_channels": 4, "network.cnn_hidden": 34}
"""The CNN at about the tiny network's number of parameters."""
ITERATIONS = (1, 2, 3)
NETWORKS: dict[str, dict[str, RunConfig]] = {
    "smallnorb": {f"small-it{count}": preset("small").override({"network.iterations": count}) for count in ITERATIONS}
    | {"full-it2": preset("full"), "cnn": preset("cnn"), "small-cnn": preset("cnn").override(SMALL_CNN)},
    "toys": {f"tiny-it{count}": preset("tiny").override({"network.iterations": count}) for count in ITERATIONS}
    | {"cnn": preset("cnn"), "tiny-cnn": preset("cnn").override(TINY_CNN)},
}
"""The networks by data set."""


def rows_on(dataset: str, *, validation: bool = False) -> dict[str, RunConfig]:
    """Every row, such as "best-azimuth-small-it2": recipe, split and network."""
    check_name("dataset", dataset, DATASETS)
    rows = {}
    for recipe in RECIPES if dataset == "smallnorb" else ("quick",):
        for split in TRAINED_VIEWPOINTS:
            chosen = {"data.split": f"{split}-validation" if validation else split}
            for name, network in NETWORKS[dataset].items():
                rows[f"{recipe}-{split}-{name}"] = network.override(_settings(recipe, network) | chosen)
    return rows


def _settings(recipe: str, network: RunConfig) -> dict[str, Any]:
    if recipe == "quick":
        return QUICK
    iterations = network.network.iterations
    by_iterations = BEST_BY_ITERATIONS[iterations] if recipe == "best" and network.network.kind == "capsules" else {}
    return COMMON | RECIPES[recipe] | by_iterations | LENGTH


def group_of(row: str) -> tuple[str, str]:
    """Recipe and split of a row: rows of one group are compared with each other."""
    recipe, split, _ = row.split("-", 2)
    return recipe, split


def network_of(row: str) -> str:
    """The network of a row, as NETWORKS calls it."""
    return row.split("-", 2)[2]


def run_viewpoints(
    runs: Path,
    console: Console,
    dataset: str,
    names: Sequence[str] | None = None,
    *,
    validation: bool = False,
    train: Training | None = None,
    figures: Path | None = None,
) -> None:
    """Show tables of the runs in `runs` and draw into `figures`, after training and measuring what is missing if
    `train` says how."""
    rows = rows_on(dataset, validation=validation)
    if figures is not None:
        check_matplotlib()
    names = names or list(rows)
    if train is not None:
        train_missing(rows, names, runs, train)
        for records in finished(rows, names, runs).values():
            measure_viewpoints(records, train.device, train.data_folder)
    found = finished(rows, names, runs)
    for table in (_last_step_table(found, rows), *_matched_tables(found, rows)):
        console.print(table)
    link = runs_link(runs)
    print(markdown_last_step(found, rows, link), markdown_matched(found, rows, link), sep="\n\n")
    if figures is not None:
        for path in draw_figures(found, figures):
            console.print(f"figure: {path}", markup=False)


class Matched(NamedTuple):
    """A capsule row and a CNN row where both are equally good on familiar viewpoints."""

    stopped: str
    """Which of both is stopped early: "capsules" or "CNN"."""
    capsules: list[Errors]
    cnn: list[Errors]
    """One entry for each run; a run that is stopped early and never gets as good as the other row is left out."""


def match(capsules: Sequence[Record], cnn: Sequence[Record]) -> Matched:
    """Stop the row that ends better on familiar viewpoints at the other row's mean familiar error."""
    last = {"capsules": [errors_of(run)[-1] for run in capsules], "CNN": [errors_of(run)[-1] for run in cnn]}
    means = {kind: statistics.fmean(one.familiar for one in each) for kind, each in last.items()}
    stopped = "capsules" if means["capsules"] <= means["CNN"] else "CNN"
    goal = means["CNN" if stopped == "capsules" else "capsules"]
    firsts = [first_at(run, goal) for run in (capsules if stopped == "capsules" else cnn)]
    last[stopped] = [one for one in firsts if one is not None]
    return Matched(stopped, last["capsules"], last["CNN"])


def first_at(record: Record, familiar: float) -> Errors | None:
    """The first evaluation whose error on familiar viewpoints is at most this; None if there is none."""
    return next((one for one in errors_of(record) if one.familiar <= familiar), None)


def last_step_rows(found: Mapping[str, Sequence[Record]], rows: Mapping[str, RunConfig]) -> list[list[str]]:
    """Row, parameters, runs, and the last step's errors on familiar and on novel viewpoints."""
    cells = []
    for row, records in found.items():
        if records:
            last = [errors_of(record)[-1] for record in records]
            errors = (spread([one.familiar for one in last], 1), spread([one.novel for one in last], 1))
            cells.append([row, f"{parameters_of(rows[row]):,}", str(len(records)), *errors])
    return cells


def matched_rows(found: Mapping[str, Sequence[Record]], rows: Mapping[str, RunConfig]) -> list[list[str]]:
    """The capsules' row and the CNN, which of both was stopped, how many of its runs got there, both's errors, and the
    difference on novel viewpoints with its standard error."""
    cells = []
    for row, capsules in found.items():
        for other, cnn in found.items():
            kinds = rows[row].network.kind, rows[other].network.kind
            if capsules and cnn and kinds == ("capsules", "cnn") and group_of(row) == group_of(other):
                both = match(capsules, cnn)
                early, runs = (both.capsules, capsules) if both.stopped == "capsules" else (both.cnn, cnn)
                sides = (both.capsules, both.cnn)
                familiar = [f"{statistics.fmean(one.familiar for one in each):.1f}" if each else "-" for each in sides]
                novel = [spread([one.novel for one in each], 1) if each else "-" for each in sides]
                cells.append(
                    [
                        *(row, network_of(other), both.stopped, f"{len(early)} of {len(runs)}"),
                        *familiar,
                        *novel,
                        _difference(*sides),
                    ]
                )
    return cells


def _difference(capsules: Sequence[Errors], cnn: Sequence[Errors]) -> str:
    """How much larger the capsules' mean error on novel viewpoints is, and the standard error of that, as "-1.3 ± 0.4";
    a dash if a side has no run, and no standard error if one has a single run."""
    novel = [[one.novel for one in each] for each in (capsules, cnn)]
    if not all(novel):
        return "-"
    difference = statistics.fmean(novel[0]) - statistics.fmean(novel[1])
    if min(map(len, novel)) < 2:
        return f"{difference:+.1f}"
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in novel))
    return f"{difference:+.1f} ± {error:.1f}"


LAST_STEP = ("row", "parameters", "runs", "familiar", "novel")
MATCHED = (
    *("capsules", "CNN", "stopped early", "runs"),
    *("familiar, capsules", "familiar, CNN", "novel, capsules", "novel, CNN"),
    "difference, novel",
)


def markdown_last_step(found: Mapping[str, Sequence[Record]], rows: Mapping[str, RunConfig], link: str) -> str:
    """The table of the last step for the page, with links to the runs under `link`; errors are in percent."""
    each = [[markdown_link(row, link + row), *cells] for row, *cells in last_step_rows(found, rows)]
    return markdown_table(LAST_STEP, each)


def markdown_matched(found: Mapping[str, Sequence[Record]], rows: Mapping[str, RunConfig], link: str) -> str:
    """The matched comparison for the page; errors are in percent."""
    each = [[markdown_link(row, link + row), *cells] for row, *cells in matched_rows(found, rows)]
    return markdown_table(MATCHED, each, left=(0, 1, 2))


def _last_step_table(found: Mapping[str, Sequence[Record]], rows: Mapping[str, RunConfig]) -> Table:
    return _table("Last step: error on test instances, %", LAST_STEP, last_step_rows(found, rows), 1)


def _matched_tables(found: Mapping[str, Sequence[Record]], rows: Mapping[str, RunConfig]) -> list[Table]:
    """One for each recipe and split, so that they fit into 80 columns."""
    groups: dict[tuple[str, str], list[list[str]]] = {}
    for row, *cells in matched_rows(found, rows):
        groups.setdefault(group_of(row), []).append([network_of(row), *cells])
    header = ("capsules", "CNN", "stopped", "runs", "familiar", "CNN", "novel", "CNN", "difference")
    return [
        _table(f"{recipe}, {split}, where both are equally good on familiar viewpoints: error, %", header, each, 3)
        for (recipe, split), each in groups.items()
    ]


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Table:
    table = plain_table(title)
    table.collapse_padding = True
    for number, column in enumerate(header):
        table.add_column(column, justify="left" if number < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def draw_figures(found: Mapping[str, Sequence[Record]], folder: Path) -> list[Path]:
    """One picture for each recipe and split whose runs recorded their errors by viewpoint."""
    paths = []
    for recipe, split in dict.fromkeys(group_of(row) for row in found):
        chosen = {row: runs for row, runs in found.items() if runs and group_of(row) == (recipe, split)}
        path = folder / f"viewpoints-{recipe}-{split}.png"
        if draw_viewpoints(chosen, path):
            paths.append(path)
    return paths
