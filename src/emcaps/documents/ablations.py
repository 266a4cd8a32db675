"""The page on Hinton's ablations: the rows of the small network, with what their recorded runs found."""

from __future__ import annotations

from emcaps.documents.recorded import ABLATIONS, ablation_records
from emcaps.experiments.ablations import markdown_ablations, rows_on


def small(results: str) -> str:
    return markdown_ablations(ablation_records(), rows_on("smallnorb", "small"), f"{results}/{ABLATIONS}/")


BLOCKS = {"small": small}
