"""The page of `emcaps report` about one or several runs. It is made from run folders and changes nothing there."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emcaps.config import PRESETS, RunConfig
from emcaps.files import check_replaces, write_text
from emcaps.names import first_of
from emcaps.nn.geometry import preset_name
from emcaps.nn.summary import parameters_of
from emcaps.report import run_sections, svg_charts
from emcaps.report.html import Html, details, generator_mark, join, page, section, table, tag, tiles
from emcaps.report.inspection import MISTAKES, PICTURED, Inspection
from emcaps.report.run_record import RunRecord
from emcaps.report.run_sections import run_sections as sections_of
from emcaps.report.settings import shown_value
from emcaps.report.svg_charts import MOST_LINES, STYLES, Line, Scale, legend, line_chart
from emcaps.train.schedules import learning_rate_of, margin_of
from emcaps.version import __version__

GENERATOR = "emcaps report"
LARGEST_PAGE = 5 * 10**6
PICTURE_BYTES = 3 * 10**6
"""How much of a page its pictures may take if they do not shrink when they are packed."""
LARGEST_SIDE = 96
"""Pictures have at most this many rows."""

Points = list[tuple[float, float]]
Runs = Sequence[tuple[RunRecord, Inspection | None]]


def check_place(path: Path, count: int) -> None:
    """Raise ValueError if the page may not be written to `path`, or if `count` runs are too many for one page."""
    if count > MOST_LINES:
        raise ValueError(f"a report has room for {MOST_LINES} runs, not {count}: name fewer")
    check_replaces(path, f"page of `{GENERATOR}`", b"<!doctype html>", generator_mark(GENERATOR).encode())


def write_report(runs: Runs, path: Path) -> None:
    """Write the page about these runs; what no inspection could find is told by the notes of the records."""
    text = report_page(runs)
    size = len(text.encode())
    if size > LARGEST_PAGE:
        raise ValueError(
            f"the report would take {size / 1e6:.1f} MB, more than {LARGEST_PAGE / 1e6:.0f}: name fewer runs"
        )
    check_place(path, len(runs))
    write_text(path, text)


def report_page(runs: Runs) -> str:
    records = [record for record, _ in runs]
    several = len(runs) > 1
    title = f"{len(runs)} runs compared" if several else _title(records[0])
    if several:
        parts = [("runs", "The runs", _comparison(runs)), ("settings", "What differs", _differences(records))]
    else:
        parts = [("settings", "Settings", _settings(records[0].config))]
    parts.append(("curves", "Curves", _curves(records)))
    body = [section(name, heading, *content) for name, heading, content in parts if content]
    links = [(name, heading) for name, heading, content in parts if content]
    for number, (record, found) in enumerate(runs, start=1):
        identity, side = f"run{number}", _side_of_pictures(record, len(runs))
        if several:
            inner = sections_of(record, found, identity, 3, side)
            content = [_notes(record), _headline(record, found), details("All settings", _all_settings(record.config))]
            body.append(section(identity, record.name, *content, *inner))
            links.append((identity, record.name))
        else:
            body += sections_of(record, found, identity, 2, side)
    if not several:
        links += _inner_links(body)
    navigation = tag("ul", join(tag("li", tag("a", text, href=f"#{name}")) for name, text in links))
    top = [tag("h1", title)]
    if not several:
        top += [tag("p", str(records[0].folder), class_="quiet"), _headline(*runs[0]), _notes(records[0])]
    top.append(tag("nav", navigation, aria_label="Parts of this page"))
    whole = join(
        [
            tag("header", join(top)),
            tag("main", join(body), id="content", tabindex=-1),
            tag("footer", join(["Made by ", tag("code", GENERATOR), f", emcaps {__version__}, from run folders."], "")),
        ]
    )
    style = svg_charts.STYLE + run_sections.STYLE
    return page(f"{title} · emcaps", whole, generator=GENERATOR, style=style, script=svg_charts.SCRIPT)


def _inner_links(body: Sequence[Html]) -> list[tuple[str, str]]:
    """The ids and headings of the parts that `run_sections` made."""
    made = join(body)
    return [(f"run1-{name}", title) for name, title in run_sections.TITLES.items() if f'id="run1-{name}"' in made]


def _title(record: RunRecord) -> str:
    data = record.config.data
    name = Path(data.dataset).name or data.dataset
    view = f", {data.view}" if not data.channels else ""
    return f"{preset_name(record.config.network)} on {name}{view}, seed {record.config.train.seed}"


def _headline(record: RunRecord, found: Inspection | None) -> Html:
    return tiles(_summary(record, found), main="test accuracy")


def _summary(record: RunRecord, found: Inspection | None) -> dict[str, object]:
    """The figures that stand on top of the page, and in the table of several runs."""
    config = record.config
    values: dict[str, object] = {"test accuracy": _accuracy(record, found)}
    for part, result in record.evaluations.items():
        if part != "test":
            values[f"{part} accuracy"] = f"{100 * result.accuracy:.2f} %"
    if record.many_crops is not None:
        values["with 13 crops"] = f"{100 * record.many_crops:.2f} %"
    done = record.step
    values["parameters"] = f"{parameters_of(config):,}"
    values["steps"] = f"{done:,}" if done == config.train.steps else f"{done:,} of {config.train.steps:,}"
    values["training time"] = _duration(record.seconds)
    values["device"] = shown_value(record.environment.get("device", "not known"))
    commit = shown_value(record.environment.get("commit"))
    values["commit"] = commit[:10] + ("+changes" if commit.endswith("+changes") else "")
    return values


def _accuracy(record: RunRecord, found: Inspection | None) -> Html | str:
    """The last accuracy that is known, with its step if that is not the run's last one."""
    if record.accuracy is not None:
        accuracy, step = record.accuracy
    elif found is not None:
        accuracy, step = found.evaluation.accuracy, found.step
    else:
        return "none yet"
    percent = f"{100 * accuracy:.2f}\u00a0%"
    return percent if step == record.config.train.steps else join([percent, tag("small", f"at step {step:,}")], " ")


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds <= 0:
        return "not known"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _notes(record: RunRecord) -> Html:
    return join(tag("p", note, class_="note") for note in record.notes)


