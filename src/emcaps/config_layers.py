"""The setting network.layers: convolutional capsule layers, as texts or in parts."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any

from emcaps.config_rules import LARGEST_WHOLE, require
from emcaps.names import check_name


@dataclass(frozen=True)
class LayerConfig:
    """One convolutional capsule layer; as a text it is types:kernel:stride:padding, such as "16:3:2" or "16:3:1:1"."""

    types: int
    kernel: int = 3
    """Side of the square window of children that a parent reads."""
    stride: int = 1
    """Steps between windows. No parent reads the children that lie between windows, or beyond the last one."""
    padding: int = 0
    """How far windows reach beyond the grid on each side. A parent at the border reads fewer children."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "padding" else 1
            whole = isinstance(value, int) and not isinstance(value, bool)
            rule = f"{name} of a capsule layer must be a whole number of at least {least}"
            require(whole and value >= least, value, rule)
            most = LARGEST_WHOLE["network"]
            require(value <= most, value, f"{name} of a capsule layer must be at most {most:,}")
        rule = f"padding of a capsule layer must be smaller than its kernel, {self.kernel}"
        require(self.padding < self.kernel, self.padding, rule)


def read_layers(given: Any) -> tuple[LayerConfig, ...]:
    """Layers from a text such as "16:3:2, 16", or from a list of texts, dicts or layers."""
    if isinstance(given, str):
        given = given.split(",") if given.strip() else ()
    example = "'16:3:2, 16:3:1'"
    require(isinstance(given, list | tuple), given, f"network.layers must be a list, or a text such as {example}")
    layers = []
    for number, one in enumerate(given, start=1):
        try:
            layers.append(_read_layer(one))
        except ValueError as error:
            raise ValueError(f"network.layers, layer {number}: {error}") from None
    return tuple(layers)


def _read_layer(given: Any) -> LayerConfig:
    if isinstance(given, str):
        numbers = given.strip().split(":")
        require(
            len(numbers) <= 4 and all(number.strip().isdecimal() for number in numbers),
            given,
            "a layer must be written types:kernel:stride:padding in whole numbers, such as '16:3:2', or '16' for "
            "'16:3:1:0'",
        )
        return LayerConfig(*(int(number) for number in numbers))
    if isinstance(given, dict):
        for key in given:
            check_name("setting of a layer", key, ("types", "kernel", "stride", "padding"))
        require("types" in given, given, "a layer must say its types")
        return LayerConfig(**given)
    require(isinstance(given, LayerConfig), given, "a layer must be a LayerConfig, a dict or a text such as '16:3:2'")
    return typing.cast("LayerConfig", given)
