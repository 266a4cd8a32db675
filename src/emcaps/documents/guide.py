"""The guide: the presets, and what the demo finds."""

from __future__ import annotations

from emcaps.config import PRESETS
from emcaps.documents.recorded import RESULTS
from emcaps.experiments.demo import RUNS, demo_config
from emcaps.experiments.records import spread
from emcaps.nn import build_network
from emcaps.nn.summary import count_parameters, parameters_of
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.train.run_folder import EVALUATION, read_evaluation

SEEDS = 5
"""The number of seeds of each network in results/demo-seeds."""


def presets(_results: str) -> str:
    """The layers of each preset by the letters of the paper."""
    rows = []
    for name, config in PRESETS.items():
        network = config.network
        letters = (network.conv_channels, network.primary_types, network.conv1_types, network.conv2_types)
        shown = [str(letter) for letter in letters] if network.kind == "capsules" else ["-"] * len(letters)
        parameters = count_parameters(build_network(network, 1, config.data.crop))
        rows.append((f"`{name}`", *shown, f"{parameters:,}"))
    return markdown_table(("preset", "A", "B", "C", "D", "parameters in mono"), rows)


def demo(results: str) -> str:
    """The recorded run of the demo, and the same with five seeds on a GPU."""
    rows = []
    for name, network in RUNS.items():
        config = demo_config(name)
        accuracy, _ = read_evaluation(RESULTS / "demo" / name / EVALUATION)
        seeds = [100 * read_evaluation(RESULTS / f"demo-seeds/{name}-{seed}" / EVALUATION)[0] for seed in range(SEEDS)]
        rows.append(
            (
                network,
                f"{parameters_of(config):,}",
                markdown_link(f"{100 * accuracy:.1f}", f"{results}/demo/{name}"),
                markdown_link(spread(seeds, 1), f"{results}/demo-seeds"),
            )
        )
    return markdown_table(("network", "parameters", "accuracy of the demo, %", f"{SEEDS} seeds, %"), rows)


BLOCKS = {"presets": presets, "demo": demo}
