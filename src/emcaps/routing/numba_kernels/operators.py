"""EM routing through the compiled CPU kernels, as operators that autograd, torch.compile and torch.export know.

`route` and `route_and_keep` take the arguments that emcaps.routing.operators names; that file says what each is for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from emcaps.routing.numba_kernels import run
from emcaps.routing.numba_kernels.layer import Layer, known_layer
from emcaps.routing.operators import (
    ARGUMENTS,
    Inputs,
    KernelSettings,
    empty_outputs,
    gradients_of_arguments,
    gradients_of_outputs,
    is_plain_call,
    needs_gradients,
    split,
)


def fused_routing(inputs: Inputs, settings: KernelSettings) -> tuple[Tensor, Tensor]:
    """Pose and activation of the parents; a weight of four dims is a class layer's."""
    learns = needs_gradients(inputs)
    if is_plain_call(inputs):
        output = _Routing.apply(*inputs, *settings) if learns else _run(False, *inputs, *settings)
    else:
        output = route_and_keep(*inputs, *settings) if learns else route(*inputs, *settings)
    return output[0], output[1]


@torch.library.custom_op("emcaps::route_on_cpu", mutates_args=(), schema=f"{ARGUMENTS} -> (Tensor, Tensor)")
def route(*arguments: Any) -> Any:
    return _run(False, *arguments)[:2]


@route.register_fake
def _(*arguments: Any) -> Any:
    (pose, _, weight, _, _), settings = split(arguments)
    return empty_outputs(Layer.of(pose.shape, weight.shape, settings.stride, settings.by_position), pose)


@torch.library.custom_op(
    "emcaps::route_on_cpu_and_keep", mutates_args=(), schema=f"{ARGUMENTS} -> (Tensor, Tensor, Tensor, Tensor)"
)
def route_and_keep(*arguments: Any) -> Any:
    return _run(True, *arguments)


@route_and_keep.register_fake
def _(*arguments: Any) -> Any:
    (pose, _, weight, _, _), settings = split(arguments)
    layer = Layer.of(pose.shape, weight.shape, settings.stride, settings.by_position)
    records = pose.new_empty(layer.records_shape(layer.images, settings.iterations))
    assignments = pose.new_empty(layer.assignments_shape(layer.images, settings.iterations))
    return *empty_outputs(layer, pose), records, assignments


@torch.library.custom_op(
    "emcaps::route_on_cpu_backward",
    mutates_args=(),
    schema="(Tensor? pose_gradient, Tensor? activation_gradient, Tensor pose, Tensor activation, Tensor weight, "
    "Tensor records, Tensor assignments, SymInt[] stride, bool by_position, float final_lambda, float data_unit) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)
def route_backward(pose_gradient: Tensor | None, activation_gradient: Tensor | None, *kept_and_settings: Any) -> Any:
    return _run_backward(pose_gradient, activation_gradient, *kept_and_settings)


@route_backward.register_fake
def _(pose_gradient: Tensor | None, activation_gradient: Tensor | None, *kept_and_settings: Any) -> Any:
    pose, activation, weight = kept_and_settings[:3]
    new = pose.new_empty
    return new(pose.shape), new(activation.shape), new(weight.shape), new(2, weight.shape[-3])


def _run(keep: bool, *arguments: Any) -> tuple[Tensor, ...]:
    inputs, settings = split(arguments)
    layer = known_layer(inputs[0].shape, inputs[2].shape, tuple(settings.stride), settings.by_position)
    return run.forward(inputs, layer, keep, *settings[2:-1], settings.data_unit or layer.mean_data)


def _run_backward(
    pose_gradient: Tensor | None,
    activation_gradient: Tensor | None,
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    records: Tensor,
    assignments: Tensor,
    stride: list[int],
    by_position: bool,
    final_lambda: float,
    data_unit: float,
) -> tuple[Tensor, ...]:
    layer = known_layer(pose.shape, weight.shape, tuple(stride), by_position)
    of_outputs = gradients_of_outputs(pose_gradient, activation_gradient, layer, pose)
    kept = records.contiguous(), assignments.contiguous()
    return run.backward(*of_outputs, pose, activation, weight, *kept, layer, final_lambda, data_unit or layer.mean_data)


def _save(ctx: Any, arguments: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the backward pass needs: the children, the matrices, and what the kernels kept."""
    (pose, activation, weight, _, _), settings = split(arguments)
    ctx.save_for_backward(pose, activation, weight, *output[2:])
    ctx.set_materialize_grads(False)
    ctx.settings = settings.stride, settings.by_position, settings.final_lambda, settings.data_unit


def _save_for_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[2:])
    _save(ctx, inputs, output)


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return gradients_of_arguments(route_backward, ctx, *gradients[:2])


route_and_keep.register_autograd(_differentiate, setup_context=_save_for_operator)


class _Routing(torch.autograd.Function):
    """`route_and_keep` with its gradient, for plain calls."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        output = _run(True, *arguments)
        _save(ctx, arguments, output)
        return output[0], output[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return gradients_of_arguments(_run_backward, ctx, *gradients)
