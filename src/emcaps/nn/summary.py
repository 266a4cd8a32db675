"""A network as a table: layers, details, output shapes, and how much data EM routing assigns (the paper's Table 1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from emcaps.config import NetworkConfig
from emcaps.nn.network import MatrixCapsNet, build_network
from emcaps.routing import RoutingOutput, max_data, mean_data


class LayerRow(NamedTuple):
    layer: str
    details: str
    output_shape: tuple[int, ...]
    """Of the activations, without the batch: (H, W, channels or types)."""
    max_data: int | None
    mean_data: float | None
    parameters: int


def summarise(config: NetworkConfig, image_channels: int, image_size: int) -> list[LayerRow]:
    """One row per layer; the shapes are read off a forward pass of one blank image."""
    network = build_network(config, image_channels, image_size).eval()
    shapes: dict[str, tuple[int, ...]] = {}
    hooks = [layer.register_forward_hook(_record(shapes, name)) for name, layer in network.named_children()]
    with torch.no_grad():
        network(torch.zeros(1, image_channels, image_size, image_size))
    for hook in hooks:
        hook.remove()
    rows = [LayerRow("input", "", (image_size, image_size, image_channels), None, None, 0)]
    for name, layer in network.named_children():
        details, most, mean = "", None, None
        if isinstance(network, MatrixCapsNet):
            details, most, mean = _capsule_details(config, name, shapes)
        else:
            details = {
                "conv1": "K=5, S=1, Ch=32, pool 2",
                "conv2": "K=5, S=1, Ch=64, pool 2",
                "hidden": "dropout 0.5",
            }.get(name, "")
        rows.append(LayerRow(name, details, shapes[name], most, mean, count_parameters(layer)))
    return rows


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _capsule_details(
    config: NetworkConfig, name: str, shapes: dict[str, tuple[int, ...]]
) -> tuple[str, int | None, float | None]:
    if name == "relu_conv1":
        return f"K=5, S=2, Ch={config.conv_channels}", None, None
    if name == "primary_caps":
        return f"K=1, S=1, Ch={config.primary_types}", None, None
    before = {"conv_caps1": "primary_caps", "conv_caps2": "conv_caps1", "class_caps": "conv_caps2"}[name]
    height, width, child_types = shapes[before]
    rows, columns, parent_types = shapes[name]
    mean = mean_data((height, width), child_types, (rows, columns), parent_types)
    if name == "class_caps":
        return f"flatten, O={parent_types}", max_data((height, width), child_types), mean
    return f"K=3, S={2 if name == 'conv_caps1' else 1}, O={parent_types}", max_data(3, child_types), mean


def _record(shapes: dict[str, tuple[int, ...]], name: str):  # type: ignore[no-untyped-def]
    def hook(_module: nn.Module, _inputs: object, output: RoutingOutput | Tensor) -> None:
        tensor = output.activation if isinstance(output, RoutingOutput) else output
        if tensor.dim() == 4 and isinstance(output, Tensor):
            tensor = tensor.permute(0, 2, 3, 1)
        shape = tuple(tensor.shape[1:])
        shapes[name] = shape if len(shape) == 3 else (1, 1, *shape)

    return hook
