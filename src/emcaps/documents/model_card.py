"""The model card of the networks that come with the package: what the runs that they are from have found."""

from __future__ import annotations

from emcaps.documents.recorded import table2_records
from emcaps.experiments.table2 import ROWS, TRAINING_IMAGES
from emcaps.nn.summary import parameters_of
from emcaps.report.markdown import markdown_link, markdown_table

NETWORKS = {"small-stereo": "long-stereo-it3", "small-mono": "longest-mono-it2", "full-stereo": "long-full-stereo-it2"}
"""The row of Table 2 that each is from."""
SEED = 0


def networks(results: str) -> str:
    rows = []
    for name, row in NETWORKS.items():
        record = next(record for record in table2_records()[row] if record.seed == SEED)
        config = ROWS[row]
        passes = config.train.steps * config.train.batch_size / TRAINING_IMAGES[config.data.view]
        rows.append(
            (
                name,
                f"{parameters_of(config):,}",
                f"{passes:.1f}",
                f"{record.accuracy:.2f} %",
                "-" if record.many_crops is None else f"{record.many_crops:.2f} %",
                markdown_link("run", f"{results}/table2/{row}/{record.folder.name}"),
            )
        )
    header = ("network", "parameters", "passes over the training set", "test accuracy, last step", "13 crops", "run")
    return markdown_table(header, rows, left=(0, len(header) - 1))


BLOCKS = {"networks": networks}
