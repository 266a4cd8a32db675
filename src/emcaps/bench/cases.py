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
IMPLEMENTATIONS = ("fused", "reference", "compiled", "bf16", "plain")
USUAL = IMPLEMENTATIONS[:3]
"""The implementations that are timed unless others are named."""
NETWORKS = tuple(name for name, config in PRESETS.items() if config.network.kind == "capsules")
SUITES = ("headline", "batch", "iterations", "size", "types", "all", "quick")
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


def _unique(cases: Iterable[Case]) -> list[Case]:
    return list(dict.fromkeys(cases))
