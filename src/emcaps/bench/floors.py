"""How near a row is to what its machine allows: its arithmetic and bytes beside the ceilings of the same run.

All is counted anew from the row's case, so that rows of an earlier version compare with those of this one.
"""

from __future__ import annotations

from typing import NamedTuple

from emcaps.bench.flops import case_flops
from emcaps.bench.rows import Row
from emcaps.bench.traffic import case_bytes, edge_bytes


class Floor(NamedTuple):
    share: float
    """Of the measured arithmetic ceiling."""
    megabytes: float
    """The fewest that must move: see traffic.py."""
    edge_megabytes: float
    """Traffic of the numbers that the fused kernels keep for each edge; not part of the floor."""
    milliseconds: float
    """The floor: the time of the arithmetic or of the fewest bytes, whichever is longer."""
    times: float
    """The row's time over the floor."""


def floor_of(row: Row) -> Floor | None:
    """None if the row was not timed, or if its machine's ceilings were not measured."""
    if row.median_ms is None or not row.ceiling_tflops or not row.ceiling_gb_per_s:
        return None
    arithmetic = case_flops(row.case) / row.ceiling_tflops / 1e9
    moving = case_bytes(row.case) / row.ceiling_gb_per_s / 1e6
    floor = max(arithmetic, moving)
    return Floor(
        arithmetic / row.median_ms,
        case_bytes(row.case) / 1e6,
        edge_bytes(row.case) / 1e6,
        floor,
        row.median_ms / floor,
    )
