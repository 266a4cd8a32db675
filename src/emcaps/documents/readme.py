"""The README: five networks in a line each, and how the demo ends."""

from __future__ import annotations

import io

from rich.console import Console

from emcaps.documents.recorded import RESULTS, cost_points, table2_records
from emcaps.experiments.demo import RUNS, Outcome, comparison_table
from emcaps.experiments.published import FIGURES
from emcaps.experiments.records import mean_and_spread
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.train.run_folder import EVALUATION, read_config, read_evaluation, read_metrics

HEADLINE = (
    ("small, stereo, 3 iterations", "long-stereo-it3", "Hinton, small, stereo, 3 iterations", "Hinton"),
    (
        "full, stereo, 2 iterations",
        "long-full-stereo-it2",
        "Hinton, full, stereo, 3 iterations",
        "Hinton, with 3 iterations",
    ),
    ("small, mono, 2 iterations", "averaged-mono-it2", "Gritzman, small, mono, 2 iterations", "Gritzman"),
    ("small, mono, 3 iterations", "best-mono-it3", "Gritzman, small, mono, 3 iterations", "Gritzman"),
    ("Hinton's CNN, stereo, our recipe", "best-cnn-stereo", "Hinton, CNN, stereo", "Hinton"),
)
"""Network, row of Table 2, the published figure beside it, and how the table names that one."""


def headline(results: str) -> str:
    rows = []
    for network, row, figure, name in HEADLINE:
        records, point = table2_records()[row], cost_points()[row]
        accuracy = markdown_link(mean_and_spread(records), f"{results}/table2/{row}")
        assert point.minutes is not None
        rows.append(
            (
                network,
                f"{point.parameters:,}",
                f"{accuracy} (n = {len(records)})",
                f"{FIGURES[figure].accuracy} ({name})",
                f"{point.minutes:.1f} min",
            )
        )
    return markdown_table(("network", "parameters", "accuracy, %", "published, %", "time on one H200"), rows)


def demo_output(_results: str) -> str:
    """How `make demo` ends, by its recorded run."""
    outcomes = {}
    for name in RUNS:
        run = RESULTS / "demo" / name
        seconds = max(row["seconds"] for row in read_metrics(run) if "seconds" in row)
        outcomes[name] = Outcome(read_config(run), seconds, read_evaluation(run / EVALUATION)[0])
    screen = Console(width=80, file=io.StringIO())
    screen.print(comparison_table(outcomes))
    assert isinstance(screen.file, io.StringIO)
    lines = [line.rstrip() for line in screen.file.getvalue().rstrip().splitlines()]
    return "\n".join(["```", *lines, "```"])


BLOCKS = {"headline": headline, "demo-output": demo_output}
