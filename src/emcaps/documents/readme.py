"""The README's first table: five networks in a line each, and what the demo finds."""

from __future__ import annotations

from emcaps.documents.recorded import RESULTS, cost_points, table2_records
from emcaps.experiments.demo import RUNS, demo_config
from emcaps.experiments.published import FIGURES
from emcaps.experiments.records import mean_and_spread, spread
from emcaps.nn import build_network
from emcaps.nn.summary import count_parameters
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.train.run_folder import EVALUATION, read_evaluation

HEADLINE = (
    ("small, stereo, 3 iterations", "long-stereo-it3", "Hinton, small, stereo, 3 iterations", "Hinton"),
    (
        "full, stereo, 2 iterations",
        "long-full-stereo-it2",
        "Hinton, full, stereo, 3 iterations",
        "Hinton, with 3 iterations",
    ),
    ("small, mono, 2 iterations", "long-mono-it2", "Gritzman, small, mono, 2 iterations", "Gritzman"),
    ("small, mono, 3 iterations", "best-mono-it3", "Gritzman, small, mono, 3 iterations", "Gritzman"),
    ("Hinton's CNN, stereo, our recipe", "best-cnn-stereo", "Hinton, CNN, stereo", "Hinton"),
)
"""Network, row of Table 2, the published figure beside it, and how the table names that one."""
SEEDS = 5
"""Of each network in results/demo-seeds."""


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


def demo(results: str) -> str:
    """The recorded run of the demo, and the same with five seeds on a GPU."""
    rows = []
    for name, network in RUNS.items():
        config = demo_config(name)
        parameters = count_parameters(build_network(config.network, config.data.image_channels, config.data.crop))
        accuracy, _ = read_evaluation(RESULTS / "demo" / name / EVALUATION)
        seeds = [100 * read_evaluation(RESULTS / f"demo-seeds/{name}-{seed}" / EVALUATION)[0] for seed in range(SEEDS)]
        rows.append(
            (
                network,
                f"{parameters:,}",
                markdown_link(f"{100 * accuracy:.1f}", f"{results}/demo/{name}"),
                markdown_link(spread(seeds, 1), f"{results}/demo-seeds"),
            )
        )
    return markdown_table(("network", "parameters", "accuracy of the demo, %", f"{SEEDS} seeds, %"), rows)


BLOCKS = {"headline": headline, "demo": demo}
