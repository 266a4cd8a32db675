"""Runs the kernels on tensors: prepares their arrays, divides the images among threads, and announces compilation."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from emcaps.routing.numba_kernels.backward import backward_images
from emcaps.routing.numba_kernels.forward import forward_images
from emcaps.routing.numba_kernels.layer import Layer
from emcaps.routing.numba_kernels.threads import in_threads
from emcaps.routing.numba_kernels.vectors import LANES
from emcaps.routing.settings import routing_lambda

logger = logging.getLogger("emcaps")
_compiled: set[object] = set()
PATIENCE = 1.5
"""Seconds after which a first call announces that it compiles. Loading compiled kernels from disk takes less."""

CHUNKS = 16
"""The most groups of images that each have their own sum of matrix gradients. The number of threads does not change it,
and so it does not change the rounding of the sums."""


def forward(
    inputs: Sequence[Tensor],
    layer: Layer,
    keep: bool,
    iterations: int,
    final_lambda: float,
    variance_floor: float,
    data_unit: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pose, activation, records and assignments. The last two are for the backward pass, and empty without `keep`."""
    pose, activation, weight, beta_u, beta_a = map(_plain, inputs)
    new = pose.new_empty
    records = new(layer.records_shape(layer.images, iterations) if keep else 0)
    assignments = new(layer.assignments_shape(layer.images, iterations) if keep else 0)
    out_pose, out_activation = new(*layer.output_shape, 4, 4), new(layer.output_shape)
    kept = records.numpy(), assignments.numpy()
    packed, betas = _pack_weight(weight, layer).numpy(), (beta_u.numpy(), beta_a.numpy())
    settings = _lambdas(iterations, final_lambda), variance_floor, data_unit, layer.children, layer.sizes
    lowest = float(np.finfo(packed.dtype).min)
    children = pose.flatten(1).numpy(), activation.flatten(1).numpy()
    outputs = _by_position(out_pose.flatten(-2), layer), _by_position(out_activation, layer)

    def route(images: slice) -> None:
        forward_images(
            children[0][images],
            children[1][images],
            packed,
            *betas,
            *settings,
            lowest,
            kept[0][images] if keep else new(layer.records_shape(1, 1)).numpy(),
            kept[1][images] if keep else new(layer.assignments_shape(1, 2)).numpy(),
            outputs[0][images],
            outputs[1][images],
        )

    _run(route, _chunks(layer.images), ("forward", pose.dtype))
    return out_pose, out_activation, records, assignments


def backward(
    pose_gradient: Tensor,
    activation_gradient: Tensor,
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    records: Tensor,
    assignments: Tensor,
    layer: Layer,
    final_lambda: float,
    data_unit: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of pose, activation and weight, and those of beta_u and beta_a stacked."""
    pose, activation = _plain(pose), _plain(activation)
    out_pose, out_activation = torch.empty_like(pose), torch.empty_like(activation)
    packed = _pack_weight(_plain(weight), layer).numpy()
    chunks = _chunks(layer.images)
    weight_gradients = pose.new_empty(len(chunks), *packed.shape)
    beta_gradients = pose.new_empty(len(chunks), 2, layer.groups, LANES)
    sums = weight_gradients.numpy(), beta_gradients.numpy()
    kept = records.numpy(), assignments.numpy()
    children = pose.flatten(1).numpy(), activation.flatten(1).numpy()
    of_outputs = (
        _by_position(_plain(pose_gradient).flatten(-2), layer),
        _by_position(_plain(activation_gradient), layer),
    )
    of_children = out_pose.flatten(1).numpy(), out_activation.flatten(1).numpy()
    settings = _lambdas(records.shape[1], final_lambda), data_unit, layer.children, layer.sizes

    def differentiate(images: slice) -> None:
        chunk = chunks.index(images)
        backward_images(
            children[0][images],
            children[1][images],
            packed,
            *settings,
            kept[0][images],
            kept[1][images],
            of_outputs[0][images],
            of_outputs[1][images],
            of_children[0][images],
            of_children[1][images],
            sums[0][chunk],
            sums[1][chunk],
        )

    _run(differentiate, chunks, ("backward", pose.dtype))
    betas = beta_gradients.sum(0).flatten(1)[:, : layer.parent_types].contiguous()
    return out_pose, out_activation, _unpack_weight(weight_gradients.sum(0), layer, weight), betas


def _plain(tensor: Tensor) -> Tensor:
    """The values of a tensor as numpy can read them: without a graph, a sign that is yet to be turned, or gaps."""
    return tensor.detach().resolve_neg().contiguous()


def _pack_weight(weight: Tensor, layer: Layer) -> Tensor:
    """(G, 4, K * C * COLUMN): each column by itself, with a group's parents side by side, padded with zeros."""
    matrices = weight.reshape(-1, layer.parent_types, 4, 4)
    padded = F.pad(matrices, (0, 0, 0, 0, 0, layer.groups * LANES - layer.parent_types))
    # (K * C, G, LANES, row, column) to (G, column, K * C, row, LANES)
    grouped: Tensor = padded.unflatten(1, (layer.groups, LANES)).permute(1, 4, 0, 3, 2)
    return grouped.reshape(layer.groups, 4, -1).contiguous()


def _unpack_weight(packed: Tensor, layer: Layer, like: Tensor) -> Tensor:
    grouped = packed.reshape(layer.groups, 4, -1, 4, LANES).permute(2, 0, 4, 3, 1)
    return grouped.flatten(1, 2)[:, : layer.parent_types].reshape(like.shape).contiguous()


def _by_position(tensor: Tensor, layer: Layer) -> Any:
    """Outputs, or their gradients, as an array (B, P, O, ...), with or without a parent grid before."""
    return (
        tensor.detach()
        .reshape(layer.images, layer.positions, layer.parent_types, *tensor.shape[len(layer.output_shape) :])
        .numpy()
    )


def _lambdas(iterations: int, final_lambda: float) -> Any:
    return np.array([routing_lambda(t, final_lambda) for t in range(iterations)])


def _chunks(images: int) -> list[slice]:
    """At most CHUNKS groups of consecutive images, of sizes as equal as possible."""
    groups = min(CHUNKS, images)
    edges = [images * group // groups for group in range(groups + 1)] if images else []
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _run(work: Callable[[slice], None], chunks: Sequence[slice], kernel: object) -> None:
    """Run `work` on all chunks in threads. A kernel's first chunk runs alone, so that it is compiled only once."""
    if kernel not in _compiled and chunks:
        with _announcing():
            work(chunks[0])
        _compiled.add(kernel)
        chunks = chunks[1:]
    in_threads(work, chunks)


@contextmanager
def _announcing() -> Iterator[None]:
    """Announce compilation if the work inside takes long; loading what was compiled before is quick."""
    timer = threading.Timer(PATIENCE, _say_that_it_compiles)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.cache
def _say_that_it_compiles() -> None:
    """Log it once per process."""
    logger.warning("compiling the CPU kernels, some 15 seconds, once: numba keeps them on disk")
