"""What accuracy costs: test error on smallNORB against parameters and minutes of training, ours beside published ones.

Our minutes are the steps of a row times the milliseconds of a training step alone on a GPU, as `emcaps bench` found
them, with the preset's augmentation: nearly all recorded runs shared a GPU. The benchmark has no CNN: its steps are as
quick as the quickest that a run of it logged, which were alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from emcaps.bench.cases import BACKWARD, STEP
from emcaps.bench.implementations import FUSED_GRAPH
from emcaps.bench.rows import Row, read_rows
from emcaps.config import RunConfig, preset
from emcaps.experiments.rows import Record, finished, mean_and_spread
from emcaps.experiments.table2 import ROWS, count_row_parameters
from emcaps.files import atomic_write
from emcaps.report.figures import new_figure
from emcaps.report.tables import plain_table
from emcaps.train.run_folder import read_metrics


class Point(NamedTuple):
    """One network, trained."""

    who: str
    error: float
    """On the test set, in percent."""
    parameters: int | None
    minutes: float | None
    how: str
    """How the figure was come by."""


PUBLISHED = (
    Point("Hinton, full, stereo, 1 iteration", 9.7, 310_000, None, "paper"),
    Point("Hinton, full, stereo, 2 iterations", 2.2, 310_000, None, "paper"),
    Point("Hinton, full, stereo, 3 iterations", 1.8, 310_000, None, "paper; 1.4 with several crops"),
    Point("Hinton, full, stereo, 5 iterations", 3.9, 310_000, None, "paper"),
    Point("Hinton, small, stereo, 3 iterations", 2.2, 68_000, None, "paper"),
    Point("Hinton's released weights, full, stereo", 1.8, 316_650, None, "its README; 1.3 with 13 crops"),
    Point("Hinton, CNN, stereo", 5.2, 4_200_000, None, "paper"),
    Point("Ciresan, CNN, stereo", 2.56, 2_700_000, None, "as Hinton quotes it; more inputs and distortions"),
    Point("Gritzman, small, mono, 1 iteration", 13.8, 67_154, None, "paper"),
    Point("Gritzman, small, mono, 2 iterations", 4.6, 67_154, None, "paper"),
    Point("Gritzman, small, mono, 3 iterations", 6.3, 67_154, None, "paper"),
    Point(
        "Gritzman's code rerun, mono", 7.2, 67_154, 119 * 60, "2 iterations, last ten epochs: 6.7 to 7.7 in five runs"
    ),
    Point(
        "Gritzman's code with dropout, mono", 6.0, 67_154, 119 * 60, "2 iterations, last ten epochs: 5.4 to 6.6 in five"
    ),
    Point("yl-1993, small, mono, 1 iteration", 25.2, 67_154, None, "as Gritzman quotes it"),
    Point("yl-1993, small, mono, 2 iterations", 10.5, 67_154, None, "after 50 epochs"),
    Point("yl-1993, small, mono, 3 iterations", 17.5, 67_154, None, "as Gritzman quotes it"),
    Point("yl-1993, full, mono", 10.0, 310_000, None, "its README"),
    Point("www0wwwjs1, mono, 2 iterations", 8.2, None, None, "A = 32; its code has a decoder"),
    Point("Moeinh77, small, 2 iterations", 8.0, None, None, "its README"),
    Point("Officium, full, stereo, 8 GPUs", 11.9, 310_000, 43 * 60, "last step; 9.1 at its best"),
    Point(
        "SWaltmann, small, stereo", 5.4, 68_754, None, "last 20 epochs of 5,000; 12.8 with a sign of its cost put right"
    ),
    Point("SWaltmann, full, stereo", 7.7, 310_000, 3350 * 3, "last 20 epochs of 3,350"),
    Point("VB routing, three capsule layers, stereo", 1.3, None, None, "its README; another routing"),
    Point("VB routing, one capsule layer, stereo", 2.9, None, None, "its README; another routing"),
    Point("Sabour, dynamic routing, stereo", 2.7, None, None, "as Hinton quotes it; another routing"),
    Point("Heinsen, 96x96, stereo", 0.9, 272_000, None, "best of ten on the test set; another routing"),
)
"""The facts are their authors'; errors are 100 less accuracies where they give those, and the parameters of networks
with the same layers are counted or quoted once for all."""


def our_points(found: Mapping[str, Sequence[Record]], speeds: Sequence[Row]) -> dict[str, Point]:
    """By row of Table 2: the mean over seeds at the last step, one crop."""
    points = {}
    cnn = [record for name, records in found.items() if ROWS[name].network.kind == "cnn" for record in records]
    cnn_speed = max(map(_best_speed, cnn), default=0.0)
    for name, records in found.items():
        if records:
            config = ROWS[name]
            if config.network.kind == "cnn":
                milliseconds: float | None = 1000 * config.train.batch_size / cnn_speed
            else:
                milliseconds = _timed(config, speeds)
            minutes = None if milliseconds is None else config.train.steps * milliseconds / 60_000
            error = 100 - sum(record.accuracy for record in records) / len(records)
            how = f"{mean_and_spread(records)} % right, n = {len(records)}"
            points[name] = Point(name, error, count_row_parameters(name), minutes, how)
    return points


def _best_speed(record: Record) -> float:
    """Images a second, of the quickest stretch of a run that its metrics tell."""
    return max(float(row["images_per_second"]) for row in read_metrics(record.folder) if "images_per_second" in row)


def _timed(config: RunConfig, speeds: Sequence[Row]) -> float | None:
    """Milliseconds of a step, None if it was not timed. One and two channels cost the same, nearly."""
    size = "full" if config.network.primary_types == preset("full").network.primary_types else "small"
    wanted = (size, config.network.conv1_types, config.network.iterations, config.data.crop, config.train.batch_size)
    timed = {
        row.what: row.median_ms
        for row in speeds
        if row.implementation == FUSED_GRAPH and (row.network, row.types, row.iterations, row.size, row.batch) == wanted
    }
    # Of a step that was not timed as a whole, forward and backward are all but some hundredths.
    return timed.get(STEP) or timed.get(BACKWARD)


def run_cost(runs: Path, speeds: Path, console: Console, figure: Path | None) -> None:
    """Show and draw what is recorded in `runs` and in the rows of `emcaps bench`."""
    ours = our_points(finished(ROWS, list(ROWS), runs), read_rows(speeds))
    console.print(cost_table(ours))
    print(markdown_table(ours))
    if figure is not None:
        draw_cost(list(ours.values()), figure)
        console.print(f"error against cost: {figure}", markup=False)


def cost_table(ours: Mapping[str, Point]) -> Table:
    table = plain_table("smallNORB: test error and cost")
    for column in ("network", "error, %", "parameters", "minutes"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for point in (*ours.values(), *PUBLISHED):
        table.add_row(point.who, *_cells(point))
    return table


def markdown_table(ours: Mapping[str, Point], link: str = "../results/table2/") -> str:
    """For the page: ours, with links to their runs, then the published ones."""
    lines = ["| network | error, % | parameters | minutes | how |", "|---|--:|--:|--:|---|"]
    for point in (*ours.values(), *PUBLISHED):
        who = f"[{point.who}]({link}{point.who})" if point.who in ours else point.who
        lines.append(f"| {who} | {' | '.join(_cells(point))} | {point.how} |")
    return "\n".join(lines)


def _cells(point: Point) -> list[str]:
    parameters = "-" if point.parameters is None else f"{point.parameters:,}"
    minutes = "-" if point.minutes is None else f"{point.minutes:,.1f}"
    return [f"{point.error:.1f}", parameters, minutes]


def draw_cost(ours: Sequence[Point], path: Path) -> None:
    """Two panels, logarithmic both ways: error against parameters and against minutes."""
    figure = new_figure((12, 6))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, attribute, label in (
        (panels[0], "parameters", "parameters"),
        (panels[1], "minutes", "minutes of training"),
    ):
        _draw_points(axes, ours, attribute, "C0", "ours, last step, mean of seeds")
        _draw_points(axes, PUBLISHED, attribute, "0.4", "published")
        _write_names(axes, ours, attribute)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(label)
        low, high = axes.get_xlim()
        axes.set_xlim(low / (20 if attribute == "parameters" else 5), high * 5)  # room for the names
        axes.grid(alpha=0.3, which="both")
    ticks = (1, 2, 3, 5, 10, 20)
    panels[0].set_yticks(ticks, [str(tick) for tick in ticks])
    panels[0].set_ylabel("test error, %")
    panels[1].legend(loc="lower right")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def _draw_points(axes: Any, points: Sequence[Point], attribute: str, colour: str, label: str) -> None:
    """Circles for stereo, triangles for mono."""
    for marker, view in (("o", "stereo"), ("v", "mono")):
        where = [
            (getattr(point, attribute), point.error)
            for point in points
            if getattr(point, attribute) is not None and ("mono" in point.who) == (view == "mono")
        ]
        if where:
            axes.scatter(*zip(*where, strict=True), c=colour, marker=marker, label=f"{label}, {view}", s=25)


def _write_names(axes: Any, ours: Sequence[Point], attribute: str) -> None:
    """Beside the points, moved down where they would meet on the same side."""
    gap, reach = (1.1, 3) if attribute == "parameters" else (1.2, 8)
    named: list[tuple[bool, float, float]] = []
    for point in sorted((*ours, *PUBLISHED), key=lambda point: -point.error):
        x, published = getattr(point, attribute), point in PUBLISHED
        if x is None:
            continue
        if published:
            leftwards = attribute == "minutes" or x < 100_000  # where ours stand beside them
        else:
            level = [getattr(other, attribute) / x for other in ours if 0.95 < other.error / point.error < 1.05]
            leftwards = min(level) >= 1 and 1.2 < max(level) < reach  # the first of a crowd
        near = [y for side, other, y in named if side == leftwards and 1 / reach < other / x < reach]
        height = min([point.error, *(y / 1.06 for y in near)])
        named.append((leftwards, x, height))
        place, side = (x / gap, "right") if leftwards else (x * gap, "left")
        colour = "0.4" if published else "C0"
        axes.text(place, height, point.who, ha=side, va="center", fontsize=6.5, color=colour)
