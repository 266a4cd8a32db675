"""Routing beyond images: along the edges of any graph, and on grids of any number of dimensions, by poses of any size.

The definition is that of `conv_routing`, which is faster where it fits: this is the reference alone, and it stores the
votes. A graph says which child votes for which parents.

Dims: B batch; N children; P positions of parents; E edges; I child types; O parent types.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from emcaps import debug
from emcaps.routing.checks import INPUTS, check_alike, check_settings, check_tensors
from emcaps.routing.geometry import is_whole
from emcaps.routing.precision import upcast, without_autocast
from emcaps.routing.reference import graph_routing_steps
from emcaps.routing.results import RoutingOutput, RoutingStep, RoutingTrace
from emcaps.routing.settings import DEFAULTS, RoutingSettings


def graph_routing(
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    child: Tensor,
    position: Tensor,
    *,
    positions: int,
    iterations: int = DEFAULTS.iterations,
    final_lambda: float = DEFAULTS.final_lambda,
    variance_floor: float = DEFAULTS.variance_floor,
    data_scaling: str = DEFAULTS.data_scaling,
) -> RoutingOutput:
    """Route children to parents along the edges of a graph, by votes of your own making.

    An edge joins a child and a position, at which there is a parent of each type, and carries a vote for each of them.
    All parents that a child votes for compete for it. Children without an edge are ignored, but count in the mean data;
    parents at a position without an edge have no data: their pose is 0, and their activation logistic(lambda beta_a).

    Args:
        votes: (B, E, O, ...), the pose that the edge's child expects of each parent, in any shape.
        activation: (B, N), the children's activations, 0 to 1.
        beta_u: (O,), the cost of describing data, for each parent type.
        beta_a: (O,), the gain of being active, for each parent type.
        child: (E,), the child of each edge, 0 to N - 1.
        position: (E,), the position that it joins the child to, 0 to positions - 1. No two edges join the same two.
        positions: the number of positions of parents.
        iterations: the number of M-steps, as in `conv_routing`, which describes the next three settings, too.
        final_lambda: the inverse temperature that lambda_t rises towards.
        variance_floor: added to every variance (pitfall 1).
        data_scaling: "mean" or "none" (pitfall 2); the mean data is N / (positions O).

    Returns:
        RoutingOutput: pose (B, P, O, ...) and activation (B, P, O).
    """
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, DEFAULTS.competition)
    inputs = _checked(votes, activation, beta_u, beta_a)
    _check_edges(child, position, positions, inputs)
    return _output(_steps(inputs, child, position, positions, settings), settings)


def graph_routing_trace(
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    child: Tensor,
    position: Tensor,
    *,
    positions: int,
    iterations: int = DEFAULTS.iterations,
    final_lambda: float = DEFAULTS.final_lambda,
    variance_floor: float = DEFAULTS.variance_floor,
    data_scaling: str = DEFAULTS.data_scaling,
) -> RoutingTrace:
    """`graph_routing` with every iteration kept; assignments are (B, E, O)."""
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, DEFAULTS.competition)
    inputs = _checked(votes, activation, beta_u, beta_a)
    _check_edges(child, position, positions, inputs)
    return RoutingTrace(_steps(inputs, child, position, positions, settings))


def grid_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    iterations: int = DEFAULTS.iterations,
    final_lambda: float = DEFAULTS.final_lambda,
    variance_floor: float = DEFAULTS.variance_floor,
    data_scaling: str = DEFAULTS.data_scaling,
) -> RoutingOutput:
    """Route a grid of one, two, three or more dimensions by windows, as `conv_routing` does with two.

    Args:
        pose: (B, *grid, I, p, q), the children's poses, which are matrices of any size.
        activation: (B, *grid, I), their activations, 0 to 1.
        weight: (*kernel, I, O, q, r), a matrix for each place in the kernel, child type and parent type.
        beta_u: (O,), the cost of describing data, for each parent type.
        beta_a: (O,), the gain of being active, for each parent type.
        stride: step between windows, for all dimensions or for each.
        padding: how far windows may reach beyond the grid on each side; it adds no children.
        dilation: step between the children of one window. With a padding, it may leave windows without a child; the
            parents there have no data, as in `graph_routing`.
        iterations: the number of M-steps, as in `conv_routing`, which describes the next three settings, too.
        final_lambda: the inverse temperature that lambda_t rises towards.
        variance_floor: added to every variance (pitfall 1).
        data_scaling: "mean" or "none" (pitfall 2).

    Returns:
        RoutingOutput: pose (B, *parents, O, p, r) and activation (B, *parents, O).
    """
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, DEFAULTS.competition)
    check_tensors(INPUTS, (pose, activation, weight, beta_u, beta_a))
    pose, activation, weight, beta_u, beta_a = upcast(pose, activation, weight, beta_u, beta_a)
    _check_grid(pose, activation, weight)
    edges = window_edges(activation.shape[1:-1], weight.shape[:-4], stride, padding, dilation, types=pose.shape[-3])
    child, position, matrix = torch.stack(edges[:3]).to(pose.device)
    with without_autocast(pose.device):
        votes = pose.flatten(1, -3)[:, child, None] @ weight.flatten(0, -4)[matrix]
    inputs = _checked(votes, activation.flatten(1), beta_u, beta_a)
    # The edges are right by construction. To check them would make the CPU wait for a GPU.
    output = _output(_steps(inputs, child, position, math.prod(edges.parents), settings), settings)
    return RoutingOutput(*(result.unflatten(1, edges.parents) for result in output))


class WindowEdges(NamedTuple):
    """The edges of windows on a grid, ordered by position, then by place in the kernel, then by child type."""

    child: Tensor
    """(E,): children are counted place by place on their grid, and types within."""
    position: Tensor
    """(E,): positions of parents are counted on theirs."""
    matrix: Tensor
    """(E,): which matrix makes the votes: places in the kernel, and child types within."""
    parents: tuple[int, ...]
    """The grid of parents."""


def window_edges(
    grid: tuple[int, ...],
    kernel: int | tuple[int, ...],
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    types: int = 1,
) -> WindowEdges:
    """The graph of a layer whose parents read windows, on a grid of any number of dimensions.

    Where dilation and padding leave a window without a child, its position has no edge.
    """
    grid = _numbers("grid", grid, len(grid) if isinstance(grid, (tuple, list)) else 1, 1)
    dims = len(grid)
    kernel, stride = _numbers("kernel", kernel, dims, 1), _numbers("stride", stride, dims, 1)
    padding, dilation = _numbers("padding", padding, dims, 0), _numbers("dilation", dilation, dims, 1)
    (types,) = _numbers("types", types, 1, 1)
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    if any(pad >= wide for pad, wide in zip(padding, reach, strict=True)):
        raise ValueError(f"padding must be smaller than the reach of the kernel, {reach}, not {padding}: {_OUTSIDE}")
    room = tuple(size + 2 * pad - wide for size, pad, wide in zip(grid, padding, reach, strict=True))
    if min(room) < 0:
        raise ValueError(
            f"a kernel that reaches over {reach} does not fit into a grid of {grid} with a padding of {padding}: use a "
            "smaller kernel or dilation, or a larger grid"
        )
    parents = tuple(free // step + 1 for free, step in zip(room, stride, strict=True))

    # A coordinate of every place in every window: (*parents, *kernel) along each dimension.
    places = np.indices(parents + kernel)
    along = zip(places[:dims], places[dims:], stride, padding, dilation, strict=True)
    coordinates = np.stack([at * step - pad + offset * apart for at, offset, step, pad, apart in along])
    inside = ((coordinates >= 0) & (coordinates < np.reshape(grid, (dims,) + (1,) * (2 * dims)))).all(0)
    if not inside.any():
        raise ValueError(
            f"no window of a kernel of {kernel} holds a child of a grid of {grid} with a dilation of {dilation} and a "
            f"padding of {padding}: use a smaller dilation, another padding or a larger grid"
        )
    place = np.ravel_multi_index(tuple(coordinates[:, inside]), grid)
    position = np.ravel_multi_index(tuple(places[:dims, inside]), parents)
    offset = np.ravel_multi_index(tuple(places[dims:, inside]), kernel)
    of_type = np.arange(types)
    return WindowEdges(
        torch.from_numpy((place[:, None] * types + of_type).ravel()),
        torch.from_numpy(position.repeat(types)),
        torch.from_numpy((offset[:, None] * types + of_type).ravel()),
        parents,
    )


_OUTSIDE = "the outermost windows would hold no child"


def _numbers(name: str, value: int | tuple[int, ...], dims: int, least: int) -> tuple[int, ...]:
    """A number for each dimension."""
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,) * dims
    if not numbers or len(numbers) != dims or not all(is_whole(number) and number >= least for number in numbers):
        raise ValueError(
            f"{name} must be a whole number of at least {least}, or a tuple with one for each dimension, not {value!r}"
        )
    return tuple(int(number) for number in numbers)


class GraphInputs(NamedTuple):
    """What gradients flow to."""

    votes: Tensor
    activation: Tensor
    beta_u: Tensor
    beta_a: Tensor


def _output(steps: Iterator[RoutingStep], settings: RoutingSettings) -> RoutingOutput:
    for step in steps:
        last = RoutingOutput(step.mean, step.activation)
    if debug.enabled:
        debug.check_output(*last, settings.variance_floor)
    return last


def _steps(
    inputs: GraphInputs, child: Tensor, position: Tensor, positions: int, settings: RoutingSettings
) -> Iterator[RoutingStep]:
    with without_autocast(inputs.votes.device):
        yield from graph_routing_steps(*inputs, child.long(), position.long(), positions, settings)


def _checked(votes: Tensor, activation: Tensor, beta_u: Tensor, beta_a: Tensor) -> GraphInputs:
    check_tensors(GraphInputs._fields, (votes, activation, beta_u, beta_a))
    inputs = GraphInputs(*upcast(votes, activation, beta_u, beta_a))
    votes, activation, beta_u, beta_a = inputs
    if votes.dim() < 4 or 0 in votes.shape[1:]:
        raise ValueError(
            f"votes must be (B, E, O, ...) with no size zero, not {tuple(votes.shape)}: a pose of one or more "
            "dimensions for each edge and parent type"
        )
    if activation.dim() != 2 or len(activation) != len(votes) or activation.shape[1] == 0:
        raise ValueError(
            f"activation must be (B, N) = ({len(votes)}, number of children), not {tuple(activation.shape)}: children "
            "are counted in one dimension"
        )
    for name, beta in (("beta_u", beta_u), ("beta_a", beta_a)):
        if beta.shape != votes.shape[2:3]:
            wanted = f"({votes.shape[2]},)"
            raise ValueError(f"{name} must be {wanted}, one number for each parent type, not {tuple(beta.shape)}")
    check_alike(GraphInputs._fields, tuple(one.dtype for one in inputs), tuple(one.device for one in inputs))
    if debug.enabled:
        debug.check_inputs(inputs, GraphInputs._fields)
    return inputs


def _check_edges(child: Tensor, position: Tensor, positions: int, inputs: GraphInputs) -> None:
    check_tensors(("child", "position"), (child, position))
    edges, children, device = inputs.votes.shape[1], inputs.activation.shape[1], inputs.votes.device
    if not is_whole(positions) or positions < 1:
        raise ValueError(f"positions must be a whole number of at least 1, not {positions!r}: those of the parents")
    for name, index, end in (("child", child, children), ("position", position, positions)):
        if index.shape != (edges,) or index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
            raise ValueError(
                f"{name} must be ({edges},) whole numbers, one for each edge that the votes have, not "
                f"{tuple(index.shape)} of {index.dtype}"
            )
        if index.device != device:
            raise ValueError(f"{name} must be on the device of the votes, {device}, not on {index.device}: use .to")
        lowest, highest = (int(bound) for bound in index.aminmax())
        if lowest < 0 or highest >= end:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"{name} must be 0 to {end - 1}, not {wrong}: it counts what the edges join")
    pairs = child.long() * positions + position
    found, times = pairs.unique(return_counts=True)
    if len(found) < edges:
        pair = int(found[times.argmax()])
        raise ValueError(
            f"no two edges may join the same child and position, as {int(times.max())} do with child "
            f"{pair // positions} and position {pair % positions}"
        )


def _check_grid(pose: Tensor, activation: Tensor, weight: Tensor) -> None:
    dims = weight.dim() - 4
    if dims < 1 or 0 in weight.shape:
        raise ValueError(
            f"weight must be (*kernel, I, O, q, r) with no size zero and a kernel of one dimension or more, not "
            f"{tuple(weight.shape)}"
        )
    if pose.dim() != dims + 4 or 0 in pose.shape[1:] or pose.shape[-1] != weight.shape[-2]:
        raise ValueError(
            f"pose must be (B, *grid, I, p, {weight.shape[-2]}) with {dims} grid dimensions to go with the weight, not "
            f"{tuple(pose.shape)}"
        )
    if activation.shape != pose.shape[:-2]:
        raise ValueError(
            f"activation must be (B, *grid, I) = {tuple(pose.shape[:-2])} to go with the pose, not "
            f"{tuple(activation.shape)}: one activation for each pose"
        )
    if weight.shape[-4] != pose.shape[-3]:
        raise ValueError(
            f"weight must have a matrix for each of the {pose.shape[-3]} child types in dimension {dims}, not "
            f"{weight.shape[-4]}: its shape is {tuple(weight.shape)}"
        )
    check_alike(("pose", "weight"), (pose.dtype, weight.dtype), (pose.device, weight.device))
