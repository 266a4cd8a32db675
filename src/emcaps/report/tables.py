"""Tables for the terminal, made from plain results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from emcaps.data.prepared import Examples
    from emcaps.export import Exported
    from emcaps.nn.summary import LayerRow
    from emcaps.report.settings import Setting
    from emcaps.train.evaluate import Evaluation, InstanceErrors


def plain_table(title: str) -> Table:
    """An empty table in the style of all of ours: a rule below the header, no frame.

    The title may be a path or a message: square brackets in it are shown, not read as markup.
    """
    return Table(title=Text(title, "table.title"), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)


def layer_table(rows: Sequence[LayerRow], title: str) -> Table:
    """The paper's Table 1, with a column of parameters."""
    routed = any(row.mean_data is not None for row in rows)
    table = plain_table(title)
    for column in ("Layer", "Details", "Output shape"):
        table.add_column(column, no_wrap=True)
    if routed:
        table.add_column("Max\ndata", justify="right")
        table.add_column("Mean\ndata", justify="right")
    table.add_column("Parameters", justify="right")
    for index, row in enumerate(rows):
        name = row.layer if index == 0 else f"↳ {row.layer}"
        shape = f"(?, {', '.join(str(size) for size in row.output_shape)})"
        data = [
            "" if row.max_data is None else str(row.max_data),
            "" if row.mean_data is None else _three_digits(row.mean_data),
        ]
        parameters = f"{row.parameters:,}" if row.parameters else ""
        parameters = parameters if row.counted else f"({parameters})"
        table.add_row(name, row.details, shape, *(data if routed else []), parameters)
    table.add_section()
    total = f"{sum(row.parameters for row in rows if row.counted):,}"
    table.add_row("total", "", "", *(["", ""] if routed else []), total)
    return table


def _three_digits(value: float) -> str:
    """Write numbers as 2.61, 80.0, 160 and 3,530."""
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:,.0f}"


MOST_COLUMNS = 12
"""A confusion matrix of more classes is too wide to read."""
MOST_ROWS = 20
"""How many rows a table of confusions, or of classes, shows."""


def confusion_table(result: Evaluation, categories: Sequence[str], title: str) -> Table:
    """A row for each true class, a column for each class that the network gave, in percent of the row.

    With more than 12 classes it lists the most frequent confusions instead.
    """
    if len(categories) > MOST_COLUMNS:
        return _worst_confusions(result, categories, title)
    table = plain_table(title)
    table.add_column("true \\ given")
    for category in categories:
        table.add_column(Text(category), justify="right")
    table.add_column("images", justify="right")
    for true, (category, counts) in enumerate(zip(categories, result.confusion, strict=True)):
        images = sum(counts)
        cells = [
            Text(f"{100 * count / images:.1f}" if images else "-", "bold" if given == true else "")
            for given, count in enumerate(counts)
        ]
        table.add_row(Text(category), *cells, f"{images:,}")
    return table


def _worst_confusions(result: Evaluation, categories: Sequence[str], title: str) -> Table:
    table = plain_table(title)
    for column in ("true", "given", "times", "% of true"):
        table.add_column(column, justify="left" if column in ("true", "given") else "right")
    confusion = np.array(result.confusion)
    wrong = confusion - np.diag(confusion.diagonal())
    for place in np.argsort(-wrong, axis=None, kind="stable")[:MOST_ROWS]:
        true, given = divmod(int(place), len(categories))
        if wrong[true, given]:
            share = f"{100 * wrong[true, given] / confusion[true].sum():.1f}"
            table.add_row(Text(categories[true]), Text(categories[given]), f"{wrong[true, given]:,}", share)
    return table


def instance_table(instances: Sequence[InstanceErrors], title: str) -> Table:
    """The objects that were not always recognised, the worst first."""
    table = plain_table(title)
    for column in ("category", "instance", "images", "wrong", "wrong, %", "of all\nerrors, %", "mostly\ntaken for"):
        table.add_column(column, justify="left" if column in ("category", "mostly\ntaken for") else "right")
    errors = sum(one.wrong for one in instances)
    for one in instances:
        if one.wrong:
            shares = (f"{100 * one.wrong / whole:.1f}" for whole in (one.images, errors))
            counts = (str(one.instance), f"{one.images:,}", f"{one.wrong:,}")
            table.add_row(Text(one.category), *counts, *shares, Text(one.mostly))
    return table


