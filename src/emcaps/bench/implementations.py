"""The implementations that are timed side by side, and why some cannot run here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from emcaps.bench.cases import IMPLEMENTATIONS, USUAL
from emcaps.bench.ceilings import interpreted
from emcaps.config import RoutingImplementation
from emcaps.names import check_name
from emcaps.routing.availability import unavailable

FUSED, REFERENCE, COMPILED, BFLOAT16, PLAIN = IMPLEMENTATIONS
FUSED_GRAPH, BFLOAT16_GRAPH = f"{FUSED}, graph", f"{BFLOAT16}, graph"
FUSED_ONE_THREAD = f"{FUSED}, 1 core"
NAMES = (PLAIN, REFERENCE, COMPILED, FUSED_ONE_THREAD, FUSED, FUSED_GRAPH, BFLOAT16_GRAPH)
"""Every name that a row may have, those of the definition first."""


class Implementation(NamedTuple):
    name: str
    routing: RoutingImplementation
    """What the network's `impl` is set to."""
    compiled: bool = False
    """The network goes through torch.compile."""
    captured: bool = False
    """The work is captured as a CUDA graph once and then replayed."""
    autocast: bool = False
    """It runs under torch.autocast, with poses and matrices in bfloat16."""
    threads: int | None = None
    """How many CPU threads it uses; None for as many as torch uses."""
    plain: bool = False
    """It runs in a process of its own that gives freed memory back to the system, as Python does by default."""


def implementations(wanted: Sequence[str], device: torch.device) -> tuple[list[Implementation], list[str]]:
    """The implementations that can run on the device, the definition first, and a line about each that cannot."""
    wanted = wanted or USUAL
    for name in wanted:
        check_name("implementation", name, IMPLEMENTATIONS)
    chosen, skipped = [], []
    if PLAIN in wanted:
        if device.type == "cpu":
            chosen.append(Implementation(PLAIN, "reference", plain=True))
        else:
            skipped.append(f"{PLAIN} is skipped: it is about the memory of a CPU; use --device cpu")
    if REFERENCE in wanted:
        chosen.append(Implementation(REFERENCE, "reference"))
    if COMPILED in wanted:
        if device.type == "cuda":
            chosen.append(Implementation(COMPILED, "reference", compiled=True))
        else:
            skipped.append(f"{COMPILED} is skipped: torch.compile crashes on this network on a CPU; use a GPU")
    if BFLOAT16 in wanted and device.type != "cuda":
        skipped.append(f"{BFLOAT16} is skipped: it is timed on a GPU alone; use --device cuda")
    if FUSED in wanted or (BFLOAT16 in wanted and device.type == "cuda"):
        routing: RoutingImplementation = "triton" if device.type == "cuda" else "numba"
        reasons = unavailable(routing, device)
        if routing == "triton" and interpreted():
            reasons = [*reasons, "Triton's interpreter is on (TRITON_INTERPRET=1), where time means nothing"]
        if reasons:
            names = " and ".join(name for name in (FUSED, BFLOAT16) if name in wanted)
            verb = "are" if FUSED in wanted and BFLOAT16 in wanted else "is"
            skipped.append(f"{names} ({routing}) {verb} skipped: {'; '.join(reasons)}")
        elif FUSED in wanted:
            if device.type == "cpu" and torch.get_num_threads() > 1:
                chosen.append(Implementation(FUSED_ONE_THREAD, routing, threads=1))
            chosen.append(Implementation(FUSED, routing))
            if device.type == "cuda":
                chosen.append(Implementation(FUSED_GRAPH, routing, captured=True))
        if BFLOAT16 in wanted and not reasons and device.type == "cuda":
            chosen.append(Implementation(BFLOAT16_GRAPH, routing, captured=True, autocast=True))
    if not chosen:
        raise ValueError(f"there is nothing to time here: {'; '.join(skipped)}")
    return chosen, skipped
