"""The page on smallNORB: our figures beside published ones, the cost of each row, its seeds, and the toys it misses."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from emcaps.bench.cases import FUSED_GRAPH, STEP, Case
from emcaps.bench.rows import newest
from emcaps.documents.recorded import bench_rows, table2_records
from emcaps.experiments.estimates import markdown_comparisons, markdown_estimates
from emcaps.experiments.records import Record, spread
from emcaps.experiments.table2 import GOALS, ROWS, markdown_published, markdown_rows
from emcaps.experiments.toy_errors import markdown_missed, markdown_over_toys
from emcaps.report.markdown import markdown_link, markdown_table

CLOCKED = ("best-stereo-it2", (0, 101), GOALS[0])
"""A row, seeds whose runs had the GPU nearly to themselves, and the accuracy that they are asked for: Gritzman's."""
LONG = ("long-stereo-it3", GOALS[1])
"""A row whose runs shared a GPU, and the accuracy that it is asked for: Hinton's."""
COMPARED = {
    "best-mono-it1": "Gritzman, small, mono, 1 iteration",
    "long-mono-it2": "Gritzman, small, mono, 2 iterations",
    "averaged-mono-it2": "Gritzman, small, mono, 2 iterations",
    "longest-mono-it2": "Gritzman, small, mono, 2 iterations",
    "best-mono-it3": "Gritzman, small, mono, 3 iterations",
    "long-stereo-it3": "Hinton, small, stereo, 3 iterations",
    "long-full-stereo-it2": "Hinton, full, stereo, 3 iterations",
}
"""Our best rows, and the published figure that each is to pass."""
BY_SEED = ("long-stereo-it3", "long-mono-it2", "averaged-mono-it2", "longest-mono-it2", "long-full-stereo-it2")

TOLD_BY_TOY = (
    *("longest-mono-it2", "averaged-mono-it2", "best-mono-it3", "long-stereo-it3"),
    *("best-cnn-stereo", "best-small-cnn-stereo"),
)
"""Rows of which several runs recorded their errors on each toy."""
MISSED = 5
"""How many of the toys that a row misses most are shown."""
AIMS = (
    ("small, mono, 2 iterations", "longest-mono-it2", 1, 95.7),
    ("small, mono, 3 iterations", "best-mono-it3", 1, 95.7),
    ("small, stereo", "long-stereo-it3", 1, 98.2),
    ("full, stereo", "long-full-stereo-it2", 1, 98.5),
    ("full, stereo, 13 crops", "long-full-stereo-it2", 13, 98.7),
)
"""Network, our best row, how many crops of an image it sees, and the accuracy that we aimed at."""


def published(results: str) -> str:
    return markdown_published(table2_records(), f"{results}/table2/")


def rows(results: str) -> str:
    return markdown_rows(table2_records(), f"{results}/table2/")


def comparisons(results: str) -> str:
    return markdown_comparisons(table2_records(), COMPARED, f"{results}/table2/")


def estimates(results: str) -> str:
    return markdown_estimates(table2_records(), f"{results}/table2/")


def time_to_accuracy(results: str) -> str:
    """When an accuracy is first found, and when for good: by the clock for the runs that had the GPU nearly to
    themselves, and by the benchmark's time of a step for those that shared it."""
    lines = []
    row, seeds, goal = CLOCKED
    for record in table2_records()[row]:
        if record.seed in seeds:
            first = next((seconds for _, accuracy, seconds in record.curve if accuracy >= goal), None)
            lines.append(_time_line(record, goal, first, record.seconds, "the clock, evaluations included", results))
    row, goal = LONG
    network, train = ROWS[row].network, ROWS[row].train
    case = Case("small", network.conv1_types, ROWS[row].data.crop, train.batch_size, network.iterations, STEP)
    step = (newest(bench_rows("h200"))[case, FUSED_GRAPH].median_ms or 0.0) / 1000
    for record in table2_records()[row]:
        steps = record.steps_to(goal)
        first = None if steps is None else steps * step
        lines.append(_time_line(record, goal, first, train.steps * step, "steps times the benchmark's step", results))
    header = ("run", "accuracy, %", "first at step", "for good from step", "seconds to first", "seconds in all", "by")
    return markdown_table(header, lines, left=(0, 6))


def _time_line(
    record: Record, goal: float, first: float | None, total: float, by: str, results: str
) -> tuple[str, ...]:
    row = record.folder.parent.name
    run = markdown_link(f"{row}, seed {record.seed}", f"{results}/table2/{row}/{record.folder.name}")
    counts = (record.steps_to(goal), _held_from(record, goal), first, total)
    return run, str(goal), *("-" if count is None else f"{count:,.0f}" for count in counts), by


def _held_from(record: Record, goal: float) -> int | None:
    """The step of the evaluation from which on all find the accuracy; None if the last does not."""
    below = [number for number, (_, accuracy, _) in enumerate(record.curve, start=1) if accuracy < goal]
    after = record.curve[below[-1] if below else 0 :]
    return after[0][0] if after else None


def seeds(results: str) -> str:
    """The accuracy of every seed of the rows that the page tells most of."""
    found = {row: {record.seed: record for record in table2_records()[row]} for row in BY_SEED}
    numbers = sorted({seed for records in found.values() for seed in records})
    lines = []
    for row, records in found.items():
        cells = [
            markdown_link(f"{records[seed].accuracy:.2f}", f"{results}/table2/{row}/seed{seed}")
            if seed in records
            else "-"
            for seed in numbers
        ]
        lines.append((row, *cells))
    return markdown_table(("row", *(f"seed {number}, %" for number in numbers)), lines)


def missed_toys(row: str, results: str) -> str:
    return markdown_missed(table2_records()[row], markdown_link(f"toy, {row}", f"{results}/table2/{row}"), MISSED)


def over_toys(results: str) -> str:
    return markdown_over_toys(table2_records(), TOLD_BY_TOY, f"{results}/table2/")


def aims(results: str) -> str:
    """What we aimed at, what we have, and how much is missing."""
    lines = []
    for network, row, crops, aim in AIMS:
        found = [record.accuracy if crops == 1 else record.many_crops for record in table2_records()[row]]
        accuracies = [accuracy for accuracy in found if accuracy is not None]
        mean = statistics.fmean(accuracies)
        reached = f"{markdown_link(spread(accuracies, 2), f'{results}/table2/{row}')} (n = {len(accuracies)})"
        lines.append((network, f"{aim}", reached, f"{max(0.0, aim - mean):.2f}"))
    return markdown_table(("network", "aim, %", "reached, %", "missing, points"), lines)


BLOCKS: dict[str, Callable[[str], str]] = {
    "published": published,
    "comparisons": comparisons,
    "estimates": estimates,
    "rows": rows,
    "time-to-accuracy": time_to_accuracy,
    "seeds": seeds,
    "missed-toys": partial(missed_toys, TOLD_BY_TOY[0]),
    "missed-toys-stereo": partial(missed_toys, "long-stereo-it3"),
    "over-toys": over_toys,
    "aims": aims,
}
