"""Line charts for pages: SVG that stretches with the page, labels that keep their size, and a table of the values.

The page's script (SCRIPT) lets a pointer or the arrow keys read single values. Without it the chart and the table say
the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from emcaps.report.html import Html, details, escape, join, json_data, table, tag

STYLES = 8
"""How many colours there are; further lines have the same colours, dashed."""
DASHES = ("", "7 4", "2 3")
MOST_LINES = STYLES * len(DASHES)
MOST_POINTS, MOST_ROWS = 300, 24
"""How many points of a line are drawn, and how many rows a table of values has."""
TINY = 1e-100
LOG_RANGE = 20
"""Values whose largest is this many times the smallest are drawn on a logarithmic scale, where that is allowed."""
SIZE = 1000
"""The plot's sides in the units of its own coordinates."""

STYLE = (
    """
.charts { display: grid; gap: 1.2rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); }
.chart { margin: .6rem 0; min-width: 0; }
.chart figcaption { font-weight: 600; margin-bottom: .5rem; }
.chart details { margin: 0; }
.plot { display: grid; grid-template: 13rem 2.6rem / 3.6rem 1fr; }
.plot .rows, .plot .columns { position: relative; font-size: .8rem; color: var(--quiet); }
.plot .rows span { position: absolute; right: .5rem; transform: translateY(-50%); white-space: nowrap; }
.plot .columns { grid-column: 2; }
.plot .columns span { position: absolute; transform: translateX(-50%); white-space: nowrap; top: .15rem; }
.plot .columns .along { left: 50%; top: 1.25rem; }
.plot svg { width: 100%; height: 100%; overflow: visible; display: block; touch-action: pan-y; }
.plot svg * { vector-effect: non-scaling-stroke; fill: none; }
.plot .grid { stroke: var(--edge); stroke-width: 1; }
.plot .cursor { stroke: var(--quiet); stroke-width: 1; }
.plot .line, .swatch line { stroke-width: 2; stroke-linejoin: round; }
.plot .dot { stroke-width: 7; stroke-linecap: round; }
.chart output { display: block; min-height: 1.7em; font-size: .85rem; font-variant-numeric: tabular-nums; }
.chart output span { display: inline-block; margin-right: 1rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; padding: 0; }
.swatch { width: 2.2rem; height: .8rem; margin-right: .4rem; }
"""
    + "".join(f".line-{n} {{ stroke: var(--line-{n}); }}\n" for n in range(1, STYLES + 1))
    + "".join(f".dash-{n} {{ stroke-dasharray: {dash}; }}\n" for n, dash in enumerate(DASHES) if dash)
)

SCRIPT = """
"use strict";
for (const chart of document.querySelectorAll(".chart")) {
  const {unit, along, first, last, lines} = JSON.parse(chart.querySelector("script").textContent);
  const svg = chart.querySelector("svg"), output = chart.querySelector("output");
  const cursor = svg.querySelector(".cursor");
  const places = [...new Set(lines.flatMap(line => line.x))].sort((a, b) => a - b);
  const nearest = (list, x) =>
    list.reduce((best, one, i) => Math.abs(one - x) < Math.abs(list[best] - x) ? i : best, 0);
  let at = places.length - 1;
  function show(index) {
    at = Math.max(0, Math.min(places.length - 1, index));
    const x = places[at], across = 1000 * (last > first ? (x - first) / (last - first) : 0.5);
    cursor.setAttribute("x1", across);
    cursor.setAttribute("x2", across);
    cursor.removeAttribute("visibility");
    const texts = [`${along} ${x.toLocaleString("en")}`];
    for (const line of lines) {
      const value = line.y[nearest(line.x, x)];
      texts.push(`${lines.length > 1 ? line.name + ": " : ""}${value}${unit}`);
    }
    output.replaceChildren(...texts.map(text => {
      const span = document.createElement("span");
      span.textContent = text;
      return span;
    }));
    svg.setAttribute("aria-valuenow", x);
    svg.setAttribute("aria-valuetext", texts.join(", "));
  }
  // A slider is what arrow keys move along a range, and it tells its value; without this script the chart is a picture.
  svg.setAttribute("role", "slider");
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("aria-valuemin", places[0]);
  svg.setAttribute("aria-valuemax", places[places.length - 1]);
  svg.setAttribute("aria-valuenow", places[at]);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    show(nearest(places, first + (event.clientX - box.left) / box.width * (last - first)));
  });
  svg.addEventListener("focus", () => show(at));
  svg.addEventListener("keydown", event => {
    const large = Math.max(1, Math.round(places.length / 10));
    const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -large, PageUp: large,
      Home: -places.length, End: places.length};
    if (event.key in steps) {
      show(at + steps[event.key]);
      event.preventDefault();
    }
  });
}
"""


