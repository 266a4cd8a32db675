"""What accuracy costs: test error on smallNORB against parameters and minutes of training, ours beside published ones.

Our minutes are a row's steps times the milliseconds of a training step that had the GPU to itself, as `emcaps bench`
measured it with the preset's augmentation, because nearly all recorded runs shared a GPU. The benchmark has no CNN: for
the steps of a CNN we take the highest speed that a run of its size logged on a GPU, where it was alone at that moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from emcaps.bench.cases import BACKWARD, FUSED_GRAPH, STEP
from emcaps.bench.rows import Row, read_rows
from emcaps.config import NetworkConfig, RunConfig
from emcaps.experiments.published import FIGURES
from emcaps.experiments.records import Record, finished, mean_and_spread, runs_link
from emcaps.experiments.table2 import ROWS, is_full
from emcaps.files import atomic_write
from emcaps.nn.summary import parameters_of
from emcaps.report.figures import new_figure
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.tables import plain_table
from emcaps.train.run_folder import read_environment, read_metrics

SHARED = ("best-small-cnn-stereo",)
"""Rows of CNNs whose runs never had a GPU to themselves, so that their logs say nothing of a step's time."""


class Point(NamedTuple):
    """A trained network: its error and its cost."""

    who: str
    error: float
    """On the test set, in percent."""
    parameters: int | None
    minutes: float | None
    how: str
    """How the error was measured."""
    link: str = ""
    """To the source of a published figure."""


PUBLISHED = tuple(
    Point(figure.title, figure.error, figure.parameters, figure.minutes, figure.how, figure.source.link)
    for figure in FIGURES.values()
    if figure.title != "Officium, full, stereo, 3 iterations"  # whose log counts once, by its last step
)


def our_points(found: Mapping[str, Sequence[Record]], speeds: Sequence[Row]) -> dict[str, Point]:
    """The points of Table 2's rows: the mean over seeds at the last step, with one crop."""
    points = {}
    cnn_speeds: dict[NetworkConfig, float] = {}
    for name, records in found.items():
        if ROWS[name].network.kind == "cnn" and name not in SHARED:
            network = ROWS[name].network
            cnn_speeds[network] = max([cnn_speeds.get(network, 0.0), *map(_best_speed, filter(_not_on_a_cpu, records))])
    for name, records in found.items():
        if records:
            config = ROWS[name]
            if config.network.kind == "cnn":
                speed = cnn_speeds.get(config.network, 0.0)
                milliseconds = 1000 * config.train.batch_size / speed if speed else None
            else:
                milliseconds = _timed(config, speeds)
            minutes = None if milliseconds is None else config.train.steps * milliseconds / 60_000
            error = 100 - sum(record.accuracy for record in records) / len(records)
            how = f"{mean_and_spread(records)} % right, n = {len(records)}"
            points[name] = Point(name, error, parameters_of(ROWS[name]), minutes, how)
    return points


def _not_on_a_cpu(record: Record) -> bool:
    return not str(read_environment(record.folder).get("device")).startswith("cpu")


def _best_speed(record: Record) -> float:
    """The highest number of images a second in a run's metrics."""
    return max(float(row["images_per_second"]) for row in read_metrics(record.folder) if "images_per_second" in row)


def _timed(config: RunConfig, speeds: Sequence[Row]) -> float | None:
    """The milliseconds of a step, None if it was not timed. One channel costs nearly the same as two."""
    size = "full" if is_full(config) else "small"
    wanted = (size, config.network.conv1_types, config.network.iterations, config.data.crop, config.train.batch_size)
    timed = {
        row.what: row.median_ms
        for row in speeds
        if row.implementation == FUSED_GRAPH and (row.network, row.types, row.iterations, row.size, row.batch) == wanted
    }
    # Where no whole step was timed, forward and backward stand for it: the rest is a few hundredths of a step.
    return timed.get(STEP) or timed.get(BACKWARD)


def run_cost(runs: Path, speeds: Path, console: Console, figure: Path | None) -> None:
    """Show and draw what the runs in `runs` and the rows of `emcaps bench` in `speeds` say."""
    ours = our_points(finished(ROWS, list(ROWS), runs), read_rows(speeds))
    console.print(cost_table(ours))
    print(markdown_cost(ours, runs_link(runs)))
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


def markdown_cost(ours: Mapping[str, Point], link: str) -> str:
    """The table of the page: ours with links to their runs, then the published ones with links to their sources."""
    rows = []
    for point in (*ours.values(), *PUBLISHED):
        rows.append((markdown_link(point.who, point.link or link + point.who), *_cells(point), point.how))
    return markdown_table(("network", "error, %", "parameters", "minutes", "how"), rows, left=(0, 4))


def _cells(point: Point) -> list[str]:
    parameters = "-" if point.parameters is None else f"{point.parameters:,}"
    minutes = "-"
    if point.minutes is not None:
        minutes = f"{point.minutes:,.{1 if point.minutes < 100 else 0}f}"
    return [f"{point.error:.1f}", parameters, minutes]


def draw_cost(ours: Sequence[Point], path: Path) -> None:
    """Draw error against parameters and against minutes, in two panels with logarithmic axes."""
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
    """Draw circles for stereo and triangles for mono."""
    for marker, view in (("o", "stereo"), ("v", "mono")):
        where = [
            (getattr(point, attribute), point.error)
            for point in points
            if getattr(point, attribute) is not None and ("mono" in point.who) == (view == "mono")
        ]
        if where:
            axes.scatter(*zip(*where, strict=True), c=colour, marker=marker, label=f"{label}, {view}", s=25)


def _write_names(axes: Any, ours: Sequence[Point], attribute: str) -> None:
    """Write names beside the points, moved down where two on the same side would overlap."""
    gap, reach = (1.1, 3) if attribute == "parameters" else (1.2, 8)
    named: list[tuple[bool, float, float]] = []
    placed = [point for point in (*ours, *PUBLISHED) if getattr(point, attribute) is not None]
    for point in sorted(placed, key=lambda point: -point.error):
        x, published = getattr(point, attribute), point in PUBLISHED
        if published:
            leftwards = attribute == "minutes" or x < 100_000  # our names are on the right there
        else:
            as_good = [other for other in placed if other not in PUBLISHED and 0.95 < other.error / point.error < 1.05]
            level = [getattr(other, attribute) / x for other in as_good]
            leftwards = min(level) >= 1 and 1.2 < max(level) < reach  # the first of a crowd
        near = [y for side, other, y in named if side == leftwards and 1 / reach < other / x < reach]
        height = min([point.error, *(y / 1.06 for y in near)])
        named.append((leftwards, x, height))
        place, side = (x / gap, "right") if leftwards else (x * gap, "left")
        colour = "0.4" if published else "C0"
        axes.text(place, height, point.who, ha=side, va="center", fontsize=6.5, color=colour)
