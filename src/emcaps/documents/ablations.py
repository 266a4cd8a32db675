"""The page on Hinton's ablations: the rows of a network, with what their recorded runs found."""

from __future__ import annotations

from functools import partial

from emcaps.documents.recorded import ABLATIONS, ablation_records
from emcaps.experiments.ablations import markdown_ablations, rows_on


def table(network: str, results: str) -> str:
    return markdown_ablations(
        ablation_records(network), rows_on("smallnorb", network), f"{results}/{ABLATIONS[network]}/"
    )


BLOCKS = {network: partial(table, network) for network in ABLATIONS}
