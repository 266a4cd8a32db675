"""EM routing through the compiled CPU kernels, as operators that autograd, torch.compile and torch.export know.

`route_on_cpu` keeps nothing; `route_on_cpu_and_keep` also returns what `route_on_cpu_backward` needs, and is the one
with a gradient. As with the GPU kernels, plain calls skip the operators' wrappers and do the same through `_Routing`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from emcaps.routing.modes import nobody_watches, refuse_second_derivatives
from emcaps.routing.numba_kernels import run
from emcaps.routing.numba_kernels.run import shape_of

_INPUTS = (
    "(Tensor pose, Tensor activation, Tensor weight, Tensor beta_u, Tensor beta_a, SymInt[] stride, bool by_position, "
    "int iterations, float final_lambda, float variance_floor, float data_unit)"
)


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
        out_pose, out_activation = _Routing.apply(*inputs, *settings) if learns else _run(False, *inputs, *settings)[:2]
    elif learns:
        out_pose, out_activation, *_ = route_and_keep(*inputs, *settings)
    else:
        out_pose, out_activation = route(*inputs, *settings)
    return out_pose, out_activation


@torch.library.custom_op("emcaps::route_on_cpu", mutates_args=(), schema=f"{_INPUTS} -> (Tensor, Tensor)")
def route(pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, *settings: Any) -> Any:
    return _run(False, pose, activation, weight, beta_u, beta_a, *settings)[:2]


@route.register_fake
def _(pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, *settings: Any) -> Any:
    return _empty_outputs(pose, weight, *settings)


@torch.library.custom_op(
    "emcaps::route_on_cpu_and_keep", mutates_args=(), schema=f"{_INPUTS} -> (Tensor, Tensor, Tensor, Tensor)"
)
def route_and_keep(
    pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, *settings: Any
) -> Any:
    return _run(True, pose, activation, weight, beta_u, beta_a, *settings)


@route_and_keep.register_fake
def _(pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, *settings: Any) -> Any:
    stride, by_position, iterations, *_ = settings
    shape = shape_of(pose.shape, weight.shape, stride, by_position)
    kept = pose.new_empty(shape.records(iterations)), pose.new_empty(shape.assignments(iterations))
    return *_empty_outputs(pose, weight, *settings), *kept


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


def _run(
    keep: bool,
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: list[int],
    by_position: bool,
    *settings: Any,
) -> tuple[Tensor, ...]:
    shape = shape_of(pose.shape, weight.shape, stride, by_position)
    return run.forward((pose, activation, weight, beta_u, beta_a), shape, keep, *settings)


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
    shape = shape_of(pose.shape, weight.shape, stride, by_position)
    if pose_gradient is None:  # a loss of the activations alone
        pose_gradient = pose.new_zeros(*shape.output, 4, 4)
    if activation_gradient is None:
        activation_gradient = pose.new_zeros(shape.output)
    kept = records.contiguous(), assignments.contiguous()
    return run.backward(
        pose_gradient, activation_gradient, pose, activation, weight, *kept, shape, final_lambda, data_unit
    )


def _empty_outputs(
    pose: Tensor, weight: Tensor, stride: list[int], by_position: bool, *_: Any
) -> tuple[Tensor, Tensor]:
    output = shape_of(pose.shape, weight.shape, stride, by_position).output
    return pose.new_empty(*output, 4, 4), pose.new_empty(output)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pose, activation, weight, _, _, stride, by_position, _, final_lambda, _, data_unit = inputs
    ctx.save_for_backward(pose, activation, weight, *output[2:])
    ctx.set_materialize_grads(False)
    ctx.settings = list(stride), by_position, final_lambda, data_unit


def _remember_operator(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[2:])
    _remember(ctx, inputs, output)


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(route_backward, ctx, *gradients[:2])


def _gradients(
    backward: Callable[..., Any], ctx: Any, pose_gradient: Tensor | None, activation_gradient: Tensor | None
) -> tuple[Tensor | None, ...]:
    refuse_second_derivatives()
    *found, betas = backward(pose_gradient, activation_gradient, *ctx.saved_tensors, *ctx.settings)
    return *found, *betas.unbind(), None, None, None, None, None, None


route_and_keep.register_autograd(_differentiate, setup_context=_remember_operator)


class _Routing(torch.autograd.Function):
    """`route_and_keep` with its gradient, for plain calls."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _run(True, *inputs)
        _remember(ctx, inputs, output)
        return output[0], output[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(_run_backward, ctx, *gradients)
