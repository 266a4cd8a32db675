"""What is timed: cases, and named suites of them. Torch is not imported, so --help is instant."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emcaps.config import PRESETS, NetworkConfig, RoutingImplementation, View, preset
from emcaps.names import check_name

FORWARD, BACKWARD, STEP = TASKS = ("forward", "forward+backward", "training step")
"""What can be timed of a network, as --what names it."""
FUSED, REFERENCE, COMPILED, GRAPHED, FUSED_COMPILED, BFLOAT16, PLAIN = IMPLEMENTATIONS = (
    "fused",
    "reference",
    "compiled",
    "graphed",
    "fused+compile",
    "bf16",
    "plain",
)
"""The implementations, as --impl names them."""
USUAL = IMPLEMENTATIONS[:3]
"""Those that are timed unless others are named."""
FUSED_GRAPH, BFLOAT16_GRAPH, FUSED_ONE_THREAD = f"{FUSED}, graph", f"{BFLOAT16}, graph", f"{FUSED}, 1 core"
NAMES = (
    PLAIN,
    REFERENCE,
    COMPILED,
    FUSED_ONE_THREAD,
    FUSED,
    GRAPHED,
    FUSED_COMPILED,
    FUSED_GRAPH,
    BFLOAT16_GRAPH,
)
"""Every name that a row may have, those of the definition first. After a comma: a form of the implementation."""
NETWORKS = tuple(name for name, config in PRESETS.items() if config.network.kind == "capsules")
SUITES = ("headline", "batch", "iterations", "size", "types", "all", "pages", "quick")
VIEW: View = "stereo"
CHANNELS = 2

HEADLINE = (("small", 2), ("small", 3), ("full", 3))
SWEPT = (("small", 2), ("full", 3))
"""The networks and iterations that the other suites start from; they vary one axis each."""
SWEEPS: dict[str, tuple[int, ...]] = {
    "batch": (1, 4, 16, 64, 256, 1024, 4096),
    "iterations": (1, 2, 3, 4, 5),
    "size": (32, 48, 64, 96),
    "types": (8, 16, 32, 64),
}


@dataclass(frozen=True)
class Case:
    """One network, one size of batch and one task; it is timed with every implementation."""

    network: str
    types: int
    """Capsule types of both convolutional capsule layers; the preset's own unless other numbers are asked for."""
    size: int
    """Side of the square images that the network reads."""
    batch: int
    iterations: int
    what: str
    """One of TASKS."""

    def __post_init__(self) -> None:
        check_name("network", self.network, NETWORKS)
        check_name("--what", self.what, TASKS)
        for name in ("types", "size", "batch", "iterations"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} must be at least 1, not {getattr(self, name)}")

    def config(self, routing: RoutingImplementation = "reference") -> NetworkConfig:
        """The network, with `routing` as the implementation of its routing."""
        return dataclasses.replace(
            preset(self.network).network,
            conv1_types=self.types,
            conv2_types=self.types,
            iterations=self.iterations,
            impl=routing,
        )

    def __str__(self) -> str:
        types = "" if self.types == preset_types(self.network) else f"{self.types} types, "
        plural = "" if self.iterations == 1 else "s"
        return (
            f"{self.network}, {types}{self.size}x{self.size}, batch {self.batch}, {self.iterations} iteration{plural}"
        )


def preset_types(network: str) -> int:
    check_name("network", network, NETWORKS)
    return preset(network).network.conv1_types


def choose_cases(name: str | None, axes: Mapping[str, Sequence[Any]], tasks: Sequence[str]) -> list[Case]:
    """The suite of that name or, without one, the grid of the axes' values."""
    if name is None:
        return grid(**axes, tasks=tasks)
    if axes:
        raise ValueError(f"--suite {name} is a list of cases: leave out the options that make a grid, or the suite")
    return suite(name, tasks)


def grid(
    networks: Sequence[str] = (),
    batches: Sequence[int] = (),
    iterations: Sequence[int] = (),
    sizes: Sequence[int] = (),
    types: Sequence[int] = (),
    tasks: Sequence[str] = (),
) -> list[Case]:
    """Every combination of the values; an axis without any has its usual value, and without `tasks` all are timed."""
    return [
        Case(network, preset_types(network) if number is None else number, size, batch, rounds, what)
        for network, number, size, batch, rounds, what in itertools.product(
            networks or ("small",),
            types or (None,),
            sizes or (32,),
            batches or (64,),
            iterations or (2,),
            tasks or TASKS,
        )
    ]


def suite(name: str, tasks: Sequence[str] = ()) -> list[Case]:
    """The cases of a named suite. Without `tasks`, sweeps time forward+backward, and the other suites all tasks."""
    check_name("suite", name, SUITES)
    if name == "pages":
        return [case for case in page_rows() if case.what in (tasks or TASKS)]
    if name == "all":
        return _unique(case for part in ("headline", *SWEEPS) for case in suite(part, tasks))
    if name == "quick":
        return grid(("tiny",), (1, 8), tasks=tasks)
    if name == "headline":
        return [case for network, rounds in HEADLINE for case in grid((network,), iterations=(rounds,), tasks=tasks)]
    axis = {"batch": "batches", "iterations": "iterations", "size": "sizes", "types": "types"}[name]
    tasks = tasks or (BACKWARD,)
    return [
        case
        for network, rounds in SWEPT
        for case in grid((network,), tasks=tasks, **{"iterations": (rounds,)} | {axis: SWEEPS[name]})
    ]


def page_rows() -> dict[Case, tuple[str, ...]]:
    """The cases of suite "pages", each with the implementations, or the forms of one, that are timed of it.

    These are the rows that the README and the pages on speed, scale and cost show, in one run of a few minutes. So the
    sweeps are shorter than those of the suites, and what is slow to compile or to run is timed only where it is shown.
    """
    rows: dict[Case, tuple[str, ...]] = {}

    def add(names: tuple[str, ...], network: str, rounds: Sequence[int], tasks: Sequence[str], **axes: Any) -> None:
        for case in grid((network,), iterations=rounds, tasks=tasks, **axes):
            rows[case] = (*rows.get(case, ()), *names)

    both = (REFERENCE, FUSED)
    for network, rounds in HEADLINE:
        add(both, network, (rounds,), TASKS)
        add((COMPILED, GRAPHED, FUSED_COMPILED), network, (rounds,), (BACKWARD,))
    for network, rounds in SWEPT:
        add(both, network, (rounds,), (FORWARD, BACKWARD), batches=(1,))
        add(both, network, (rounds,), (BACKWARD,), batches=(8,))
        add((FUSED_GRAPH,), network, (rounds,), (FORWARD, STEP), batches=(1024, 4096))
        add((BFLOAT16,), network, (2,), (BACKWARD,))
    add(both, "small", (2,), (BACKWARD,), batches=(256, 1024, 4096))
    add((FUSED_GRAPH,), "full", (3,), (BACKWARD,), batches=(256, 1024))
    add(both, "small", (1, 5), (BACKWARD,))
    add(both, "full", (1, 2), (BACKWARD,))
    add((FUSED_GRAPH,), "small", (1, 5), (STEP,))
    add((FUSED_GRAPH,), "full", (2,), (STEP,))
    add(both, "small", (2,), (BACKWARD,), sizes=(48, 64))
    add(both, "small", (2,), (BACKWARD,), types=(8, 32))
    return rows


def _unique(cases: Iterable[Case]) -> list[Case]:
    return list(dict.fromkeys(cases))
