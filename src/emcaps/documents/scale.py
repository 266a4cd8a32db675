"""The page on several devices: throughput by the number of processes, and what many GPUs may be expected to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from emcaps.bench.processes import Way
from emcaps.bench.scale import expected_step
from emcaps.config import preset
from emcaps.documents.recorded import RESULTS, bench_rows
from emcaps.nn.geometry import parameter_count
from emcaps.report.markdown import markdown_table

BATCH, A_GPU = 64, 64
"""The recipe's batch, and the images of each GPU where the batch grows with their number."""
NETWORKS = (("small", 2), ("full", 3))
"""Networks in mono, with their iterations."""
GPUS = (1, 8, 64, 1024)


def processes(device: str, _results: str) -> str:
    """The throughput of a kind of device by the number of processes, as recorded."""
    found = json.loads((RESULTS / f"scale/{device}.json").read_text(encoding="utf-8"))
    rows = []
    for way in found["ways"]:
        speeds = sorted(way["images_per_second"])
        rows.append((str(Way(way["processes"], way["threads"])), f"{speeds[-1]:,.0f}", f"{speeds[0]:,.0f}"))
    return markdown_table(("started", "images/s, best round", "worst round"), rows)


def gpus(_results: str) -> str:
    rows = []
    for network, iterations in NETWORKS:
        parameters = parameter_count(preset(network).network, 1)
        plans = [(count, BATCH) for count in GPUS[:3]] + [(count, A_GPU * count) for count in GPUS[1:]]
        for count, batch in plans:
            step = expected_step(bench_rows("h200"), network, iterations, parameters, count, batch)
            low, high = step.images_per_second(batch)
            parts = (f"{part:.2f}" for part in (step.network, step.preparation, step.sum_by_tree, step.sum_by_ring))
            speed = f"{low:,.0f}" if count == 1 else f"{low:,.0f} to {high:,.0f}"
            rows.append((f"{network}, {iterations} iterations", f"{count:,}", f"{batch:,}", *parts, speed))
    header = (
        "network",
        "GPUs",
        "batch",
        "network, ms",
        "preparation, ms",
        "sum by tree, ms",
        "by ring, ms",
        "images/s",
    )
    return markdown_table(header, rows)


BLOCKS: dict[str, Callable[[str], str]] = {
    "gpus": gpus,
    "processes": partial(processes, "cpu"),
    "processes-gpu": partial(processes, "cuda"),
}
