"""Errors of trained networks by toy: which toys they miss, and how far other toys might change a figure.

The test set has five toys of each category. Seeds differ in their weights and share these toys, so a spread over seeds
says nothing about other toys. The standard error over toys does: it treats the toys of a category as drawn at random.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from emcaps.experiments.records import Record
from emcaps.files import read_json
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.train.run_folder import EVALUATION

INSTANCES = "test instances"


class ToyErrors(NamedTuple):
    """How often the runs of a row missed a toy, in percent, a number for each run."""

    category: str
    instance: int
    wrong: tuple[float, ...]
    """Of the toy's images."""
    share: tuple[float, ...]
    """Of all errors of the run."""
    taken_for: tuple[str, ...]
    """What the run took it for most often."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.wrong)


def by_toy(records: Sequence[Record]) -> list[ToyErrors]:
    """The errors on each test toy, of the runs that recorded them; none if no run did."""
    runs = [read_json(record.folder / EVALUATION).get(INSTANCES) for record in records]
    found: dict[tuple[str, int], list[tuple[float, float, str]]] = {}
    for toys in filter(None, runs):
        total = sum(toy["wrong"] for toy in toys) or 1
        for toy in toys:
            seen = 100 * toy["wrong"] / toy["images"], 100 * toy["wrong"] / total, toy["mostly"]
            found.setdefault((toy["category"], toy["instance"]), []).append(seen)
    return [ToyErrors(*name, *zip(*seen, strict=True)) for name, seen in sorted(found.items())]


def error_over_toys(wrong: Mapping[tuple[str, int], float]) -> float:
    """The standard error over toys of the mean of `wrong`, given by (category, instance), in its unit.

    Categories are fixed and toys are drawn within them, as many in each.
    """
    categories: dict[str, list[float]] = {}
    for (category, _), value in sorted(wrong.items()):
        categories.setdefault(category, []).append(value)
    variances = [statistics.variance(values) / len(values) for values in categories.values()]
    return math.sqrt(sum(variances)) / len(variances)


def markdown_over_toys(found: Mapping[str, Sequence[Record]], rows: Sequence[str], link: str) -> str:
    """The mean error of rows, with its standard errors over seeds and over toys."""
    lines = []
    for row in rows:
        toys = by_toy(found[row])
        runs = list(zip(*(toy.wrong for toy in toys), strict=True))
        means = [statistics.fmean(run) for run in runs]
        seeds = f"{statistics.stdev(means) / math.sqrt(len(means)):.2f}" if len(means) > 1 else "-"
        over_toys = error_over_toys({(toy.category, toy.instance): toy.mean for toy in toys})
        name = markdown_link(row, link + row)
        lines.append((name, str(len(runs)), f"{statistics.fmean(means):.2f}", seeds, f"{over_toys:.2f}"))
    header = ("row", "runs", "error, %", "standard error over seeds", "standard error over toys")
    return markdown_table(header, lines)


def markdown_paired(found: Mapping[str, Sequence[Record]], pairs: Sequence[tuple[str, str]], link: str) -> str:
    """The error of one row less that of another, toy by toy, with its standard error over toys."""
    lines = []
    for row, other in pairs:
        wrong, others = ({toy[:2]: toy.mean for toy in by_toy(found[one])} for one in (row, other))
        difference = {name: wrong[name] - others[name] for name in wrong}
        better = sum(value < 0 for value in difference.values())
        mean, error = statistics.fmean(difference.values()), error_over_toys(difference)
        names = (markdown_link(one, link + one) for one in (row, other))
        lines.append((*names, f"{mean:+.1f} ± {error:.1f}", f"{better} of {len(difference)}"))
    return markdown_table(("row", "less", "error, points", "toys with fewer errors"), lines, left=(0, 1))


def markdown_missed(records: Sequence[Record], title: str, count: int) -> str:
    """The toys that the runs of a row get wrong most often: means over seeds, and what they are taken for."""
    lines = [
        (
            f"{toy.category} {toy.instance}",
            f"{toy.mean:.1f}",
            f"{min(toy.wrong):.1f} to {max(toy.wrong):.1f}",
            f"{statistics.fmean(toy.share):.0f}",
            " or ".join(sorted(set(toy.taken_for))),
        )
        for toy in sorted(by_toy(records), key=lambda toy: -toy.mean)[:count]
    ]
    header = (title, "wrong, % of its images", "by seed", "of all errors, %", "mostly taken for")
    return markdown_table(header, lines, left=(0, 4))
