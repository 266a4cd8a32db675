"""What many GPUs may be expected to do, on paper: measured times of one H200, and an assumed time of the sum over them.

A step of N GPUs takes three parts, one after the other:

    network       forward and backward of a GPU's own share of the batch            measured, by size of batch
    preparation   augmentation of the whole batch, which every GPU does, and Adam   measured, a line through two batches
    sum           of the gradients over all GPUs                                    assumed: latency and bandwidth below

Nothing overlaps, as in `emcaps.train`. No two GPUs were measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from emcaps.bench.cases import BACKWARD, FUSED_GRAPH, STEP, Case, preset_types
from emcaps.bench.rows import Row, newest

SIZE = 32
PREPARATION_BATCHES = (64, 4096)
"""The batches whose training steps were timed beside their forward and backward; the small network's, 2 iterations."""


class Link(NamedTuple):
    """An assumption about what connects two GPUs."""

    latency_us: float
    """From one GPU to the next, the start of the transfer included."""
    gb_per_s: float


GPUS_OF_A_MACHINE = 8
INSIDE = Link(latency_us=3, gb_per_s=300)
"""Assumed for the GPUs of a machine."""
BETWEEN = Link(latency_us=10, gb_per_s=50)
"""Assumed for GPUs of several machines; the slowest link sets the pace of a sum."""


class Step(NamedTuple):
    """The parts of a step of N GPUs, in milliseconds."""

    network: float
    preparation: float
    sum_by_tree: float
    sum_by_ring: float

    def images_per_second(self, batch: int) -> tuple[float, float]:
        """Of a whole batch, by ring and by tree: the lower figure first."""
        computed = self.network + self.preparation
        return 1000 * batch / (computed + self.sum_by_ring), 1000 * batch / (computed + self.sum_by_tree)


def expected_step(rows: list[Row], network: str, iterations: int, parameters: int, gpus: int, batch: int) -> Step:
    """A step of `gpus` GPUs that share a batch equally, from a benchmark's rows."""
    if batch % gpus:
        raise ValueError(f"a batch of {batch} does not divide equally among {gpus} GPUs: use a multiple of {gpus}")
    times = measured_times(rows, network, iterations, BACKWARD)
    size = 4 * parameters
    return Step(
        interpolate(times, batch // gpus), _preparation(rows, batch), tree_sum_ms(gpus, size), ring_sum_ms(gpus, size)
    )


def ring_sum_ms(gpus: int, size: int) -> float:
    """A sum of `size` bytes round a ring: every GPU passes on 1/N of them, 2 (N - 1) times."""
    link = _link(gpus)
    return 2 * (gpus - 1) * (link.latency_us / 1e3 + size / gpus / link.gb_per_s / 1e6)


def tree_sum_ms(gpus: int, size: int) -> float:
    """A sum of `size` bytes up and down a binary tree, as NCCL does for small ones: the latency grows with log2 N."""
    if gpus == 1:
        return 0.0
    link = _link(gpus)
    return 2 * (math.ceil(math.log2(gpus)) * link.latency_us / 1e3 + size / link.gb_per_s / 1e6)


def measured_times(rows: list[Row], network: str, iterations: int, what: str) -> dict[int, float]:
    """Milliseconds of a replayed CUDA graph by batch."""
    types = preset_types(network)
    return {
        case.batch: row.median_ms
        for (case, implementation), row in newest(rows).items()
        if case == Case(network, types, SIZE, case.batch, iterations, what)
        and implementation == FUSED_GRAPH
        and row.median_ms is not None
    }


def interpolate(times: Mapping[int, float], batch: int) -> float:
    """The time of a batch between two that were measured, on the line through both."""
    if batch in times:
        return times[batch]
    below, above = [b for b in times if b < batch], [b for b in times if b > batch]
    if not below or not above:
        raise ValueError(f"a batch of {batch} lies outside of what was measured, {min(times)} to {max(times)} images")
    low, high = max(below), min(above)
    return times[low] + (times[high] - times[low]) * (batch - low) / (high - low)


def _preparation(rows: list[Row], batch: int) -> float:
    """What a training step takes beyond forward and backward; extrapolated for batches beyond those measured."""
    steps, passes = (measured_times(rows, "small", 2, what) for what in (STEP, BACKWARD))
    few, many = PREPARATION_BATCHES
    low, high = (steps[images] - passes[images] for images in PREPARATION_BATCHES)
    return max(low, low + (high - low) * (batch - few) / (many - few))


def _link(gpus: int) -> Link:
    return INSIDE if gpus <= GPUS_OF_A_MACHINE else BETWEEN
