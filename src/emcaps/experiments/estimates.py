"""How accurate a network is, by several estimates, and whether that passes a published figure by more than its noise.

The last step of a run is one noisy number. Published figures are sometimes that, sometimes the best evaluation of a
run, on the test set, and sometimes the mean of its last evaluations. So the rows that follow the paper have all three.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from emcaps.experiments.published import ESTIMATES, FIGURES
from emcaps.experiments.records import Record, mean_and_spread, spread
from emcaps.report.markdown import markdown_link, markdown_table

LAST_EVALUATIONS = 10
AS_LONG_AS_PUBLISHED = ("paper", "code")
"""The recipes with published schedules at their own speed; their rows have all three estimates."""
PASSED_BY = 2.0
"""How many standard errors a mean must lie above a published figure to have passed it."""
FEWEST_SEEDS = 5
"""With fewer seeds the standard error is too rough for that."""


class Comparison(NamedTuple):
    """The accuracies of a row's seeds beside a published one, in percent."""

    mean: float
    error: float
    """The standard error of the mean over seeds: the standard deviation over the square root of their number."""
    difference: float
    """The mean less the published accuracy."""
    verdict: str


def compare(accuracies: Sequence[float], published: float) -> Comparison:
    """Passed or missed by more than two standard errors, or level; fewer than five seeds decide nothing."""
    mean = statistics.fmean(accuracies)
    error = statistics.stdev(accuracies) / math.sqrt(len(accuracies)) if len(accuracies) > 1 else math.inf
    difference = mean - published
    verdict = "level" if abs(difference) <= PASSED_BY * error else "passed" if difference > 0 else "missed"
    return Comparison(mean, error, difference, verdict if len(accuracies) >= FEWEST_SEEDS else "too few seeds")


def markdown_comparisons(found: Mapping[str, Sequence[Record]], pairs: Mapping[str, str], link: str) -> str:
    """Rows beside the published figures that `pairs` names for them, by last steps with one crop."""
    rows = []
    for row, title in pairs.items():
        if records := found[row]:
            figure = FIGURES[title]
            one = compare([record.accuracy for record in records], figure.accuracy)
            several = 0 < one.error < math.inf
            rows.append(
                (
                    markdown_link(row, link + row),
                    f"{one.mean:.2f}",
                    f"{one.error:.2f}" if several else "-",
                    str(len(records)),
                    f"{figure.accuracy} {markdown_link(figure.who, figure.source.link)}",
                    f"{one.difference:+.2f}",
                    f"{one.difference / one.error:+.1f}" if several else "-",
                    one.verdict,
                )
            )
    header = (
        "row",
        "mean, %",
        "standard error",
        "seeds",
        "published, %",
        "difference",
        "in standard errors",
        "verdict",
    )
    return markdown_table(header, rows, left=(0, 4, 7))


def last_mean(record: Record) -> float:
    """The mean accuracy of a run's last ten evaluations."""
    return statistics.fmean(accuracy for _, accuracy, _ in record.curve[-LAST_EVALUATIONS:])


def best(record: Record) -> float:
    """The accuracy of a run's best evaluation; it was chosen on the test set, so it flatters."""
    return max(accuracy for _, accuracy, _ in record.curve)


def markdown_estimates(found: Mapping[str, Sequence[Record]], link: str) -> str:
    """The rows with published schedules: last step, mean of the last ten evaluations and best evaluation.

    Below them, what others measured with 2 iterations in mono, as far as they say.
    """
    rows = [
        (
            markdown_link(row, link + row),
            str(len(records)),
            mean_and_spread(records),
            spread([last_mean(record) for record in records], 2),
            spread([best(record) for record in records], 2),
        )
        for row, records in found.items()
        if records and row.startswith(AS_LONG_AS_PUBLISHED)
    ]
    rows += [(markdown_link(name, source.link), *counted) for name, source, counted in ESTIMATES]
    header = ("row", "seeds", "last step, %", f"mean of the last {LAST_EVALUATIONS} evaluations, %", "best, %")
    return markdown_table(header, rows)
