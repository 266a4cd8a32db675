"""Pictures of recorded rows: the headline as bars, and cost against batch size, iterations, image size and types.

matplotlib is imported when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from emcaps.bench.cases import (
    BACKWARD,
    BFLOAT16_GRAPH,
    COMPILED,
    FUSED,
    FUSED_COMPILED,
    FUSED_GRAPH,
    FUSED_ONE_THREAD,
    GRAPHED,
    NAMES,
    PLAIN,
    REFERENCE,
    SWEEPS,
    TASKS,
)
from emcaps.bench.rows import OK, OUT_OF_MEMORY, Row, newest
from emcaps.bench.tables import Comparison, headline, milliseconds, ratio
from emcaps.files import atomic_write
from emcaps.report.figures import new_figure

FORMATS = (".png", ".svg")
COLOURS = {
    PLAIN: "tab:brown",
    REFERENCE: "tab:gray",
    COMPILED: "tab:blue",
    FUSED: "tab:orange",
    FUSED_ONE_THREAD: "tab:olive",
    GRAPHED: "tab:green",
    FUSED_COMPILED: "tab:cyan",
    FUSED_GRAPH: "tab:red",
    BFLOAT16_GRAPH: "tab:purple",
}
TITLES = {"batch": "batch size", "iterations": "iterations", "size": "image side, pixels", "types": "capsule types"}
LOGARITHMIC = ("batch", "size", "types")
WIDTH, HEIGHT = 13, 3.2
"""Inches of the picture, and of each line of panels."""


class Sweep(NamedTuple):
    """Rows of one network that differ in one axis and in the implementation, but in nothing else."""

    network: str
    axis: str
    fixed: dict[str, Any]
    """The values that all rows share."""
    rows: list[Row]


def draw_rows(rows: Sequence[Row], path: Path) -> None:
    """Draw a line of panels for the headline and one for each network, leaving out those without rows."""
    if path.suffix not in FORMATS:
        raise ValueError(f"a picture is written as {' or '.join(FORMATS)}, not as {path.suffix!r}: rename {path}")
    rows = list(newest(rows).values())
    timed = [found for found in headline(rows) if found.timed(REFERENCE)]
    bars = [[found for found in timed if found.case.what == task] for task in TASKS]
    found_sweeps = sweeps(rows)
    lines: list[list[Any]] = [[group for group in bars if group]]
    lines += [
        [sweep for sweep in found_sweeps if sweep.network == network]
        for network in dict.fromkeys(sweep.network for sweep in found_sweeps)
    ]
    lines = [line for line in lines if line]
    if not lines:
        raise ValueError(
            "there is nothing to draw: it takes rows of the headline, or rows that differ in one of "
            f"{', '.join(SWEEPS)} alone; run `emcaps bench --suite all`"
        )
    figure = new_figure((WIDTH, HEIGHT * len(lines) + 0.6))
    parts = figure.subfigures(len(lines), 1, squeeze=False)[:, 0]
    for part, line in zip(parts, lines, strict=True):
        for axes, panel in zip(part.subplots(1, len(line), squeeze=False)[0], line, strict=True):
            _draw_sweep(axes, panel) if isinstance(panel, Sweep) else _draw_bars(axes, panel)
    used = [name for name in NAMES if any(row.implementation == name for row in rows)]
    handles = [figure.gca().plot([], [], color=COLOURS[name], linewidth=5)[0] for name in used]
    figure.legend(handles, used, loc="outside upper center", ncols=len(used), fontsize=9, title=_devices(rows))
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110, format=path.suffix[1:])


def sweeps(rows: Sequence[Row]) -> list[Sweep]:
    """For each network and axis the longest series of rows that differ along that axis alone."""
    found = []
    for network in dict.fromkeys(row.network for row in rows):
        for axis in SWEEPS:
            others = [name for name in ("what", *SWEEPS) if name != axis]
            series: dict[tuple[Any, ...], list[Row]] = {}
            for row in rows:
                if row.network == network:
                    series.setdefault(tuple(getattr(row, name) for name in others), []).append(row)
            values, longest = max(series.items(), key=lambda item: (_timed(item[1], axis), item[0][0] == BACKWARD))
            if _timed(longest, axis) > 1:
                found.append(Sweep(network, axis, dict(zip(others, values, strict=True)), longest))
    return found


def _timed(rows: Iterable[Row], axis: str) -> int:
    """How many values of the axis were timed."""
    return len({getattr(row, axis) for row in rows if row.status == OK})


def _draw_sweep(axes: Any, sweep: Sweep) -> None:
    for name in NAMES:
        rows = sorted(
            (row for row in sweep.rows if row.implementation == name), key=lambda row: int(getattr(row, sweep.axis))
        )
        timed = [row for row in rows if row.median_ms is not None]
        places, times = [getattr(row, sweep.axis) for row in timed], [row.median_ms for row in timed]
        axes.plot(places, times, marker="o", markersize=4, color=COLOURS[name])
        lost = [getattr(row, sweep.axis) for row in rows if row.status == OUT_OF_MEMORY]
        for place in lost:
            axes.plot(place, 0.97, marker="x", color=COLOURS[name], transform=axes.get_xaxis_transform())
        if lost:
            where = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "ha": "right"}
            axes.annotate("out of memory", (min(lost), 0.95), (-6, 0), fontsize=7, color=COLOURS[name], **where)
    ticks = sorted({int(getattr(row, sweep.axis)) for row in sweep.rows})
    axes.set_yscale("log")
    if sweep.axis in LOGARITHMIC:
        axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel(TITLES[sweep.axis], fontsize=8)
    _finish(axes, _title(sweep))


def _draw_bars(axes: Any, group: Sequence[Comparison]) -> None:
    """Draw a cluster of bars for each network, each with its milliseconds and its speed relative to the reference."""
    names = [name for name in NAMES if any(found.timed(name) for found in group)]
    width = 0.9 / len(names)
    for place, found in enumerate(group):
        base = found.timed(REFERENCE)
        for index, name in enumerate(names):
            row = found.timed(name)
            if row is None or row.median_ms is None or base is None or base.median_ms is None:
                continue
            left = place + (index - (len(names) - 1) / 2) * width
            axes.bar(left, row.median_ms, width, color=COLOURS[name])
            faster = "" if name == REFERENCE else f"\n{ratio(base.median_ms / row.median_ms)}"
            axes.annotate(
                milliseconds(row.median_ms) + faster,
                (left, row.median_ms),
                (0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
    labels = [f"{found.case.network}, {found.case.iterations} iterations" for found in group]
    axes.set_xticks(range(len(group)), labels)
    axes.set_yscale("log")
    axes.margins(y=0.2)
    case = group[0].case
    _finish(axes, f"{case.what}\n{case.size}x{case.size}, batch {case.batch}, and times faster than the reference")


def _finish(axes: Any, title: str) -> None:
    axes.minorticks_off()
    axes.set_title(title, fontsize=8)
    axes.set_ylabel("ms", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _title(sweep: Sweep) -> str:
    texts = {"iterations": "{} iterations", "size": "{0}x{0}", "batch": "batch {}", "types": "{} types"}
    parts = [text.format(sweep.fixed[name]) for name, text in texts.items() if name in sweep.fixed]
    return f"{sweep.network}: {sweep.fixed['what']}\n{', '.join(parts)}"


def _devices(rows: Sequence[Row]) -> str:
    return "; ".join(dict.fromkeys(f"{row.device}, torch {row.torch}, tf32 {row.tf32}" for row in rows))
