"""Runs the fused kernels and the reference on the same inputs, on a GPU or, without one, in Triton's interpreter.

The interpreter takes about a second for every thirty edges between child types and parent types, whatever the batch. So
layers are tiny, although batches need not be, and tests that need real sizes are marked `on_gpu`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from emcaps import RoutingOutput, class_routing, conv_routing
from emcaps.routing.geometry import as_pair
from emcaps.routing.triton_kernels.layer import Layer
from routing.cases import Inputs, outputs_and_gradients

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the interpreter is too slow for it")


def on(device: str, routing: Callable[..., Any]) -> Callable[..., RoutingOutput]:
    """The routing on a device: inputs are copied to it and outputs back to the CPU, and gradients the other way."""

    def routed(*inputs: Tensor, **options: Any) -> RoutingOutput:
        output = routing(*(tensor.to(device) for tensor in inputs), **options)
        return RoutingOutput(*(tensor.cpu() for tensor in output))

    return routed


def routing_of(inputs: Inputs) -> Callable[..., Any]:
    return class_routing if inputs.weight.ndim == 4 else conv_routing


def reference(inputs: Inputs, device: str, **options: Any) -> dict[str, Tensor]:
    """Outputs and gradients of the reference, by name."""
    return outputs_and_gradients(on(device, routing_of(inputs)), inputs, impl="reference", **options)


def fused(inputs: Inputs, device: str, **options: Any) -> dict[str, Tensor]:
    """Outputs and gradients of the GPU kernels, by name."""
    return outputs_and_gradients(on(device, routing_of(inputs)), inputs, impl="triton", **options)


def on_cpu(inputs: Inputs, device: str = "cpu", **options: Any) -> dict[str, Tensor]:
    """Outputs and gradients of the CPU kernels, by name. They run on the CPU whatever the device."""
    return outputs_and_gradients(routing_of(inputs), inputs, impl="numba", **options)


class Operators(TorchDispatchMode):
    """Records the names of the emcaps operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "emcaps":
            self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


def layer_for(inputs: Inputs, **options: Any) -> Layer:
    """The sizes and tiles that the kernels choose for such a call."""
    stride, (rows, columns) = as_pair("stride", options.get("stride", 1)), options.get("padding", (0, 0))
    batch, height, width, *capsule = inputs.pose.shape
    pose_shape = (batch, height + 2 * rows, width + 2 * columns, *capsule)
    return Layer.of(pose_shape, inputs.weight.shape, stride, options.get("competition") == "types")


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """New memory holds NaN until it is written."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        yield
    finally:
        torch.use_deterministic_algorithms(False)
