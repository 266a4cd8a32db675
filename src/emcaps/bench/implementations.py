"""The implementations that are timed side by side, and why some cannot run here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

import emcaps.nn
from emcaps.bench.cases import (
    BFLOAT16,
    BFLOAT16_GRAPH,
    COMPILED,
    FUSED,
    FUSED_COMPILED,
    FUSED_GRAPH,
    FUSED_ONE_THREAD,
    GRAPHED,
    IMPLEMENTATIONS,
    PLAIN,
    REFERENCE,
    USUAL,
)
from emcaps.bench.ceilings import interpreted
from emcaps.config import RoutingImplementation
from emcaps.names import check_name
from emcaps.routing.availability import unavailable

GPU_ALONE = (GRAPHED, FUSED_COMPILED, BFLOAT16)
"""Forms of the fused implementation that are timed on a GPU and nowhere else."""


class Implementation(NamedTuple):
    name: str
    routing: RoutingImplementation
    """What the network's `impl` is set to."""
    compiled: bool = False
    """The network goes through torch.compile."""
    mode: str | None = None
    """The mode of torch.compile, if it is not the default."""
    graphed: bool = False
    """The network goes through emcaps.nn.graphed, which captures forward and backward."""
    captured: bool = False
    """The work is captured as a CUDA graph once and then replayed."""
    autocast: bool = False
    """It runs under torch.autocast, with poses and matrices in bfloat16."""
    threads: int | None = None
    """How many CPU threads it uses; None for as many as torch uses."""
    plain: bool = False
    """It runs in a process of its own that gives freed memory back to the system, as Python does by default."""

    @property
    def checked(self) -> bool:
        """Whether it is compared with the definition first. What only wraps the same kernels is not checked again."""
        return base_name(self.name) in (FUSED, BFLOAT16)

    @property
    def keeps_graphs(self) -> bool:
        """Whether building it or its first calls capture CUDA graphs, whose memory counts."""
        return self.captured or self.graphed or self.mode == "reduce-overhead"

    def is_named(self, names: Sequence[str]) -> bool:
        """Whether the names have this form of an implementation, or the implementation, which is all of its forms."""
        return self.name in names or base_name(self.name) in names


def graphed_maker() -> Callable[..., Any] | None:
    """emcaps.nn.graphed; None in a version that has none."""
    return getattr(emcaps.nn, "graphed", None)


def base_name(name: str) -> str:
    """The implementation of which this is the name or that of a form, such as "fused" of "fused, graph"."""
    return name.partition(",")[0]


def implementations(wanted: Sequence[str], device: torch.device) -> tuple[list[Implementation], list[str]]:
    """The implementations that can run on the device, the definition first, and a line about each that cannot."""
    wanted = wanted or USUAL
    for name in wanted:
        check_name("implementation", name, IMPLEMENTATIONS)
    chosen, skipped = [], []
    gpu = device.type == "cuda"
    if PLAIN in wanted:
        if gpu:
            skipped.append(f"{PLAIN} is skipped: it is about the memory of a CPU; use --device cpu")
        else:
            chosen.append(Implementation(PLAIN, "reference", plain=True))
    if REFERENCE in wanted:
        chosen.append(Implementation(REFERENCE, "reference"))
    if COMPILED in wanted:
        if gpu:
            chosen.append(Implementation(COMPILED, "reference", compiled=True))
        else:
            skipped.append(f"{COMPILED} is skipped: torch.compile crashes on this network on a CPU; use a GPU")
    if not gpu:
        skipped += [
            f"{name} is skipped: it is timed on a GPU alone; use --device cuda" for name in GPU_ALONE if name in wanted
        ]
    fused = [name for name in (FUSED, *(GPU_ALONE if gpu else ())) if name in wanted]
    if GRAPHED in fused and graphed_maker() is None:
        fused.remove(GRAPHED)
        skipped.append(f"{GRAPHED} is skipped: this version has no emcaps.nn.graphed")
    routing: RoutingImplementation = "triton" if gpu else "numba"
    reasons = unavailable(routing, device) if fused else []
    if fused and gpu and interpreted():
        reasons = [*reasons, "Triton's interpreter is on (TRITON_INTERPRET=1), where time means nothing"]
    if reasons:
        verb = "are" if len(fused) > 1 else "is"
        skipped.append(f"{' and '.join(fused)} ({routing}) {verb} skipped: {'; '.join(reasons)}")
    else:
        chosen += _fused_forms(fused, routing, gpu)
    if not chosen:
        raise ValueError(f"there is nothing to time here: {'; '.join(skipped)}")
    return chosen, skipped


def _fused_forms(fused: Sequence[str], routing: RoutingImplementation, gpu: bool) -> list[Implementation]:
    forms = []
    if FUSED in fused:
        if not gpu and torch.get_num_threads() > 1:
            forms.append(Implementation(FUSED_ONE_THREAD, routing, threads=1))
        forms.append(Implementation(FUSED, routing))
    if GRAPHED in fused:
        forms.append(Implementation(GRAPHED, routing, graphed=True))
    if FUSED_COMPILED in fused:
        forms.append(Implementation(FUSED_COMPILED, routing, compiled=True, mode="reduce-overhead"))
    if FUSED in fused and gpu:
        forms.append(Implementation(FUSED_GRAPH, routing, captured=True))
    if BFLOAT16 in fused:
        forms.append(Implementation(BFLOAT16_GRAPH, routing, captured=True, autocast=True))
    return forms