def prediction_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """What a network says of each picture: the answer and the next best class, with their scores."""
    table = plain_table(title)
    for column in ("file", "answer", "score", "next", "score"):
        table.add_column(column, justify="right" if column == "score" else "left", overflow="fold")
    for row in rows:
        best = sorted(row["scores"].items(), key=lambda item: -item[1])[:2]
        cells = [cell for name, score in best for cell in (Text(name), Text(f"{score:.3f}"))]
        table.add_row(Text(row["file"]), *cells)
    return table


def pairs_table(values: Mapping[str, object], title: str) -> Table:
    """Two columns of names and values, shown as they are."""
    table = plain_table(title)
    table.show_header = False
    for name, value in values.items():
        table.add_row(Text(name), Text(str(value)))
    return table


def settings_table(settings: Sequence[Setting], title: str) -> Table:
    """A line for each setting, with a rule below each section."""
    table = plain_table(title)
    for column in ("setting", "value", "what it is"):
        table.add_column(column, overflow="fold", no_wrap=column == "setting")
    for number, (section, *cells) in enumerate(settings):
        if number and settings[number - 1].section != section:
            table.add_section()
        table.add_row(*(Text(cell) for cell in cells))
    return table


def export_table(files: Sequence[Exported], title: str) -> Table:
    """Files of an exported network: how large, how near to PyTorch and how fast they are."""
    table = plain_table(title)
    for column in ("file", "KiB", "difference\nfrom PyTorch", "ms per\nimage", "PyTorch's\nms per image"):
        table.add_column(column, justify="left" if column == "file" else "right")
    for file in files:
        times = (f"{milliseconds:.2f}" for milliseconds in (file.milliseconds, file.torch_milliseconds))
        table.add_row(Text(str(file.path)), f"{file.size / 1024:,.0f}", f"{file.difference:.1e}", *times)
    return table


def holdings_table(parts: Mapping[str, Examples], title: str) -> Table:
    """What a data set holds: images, instances and viewpoints of each part, or the images of each class."""
    if not parts["train"].has_viewpoints:
        return _class_counts(parts, title)
    table = plain_table(title)
    for column in ("part", "pairs", "categories", "instances", "elevations", "azimuths", "lightings"):
        table.add_column(column, justify="left" if column == "part" else "right", no_wrap=True)
    for part, examples in parts.items():
        counts = [len(np.unique(getattr(examples, name))) for name in ("category", "elevation", "azimuth", "lighting")]
        instances = " ".join(str(instance) for instance in np.unique(examples.arrays["instance"]))
        cells = [str(counts[0]), instances, *(str(count) for count in counts[1:])]
        table.add_row(part, f"{len(examples.images):,}", *cells)
    return table


def _class_counts(parts: Mapping[str, Examples], title: str) -> Table:
    """How many images of each class there are in each part; of many classes, the first ones."""
    images = parts["train"].images
    kinds = {1: "grey", 3: "colour"}
    kind = kinds.get(images.shape[1], f"{images.shape[1]} channels")
    table = plain_table(f"{title}\n{images.shape[2]} x {images.shape[3]}, {kind}")
    table.add_column("class")
    for part in parts:
        table.add_column(part, justify="right")
    names = parts["train"].names
    counts = [np.bincount(examples.category, minlength=len(names)) for examples in parts.values()]
    shown = len(names) if len(names) <= MOST_ROWS else MOST_ROWS - 1
    for number in range(shown):
        table.add_row(Text(names[number]), *(f"{count[number]:,}" for count in counts))
    if shown < len(names):
        table.add_row(f"{len(names) - shown} more", *(f"{count[shown:].sum():,}" for count in counts))
    table.add_section()
    table.add_row("all", *(f"{count.sum():,}" for count in counts))
    return table
