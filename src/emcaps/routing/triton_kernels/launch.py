"""The kernels of a forward and of a backward pass, in order.

Each pass is a list of steps, made once for all calls with the same shapes, types and settings. A pass takes its memory
in few pieces, because each takes time: one for all that is kept for the backward pass, another for what only the
backward pass needs, and one for each result, since a result that shares memory would keep all of it alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from emcaps.routing.availability import has_asynchronous_copies
from emcaps.routing.settings import routing_lambda
from emcaps.routing.triton_kernels.backward import parent_gradient
from emcaps.routing.triton_kernels.fast_launch import Launches, Part, Step
from emcaps.routing.triton_kernels.forward import m_step
from emcaps.routing.triton_kernels.input_gradient import input_gradient
from emcaps.routing.triton_kernels.layer import Layer, known_layer
from emcaps.routing.triton_kernels.layout import Kept, Work, partial_sums, statistics_type
from emcaps.routing.triton_kernels.packing import pack
from emcaps.routing.triton_kernels.staged_backward import staged_moments, staged_share_gradients
from emcaps.routing.triton_kernels.staged_forward import staged_log_joints, staged_m_step
from emcaps.routing.triton_kernels.windows import assign, assignment_gradients, gather_gradients, sum_parameters

FORWARD = ("pose", "activation", "weight", "beta_u", "beta_a", "kept", "scratch", "out_pose", "out_activation")
"""The tensors of a forward pass. `beta_u`, `beta_a` and `weight` are contiguous; `pose` has contiguous matrices."""
BACKWARD = (
    *("pose_gradient", "activation_gradient", "kept", "work"),
    *("out_pose", "out_activation", "out_weight", "out_betas"),
)
"""The tensors of a backward pass, all of them contiguous: gradients of the outputs, memory, gradients of the inputs."""


def takes_stages(layer: Layer, dtype: torch.dtype, device: int) -> bool:
    """Whether the sweeps through shared memory run. It depends on shapes, type and device, never on the numbers."""
    return layer.fits_stages and dtype == torch.float32 and has_asynchronous_copies(device)


def forward_steps(
    layer: Layer,
    kept: Kept,
    staged: bool,
    iterations: int,
    final_lambda: float,
    variance_floor: float,
    data_unit: float,
    strides: tuple[int, ...],
    alignment: tuple[int, ...],
) -> list[Step]:
    """`strides` are those of the pose without its last dim, then of the activation; `alignment` is of the inputs."""
    children, first_share, lanes = kept.activation(), kept.first_share(), layer.lanes
    inputs = Part("pose"), Part("activation"), Part("weight")
    betas, outputs = (Part("beta_u"), Part("beta_a")), (Part("out_pose"), Part("out_activation"))
    steps = [
        Step(
            pack,
            layer.pack_groups,
            (*inputs, kept.pose(), children, first_share, kept.weight(), kept.arrived() if staged else None),
            (
                *(*strides, layer.images, layer.child_types, layer.places, layer.matrices),
                *(layer.staged_groups[0] if staged else 0, *layer.sizes),
            ),
            constants=(lanes,),
            layout=(*strides, *alignment),
        )
    ]
    before = children  # the assignments of the iteration before; the first iteration reads none
    for t in range(iterations):
        first, last = t == 0, t + 1 == iterations
        edges = before if last else kept.assignment(t)
        shares = first_share if first else children
        numbers = routing_lambda(t, final_lambda), variance_floor, data_unit, layer.images, *layer.sizes
        if staged:
            split = layer.staged_groups[1] > 1
            steps.append(
                Step(
                    staged_m_step,
                    layer.staged_groups,
                    (
                        *(kept.pose(), shares, kept.weight(), *betas, before, Part("scratch"), kept.arrived()),
                        *(kept.record(t), *outputs),
                    ),
                    numbers,
                    constants=(first, last, split),
                    most_registers=96,
                )
            )
            if not last:
                parts = kept.pose(), kept.weight(), kept.record(t), edges
                steps.append(Step(staged_log_joints, layer.staged_groups, parts, layer.sizes, (), most_registers=96))
        else:
            steps.append(
                Step(
                    m_step,
                    layer.parent_groups,
                    (kept.pose(), shares, kept.weight(), *betas, before, edges, kept.record(t), *outputs),
                    numbers,
                    constants=(layer.shared, first, last, *layer.parent_tile, lanes),
                    warps=layer.parent_warps,
                    most_registers=128,
                )
            )
        if not last:
            constants = layer.by_position, *layer.edge_tile, lanes
            steps.append(Step(assign, layer.edge_groups, (edges,), layer.sizes, constants))
        before = edges
    return steps


def backward_steps(
    layer: Layer, kept: Kept, work: Work, staged: bool, iterations: int, final_lambda: float, data_unit: float
) -> list[Step]:
    lanes, steps = layer.lanes, []
    after = work.edge(1)  # those of the iteration after; the last iteration reads none
    for t in range(iterations - 1, -1, -1):
        first, last = t == 0, t + 1 == iterations
        gradients = after if first else work.edge(t)
        of_outputs = Part("pose_gradient"), Part("activation_gradient")
        numbers = routing_lambda(t, final_lambda), data_unit, work.beta_parts
        adjoints = kept.record(t), work.adjoint(t), work.beta(t)
        if staged and iterations > 1:  # a single iteration has no sweep
            split = layer.staged_groups[1] > 1
            if not last:
                steps.append(
                    Step(
                        staged_moments,
                        layer.staged_groups,
                        (kept.pose(), kept.weight(), after, work.partial(), kept.arrived(), *adjoints),
                        (*numbers, *layer.sizes),
                        constants=(split,),
                        most_registers=96,
                    )
                )
            if not first:
                steps.append(
                    Step(
                        staged_share_gradients,
                        layer.staged_groups,
                        (kept.pose(), kept.weight(), *of_outputs, gradients, *adjoints),
                        (*numbers, layer.images, *layer.sizes),
                        constants=(last,),
                        most_registers=96,
                    )
                )
        else:
            steps.append(
                Step(
                    parent_gradient,
                    layer.parent_groups,
                    (kept.pose(), kept.weight(), *of_outputs, after, gradients, *adjoints),
                    (*numbers, layer.images, *layer.sizes),
                    constants=(layer.shared, first, last, *layer.parent_tile, lanes),
                    warps=layer.parent_warps,
                    most_registers=168,
                )
            )
        if not first:
            steps.append(
                Step(
                    assignment_gradients,
                    layer.edge_groups,
                    (kept.activation(), kept.assignment(t - 1), gradients, work.child(t)),
                    layer.sizes,
                    constants=(layer.by_position, *layer.edge_tile, lanes),
                )
            )
        after = gradients
    steps.append(
        Step(
            input_gradient,
            layer.gradient_groups,
            (
                *(kept.pose(), kept.activation(), kept.first_share(), kept.weight(), kept.record(0), work.adjoint(0)),
                *(kept.assignment(0), work.edge(1), work.slot_pose(), work.slot_activation(), work.matrix()),
            ),
            (kept.record_step, work.adjoint_step, kept.edge_step, *layer.sizes),
            constants=(
                *(layer.shared, iterations, *layer.gradient_tile, lanes),
                staged and layer.stages_parents and iterations in (2, 3),
            ),
            warps=layer.gradient_warps,
        )
    )
    of_children = Part("out_pose"), Part("out_activation")
    steps.append(
        Step(
            gather_gradients,
            (layer.places, layer.padded_types // 4, 1),
            (work.slot_pose(), work.slot_activation(), work.child(1), *of_children),
            (work.child_step, iterations, layer.images, layer.child_types, *layer.sizes),
            constants=(lanes,),
        )
    )
    # A matrix is shared by all parent positions and, in a class layer, by all child positions.
    windows, rows = layer.edges // layer.matrices, 2 * layer.parent_types
    types = layer.child_types, layer.parent_types, layer.padded_types
    steps.append(
        Step(
            sum_parameters,
            (rows + -(-layer.matrices // 4), 1, 1),
            (work.matrix(), work.beta(0), Part("out_weight"), Part("out_betas")),
            (windows, layer.matrices, rows, work.beta_parts, *types),
            constants=(32,),
        )
    )
    return steps


class _Forward(NamedTuple):
    """All of a forward pass that does not change from call to call."""

    launches: Launches | None
    """None for no images."""
    kept: int
    scratch: int
    pose: tuple[int, ...]
    activation: tuple[int, ...]


class _Backward(NamedTuple):
    """All of a backward pass that does not change from call to call."""

    launches: Launches | None
    work: int
    pose: tuple[int, ...]
    activation: tuple[int, ...]
    weight: tuple[int, ...]
    betas: tuple[int, ...]


@lru_cache(maxsize=256)
def _forward_plan(
    pose_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    stride: tuple[int, ...],
    by_position: bool,
    iterations: int,
    final_lambda: float,
    variance_floor: float,
    data_unit: float,
    device: int,
    dtype: torch.dtype,
    other_types: tuple[torch.dtype, torch.dtype],
    pose_strides: tuple[int, ...],
    activation_strides: tuple[int, ...],
    alignment: tuple[int, ...],
) -> _Forward:
    assert other_types == (statistics_type(dtype), dtype), "types of activation and weight"
    layer = known_layer(pose_shape, weight_shape, stride, by_position)
    shapes = (*layer.output_shape, 4, 4), layer.output_shape
    staged = takes_stages(layer, dtype, device)
    kept = Kept(layer, iterations, dtype)
    if layer.images == 0:
        return _Forward(None, kept.size, 0, *shapes)
    strides = *pose_strides[:4], pose_strides[5], *activation_strides
    settings = iterations, final_lambda, variance_floor, data_unit
    steps = forward_steps(layer, kept, staged, *settings, strides, alignment)
    scratch = partial_sums(layer) if staged else 0
    return _Forward(Launches(steps, FORWARD, device, dtype), kept.size, scratch, *shapes)


@lru_cache(maxsize=256)
def _backward_plan(
    pose_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    stride: tuple[int, ...],
    by_position: bool,
    iterations: int,
    final_lambda: float,
    data_unit: float,
    device: int,
    dtype: torch.dtype,
) -> _Backward:
    layer = known_layer(pose_shape, weight_shape, stride, by_position)
    shapes = tuple(pose_shape), tuple(pose_shape[:-2]), tuple(weight_shape), (2, layer.parent_types)
    if layer.images == 0:
        return _Backward(None, 0, *shapes)
    staged = takes_stages(layer, dtype, device)
    kept, work = Kept(layer, iterations, dtype), Work(layer, iterations, statistics_type(dtype), staged)
    steps = backward_steps(layer, kept, work, staged, iterations, final_lambda, data_unit)
    return _Backward(Launches(steps, BACKWARD, device, dtype), work.size, *shapes)


def forward(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: Sequence[int],
    by_position: bool,
    iterations: int,
    final_lambda: float,
    variance_floor: float,
    data_unit: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Pose and activation of the parents, and what the backward pass needs."""
    strides, weight = pose.stride(), weight.contiguous()
    if strides[4] != 4 * strides[5]:
        pose = pose.contiguous()
        strides = pose.stride()
    plan = _forward_plan(
        pose.shape,
        weight.shape,
        tuple(stride),
        by_position,
        iterations,
        final_lambda,
        variance_floor,
        data_unit,
        pose.get_device(),
        pose.dtype,
        (activation.dtype, weight.dtype),
        strides,
        activation.stride(),
        (pose.data_ptr() % 16, activation.data_ptr() % 16, weight.data_ptr() % 16),
    )
    kept = pose.new_empty(plan.kept)
    out_pose, out_activation = activation.new_empty(plan.pose), activation.new_empty(plan.activation)
    if plan.launches is not None:
        betas = beta_u.contiguous(), beta_a.contiguous()
        scratch = activation.new_empty(plan.scratch) if plan.scratch else kept
        plan.launches(pose, activation, weight, *betas, kept, scratch, out_pose, out_activation)
    return out_pose, out_activation, kept


def backward(
    pose_gradient: Tensor,
    activation_gradient: Tensor,
    kept: Tensor,
    pose_shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    stride: tuple[int, ...],
    by_position: bool,
    iterations: int,
    final_lambda: float,
    data_unit: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of pose, activation and weight, and those of beta_u and beta_a stacked."""
    settings = stride, by_position, iterations, final_lambda, data_unit
    plan = _backward_plan(pose_shape, weight_shape, *settings, kept.get_device(), kept.dtype)
    new = activation_gradient.new_empty
    out_pose, out_activation = new(plan.pose), new(plan.activation)
    if plan.launches is None:
        return out_pose, out_activation, new(plan.weight).zero_(), new(plan.betas).zero_()
    out_weight, out_betas, work = new(plan.weight), new(plan.betas), new(plan.work)
    of_outputs = pose_gradient.contiguous(), activation_gradient.contiguous()
    plan.launches(*of_outputs, kept, work, out_pose, out_activation, out_weight, out_betas)
    return out_pose, out_activation, out_weight, out_betas
