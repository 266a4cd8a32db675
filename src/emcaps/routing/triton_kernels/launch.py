"""The kernels of a forward and of a backward pass, in order, and the memory that they share.

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

from emcaps.routing.settings import routing_lambda
from emcaps.routing.triton_kernels.backward import input_gradient, parent_gradient
from emcaps.routing.triton_kernels.fast_launch import Launches, Part, Step
from emcaps.routing.triton_kernels.forward import m_step
from emcaps.routing.triton_kernels.layer import Layer, known_layer
from emcaps.routing.triton_kernels.packing import pack
from emcaps.routing.triton_kernels.records import ADJOINT, RECORD
from emcaps.routing.triton_kernels.windows import assign, assignment_gradients, gather_gradients, sum_parameters

FORWARD = ("pose", "activation", "weight", "beta_u", "beta_a", "kept", "out_pose", "out_activation")
"""The tensors of a forward pass. `beta_u`, `beta_a` and `weight` are contiguous; `pose` has contiguous matrices."""
BACKWARD = (
    *("pose_gradient", "activation_gradient", "kept", "work"),
    *("out_pose", "out_activation", "out_weight", "out_betas"),
)
"""The tensors of a backward pass, all of them contiguous: gradients of the outputs, memory, gradients of the inputs."""


def statistics_type(dtype: torch.dtype) -> torch.dtype:
    """The type of all numbers but poses and matrices, which have `dtype`."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


class Kept:
    """Where things lie in what the forward pass keeps: for an edge one number for each E-step, never a vote.

    It is one tensor of the poses' type. All parts start at multiples of 16 bytes.
    """

    def __init__(self, layer: Layer, iterations: int, dtype: torch.dtype) -> None:
        self._dtype, self._statistics = dtype, statistics_type(dtype)
        self.children_step, self.edge_step = layer.children * layer.lanes, layer.edges * layer.lanes
        self.record_step = layer.parents * RECORD.value * layer.lanes
        ratio = self._statistics.itemsize // dtype.itemsize
        numbers = 2 * self.children_step + iterations * self.record_step + (iterations - 1) * self.edge_step
        self._pose = numbers * self._statistics.itemsize
        self._weight = self._pose + layer.children * layer.lanes * 16 * dtype.itemsize
        self.size = numbers * ratio + layer.children * layer.lanes * 16 + layer.matrices * 16
        self._records = 2 * self.children_step
        self._assignments = self._records + iterations * self.record_step

    def pose(self) -> Part:
        return Part("kept", self._pose, self._dtype)

    def weight(self) -> Part:
        return Part("kept", self._weight, self._dtype)

    def activation(self) -> Part:
        return self._at(0)

    def first_share(self) -> Part:
        """The activations times the even assignments."""
        return self._at(self.children_step)

    def record(self, iteration: int) -> Part:
        return self._at(self._records + iteration * self.record_step)

    def assignment(self, iteration: int) -> Part:
        """The assignments after an iteration."""
        return self._at(self._assignments + iteration * self.edge_step)

    def _at(self, number: int) -> Part:
        return Part("kept", number * self._statistics.itemsize, self._statistics)


class Work:
    """Where things lie in the memory that only a backward pass needs. All parts start at multiples of 16 bytes."""

    def __init__(self, layer: Layer, iterations: int, dtype: torch.dtype) -> None:
        lanes, self._itemsize, self.size = layer.lanes, dtype.itemsize, 0
        self.adjoint_step, self.child_step = layer.parents * ADJOINT.value * lanes, layer.children * lanes
        self._edge_step, self._beta_step = layer.edges * lanes, layer.blocks * layer.positions
        self.beta_parts = iterations * self._beta_step
        self._adjoints = self._add(iterations * self.adjoint_step)
        self._edges = self._add((iterations - 1) * self._edge_step)
        self._children = self._add((iterations - 1) * self.child_step)
        self._slot_poses = self._add(layer.slots * lanes * 16)
        self._slot_activations = self._add(layer.slots * lanes)
        self._matrices = self._add(layer.edges * 16)
        self._betas = self._add(2 * layer.parent_types * self.beta_parts)

    def adjoint(self, iteration: int) -> Part:
        return self._at(self._adjoints + iteration * self.adjoint_step)

    def edge(self, iteration: int) -> Part:
        """The gradients of the shares of an iteration but the first, then of the log joints before it."""
        return self._at(self._edges + (iteration - 1) * self._edge_step)

    def child(self, iteration: int) -> Part:
        """What an iteration but the first adds to the gradients of activations."""
        return self._at(self._children + (iteration - 1) * self.child_step)

    def beta(self, iteration: int) -> Part:
        return self._at(self._betas + iteration * self._beta_step)

    def slot_pose(self) -> Part:
        return self._at(self._slot_poses)

    def slot_activation(self) -> Part:
        return self._at(self._slot_activations)

    def matrix(self) -> Part:
        return self._at(self._matrices)

    def _add(self, size: int) -> int:
        start, self.size = self.size, self.size + -(-size // 4) * 4
        return start

    def _at(self, number: int) -> Part:
        return Part("work", number * self._itemsize)


def forward_steps(
    layer: Layer,
    kept: Kept,
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
            (*inputs, kept.pose(), children, first_share, kept.weight()),
            (*strides, layer.images, layer.child_types, layer.places, layer.matrices, *layer.sizes),
            constants=(lanes,),
            layout=(*strides, *alignment),
        )
    ]
    before = children  # the assignments of the iteration before; the first iteration reads none
    for t in range(iterations):
        first, last = t == 0, t + 1 == iterations
        edges = before if last else kept.assignment(t)
        shares = first_share if first else children
        steps.append(
            Step(
                m_step,
                layer.parent_groups,
                (kept.pose(), shares, kept.weight(), *betas, before, edges, kept.record(t), *outputs),
                (routing_lambda(t, final_lambda), variance_floor, data_unit, layer.images, *layer.sizes),
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
    layer: Layer, kept: Kept, work: Work, iterations: int, final_lambda: float, data_unit: float
) -> list[Step]:
    lanes, steps = layer.lanes, []
    after = work.edge(1)  # those of the iteration after; the last iteration reads none
    for t in range(iterations - 1, -1, -1):
        first, last = t == 0, t + 1 == iterations
        gradients = after if first else work.edge(t)
        of_outputs = Part("pose_gradient"), Part("activation_gradient")
        steps.append(
            Step(
                parent_gradient,
                layer.parent_groups,
                (
                    *(kept.pose(), kept.weight(), *of_outputs, after, gradients),
                    *(kept.record(t), work.adjoint(t), work.beta(t)),
                ),
                (routing_lambda(t, final_lambda), data_unit, work.beta_parts, layer.images, *layer.sizes),
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
            constants=(layer.shared, iterations, *layer.gradient_tile, lanes),
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
    kept = Kept(layer, iterations, dtype)
    if layer.images == 0:
        return _Forward(None, kept.size, *shapes)
    strides = *pose_strides[:4], pose_strides[5], *activation_strides
    settings = iterations, final_lambda, variance_floor, data_unit
    steps = forward_steps(layer, kept, *settings, strides, alignment)
    return _Forward(Launches(steps, FORWARD, device, dtype), kept.size, *shapes)


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
    work = Work(layer, iterations, statistics_type(dtype))
    steps = backward_steps(layer, Kept(layer, iterations, dtype), work, iterations, final_lambda, data_unit)
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
        plan.launches(pose, activation, weight, *betas, kept, out_pose, out_activation)
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