def _flat(config: RunConfig) -> dict[str, Any]:
    return {
        f"{name}.{key}": value
        for name, settings in dataclasses.asdict(config).items()
        for key, value in settings.items()
    }


def _settings(config: RunConfig) -> list[Html]:
    name = preset_name(config.network)
    usual = _flat(PRESETS.get(name, RunConfig()))
    changed = {key: value for key, value in _flat(config).items() if value != usual[key]}
    base = f"the preset {name}" if name in PRESETS else "the defaults"
    rows = [[tag("code", key), shown_value(value), shown_value(usual[key])] for key, value in changed.items()]
    if rows:
        first = table(f"Settings that differ from {base}", ["setting", "this run", "usually"], rows, left=(0, 1, 2))
    else:
        first = tag("p", f"All settings are those of {base}.")
    return [first, details("All settings", _all_settings(config))]


def _all_settings(config: RunConfig) -> Html:
    rows = [[tag("code", key), shown_value(value)] for key, value in _flat(config).items()]
    return table("All settings", ["setting", "value"], rows, left=(0, 1))


def _comparison(runs: Runs) -> list[Html]:
    summaries = [_summary(record, found) for record, found in runs]
    columns = list(dict.fromkeys(key for one in summaries for key in one))
    rows = [
        [tag("a", record.name, href=f"#run{number}"), *(one.get(key, "") for key in columns)]
        for number, ((record, _), one) in enumerate(zip(runs, summaries, strict=True), start=1)
    ]
    content = [table("One row for each run", ["run", *columns], rows)]
    means = _means([record for record, _ in runs])
    return content + ([means] if means else [])


def _means(records: Sequence[RunRecord]) -> Html | None:
    """Means over runs that differ in the seed alone; None if there are none."""
    groups: dict[RunConfig, list[RunRecord]] = {}
    for record in records:
        if "test" in record.evaluations:
            groups.setdefault(_without_seed(record), []).append(record)
    rows = []
    for group in groups.values():
        by_seed = {record.config.train.seed: record for record in reversed(group)}  # a copy of a run is not another one
        if len(by_seed) > 1:
            values = [100 * record.evaluations["test"].accuracy for record in by_seed.values()]
            seeds = ", ".join(str(seed) for seed in sorted(by_seed))
            mean, spread = statistics.fmean(values), statistics.stdev(values)
            rows.append([f"{group[0].name} and {len(by_seed) - 1} more", seeds, f"{mean:.2f} ± {spread:.2f}"])
    caption = "Runs that differ in their seed alone: mean and standard deviation at the last step"
    return table(caption, ["runs", "seeds", "test accuracy, %"], rows, left=(0, 1)) if rows else None


