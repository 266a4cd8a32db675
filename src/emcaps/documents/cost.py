"""The page on cost: error, parameters and minutes, ours beside published ones."""

from __future__ import annotations

from emcaps.documents.recorded import cost_points
from emcaps.experiments.cost import markdown_cost


def cost(results: str) -> str:
    return markdown_cost(cost_points(), f"{results}/table2/")


BLOCKS = {"cost": cost}
