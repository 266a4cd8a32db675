"""A network as a table, as Table 1 of the paper: its layers, their shapes, and how much data EM routing assigns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from emcaps.config import NetworkConfig, RunConfig
from emcaps.nn.decoder import Decoder
from emcaps.nn.geometry import RoutedLayer, parameter_count, routed_layers
from emcaps.nn.layers import ConvCaps, PrimaryCaps
from emcaps.nn.network import MatrixCapsNet, build_network
from emcaps.routing import RoutingOutput, max_data, mean_data
from emcaps.routing.geometry import largest_window


class LayerDetails(NamedTuple):
    details: str = ""
    max_data: int | None = None
    mean_data: float | None = None


class LayerRow(NamedTuple):
    layer: str
    details: str
    max_data: int | None
    mean_data: float | None
    output_shape: tuple[int, ...]
    """Of the activations, without the batch: (H, W, channels or types)."""
    parameters: int
    counted: bool = True
    """Whether its parameters are among the network's; a decoder's are not, since no answer needs it."""


def summarise(config: NetworkConfig, image_channels: int, image_size: int) -> list[LayerRow]:
    """One row per layer; the shapes are read off a forward pass of one blank image."""
    if image_size < 1 or image_channels < 1:
        raise ValueError(f"an image has at least 1 pixel and 1 channel, not {image_size} and {image_channels}")
    # With the reference, since kernels may have to be compiled first, and only shapes are wanted.
    network = build_network(replace(config, impl="reference"), image_channels, image_size).eval()
    shapes: dict[str, tuple[int, ...]] = {}
    hooks = [layer.register_forward_hook(_record(shapes, name)) for name, layer in network.named_children()]
    with torch.no_grad():
        output = network(torch.zeros(1, image_channels, image_size, image_size))
        if isinstance(network, MatrixCapsNet) and network.decoder is not None:
            network.decoder(output, torch.zeros(1, dtype=torch.int64))
    for hook in hooks:
        hook.remove()
    routed = {layer.name: layer for layer in routed_layers(config, image_size)} if config.kind == "capsules" else {}
    rows = [LayerRow("input", *LayerDetails(), (image_size, image_size, image_channels), 0)]
    for name, layer in network.named_children():
        details = _routed_details(layer, routed[name]) if name in routed else LayerDetails(_details(layer))
        rows.append(LayerRow(name, *details, shapes[name], count_parameters(layer), not isinstance(layer, Decoder)))
    return rows


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def parameters_of(config: RunConfig) -> int:
    """How many numbers the network of a run learns, without a decoder. For capsules it is told without building it."""
    if config.network.kind == "capsules":
        return parameter_count(config.network, config.data.image_channels)
    return count_parameters(build_network(config.network, config.data.image_channels, config.data.crop))


def _routed_details(layer: nn.Module, shape: RoutedLayer) -> LayerDetails:
    """A routed layer in the words of the paper's table, with the most and the mean data of a parent."""
    window = "flatten"
    if isinstance(layer, ConvCaps):
        padding = f", P={_side(shape.padding)}" if any(shape.padding) else ""
        window = f"K={_side(shape.kernel)}, S={_side(shape.stride)}{padding}"
    return LayerDetails(
        f"{window}, O={shape.parent_types}",
        max_data(largest_window(shape.child_grid, shape.kernel, shape.stride, shape.padding), shape.child_types),
        mean_data(shape.child_grid, shape.child_types, shape.parent_grid, shape.parent_types),
    )


def _details(layer: nn.Module) -> str:
    """Any other layer in the words of the paper's table."""
    if isinstance(layer, Decoder):
        return "draws the image from one pose"
    if isinstance(layer, PrimaryCaps):
        return f"K=1, S=1, Ch={layer.types}"
    parts = []
    for part in layer.modules():
        if isinstance(part, nn.Conv2d):
            parts.append(f"K={part.kernel_size[0]}, S={part.stride[0]}, Ch={part.out_channels}")
        elif isinstance(part, nn.MaxPool2d):
            parts.append(f"pool {part.kernel_size}")
        elif isinstance(part, nn.Dropout):
            parts.append(f"dropout {part.p}")
    return ", ".join(parts)


def _side(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}x{pair[1]}"


def _record(shapes: dict[str, tuple[int, ...]], name: str) -> Callable[..., None]:
    def hook(_module: nn.Module, _inputs: object, output: RoutingOutput | Tensor) -> None:
        tensor = output.activation if isinstance(output, RoutingOutput) else output
        if tensor.dim() == 4 and isinstance(output, Tensor):
            tensor = tensor.permute(0, 2, 3, 1)
        shape = tuple(tensor.shape[1:])
        shapes[name] = shape if len(shape) == 3 else (1, 1, *shape)

    return hook
