"""The shape of the matrix capsule network, stated once: kernels, strides and padding of its layers, and their grids.

The network builds its layers from this; the FLOP count, the estimate of memory and the table of layers count by it.
Grids, kernels and strides are (rows, columns).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from emcaps.config import PRESETS, LayerConfig, NetworkConfig
from emcaps.routing.geometry import Pair, as_pair, parent_grid

IMAGE_KERNEL, IMAGE_STRIDE, IMAGE_PADDING = 5, 2, 2
"""Of the first, ordinary convolution. The primary capsules read each of its positions by itself."""
POSE = 16
"""Elements of a pose, and of a vote."""


class CapsuleLayer(NamedTuple):
    """A layer that EM routing connects to the one before, whatever the size of the images."""

    name: str
    child_types: int
    parent_types: int
    kernel: Pair | None
    """None for one parent position that reads the whole grid of children."""
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)


class RoutedLayer(NamedTuple):
    """A capsule layer as it is for images of one size."""

    name: str
    child_types: int
    parent_types: int
    child_grid: Pair
    parent_grid: Pair
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    @property
    def edges(self) -> int:
        """How many votes are computed for one image: one for each (child, parent) pair, and for padding."""
        return math.prod((*self.parent_grid, *self.kernel, self.child_types, self.parent_types))


def routed_names(depth: int) -> tuple[str, ...]:
    """What the layers after the primary one are called in a network with `depth` convolutional capsule layers."""
    return (*(f"conv_caps{number}" for number in range(1, depth + 1)), "class_caps")


def capsule_layers(config: NetworkConfig) -> tuple[CapsuleLayer, ...]:
    """The capsule layers after the primary one, in order: those that the config describes, or the paper's."""
    described = config.layers
    if described is None:
        described = (LayerConfig(config.conv1_types, kernel=3, stride=2), LayerConfig(config.conv2_types, kernel=3))
    layers = []
    child_types = config.primary_types
    *names, class_name = routed_names(len(described))
    for name, layer in zip(names, described, strict=True):
        windows = ((side, side) for side in (layer.kernel, layer.stride, layer.padding))
        layers.append(CapsuleLayer(name, child_types, layer.types, *windows))
        child_types = layer.types
    return (*layers, CapsuleLayer(class_name, child_types, config.classes, kernel=None))


def preset_name(network: NetworkConfig) -> str:
    """The preset whose layers the network has, however they are routed and started; else "network"."""

    def layers(config: NetworkConfig) -> tuple[object, ...]:
        return (config.kind, config.conv_channels, config.primary_types, *capsule_layers(config)[:-1])

    return next((name for name, known in PRESETS.items() if layers(known.network) == layers(network)), "network")


def parameter_count(config: NetworkConfig, image_channels: int) -> int:
    """How many numbers the capsule network learns, without a decoder, told before it takes any memory."""
    first = config.conv_channels * (image_channels * IMAGE_KERNEL**2 + 1)
    primary = 17 * config.primary_types * (config.conv_channels + 1)
    layers = capsule_layers(config)
    matrix = POSE**2 if config.pose == "vector" else POSE
    routed = sum(
        matrix * math.prod(layer.kernel or ()) * layer.child_types * layer.parent_types + 2 * layer.parent_types
        for layer in layers
    )
    return first + primary + routed + (len(layers) if config.pose_scale else 0)


def primary_grid(image_size: int | Pair) -> Pair:
    """The grid of primary capsules, which is that of the first convolution."""
    height, width = as_pair("image size", image_size)
    padding = 2 * IMAGE_PADDING
    return parent_grid((height + padding, width + padding), IMAGE_KERNEL, IMAGE_STRIDE)


def routed_layers(config: NetworkConfig, image_size: int | Pair) -> tuple[RoutedLayer, ...]:
    """The capsule layers after the primary one, with the grids that images of this size give them.

    A ValueError names the first layer whose windows do not fit.
    """
    layers: list[RoutedLayer] = []
    children = primary_grid(image_size)
    for name, child_types, parent_types, kernel, stride, padding in capsule_layers(config):
        window = kernel or children
        if any(side > grid + 2 * around for side, grid, around in zip(window, children, padding, strict=True)):
            raise ValueError(
                f"choose larger images, or smaller kernels or strides in network.layers, since {name}'s kernel of "
                f"{window[0]}x{window[1]} does not fit into its grid of {children[0]}x{children[1]} children"
            )
        parents = parent_grid(children, window, stride, padding)
        layers.append(RoutedLayer(name, child_types, parent_types, children, parents, window, stride, padding))
        children = parents
    return tuple(layers)


def smallest_image(config: NetworkConfig) -> int:
    """The least side of an image that leaves every layer at least one position, counted back from the last layer."""
    side = 1
    for layer in reversed(capsule_layers(config)):
        if layer.kernel is not None:
            along = zip(layer.kernel, layer.stride, layer.padding, strict=True)
            side = max(1, *((side - 1) * stride + kernel - 2 * padding for kernel, stride, padding in along))
    return max(1, (side - 1) * IMAGE_STRIDE + IMAGE_KERNEL - 2 * IMAGE_PADDING)


def check_image_size(name: str, size: int, config: NetworkConfig) -> None:
    """Raise ValueError unless the capsule network fits into square images of this side; `name` is the setting."""
    try:
        routed_layers(config, size)
    except ValueError as error:
        rule = f"{name} must be at least {smallest_image(config)} for a capsule network"
        raise ValueError(f"{rule}, whose windows need that many pixels, not {size}: {error}") from None