def _differences(records: Sequence[RunRecord]) -> list[Html]:
    settings = [_flat(record.config) for record in records]
    differing = [key for key in settings[0] if any(one[key] != settings[0][key] for one in settings)]
    if not differing:
        return [tag("p", "All runs have the same settings.")]
    rows = [[tag("code", key), *(shown_value(one[key]) for one in settings)] for key in differing]
    header = ["setting", *(record.name for record in records)]
    return [table("Settings that are not the same in all runs", header, rows, left=range(len(header)))]


def _curves(records: Sequence[RunRecord]) -> list[Html]:
    accuracies = sorted({key for record in records for row in record.rows for key in row if key.endswith("_accuracy")})
    specs: list[tuple[str, list[Points], str, Scale]] = [
        ("Loss", [_column(record.rows, "loss") for record in records], "", "log")
    ]
    for key in ("accuracy", *accuracies):
        part = key.removesuffix("_accuracy").capitalize() if key != "accuracy" else "Training"
        specs.append((f"{part} accuracy", [_column(record.rows, key, 100) for record in records], " %", "linear"))
    specs += [
        ("Learning rate", [_learning_rates(record) for record in records], "", "zero"),
        ("Margin of the spread loss", [_margins(record) for record in records], "", "zero"),
    ]
    styles = _styles(records)
    charts = [
        line_chart(
            title,
            [Line(record.name, points, style) for record, points, style in zip(records, lines, styles, strict=True)],
            unit=unit,
            scale=scale,
        )
        for title, lines, unit, scale in specs
    ]
    if not any(charts):
        return []
    names = [(record.name, style) for record, style in zip(records, styles, strict=True)]
    drawn = tag("div", join(chart for chart in charts if chart), class_="charts")
    content = [legend(names), drawn] if len(records) > 1 else [drawn]
    if taught := [record for record in records if record.config.train.teachers]:
        whose = f" of {first_of([record.name for record in taught])}" if len(records) > 1 else ""
        text = f"The loss{whose} holds train.teaching times the cross-entropy with the teachers' answers, too."
        content.append(tag("p", text, class_="quiet"))
    return content


def _styles(records: Sequence[RunRecord]) -> list[int]:
    """How each run's lines look: runs that differ in the seed alone have one colour and other dashes, if that fits."""
    groups: dict[RunConfig, int] = {}
    found: list[int] = []
    for record in records:
        group = groups.setdefault(_without_seed(record), len(groups))
        member = sum(style % STYLES == group for style in found)
        found.append(group + STYLES * member)
    fits = 1 < len(groups) <= STYLES and max(found) < MOST_LINES
    return found if fits else list(range(len(records)))


def _without_seed(record: RunRecord) -> RunConfig:
    return record.config.override({"train.seed": 0})


def _column(rows: Sequence[Mapping[str, Any]], key: str, scale: float = 1.0) -> Points:
    """(step, value) of the rows that have it; of several rows of a step, the last one's."""
    return list({row["step"]: scale * row[key] for row in rows if key in row}.items())


def _learning_rates(record: RunRecord) -> Points:
    """As recorded; runs of old versions have no such rows, so theirs are computed from the schedule."""
    config = record.config.train
    return _column(record.rows, "learning_rate") or [
        (step, learning_rate_of(config, int(step) - 1)) for step, _ in _column(record.rows, "loss") if step
    ]


def _margins(record: RunRecord) -> Points:
    if record.config.train.loss != "spread":
        return []
    config = record.config.train
    return _column(record.rows, "margin") or [
        (step, margin_of(config, int(step) - 1)) for step, _ in _column(record.rows, "loss") if step
    ]


def _side_of_pictures(record: RunRecord, runs: int) -> int:
    """How many rows pictures may have, so that those of all runs fit into the page whatever they show."""
    network = record.config.network
    pictures = 2 * MISTAKES + PICTURED * (2 + network.iterations)  # a picture of a pair of cameras is twice as wide
    bytes_a_pixel = 3 * 4 / 3  # three colours, and four letters for three bytes
    return max(8, min(LARGEST_SIDE, int((PICTURE_BYTES / runs / pictures / bytes_a_pixel) ** 0.5)))
