"""EM routing through the fused GPU kernels, as operators that autograd, torch.compile and torch.export know.

`route` and `route_and_keep` take the arguments that emcaps.routing.operators names; that file says what each is for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from emcaps.routing.operators import (
    ARGUMENTS,
    Inputs,
    KernelSettings,
    apply,
    empty_outputs,
    gradients_of_outputs,
    is_plain_call,
    needs_gradients,
    refuse_second_derivative,
    split,
)
from emcaps.routing.triton_kernels import launch
from emcaps.routing.triton_kernels.fast_launch import on_device_of
from emcaps.routing.triton_kernels.layer import Layer, known_layer
from emcaps.routing.triton_kernels.layout import Kept, statistics_type

MOST_NUMBERS = 2**27
"""What a pass without gradients may keep at a time: half a gigabyte in float32."""


def fused_routing(inputs: Inputs, settings: KernelSettings) -> tuple[Tensor, Tensor]:
    """Pose and activation of the parents; a weight of four dims is a class layer's."""
    learns = needs_gradients(inputs)
    if is_plain_call(inputs):
        output = apply(_Routing, *inputs, settings) if learns else _run_in_chunks(*inputs, *settings)
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


@torch.library.custom_op("emcaps::route_and_keep", mutates_args=(), schema=f"{ARGUMENTS} -> (Tensor, Tensor, Tensor)")
def route_and_keep(*arguments: Any) -> Any:
    return _run(*arguments)


@route_and_keep.register_fake
def _(*arguments: Any) -> Any:
    (pose, activation, weight, _, _), settings = split(arguments)
    layer = Layer.of(pose.shape, weight.shape, settings.stride, settings.by_position)
    kept = pose.new_empty(Kept(layer, settings.iterations, pose.dtype).size)
    return *empty_outputs(layer, activation), kept


@torch.library.custom_op(
    "emcaps::route_backward",
    mutates_args=(),
    schema="(Tensor? pose_gradient, Tensor? activation_gradient, Tensor kept, SymInt[] pose_shape, "
    "SymInt[] weight_shape, SymInt[] stride, bool by_position, int iterations, float final_lambda, float data_unit) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)
def route_backward(
    pose_gradient: Tensor | None,
    activation_gradient: Tensor | None,
    kept: Tensor,
    pose_shape: list[int],
    weight_shape: list[int],
    stride: list[int],
    *settings: Any,
) -> Any:
    shapes = tuple(pose_shape), tuple(weight_shape), tuple(stride)
    return _run_backward(pose_gradient, activation_gradient, kept, *shapes, *settings)


@route_backward.register_fake
def _(pose_gradient: Tensor | None, activation_gradient: Tensor | None, kept: Tensor, *others: Any) -> Any:
    pose_shape, weight_shape = others[:2]
    new = partial(kept.new_empty, dtype=statistics_type(kept.dtype))
    return new(pose_shape), new(pose_shape[:-2]), new(weight_shape), new((2, weight_shape[-3]))


def _run(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    with on_device_of(pose):
        return launch.forward(pose, activation, weight, beta_u, beta_a, *settings)


def _run_in_chunks(pose: Tensor, activation: Tensor, weight: Tensor, *others: Any) -> tuple[Tensor, ...]:
    """The outputs alone. So many images are routed at a time that what is kept of them meanwhile stays small."""
    _, _, stride, by_position, iterations, *_ = others
    at_once = _images_at_once(pose.shape, weight.shape, tuple(stride), by_position, iterations, MOST_NUMBERS)
    if len(pose) <= at_once:
        return _run(pose, activation, weight, *others)[:2]
    chunks = zip(pose.split(at_once), activation.split(at_once), strict=True)
    outputs = zip(*(_run(*chunk, weight, *others)[:2] for chunk in chunks), strict=True)
    return tuple(torch.cat(parts) for parts in outputs)


@lru_cache(maxsize=256)
def _images_at_once(
    pose_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    stride: tuple[int, ...],
    by_position: bool,
    iterations: int,
    most_numbers: int,
) -> int:
    layer = known_layer(pose_shape, weight_shape, stride, by_position)
    numbers = Kept(layer, iterations, torch.float32).size // max(1, layer.blocks)
    at_once: int = layer.lanes * max(1, most_numbers // max(1, numbers))
    return at_once


def _run_backward(
    pose_gradient: Tensor | None,
    activation_gradient: Tensor | None,
    kept: Tensor,
    pose_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    stride: tuple[int, ...],
    by_position: bool,
    *settings: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    kept = _aligned(kept)
    if pose_gradient is None or activation_gradient is None:
        layer = known_layer(pose_shape, weight_shape, stride, by_position)
        like = kept.new_empty(0, dtype=statistics_type(kept.dtype))
        pose_gradient, activation_gradient = gradients_of_outputs(pose_gradient, activation_gradient, layer, like)
    with on_device_of(kept):
        return launch.backward(
            pose_gradient, activation_gradient, kept, pose_shape, weight_shape, stride, by_position, *settings
        )


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor, contiguous and aligned; hooks on saved tensors may have moved it to another place in memory."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _save(ctx: Any, inputs: Inputs, settings: KernelSettings, kept: Tensor) -> None:
    """What the backward pass needs: what the kernels kept, and the shapes and types of the gradients."""
    pose, _, weight, _, _ = inputs
    ctx.save_for_backward(kept)
    ctx.set_materialize_grads(False)
    stride, by_position, iterations, final_lambda, _, data_unit = settings
    ctx.settings = pose.shape, weight.shape, tuple(stride), by_position, iterations, final_lambda, data_unit
    ctx.dtypes = pose.dtype, weight.dtype


def _gradients(
    backward: Callable[..., Any], ctx: Any, pose_gradient: Tensor | None, activation_gradient: Tensor | None
) -> tuple[Tensor, ...]:
    """The gradients of the five inputs."""
    refuse_second_derivative()
    (kept,) = ctx.saved_tensors
    of_pose, of_activation, of_weight, of_betas = backward(pose_gradient, activation_gradient, kept, *ctx.settings)
    # Poses and matrices may be bfloat16; the kernels return float32.
    if of_pose.dtype != ctx.dtypes[0]:
        of_pose, of_weight = of_pose.to(ctx.dtypes[0]), of_weight.to(ctx.dtypes[1])
    return of_pose, of_activation, of_weight, *of_betas.unbind()


def _save_for_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(output[2])
    _save(ctx, *split(inputs), output[2])


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return *_gradients(route_backward, ctx, *gradients[:2]), *[None] * len(KernelSettings._fields)


route_and_keep.register_autograd(_differentiate, setup_context=_save_for_operator)


class _Routing(torch.autograd.Function):
    """`route_and_keep` with its gradient, for plain calls."""

    @staticmethod
    def forward(
        ctx: Any,
        pose: Tensor,
        activation: Tensor,
        weight: Tensor,
        beta_u: Tensor,
        beta_a: Tensor,
        settings: KernelSettings,
    ) -> tuple[Tensor, Tensor]:
        inputs = pose, activation, weight, beta_u, beta_a
        out_pose, out_activation, kept = _run(*inputs, *settings)
        _save(ctx, inputs, settings, kept)
        return out_pose, out_activation

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return *_gradients(_run_backward, ctx, *gradients), None
