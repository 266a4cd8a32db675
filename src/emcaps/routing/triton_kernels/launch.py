"""Launches the kernels of a forward and of a backward pass, in order.

Each pass takes its memory in one piece, because that takes less time than a piece for each purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from emcaps.routing.settings import routing_lambda
from emcaps.routing.triton_kernels.backward import input_gradient, parent_gradient
from emcaps.routing.triton_kernels.fast_launch import Launch, Part
from emcaps.routing.triton_kernels.forward import m_step
from emcaps.routing.triton_kernels.layer import Layer
from emcaps.routing.triton_kernels.packing import pack
from emcaps.routing.triton_kernels.records import ADJOINT, RECORD
from emcaps.routing.triton_kernels.windows import assign, assignment_gradients, gather_gradients, sum_parameters


class Kept(NamedTuple):
    """What the forward pass keeps for the backward pass: of each edge one number for each E-step, never a vote."""

    pose: Tensor
    weight: Tensor
    state: Tensor
    """Activations, first shares, records and, for each E-step, one number an edge: its assignment."""


class _State:
    """Where the parts of `Kept.state` lie."""

    def __init__(self, layer: Layer, iterations: int) -> None:
        lanes, children = layer.lanes, layer.children * layer.lanes
        self.record_step, self.edge_step = layer.parents * RECORD.value * lanes, layer.edges * lanes
        self.first_share, self.records = children, 2 * children  # activations come first
        self.assignments = self.records + iterations * self.record_step
        self.size = self.assignments + (iterations - 1) * self.edge_step


def state_size(layer: Layer, iterations: int) -> int:
    size: int = _State(layer, iterations).size
    return size


def forward(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    layer: Layer,
    iterations: int,
    final_lambda: float,
    variance_floor: float,
    data_unit: float,
) -> tuple[Tensor, Tensor, Kept]:
    place = _State(layer, iterations)
    new = activation.new_empty
    kept = Kept(pose.new_empty(layer.pose_shape), weight.new_empty(layer.weight_shape), new(place.size))
    out_pose, out_activation = new(*layer.output_shape, 4, 4), new(layer.output_shape)
    if layer.images == 0:
        return out_pose, out_activation, kept
    launch = _launch(kept)
    flat, state, lanes = pose.flatten(-2), kept.state, layer.lanes
    strides = *flat.stride(), *activation.stride()
    poses, weights = Part(kept.pose), Part(kept.weight)
    children, first_share = Part(state), Part(state, place.first_share)
    own_weight = weight.contiguous()
    launch(
        pack,
        layer.pack_groups,
        (Part(flat), Part(activation), Part(own_weight), poses, children, first_share, weights),
        (*strides, layer.images, layer.child_types, layer.places, layer.matrices, *layer.sizes),
        constants=(lanes,),
        layout=(*strides, flat.data_ptr() % 16, activation.data_ptr() % 16, own_weight.data_ptr() % 16),
    )
    betas = Part(beta_u.contiguous()), Part(beta_a.contiguous())
    outputs = Part(out_pose), Part(out_activation)
    before = children  # the assignments of the iteration before; the first iteration reads none
    for t in range(iterations):
        first, last = t == 0, t + 1 == iterations
        record = Part(state, place.records + t * place.record_step)
        edges = before if last else Part(state, place.assignments + t * place.edge_step)
        launch(
            m_step,
            layer.parent_groups,
            (poses, first_share if first else children, weights, *betas, before, edges, record, *outputs),
            (routing_lambda(t, final_lambda), variance_floor, data_unit, layer.images, *layer.sizes),
            constants=(layer.shared, first, last, *layer.parent_tile, lanes),
            warps=layer.parent_warps,
            most_registers=128,
        )
        if not last:
            constants = layer.by_position, *layer.edge_tile, lanes
            launch(assign, layer.edge_groups, (edges,), layer.sizes, constants=constants)
        before = edges
    return out_pose, out_activation, kept


def backward(
    pose_gradient: Tensor,
    activation_gradient: Tensor,
    kept: Kept,
    layer: Layer,
    weight_shape: Sequence[int],
    iterations: int,
    final_lambda: float,
    data_unit: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of pose, activation and weight, and those of beta_u and beta_a stacked."""
    state, lanes = kept.state, layer.lanes
    new = state.new_empty
    out_pose = new(layer.images, *layer.child_grid, layer.child_types, 4, 4)
    out_activation = new(out_pose.shape[:-2])
    if layer.images == 0:
        return out_pose, out_activation, state.new_zeros(weight_shape), state.new_zeros(2, layer.parent_types)
    out_weight, out_betas = new(weight_shape), new(2, layer.parent_types)
    launch, place = _launch(kept), _State(layer, iterations)
    adjoint_step, child_step = layer.parents * ADJOINT.value * lanes, layer.children * lanes
    beta_parts = iterations * layer.blocks * layer.positions
    work = _divided(
        state,
        iterations * adjoint_step,
        (iterations - 1) * place.edge_step,
        (iterations - 1) * child_step,
        layer.slots * lanes * 16,
        layer.slots * lanes,
        layer.edges * 16,
        2 * layer.parent_types * beta_parts,
    )
    adjoints, edge_gradients, child_gradients, slot_poses, slot_gradients, matrices, betas = work
    poses, weights, children = Part(kept.pose), Part(kept.weight), Part(state)
    of_outputs = Part(pose_gradient.contiguous()), Part(activation_gradient.contiguous())
    after = edge_gradients  # those of the iteration after; the last iteration reads none
    for t in range(iterations - 1, -1, -1):
        first, last = t == 0, t + 1 == iterations
        gradients = after if first else Part(work[1].tensor, edge_gradients.offset + (t - 1) * place.edge_step)
        record = Part(state, place.records + t * place.record_step)
        adjoint = Part(adjoints.tensor, adjoints.offset + t * adjoint_step)
        beta = Part(betas.tensor, betas.offset + t * layer.blocks * layer.positions)
        launch(
            parent_gradient,
            layer.parent_groups,
            (poses, weights, *of_outputs, after, gradients, record, adjoint, beta),
            (routing_lambda(t, final_lambda), data_unit, beta_parts, layer.images, *layer.sizes),
            constants=(layer.shared, first, last, *layer.parent_tile, lanes),
            warps=layer.parent_warps,
            most_registers=168,
        )
        if not first:
            assignments = Part(state, place.assignments + (t - 1) * place.edge_step)
            child = Part(child_gradients.tensor, child_gradients.offset + (t - 1) * child_step)
            launch(
                assignment_gradients,
                layer.edge_groups,
                (children, assignments, gradients, child),
                layer.sizes,
                constants=(layer.by_position, *layer.edge_tile, lanes),
            )
        after = gradients
    records, assignments = Part(state, place.records), Part(state, place.assignments)
    first_share = Part(state, place.first_share)
    launch(
        input_gradient,
        layer.gradient_groups,
        (
            *(poses, children, first_share, weights, records, adjoints, assignments, edge_gradients),
            *(slot_poses, slot_gradients, matrices),
        ),
        (place.record_step, adjoint_step, place.edge_step, *layer.sizes),
        constants=(layer.shared, iterations, *layer.gradient_tile, lanes),
        warps=layer.gradient_warps,
    )
    launch(
        gather_gradients,
        (layer.places, layer.padded_types // 4, 1),
        (slot_poses, slot_gradients, child_gradients, Part(out_pose), Part(out_activation)),
        (child_step, iterations, layer.images, layer.child_types, *layer.sizes),
        constants=(lanes,),
    )
    # A matrix is shared by all parent positions and, in a class layer, by all child positions.
    windows, rows = layer.edges // layer.matrices, 2 * layer.parent_types
    sizes = windows, layer.matrices, rows, beta_parts, layer.child_types, layer.parent_types, layer.padded_types
    parts = matrices, betas, Part(out_weight), Part(out_betas)
    launch(sum_parameters, (rows + -(-layer.matrices // 4), 1, 1), parts, sizes, constants=(32,))
    return out_pose, out_activation, out_weight, out_betas


def _launch(kept: Kept) -> Launch:
    return Launch(kept.state.get_device(), *(tensor.dtype for tensor in kept))


def _divided(like: Tensor, *sizes: int) -> list[Part]:
    """One new piece of memory, divided into parts, each of which starts at a multiple of 16 bytes."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // 4) * 4)
    memory = like.new_empty(offsets[-1])
    return [Part(memory, offset) for offset in offsets[:-1]]
