"""The shape of the matrix capsule network, stated once: kernels, strides and padding of its layers, and their grids.

The network builds its layers from this; the FLOP count, the estimate of memory and the table of layers count by it.
Grids, kernels and strides are (rows, columns).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from emcaps.config import NetworkConfig
from emcaps.routing.geometry import Pair, as_pair, parent_grid

IMAGE_KERNEL, IMAGE_STRIDE, IMAGE_PADDING = 5, 2, 2
"""Of the first, ordinary convolution. The primary capsules read each of its positions by itself."""


class CapsuleLayer(NamedTuple):
    """A layer that EM routing connects to the one before, whatever the size of the images."""

    name: str
    child_types: int
    parent_types: int
    kernel: Pair | None
    """None for one parent position that reads the whole grid of children."""
    stride: Pair = (1, 1)


class RoutedLayer(NamedTuple):
    """A capsule layer as it is for images of one size."""

    name: str
    child_types: int
    parent_types: int
    child_grid: Pair
    parent_grid: Pair
    kernel: Pair
    stride: Pair

    @property
    def edges(self) -> int:
        """How many (child, parent) pairs the layer connects in one image; each has one vote."""
        return math.prod((*self.parent_grid, *self.kernel, self.child_types, self.parent_types))


def capsule_layers(config: NetworkConfig) -> tuple[CapsuleLayer, CapsuleLayer, CapsuleLayer]:
    """The capsule layers after the primary one, in order."""
    return (
        CapsuleLayer("conv_caps1", config.primary_types, config.conv1_types, kernel=(3, 3), stride=(2, 2)),
        CapsuleLayer("conv_caps2", config.conv1_types, config.conv2_types, kernel=(3, 3), stride=(1, 1)),
        CapsuleLayer("class_caps", config.conv2_types, config.classes, kernel=None),
    )


def primary_grid(image_size: int | Pair) -> Pair:
    """The grid of primary capsules, which is that of the first convolution."""
    height, width = as_pair("image size", image_size)
    padding = 2 * IMAGE_PADDING
    return parent_grid((height + padding, width + padding), IMAGE_KERNEL, IMAGE_STRIDE)


def routed_layers(config: NetworkConfig, image_size: int | Pair) -> tuple[RoutedLayer, ...]:
    """The capsule layers after the primary one, with the grids that images of this size give them."""
    layers: list[RoutedLayer] = []
    children = primary_grid(image_size)
    for name, child_types, parent_types, kernel, stride in capsule_layers(config):
        window = kernel or children
        parents = parent_grid(children, window, stride)
        layers.append(RoutedLayer(name, child_types, parent_types, children, parents, window, stride))
        children = parents
    return tuple(layers)


def smallest_image(config: NetworkConfig) -> int:
    """The least side of an image that leaves every layer at least one position, counted back from the last layer."""
    side = 1
    for layer in reversed(capsule_layers(config)):
        if layer.kernel is not None:
            side = max((side - 1) * stride + kernel for kernel, stride in zip(layer.kernel, layer.stride, strict=True))
    return max(1, (side - 1) * IMAGE_STRIDE + IMAGE_KERNEL - 2 * IMAGE_PADDING)


def check_image_size(name: str, size: int, config: NetworkConfig) -> None:
    """Raise ValueError unless the capsule network fits into square images of this side; `name` is the setting."""
    least = smallest_image(config)
    if size < least:
        raise ValueError(
            f"{name} must be at least {least} for a capsule network, whose windows need that many pixels, not {size}: "
            "choose larger images"
        )
