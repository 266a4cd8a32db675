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
    """What the forward pass keeps for the backward pass. None of it grows with the number of votes."""

    pose: Tensor
    activation: Tensor
    first_share: Tensor
    weight: Tensor
    records: Tensor
    normalisers: Tensor


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
        new(layer.normalisers_shape(iterations)),
    )
    out_pose, out_activation = new(*layer.output_shape, 4, 4), new(layer.output_shape)
    if layer.images == 0:
        return out_pose, out_activation, kept
    flat = pose.flatten(-2)
    beta_u, beta_a = beta_u.contiguous(), beta_a.contiguous()
    slot_normalisers = new(layer.slots, 2, layer.lanes)
    children = kept.pose, kept.activation, kept.first_share
    strides = *flat.stride(), *activation.stride()
    _launch(
        packing.pack_children,
        layer.four_types,
        flat,
        activation,
        *children,
        *strides,
        layer.images,
        layer.child_types,
        *layer.sizes,
        constants=(layer.lanes,),
        layout=(*strides, flat.data_ptr() % 16, activation.data_ptr() % 16),
    )
    before, normalisers = kept.records, kept.normalisers  # those of the iteration before; the first reads neither
    for t in range(iterations):
        record = kept.records[t]
        _launch(
            forward_kernels.m_step,
            layer.parent_groups,
            kept.pose,
            kept.activation if t else kept.first_share,
            kept.weight,
            beta_u,
            beta_a,
            before,
            normalisers,
            record,
            routing_lambda(t, final_lambda),
            variance_floor,
            data_unit,
            layer.images,
            *layer.sizes,
            constants=(t == 0, *layer.parent_tile, layer.lanes),
            warps=layer.parent_warps,
        )
        if t + 1 < iterations:
            before, normalisers = record, kept.normalisers[t]
            found = normalisers if layer.by_position else slot_normalisers
            _launch(
                forward_kernels.normaliser,
                layer.child_groups,
                kept.pose,
                kept.weight,
                record,
                found,
                *layer.sizes,
                constants=(layer.child_tile, layer.lanes),
                warps=layer.child_warps,
                most_registers=128,
            )
            if not layer.by_position:
                _launch(
                    windows.gather_normalisers,
                    layer.four_types,
                    found,
                    normalisers,
                    *layer.sizes,
                    constants=(layer.lanes,),
                )
    _launch(
        packing.unpack_parents,
        (layer.parents, 1, 1),
        record,
        out_pose,
        out_activation,
        layer.images,
        layer.positions * layer.parent_types,
        constants=(layer.lanes,),
        warps=1,
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
    child_gradients = new(iterations - 1, layer.normalisers, layer.lanes)
    beta_gradients = new(2, layer.parent_types, iterations, layer.blocks * layer.positions)
    beta_step = iterations * layer.blocks * layer.positions
    slot_gradients, slot_poses = new(layer.slots, layer.lanes), new(layer.slots, 16, layer.lanes)
    record, adjoint = kept.records[-1], adjoints[-1]
    _launch(
        backward_kernels.output_adjoint,
        (layer.parents, 1, 1),
        pose_gradient.contiguous(),
        activation_gradient.contiguous(),
        record,
        adjoint,
        beta_gradients[0, 0, -1],
        routing_lambda(iterations - 1, final_lambda),
        data_unit,
        layer.images,
        layer.positions,
        layer.parent_types,
        beta_step,
        constants=(layer.lanes,),
        warps=1,
    )
    for t in range(iterations - 1, 0, -1):
        before, normalisers, gradients = kept.records[t - 1], kept.normalisers[t - 1], child_gradients[t - 1]
        found = gradients if layer.by_position else slot_gradients
        _launch(
            backward_kernels.child_gradient,
            layer.child_groups,
            kept.pose,
            kept.weight,
            before,
            record,
            adjoint,
            normalisers,
            found,
            *layer.sizes,
            constants=(layer.child_tile, layer.lanes),
            warps=layer.child_warps,
            most_registers=168,
        )
        if not layer.by_position:
            _launch(windows.gather_sums, layer.four_types, found, gradients, *layer.sizes, constants=(layer.lanes,))
        _launch(
            backward_kernels.parent_gradient,
            layer.parent_groups,
            kept.pose,
            kept.activation,
            kept.weight,
            before,
            record,
            adjoint,
            normalisers,
            gradients,
            adjoints[t - 1],
            beta_gradients[0, 0, t - 1],
            routing_lambda(t - 1, final_lambda),
            data_unit,
            beta_step,
            *layer.sizes,
            constants=(*layer.parent_tile, layer.lanes),
            warps=layer.parent_warps,
        )
        record, adjoint = before, adjoints[t - 1]
    children = kept.pose, kept.activation, kept.first_share, kept.weight
    statistics = kept.records, adjoints, kept.normalisers, child_gradients
    normaliser_step = layer.normalisers * layer.lanes
    steps = layer.parents * RECORD.value * layer.lanes, layer.parents * ADJOINT.value * layer.lanes, normaliser_step
    matrices = new(layer.slots // layer.padded_types, layer.parent_types, layer.padded_types, 16)
    _launch(
        backward_kernels.input_gradient,
        layer.gradient_groups,
        *children,
        *statistics,
        slot_poses,
        slot_gradients,
        matrices,
        *steps,
        *layer.sizes,
        constants=(iterations, layer.gradient_tile, layer.lanes),
        warps=layer.gradient_warps,
        most_registers=168 if iterations <= 2 else None,  # three programs to a multiprocessor instead of two
    )
    _launch(
        windows.gather_gradients,
        layer.four_types,
        slot_poses,
        slot_gradients,
        child_gradients,
        out_pose,
        out_activation,
        normaliser_step,
        iterations,
        layer.images,
        layer.child_types,
        *layer.sizes,
        constants=(layer.lanes,),
    )
    # A matrix is shared by all parent positions and, in a class layer, by all child positions.
    weight_gradient = new(weight_shape)
    _launch(
        windows.sum_matrices,
        (layer.kernels * layer.parent_types * layer.padded_types // 4, 1, 1),
        matrices,
        weight_gradient,
        layer.slots // layer.padded_types // layer.kernels,
        layer.kernels,
        layer.child_types,
        layer.parent_types,
        layer.padded_types,
        constants=(32,),
    )
    return out_pose, out_activation, weight_gradient, beta_gradients.sum((2, 3))


def _pack_weight(weight: Tensor, layer: Layer) -> Tensor:
    """(K, O, C, 16), padded with zeros. Always an aligned copy, because an operator may not return its input."""
    rows = weight.reshape(layer.kernels, layer.child_types, layer.parent_types, 16)
    if layer.padded_types > layer.child_types:
        rows = F.pad(rows, (0, 0, 0, 0, 0, layer.padded_types - layer.child_types))
    return rows.transpose(1, 2).clone(memory_format=torch.contiguous_format)


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
