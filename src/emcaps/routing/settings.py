"""The settings of a routing, and their defaults."""

from __future__ import annotations

from typing import NamedTuple, TypedDict


class RoutingSettings(NamedTuple):
    """The settings that every implementation takes. `conv_routing` says what each means; its defaults are these."""

    iterations: int = 3
    final_lambda: float = 1.0
    variance_floor: float = 1e-4
    data_scaling: str = "mean"
    competition: str = "all"


DEFAULTS = RoutingSettings()
DEFAULT_IMPL = "auto"


class RoutingOptions(TypedDict, total=False):
    """The keyword arguments of `conv_routing` and `class_routing` that a layer keeps."""

    iterations: int
    final_lambda: float
    variance_floor: float
    data_scaling: str
    competition: str
    impl: str


def routing_lambda(iteration: int, final_lambda: float) -> float:
    """The inverse temperature of iteration 0, 1, ...: it rises towards final_lambda."""
    return final_lambda * (1 - 0.95 ** (iteration + 1))
