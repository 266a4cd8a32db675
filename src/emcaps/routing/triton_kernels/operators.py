"""EM routing through the fused GPU kernels, as operators that autograd, torch.compile and torch.export know.

`route` and `route_and_keep` take the arguments that emcaps.routing.operators names; that file says what each is for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
from emcaps.routing.triton_kernels import launch
from emcaps.routing.triton_kernels.layer import Layer, known_layer

MOST_NUMBERS = 2**27
"""What a pass without gradients may keep at a time: half a gigabyte in float32."""
_KEPT = "Tensor pose, Tensor weight, Tensor state"


def fused_routing(inputs: Inputs, settings: KernelSettings) -> tuple[Tensor, Tensor]:
    """Pose and activation of the parents; a weight of four dims is a class layer's."""
    learns = needs_gradients(inputs)
    if is_plain_call(inputs):
        output = _Routing.apply(*inputs, *settings) if learns else _run_in_chunks(*inputs, *settings)
    else:
        output = route_and_keep(*inputs, *settings) if learns else route(*inputs, *settings)
    return output[0], output[1]


@torch.library.custom_op("emcaps::route", mutates_args=(), schema=f"{ARGUMENTS} -> (Tensor, Tensor)")
def route(*arguments: Any) -> Any:
    return _run_in_chunks(*arguments)


@route.register_fake
def _(*arguments: Any) -> Any:
    (pose, activation, weight, _, _), settings = split(arguments)
    return empty_outputs(Layer.of(pose.shape, weight.shape, settings.stride, settings.by_position), activation)


@torch.library.custom_op(
    "emcaps::route_and_keep",
    mutates_args=(),
    schema=f"{ARGUMENTS} -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def route_and_keep(*arguments: Any) -> Any:
    return _run(*arguments)


@route_and_keep.register_fake
def _(*arguments: Any) -> Any:
    (pose, activation, weight, _, _), settings = split(arguments)
    layer = Layer.of(pose.shape, weight.shape, settings.stride, settings.by_position)
    return (
        *empty_outputs(layer, activation),
        pose.new_empty(layer.pose_shape),
        weight.new_empty(layer.weight_shape),
        activation.new_empty(launch.state_size(layer, settings.iterations)),
    )


@torch.library.custom_op(
    "emcaps::route_backward",
    mutates_args=(),
    schema=f"(Tensor? pose_gradient, Tensor? activation_gradient, {_KEPT}, SymInt[] pose_shape, SymInt[] weight_shape, "
    "SymInt[] stride, bool by_position, int iterations, float final_lambda, float data_unit) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)
def route_backward(pose_gradient: Tensor | None, activation_gradient: Tensor | None, *kept_and_settings: Any) -> Any:
    return _run_backward(pose_gradient, activation_gradient, *kept_and_settings)


@route_backward.register_fake
def _(pose_gradient: Tensor | None, activation_gradient: Tensor | None, *kept_and_settings: Any) -> Any:
    new = kept_and_settings[2].new_empty
    pose_shape, weight_shape = kept_and_settings[3:5]
    return new(pose_shape), new(pose_shape[:-2]), new(weight_shape), new(2, weight_shape[-3])


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, contiguous and aligned; hooks on saved tensors may have moved it to another place in memory."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _run(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, settings = split(arguments)
    layer = known_layer(inputs[0].shape, inputs[2].shape, tuple(settings.stride), settings.by_position)
    with torch.cuda.device_of(inputs[0]):
        out_pose, out_activation, kept = launch.forward(*inputs, layer, *settings[2:])
    return out_pose, out_activation, *kept


def _run_in_chunks(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The outputs alone. So many images are routed at a time that what is kept of them meanwhile stays small."""
    (pose, activation, *others), settings = split(arguments)
    layer = known_layer(pose.shape, others[0].shape, tuple(settings.stride), settings.by_position)
    numbers = launch.state_size(layer, settings.iterations) // max(1, layer.blocks)
    at_once = layer.lanes * max(1, MOST_NUMBERS // max(1, numbers))
    if layer.images <= at_once:
        out_pose, out_activation, *_ = _run(*arguments)
        return out_pose, out_activation
    chunks = zip(pose.split(at_once), activation.split(at_once), strict=True)
    outputs = zip(*(_run(*chunk, *others, *settings)[:2] for chunk in chunks), strict=True)
    poses, activations = (torch.cat(parts) for parts in outputs)
    return poses, activations


def _run_backward(
    pose_gradient: Tensor | None, activation_gradient: Tensor | None, *kept_and_settings: Any
) -> tuple[Tensor, ...]:
    kept = launch.Kept(*map(_aligned, kept_and_settings[:3]))
    pose_shape, weight_shape, stride, by_position, *settings = kept_and_settings[3:]
    layer = known_layer(tuple(pose_shape), tuple(weight_shape), tuple(stride), by_position)
    of_outputs = gradients_of_outputs(pose_gradient, activation_gradient, layer, kept.state)
    with torch.cuda.device_of(kept.state):
        return launch.backward(*of_outputs, kept, layer, weight_shape, *settings)


def _save(ctx: Any, arguments: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the backward pass needs: what the kernels kept, and the shapes and types of the gradients."""
    inputs, settings = split(arguments)
    shapes = list(inputs[0].shape), list(inputs[2].shape)
    ctx.save_for_backward(*output[2:])
    ctx.set_materialize_grads(False)
    ctx.settings = (
        *shapes,
        settings.stride,
        settings.by_position,
        settings.iterations,
        settings.final_lambda,
        settings.data_unit,
    )
    ctx.dtypes = tuple(tensor.dtype for tensor in inputs)


def _save_for_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[2:])
    _save(ctx, inputs, output)


def _gradients(backward: Callable[..., Any], ctx: Any, *of_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
    found = gradients_of_arguments(backward, ctx, *of_outputs)
    # Poses and matrices may be bfloat16; the kernels return float32.
    typed = (gradient.to(dtype) for gradient, dtype in zip(found[:5], ctx.dtypes, strict=True))
    return *typed, *found[5:]


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(route_backward, ctx, *gradients[:2])


route_and_keep.register_autograd(_differentiate, setup_context=_save_for_operator)


class _Routing(torch.autograd.Function):
    """`route_and_keep` with its gradient, for plain calls."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        output = _run(*arguments)
        _save(ctx, arguments, output)
        return output[0], output[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(_run_backward, ctx, *gradients)
