"""EM routing through the fused kernels, as operators that autograd, torch.compile and torch.export know.

`route` keeps nothing; `route_and_keep` also returns what `route_backward` needs, and is the one with a gradient.
The fake implementations say what shapes come out without running anything. Plain calls skip the operators, whose
wrappers take longer than many of the kernels, and do the same work through `_Routing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from emcaps.routing.modes import nobody_watches, refuse_second_derivatives
from emcaps.routing.triton_kernels import launch
from emcaps.routing.triton_kernels.layer import known_layer, layer_of
from emcaps.routing.triton_kernels.records import RECORD

_INPUTS = (
    "(Tensor pose, Tensor activation, Tensor weight, Tensor beta_u, Tensor beta_a, SymInt[] stride, bool by_position, "
    "int iterations, float final_lambda, float variance_floor, float data_unit)"
)
_KEPT = "Tensor pose, Tensor activation, Tensor first_share, Tensor weight, Tensor records, Tensor normalisers"


def fused_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: tuple[int, int],
    by_position: bool,
    iterations: int,
    final_lambda: float,
    variance_floor: float,
    data_unit: float,
) -> tuple[Tensor, Tensor]:
    """Pose and activation of the parents; a weight of four dims is a class layer's."""
    inputs = pose, activation, weight, beta_u, beta_a
    settings: tuple[Any, ...] = list(stride), by_position, iterations, final_lambda, variance_floor, data_unit
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    if nobody_watches(inputs):
        out_pose, out_activation = _Routing.apply(*inputs, *settings) if learns else _run(*inputs, *settings)[:2]
    elif learns:
        out_pose, out_activation, *_ = route_and_keep(*inputs, *settings)
    else:
        out_pose, out_activation = route(*inputs, *settings)
    return out_pose, out_activation


@torch.library.custom_op("emcaps::route", mutates_args=(), schema=f"{_INPUTS} -> (Tensor, Tensor)")
def route(pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, *settings: Any) -> Any:
    return _run(pose, activation, weight, beta_u, beta_a, *settings)[:2]


@route.register_fake
def _(pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, *settings: Any) -> Any:
    return _empty_outputs(pose, activation, weight, *settings)[:2]


@torch.library.custom_op(
    "emcaps::route_and_keep",
    mutates_args=(),
    schema=f"{_INPUTS} -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def route_and_keep(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, *settings: Any
) -> Any:
    return _run(pose, activation, weight, beta_u, beta_a, *settings)


@route_and_keep.register_fake
def _(pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, *settings: Any) -> Any:
    stride, by_position, iterations, *_ = settings
    layer = layer_of(pose.shape, weight.shape, stride, by_position)
    new = activation.new_empty
    return (
        *_empty_outputs(pose, activation, weight, *settings),
        pose.new_empty(layer.children_shape(16)),
        new(layer.children_shape()),
        new(layer.children_shape()),
        weight.new_empty(layer.weight_shape),
        new(iterations, *layer.parents_shape(RECORD.value)),
        new(layer.normalisers_shape(iterations)),
    )


@torch.library.custom_op(
    "emcaps::route_backward",
    mutates_args=(),
    schema=f"(Tensor? pose_gradient, Tensor? activation_gradient, {_KEPT}, SymInt[] pose_shape, SymInt[] weight_shape, "
    "SymInt[] stride, bool by_position, float final_lambda, float data_unit) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)
def route_backward(pose_gradient: Tensor | None, activation_gradient: Tensor | None, *kept_and_settings: Any) -> Any:
    return _run_backward(pose_gradient, activation_gradient, *kept_and_settings)


@route_backward.register_fake
def _(pose_gradient: Tensor | None, activation_gradient: Tensor | None, *kept_and_settings: Any) -> Any:
    new = kept_and_settings[4].new_empty
    pose_shape, weight_shape = kept_and_settings[6:8]
    return new(pose_shape), new(pose_shape[:-2]), new(weight_shape), new(2, weight_shape[-3])


def _aligned(tensor: Tensor) -> Tensor:
    """As the forward pass made it: what kept it in the meantime may have given back another place in memory."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _run(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: list[int],
    by_position: bool,
    *settings: Any,
) -> tuple[Tensor, ...]:
    layer = known_layer(tuple(pose.shape), tuple(weight.shape), tuple(stride), by_position)
    with torch.cuda.device_of(pose):
        out_pose, out_activation, kept = launch.forward(pose, activation, weight, beta_u, beta_a, layer, *settings)
    return out_pose, out_activation, *kept


def _run_backward(
    pose_gradient: Tensor | None, activation_gradient: Tensor | None, *kept_and_settings: Any
) -> tuple[Tensor, ...]:
    kept = launch.Kept(*map(_aligned, kept_and_settings[:6]))
    pose_shape, weight_shape, stride, by_position, final_lambda, data_unit = kept_and_settings[6:]
    layer = known_layer(tuple(pose_shape), tuple(weight_shape), tuple(stride), by_position)
    zeros = kept.records.new_zeros
    if pose_gradient is None:  # a loss of the activations alone
        pose_gradient = zeros(*layer.output_shape, 4, 4)
    if activation_gradient is None:
        activation_gradient = zeros(layer.output_shape)
    with torch.cuda.device_of(kept.records):
        return launch.backward(
            pose_gradient, activation_gradient, kept, layer, weight_shape, len(kept.records), final_lambda, data_unit
        )


def _empty_outputs(
    pose: Tensor, activation: Tensor, weight: Tensor, stride: list[int], by_position: bool, *_: Any
) -> tuple[Tensor, Tensor]:
    shape = layer_of(pose.shape, weight.shape, stride, by_position).output_shape
    return activation.new_empty(*shape, 4, 4), activation.new_empty(shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pose, _, weight, _, _, stride, by_position, _, final_lambda, _, data_unit = inputs
    ctx.save_for_backward(*output[2:])
    ctx.set_materialize_grads(False)
    ctx.settings = list(pose.shape), list(weight.shape), list(stride), by_position, final_lambda, data_unit
    ctx.dtypes = tuple(tensor.dtype for tensor in inputs[:5])


def _remember_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[2:])
    _remember(ctx, inputs, output)


def _differentiate(
    ctx: Any, pose_gradient: Tensor | None, activation_gradient: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    return _gradients(route_backward, ctx, pose_gradient, activation_gradient)


def _gradients(
    backward: Callable[..., Any], ctx: Any, pose_gradient: Tensor | None, activation_gradient: Tensor | None
) -> tuple[Tensor | None, ...]:
    refuse_second_derivatives()
    *gradients, betas = backward(pose_gradient, activation_gradient, *ctx.saved_tensors, *ctx.settings)
    # Poses and matrices may have come in bfloat16; everything between is float32.
    typed = [gradient.to(dtype) for gradient, dtype in zip((*gradients, *betas.unbind()), ctx.dtypes, strict=True)]
    return *typed, None, None, None, None, None, None


route_and_keep.register_autograd(_differentiate, setup_context=_remember_operator)


class _Routing(torch.autograd.Function):
    """`route_and_keep` with its gradient, for plain calls."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _run(*inputs)
        _remember(ctx, inputs, output)
        return output[0], output[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(_run_backward, ctx, *gradients)