Scale = Literal["linear", "zero", "log"]


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    """(x, y) by rising x; points that are not finite are left out."""
    style: int = 0
    """Which colour and dash it has, counted from 0."""


def line_chart(
    title: str, lines: Sequence[Line], *, along: str = "step", unit: str = "", scale: Scale = "linear"
) -> Html:
    """A figure of lines over the same x, which starts at 0. `unit` follows every value, such as " %".

    The scale of the values is "linear"; or "zero", linear from 0 on; or "log", logarithmic if they differ much, else as
    "zero". No figure is made if no line has a point.
    """
    lines = [line._replace(points=_drawn(line.points, scale == "log")) for line in lines]
    lines = [line for line in lines if line.points]
    if not lines:
        return Html("")
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    first, last = min(0, *xs), max(xs)
    log = scale == "log" and max(ys) > LOG_RANGE * min(ys)
    least = min(ys) if log or scale == "linear" else min(0, *ys)
    rows = _log_ticks(least, max(ys)) if log else _ticks(least, max(ys))
    if unit == " %":
        rows = [row for row in rows if row <= 100]  # there is nothing above
    low, high = min([*rows, *ys]), max([*rows, *ys])
    columns = [tick for tick in _ticks(first, last) if first <= tick <= last]

    def across(x: float) -> float:
        return SIZE * ((x - first) / (last - first) if last > first else 0.5)

    def down(y: float) -> float:
        if log:
            y, bottom, top = math.log(y), math.log(low), math.log(high)
        else:
            bottom, top = low, high
        return SIZE * (1 - (y - bottom) / (top - bottom))

    drawing = [
        *(f'<line class="grid" x1="0" x2="{SIZE}" y1="{down(y):.1f}" y2="{down(y):.1f}"/>' for y in rows),
        f'<line class="cursor" y1="0" y2="{SIZE}" visibility="hidden"/>',
        *(_drawn_line(line, across, down) for line in lines),
    ]
    summary = f"{title} by {along}{', logarithmic scale' if log else ''}. " + _in_words(lines, along, unit)
    svg = (
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img" aria-label="{escape(summary)}">'
        f"{''.join(drawing)}</svg>"
    )
    labels_left = "".join(f'<span style="top:{down(y) / 10:.1f}%">{_short(y)}{unit}</span>' for y in rows)
    along_label = f'<span class="along">{escape(along)}</span>'
    labels_below = "".join(f'<span style="left:{across(x) / 10:.1f}%">{_short(x)}</span>' for x in columns)
    plot = (
        f'<div class="plot"><div class="rows" aria-hidden="true">{labels_left}</div>{svg}'
        f'<div class="columns" aria-hidden="true">{labels_below}{along_label}</div></div>'
    )
    data = {
        "unit": unit,
        "along": along,
        "first": first,
        "last": last,
        "lines": [
            {"name": line.name, "x": [x for x, _ in line.points], "y": [float(f"{y:.4g}") for _, y in line.points]}
            for line in lines
        ],
    }
    caption = title + (" (logarithmic scale)" if log else "")
    parts = [
        tag("figcaption", caption),
        Html(plot),
        tag("output", aria_live="off"),
        _values(title, lines, along, unit),
        json_data(data),
    ]
    return tag("figure", join(parts), class_="chart")


