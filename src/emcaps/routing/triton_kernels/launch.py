"""Launches the kernels of a forward and of a backward pass, in order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime import driver

from emcaps.routing.settings import routing_lambda
from emcaps.routing.triton_kernels import backward as backward_kernels
from emcaps.routing.triton_kernels import forward as forward_kernels
from emcaps.routing.triton_kernels import packing, windows
from emcaps.routing.triton_kernels.layer import Layer
from emcaps.routing.triton_kernels.records import ADJOINT, RECORD

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_compiled: dict[tuple[Any, ...], Any] = {}


class Kept(NamedTuple):
    """What the forward pass keeps for the backward pass: for each edge one number an E-step, never a vote."""

    pose: Tensor
    activation: Tensor
    first_share: Tensor
    weight: Tensor
    records: Tensor
    assignments: Tensor


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
    new = activation.new_empty
    kept = Kept(
        pose.new_empty(layer.children_shape(16)),
        new(layer.children_shape()),
        new(layer.children_shape()),
        _pack_weight(weight, layer),
        new(iterations, *layer.parents_shape(RECORD.value)),
        new(layer.edges_shape(iterations)),
    )
    out_pose, out_activation = new(*layer.output_shape, 4, 4), new(layer.output_shape)
    if layer.images == 0:
        return out_pose, out_activation, kept
    flat = pose.flatten(-2)
    beta_u, beta_a = beta_u.contiguous(), beta_a.contiguous()
    strides = *flat.stride(), *activation.stride()
    _launch(
        packing.pack_children,
        layer.four_types,
        flat,
        activation,
        kept.pose,
        kept.activation,
        kept.first_share,
        *strides,
        layer.images,
        layer.child_types,
        *layer.sizes,
        constants=(layer.lanes,),
        layout=(*strides, flat.data_ptr() % 16, activation.data_ptr() % 16),
    )
    for t in range(iterations):
        first, last = t == 0, t + 1 == iterations
        record = kept.records[t]
        _launch(
            forward_kernels.m_step,
            layer.parent_groups,
            kept.pose,
            kept.first_share if first else kept.activation,
            kept.weight,
            beta_u,
            beta_a,
            record if first else kept.assignments[t - 1],
            record if last else kept.assignments[t],
            record,
            out_pose,
            out_activation,
            routing_lambda(t, final_lambda),
            variance_floor,
            data_unit,
            layer.images,
            *layer.sizes,
            constants=(layer.shared, first, last, *layer.parent_tile, layer.lanes),
            warps=layer.parent_warps,
        )
        if not last:
            _launch(
                windows.assign,
                layer.edge_groups,
                kept.assignments[t],
                *layer.sizes,
                constants=(layer.by_position, *layer.edge_tile, layer.lanes),
            )
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
    new = kept.records.new_empty
    out_pose = new(layer.images, *layer.child_grid, layer.child_types, 4, 4)
    out_activation = new(out_pose.shape[:-2])
    if layer.images == 0:
        zeros = kept.records.new_zeros
        return out_pose, out_activation, zeros(weight_shape), zeros(2, layer.parent_types)
    adjoints = new(iterations, *layer.parents_shape(ADJOINT.value))
    edge_gradients = new(layer.edges_shape(iterations))
    child_gradients = new(iterations - 1, layer.children, layer.lanes)
    beta_gradients = new(2, layer.parent_types, iterations, layer.blocks * layer.positions)
    of_outputs = pose_gradient.contiguous(), activation_gradient.contiguous()
    for t in range(iterations - 1, -1, -1):
        first, last = t == 0, t + 1 == iterations
        _launch(
            backward_kernels.parent_gradient,
            layer.parent_groups,
            kept.pose,
            kept.weight,
            *of_outputs,
            adjoints if last else edge_gradients[t],
            adjoints if first else edge_gradients[t - 1],
            kept.records[t],
            adjoints[t],
            beta_gradients[0, 0, t],
            routing_lambda(t, final_lambda),
            data_unit,
            iterations * layer.blocks * layer.positions,
            layer.images,
            *layer.sizes,
            constants=(layer.shared, first, last, *layer.parent_tile, layer.lanes),
            warps=layer.parent_warps,
        )
        if not first:
            _launch(
                windows.assignment_gradients,
                layer.edge_groups,
                kept.activation,
                kept.assignments[t - 1],
                edge_gradients[t - 1],
                child_gradients[t - 1],
                *layer.sizes,
                constants=(layer.by_position, *layer.edge_tile, layer.lanes),
            )
    slot_poses, slot_gradients = new(layer.slots, 16, layer.lanes), new(layer.slots, layer.lanes)
    matrices = new(layer.slots, layer.parent_types, 16)
    _launch(
        backward_kernels.input_gradient,
        layer.gradient_groups,
        kept.pose,
        kept.activation,
        kept.first_share,
        kept.weight,
        kept.records,
        adjoints,
        kept.assignments,
        edge_gradients,
        slot_poses,
        slot_gradients,
        matrices,
        layer.parents * RECORD.value * layer.lanes,
        layer.parents * ADJOINT.value * layer.lanes,
        layer.slots * layer.parent_types * layer.lanes,
        *layer.sizes,
        constants=(layer.shared, iterations, *layer.gradient_tile, layer.lanes),
        warps=layer.gradient_warps,
    )
    _launch(
        windows.gather_gradients,
        layer.four_types,
        slot_poses,
        slot_gradients,
        child_gradients,
        out_pose,
        out_activation,
        layer.children * layer.lanes,
        iterations,
        layer.images,
        layer.child_types,
        *layer.sizes,
        constants=(layer.lanes,),
    )
    # A matrix is shared by all parent positions and, in a class layer, by all child positions.
    weight_gradient = new(weight_shape)
    count = layer.kernels * layer.padded_types * layer.parent_types
    _launch(
        windows.sum_matrices,
        (-(-count // 4), 1, 1),
        matrices,
        weight_gradient,
        layer.slots * layer.parent_types // count,
        count,
        layer.child_types,
        layer.parent_types,
        layer.padded_types,
        constants=(32,),
    )
    return out_pose, out_activation, weight_gradient, beta_gradients.sum((2, 3))


def _pack_weight(weight: Tensor, layer: Layer) -> Tensor:
    """(K, C, O, 16), padded with zeros. Always an aligned copy, because an operator may not return its input."""
    rows = weight.reshape(layer.kernels, layer.child_types, layer.parent_types, 16)
    if layer.padded_types > layer.child_types:
        return F.pad(rows, (0, 0, 0, 0, 0, layer.padded_types - layer.child_types))
    return rows.clone(memory_format=torch.contiguous_format)


def _launch(
    kernel: Any,
    grid: tuple[int, int, int],
    *arguments: Any,
    constants: tuple[Any, ...],
    warps: int = 4,
    most_registers: int | None = None,
    layout: tuple[int, ...] = (),
) -> None:
    """Launch a kernel whose compiled form depends only on the constants, the types of its tensors and `layout`.

    Triton finds the compiled form by inspecting every argument at every launch, which takes longer than many of these
    kernels. Here it is found by those three alone. So tensors have to start at multiples of 16 bytes, as new ones do,
    unless the kernel's `do_not_specialize_on_alignment` names them.
    """
    if INTERPRETED:
        kernel[grid](*arguments, *constants, num_warps=warps)
        return
    device = arguments[0].get_device()
    types = tuple([argument.dtype for argument in arguments[:4] if isinstance(argument, Tensor)])
    key = kernel.fn, device, types, warps, constants, layout
    compiled = _compiled.get(key)
    if compiled is None:
        _compiled[key] = kernel[grid](*arguments, *constants, num_warps=warps, maxnreg=most_registers)
        return
    stream = driver.active.get_current_stream(device)
    plain = [argument.data_ptr() if isinstance(argument, Tensor) else argument for argument in arguments]
    compiled.run(*grid, stream, compiled.function, compiled.packed_metadata, None, None, None, *plain, *constants)
