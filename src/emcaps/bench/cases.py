"""What is timed: cases, and the named suites of them. No torch, so that --help is instant."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emcaps.config import PRESETS, NetworkConfig, RoutingImplementation, View, preset
from emcaps.names import check_name

FORWARD, BACKWARD, STEP = WHATS = ("forward", "forward+backward", "training step")
IMPLEMENTATIONS = ("fused", "reference", "compiled", "bf16", "plain")
USUAL = IMPLEMENTATIONS[:3]
"""What is timed unless implementations are named."""
NETWORKS = tuple(name for name, config in PRESETS.items() if config.network.kind == "capsules")
SUITES = ("headline", "batch", "iterations", "size", "types", "all", "quick")
VIEW: View = "stereo"
CHANNELS = 2

HEADLINE = (("small", 2), ("small", 3), ("full", 3))
SWEPT = (("small", 2), ("full", 3))
"""Networks and iterations that the other suites go out from, one axis at a time."""
SWEEPS: dict[str, tuple[int, ...]] = {
    "batch": (1, 4, 16, 64, 256, 1024, 4096),
    "iterations": (1, 2, 3, 4, 5),
    "size": (32, 48, 64, 96),
    "types": (8, 16, 32, 64),
}


@dataclass(frozen=True)
class Case:
    """One network on one kind of batch, and what it does there. Each is timed with every implementation."""

    network: str
    types: int
    """Of both convolutional capsule layers; the preset's own unless the cost of types is asked for."""
    size: int
    """Side of the square images that the network reads."""
    batch: int
    iterations: int
    what: str

    def __post_init__(self) -> None:
        check_name("network", self.network, NETWORKS)
        check_name("what", self.what, WHATS)
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


def choose_cases(name: str | None, axes: Mapping[str, Sequence[Any]], whats: Sequence[str]) -> list[Case]:
    """The suite of that name or, without one, the grid of the axes' values."""
    if name is None:
        return grid(**axes, whats=whats)
    if axes:
        raise ValueError(f"--suite {name} is a list of cases: leave out the options that make a grid, or the suite")
    return suite(name, whats)


def grid(
    networks: Sequence[str] = (),
    batches: Sequence[int] = (),
    iterations: Sequence[int] = (),
    sizes: Sequence[int] = (),
    types: Sequence[int] = (),
    whats: Sequence[str] = (),
) -> list[Case]:
    """Every combination; an axis without values has the usual one, and without `whats` everything is timed."""
    return [
        Case(network, preset_types(network) if number is None else number, size, batch, rounds, what)
        for network, number, size, batch, rounds, what in itertools.product(
            networks or ("small",),
            types or (None,),
            sizes or (32,),
            batches or (64,),
            iterations or (2,),
            whats or WHATS,
        )
    ]


def suite(name: str, whats: Sequence[str] = ()) -> list[Case]:
    """The cases of a named suite. Sweeps time forward+backward unless `whats` says otherwise, the others everything."""
    check_name("suite", name, SUITES)
    if name == "all":
        return _unique(case for part in ("headline", *SWEEPS) for case in suite(part, whats))
    if name == "quick":
        return grid(("tiny",), (1, 8), whats=whats)
    if name == "headline":
        return [case for network, rounds in HEADLINE for case in grid((network,), iterations=(rounds,), whats=whats)]
    axis = {"batch": "batches", "iterations": "iterations", "size": "sizes", "types": "types"}[name]
    whats = whats or (BACKWARD,)
    return [
        case
        for network, rounds in SWEPT
        for case in grid((network,), whats=whats, **{"iterations": (rounds,)} | {axis: SWEEPS[name]})
    ]


def _unique(cases: Iterable[Case]) -> list[Case]:
    return list(dict.fromkeys(cases))