def legend(names: Sequence[tuple[str, int]]) -> Html:
    """The names with the colours and dashes that lines of these styles have."""
    items = [
        tag(
            "li",
            join(
                [
                    Html(
                        '<svg class="swatch" viewBox="0 0 36 12" aria-hidden="true">'
                        f'<line class="{_class(style)}" x1="1" x2="35" y1="6" y2="6"/></svg>'
                    ),
                    name,
                ],
                "",
            ),
        )
        for name, style in names
    ]
    return tag("ul", join(items), class_="legend")


def _drawn(points: Sequence[tuple[float, float]], log: bool) -> list[tuple[float, float]]:
    """The points that can be drawn, at most MOST_POINTS of them: evenly chosen, with the last one.

    A log scale needs y above 0. Numbers of absurd size are left out, and absurdly small ones are 0, so that the
    distances between them can be computed.
    """
    finite = [(x, 0.0 if abs(y) < TINY else y) for x, y in points if abs(y) < 1 / TINY]  # not for NaN
    finite = [(x, y) for x, y in finite if y > 0 or not log]
    step = -(-len(finite) // MOST_POINTS) or 1
    return finite[::-step][::-1]


def _drawn_line(line: Line, across: Callable[[float], float], down: Callable[[float], float]) -> str:
    places = [f"{across(x):.1f},{down(y):.1f}" for x, y in line.points]
    if len(places) == 1:
        x, y = places[0].split(",")
        return f'<line class="dot {_class(line.style)}" x1="{x}" x2="{x}" y1="{y}" y2="{y}"/>'
    return f'<polyline class="line {_class(line.style)}" points="{" ".join(places)}"/>'


def _class(style: int) -> str:
    dash = style // STYLES % len(DASHES)
    return f"line-{style % STYLES + 1}" + (f" dash-{dash}" if dash else "")


def _in_words(lines: Sequence[Line], along: str, unit: str) -> str:
    """Where the lines begin and end; of many, how many there are."""
    if len(lines) > STYLES:
        return f"{len(lines)} lines; their values are in the table below."
    texts = []
    for line in lines:
        (first, start), (last, end) = line.points[0], line.points[-1]
        journey = f"from {start:.4g}{unit} at {along} {first:,g} to " if last > first else ""
        texts.append(f"{line.name}: {journey}{end:.4g}{unit} at {along} {last:,g}.")
    return " ".join(texts)


def _values(title: str, lines: Sequence[Line], along: str, unit: str) -> Html:
    places = sorted({x for line in lines for x, _ in line.points})
    step = -(-len(places) // MOST_ROWS)
    known = [dict(line.points) for line in lines]
    rows = [
        [f"{place:,g}", *("" if place not in values else f"{values[place]:.4g}" for values in known)]
        for place in places[::-step][::-1]
    ]
    caption = f"{title}{f', in{unit}' if unit else ''}" + (f": every {step}th value" if step > 1 else "")
    return details("Values", table(caption, [along, *(line.name for line in lines)], rows))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from at most `low` to at least `high`, about five of them."""
    if high - low <= 1e-3 * abs(high):  # else the labels would all be the same
        low, high = low - (abs(low) / 20 or 0.5), high + (abs(high) / 20 or 0.5)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [
        float(f"{number * step:.6g}")
        for number in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    ]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from at most `low` to at least `high`; every second or third one if they are many."""
    bottom, top = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    step = max(1, -(-(top - bottom) // 6))
    return [10.0**power for power in range(bottom, top + step, step)]


def _short(value: float) -> str:
    """A tick's number, such as 0.05, 250, 20k or 1e-05."""
    return f"{value / 1000:.4g}k" if abs(value) >= 10_000 else f"{value:.4g}"
