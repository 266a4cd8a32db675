"""The page on smallNORB: our figures beside published ones, the cost of each row, its seeds, and the toys it misses."""

from __future__ import annotations

import statistics

from emcaps.bench.cases import FUSED_GRAPH, STEP, Case
from emcaps.bench.rows import newest
from emcaps.documents.recorded import bench_rows, table2_records
from emcaps.experiments.estimates import markdown_comparisons, markdown_estimates
from emcaps.experiments.records import Record
from emcaps.experiments.table2 import GOALS, ROWS, markdown_published, markdown_rows
from emcaps.files import read_json
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.train.run_folder import EVALUATION

CLOCKED = ("best-stereo-it2", (0, 101), GOALS[0])
"""A row, seeds whose runs had the GPU nearly to themselves, and the accuracy that they are asked for: Gritzman's."""
LONG = ("long-stereo-it3", GOALS[1])
"""A row whose runs shared a GPU, and the accuracy that it is asked for: Hinton's."""
COMPARED = {
    "best-mono-it1": "Gritzman, small, mono, 1 iteration",
    "long-mono-it2": "Gritzman, small, mono, 2 iterations",
    "averaged-mono-it2": "Gritzman, small, mono, 2 iterations",
    "best-mono-it3": "Gritzman, small, mono, 3 iterations",
    "long-stereo-it3": "Hinton, small, stereo, 3 iterations",
    "long-full-stereo-it2": "Hinton, full, stereo, 3 iterations",
}
"""Our best rows, and the published figure that each is to pass."""
BY_SEED = ("long-stereo-it3", "long-mono-it2", "averaged-mono-it2", "long-full-stereo-it2")

MISSED = ("averaged-mono-it2", 5)
"""A row whose runs tell the errors on each toy, and how many of the toys that it misses most are shown."""


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


def missed_toys(results: str) -> str:
    """The toys that the runs of a row get wrong most often: means over seeds, and what they are taken for."""
    row, count = MISSED
    wrong: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    taken_for: dict[str, set[str]] = {}
    for record in table2_records()[row]:
        toys = read_json(record.folder / EVALUATION)["test instances"]
        total = sum(toy["wrong"] for toy in toys)
        for toy in toys:
            name = f"{toy['category']} {toy['instance']}"
            wrong.setdefault(name, []).append(100 * toy["wrong"] / toy["images"])
            shares.setdefault(name, []).append(100 * toy["wrong"] / total)
            taken_for.setdefault(name, set()).add(toy["mostly"])
    worst = sorted(wrong, key=lambda name: -statistics.fmean(wrong[name]))[:count]
    lines = [
        (
            name,
            f"{statistics.fmean(wrong[name]):.1f}",
            f"{min(wrong[name]):.1f} to {max(wrong[name]):.1f}",
            f"{statistics.fmean(shares[name]):.0f}",
            " or ".join(sorted(taken_for[name])),
        )
        for name in worst
    ]
    link = markdown_link(f"toy, {row}", f"{results}/table2/{row}")
    header = (link, "wrong, % of its images", "by seed", "of all errors, %", "mostly taken for")
    return markdown_table(header, lines, left=(0, 4))


BLOCKS = {
    "published": published,
    "comparisons": comparisons,
    "estimates": estimates,
    "rows": rows,
    "time-to-accuracy": time_to_accuracy,
    "seeds": seeds,
    "missed-toys": missed_toys,
}
