"""The index of results/: what each folder holds, how many runs, and the command that made them."""

from __future__ import annotations

from pathlib import Path

from emcaps.documents.recorded import RESULTS
from emcaps.report.markdown import markdown_table
from emcaps.train.run_folder import CONFIG

FOLDERS = {
    "ablations-tiny": (
        "Hinton's ablations with the tiny network ([page](../docs/ablations.md))",
        "`emcaps experiment ablations`",
    ),
    "attack": (
        "attacks on trained networks ([page](../docs/attacks.md))",
        "`emcaps experiment attack`",
    ),
    "bench": ("speed and memory by case and implementation", "`emcaps bench`"),
    "candidates": (
        "changes to the recipe, on all five folds ([page](../docs/recipe.md#changes-on-all-five-folds))",
        "`emcaps experiment candidates`",
    ),
    "choices": ("how the recipe was chosen ([page](../docs/recipe.md))", "`emcaps experiment choices`"),
    "compat": ("the wheel with other versions ([page](../docs/compatibility.md))", "`make compat`"),
    "demo": ("the two networks of the demo", "`make demo`"),
    "demo-seeds": ("the demo's networks with five seeds", "`emcaps train`"),
    "gpu-tests": ("the tests that need or use a GPU", "`make gpu-test`"),
    "moved-digits": (
        "MNIST digits that are changed after training ([page](../docs/moved-digits.md))",
        "`emcaps experiment moved-digits`",
    ),
    "other-data": (
        "MNIST, Fashion-MNIST and CIFAR-10, capsules and CNNs ([page](../docs/other-data.md))",
        "`emcaps experiment other-data`",
    ),
    "pitfalls": ("mistakes of the tiny network, toys ([page](../docs/pitfalls.md))", "`emcaps experiment pitfalls`"),
    "pitfalls-small": (
        "mistakes, small network, smallNORB ([page](../docs/pitfalls.md))",
        "`emcaps experiment pitfalls`",
    ),
    "poses": (
        "the viewpoint, read from class capsules ([page](../docs/poses.md))",
        "`emcaps experiment poses`, `emcaps train`",
    ),
    "robustness": (
        "damaged files, disturbed commands, memory of long runs ([page](../docs/robustness.md))",
        "`make fuzz`, `make faults`",
    ),
    "scale": (
        "throughput by the number of processes ([page](../docs/scale.md))",
        "`python -m emcaps.bench.processes`",
    ),
    "start-of-matrices": ("matrices that start near the identity, and Gaussian ones", "`emcaps train`"),
    "table2": ("the rows of Table 2 on smallNORB", "`emcaps experiment table2`"),
    "three-iterations": (
        "1, 2 and 3 iterations, and softer routing ([page](../docs/three-iterations.md))",
        "`emcaps experiment iterations`",
    ),
    "toys": ("the network of the explorer, trained on toys", "`emcaps train`"),
    "viewpoints": (
        "novel viewpoints of smallNORB ([page](../docs/viewpoints.md))",
        "`emcaps experiment viewpoints`",
    ),
    "viewpoints-toys": (
        "novel viewpoints, short runs on toys ([page](../docs/viewpoints.md))",
        "`emcaps experiment viewpoints`",
    ),
    "weights": (
        "what the networks in the package answer, and their routing",
        "`emcaps eval`, `emcaps experiment inside`",
    ),
}
"""In a few words each; results/README.md has the whole commands and remarks below the table."""


def folders(_results: str) -> str:
    there = sorted(path.name for path in RESULTS.iterdir() if path.is_dir())
    if there != list(FOLDERS):
        differing = sorted(set(there) ^ set(FOLDERS))
        raise ValueError(
            f"results/ and FOLDERS in {Path(__file__).name} differ in {', '.join(differing)}: name it there"
        )
    rows = []
    for name, (what, made_by) in FOLDERS.items():
        runs = sum(1 for _ in (RESULTS / name).rglob(CONFIG))
        rows.append((f"[`{name}/`](#{name})", what, str(runs or "-"), made_by))
    return markdown_table(("folder", "what", "runs", "made by"), rows, left=(0, 1, 3))


BLOCKS = {"folders": folders}
