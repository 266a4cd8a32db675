"""The README: five networks in a line each, capsules beside CNNs, and how the demo ends."""

from __future__ import annotations

import io

from rich.console import Console

from emcaps.documents.recorded import (
    RESULTS,
    attack_record,
    cost_points,
    moved_digits_runs,
    table2_records,
    viewpoints_runs,
)
from emcaps.experiments.attack_tables import share_of
from emcaps.experiments.demo import RUNS, Outcome, comparison_table
from emcaps.experiments.moved_digits import measured
from emcaps.experiments.published import FIGURES
from emcaps.experiments.records import mean_and_spread, spread
from emcaps.experiments.viewpoint_errors import errors_of
from emcaps.report.markdown import markdown_link, markdown_table, two_digits
from emcaps.train.run_folder import EVALUATION, read_config, read_evaluation, read_metrics

HEADLINE = (
    ("small, stereo, 3 iterations", "long-stereo-it3", "Hinton, small, stereo, 3 iterations", "Hinton"),
    (
        "full, stereo, 2 iterations",
        "long-full-stereo-it2",
        "Hinton, full, stereo, 3 iterations",
        "Hinton, with 3 iterations",
    ),
    ("small, mono, 2 iterations", "longest-mono-it2", "Gritzman, small, mono, 2 iterations", "Gritzman"),
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


STRONG = ("untargeted", "logit", "pgd", 0.05)
"""The attack that the README shows: its goal, loss, name and size."""


def comparison(_results: str) -> str:
    """Capsules beside a CNN of their size and Hinton's, in percent of right answers, one line for each question."""

    def known(row: str) -> str:
        return mean_and_spread(table2_records()[row])

    def from_new(split: str, network: str) -> str:
        records = viewpoints_runs("smallnorb")[f"best-{split}-{network}"]
        return spread([100 - errors_of(record)[-1].novel for record in records], 1)

    def moved(network: str, change: str) -> str:
        return spread([run[change] for run in measured(moved_digits_runs())[f"centred-{network}"]], 1)

    def attacked(network: str) -> str:
        return share_of(attack_record(), network, network, *STRONG)

    networks = ("best-stereo-it2-seed4", "best-small-cnn-stereo-seed4", "best-cnn-stereo-seed4")
    (grey_levels,) = {two_digits(STRONG[-1] * attack_record()["networks"][name]["grey_levels"]) for name in networks}
    small, of_hinton = "small-cnn", "cnn"
    lines = (
        (
            "new toys, [known viewpoints](docs/smallnorb.md)",
            *map(known, ("best-stereo-it3", "best-small-cnn-stereo", "best-cnn-stereo")),
        ),
        *(
            (
                f"new toys, [new {split}s](docs/viewpoints.md)",
                *(from_new(split, network) for network in ("small-it2", small, of_hinton)),
            )
            for split in ("azimuth", "elevation")
        ),
        *(
            (
                f"[digits {how}](docs/moved-digits.md) after training on centred ones",
                *(moved(network, change) for network in ("capsules", small, of_hinton)),
            )
            for how, change in (("moved by 5 pixels", "shift 5"), ("turned by 30 degrees", "turn 30"))
        ),
        (
            f"[strong adversarial attack](docs/attacks.md) of {grey_levels} grey levels",
            *map(attacked, networks),
        ),
    )
    header = ("tested on", "capsules", "CNN of the same size", "Hinton's CNN")
    return markdown_table(header, lines)


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


BLOCKS = {"headline": headline, "comparison": comparison, "demo-output": demo_output}
