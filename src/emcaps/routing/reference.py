"""EM routing by its definition, in plain PyTorch: one line per equation, any device, differentiable throughout.

Numbers in brackets are the equations of docs/definition.md.

Dims: B batch; H, W child grid; I child types; OH, OW parent grid; O parent types; KH, KW kernel; N the children
that one parent reads (KH KW I of them, or H W I in a class layer); h the elements of a pose, row by row: 16, but
for graphs, where E are the edges and P the positions of parents.
In the einsums: v, u parent row and column; y, x kernel offset; h, w child row and column; c, o child and parent type;
i, j, k rows and columns of the 4x4 matrices.
Values are stored for each child in each parent's window, (..., N, O): there is no table of all children by all parents.
Those of a graph stand in tables whose rows are all as long as the longest (groups.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from emcaps.routing.geometry import Pair, mean_data, parent_grid
from emcaps.routing.groups import Groups
from emcaps.routing.results import RoutingStep
from emcaps.routing.settings import RoutingSettings, routing_lambda
from emcaps.routing.windows import Windows, with_border

EPSILON = 1e-9  # gives a parent without data the pose 0, where 0 / 0 would be NaN


def conv_routing_steps(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: Pair,
    padding: Pair,
    settings: RoutingSettings,
) -> Iterator[RoutingStep]:
    """Route a convolutional layer, yielding each iteration. Shapes as in `conv_routing`, checked by the caller."""
    _, height, width, child_types = activation.shape
    kernel = (weight.shape[0], weight.shape[1])
    parent_types = weight.shape[3]
    grid = parent_grid((height, width), kernel, stride, padding)
    exists: Tensor | None = None  # (1, OH, OW, N) in a padded layer: 1 for a child, 0 in the border
    if any(padding):
        ones = pose.new_ones(1, height, width, child_types)
        exists = Windows((height, width), kernel, stride, padding).spread(ones).flatten(3, 5)
        pose, activation = with_border(pose, activation, padding)
    windows = Windows((activation.shape[1], activation.shape[2]), kernel, stride)

    votes = _votes("bvuyxc", "yxco", windows.spread(pose), weight)
    # (1, OH, OW, KH, KW, 1), counted on the device: copying a table there would make the CPU wait for the GPU.
    readers = windows.spread(windows.total(pose.new_ones(1, *grid, *kernel, 1)))
    start = (1 / (readers * parent_types)).expand(-1, -1, -1, -1, -1, child_types).flatten(3, 5)  # (1)
    if exists is not None:
        start = start * exists

    def compete(log_joint: Tensor) -> Tensor:
        assignment = shared(log_joint)
        return assignment if exists is None else assignment * exists[..., None]

    def shared(log_joint: Tensor) -> Tensor:
        """The fraction in (7): every parent's part of the sum over all parents of a child."""
        if settings.competition == "types":
            return log_joint.softmax(-1)
        log_joint = log_joint.unflatten(3, (*kernel, child_types))
        # We divide by the sum itself, not by the exponential of its logarithm: next to log densities of 1e12, float32
        # has no digits left for the logarithm of a sum of two.
        share = (log_joint - windows.spread(windows.largest(log_joint.detach().amax(-1)))[..., None]).exp()
        return (share / windows.spread(windows.total(share.sum(-1)))[..., None]).flatten(3, 5)  # (7)

    for step in _em(
        votes.flatten(3, 5),
        windows.spread(activation).flatten(3, 5),
        start,
        beta_u,
        beta_a,
        mean_data((height, width), child_types, grid, parent_types) if settings.data_scaling == "mean" else 1.0,
        compete,
        settings,
    ):
        yield step._replace(assignment=step.assignment.unflatten(3, (*kernel, child_types)))


def class_routing_steps(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    settings: RoutingSettings,
    coordinate_scale: float = 1.0,
    members: Tensor | None = None,
) -> Iterator[RoutingStep]:
    """Route a class layer, yielding each iteration. Shapes as in `class_routing`, checked by the caller.

    `members` (B,) counts the children that exist, if not all do; the others must be inactive.
    """
    _, height, width, child_types = activation.shape
    classes = weight.shape[1]
    data_unit: float | Tensor = 1.0
    if settings.data_scaling == "mean":
        data_unit = mean_data((height, width), child_types, (1, 1), classes)
        if members is not None:
            data_unit = members.clamp(min=1).to(pose.dtype)[:, None] / classes

    votes = _votes("bhwc", "co", pose, weight)
    votes = votes + coordinate_scale * scaled_positions(height, width, pose).flatten(-2)[:, :, None, None]
    start = torch.full((1, height * width * child_types), 1 / classes, dtype=pose.dtype, device=pose.device)  # (1)

    for step in _em(
        votes.flatten(1, 3),
        activation.flatten(1),
        start,
        beta_u,
        beta_a,
        data_unit,
        lambda log_joint: log_joint.softmax(-1),  # there is one position, so its types are all of a child's parents
        settings,
    ):
        yield step._replace(assignment=step.assignment.unflatten(1, (height, width, child_types)))


def graph_routing_steps(
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    child: Tensor,
    position: Tensor,
    positions: int,
    settings: RoutingSettings,
) -> Iterator[RoutingStep]:
    """Route along the edges of a graph, yielding each iteration. Shapes as in `graph_routing`, checked by the caller.

    The edges are put together twice: by position for the M-step, and by child for the E-step.
    """
    children, parent_types = activation.shape[1], votes.shape[2]
    read, reader, readers = child.unique(return_inverse=True, return_counts=True)
    by_position, by_child = Groups.of(position, positions), Groups.of(reader, len(read))
    start = 1 / (readers[reader].to(votes.dtype) * parent_types)  # (1)

    def compete(log_joint: Tensor) -> Tensor:
        """All parents of a child, at any position and of any type, share it."""
        of_child = by_child.gather(by_position.spread(log_joint), -math.inf)
        assignment = of_child.flatten(2).softmax(-1).view_as(of_child)  # (7)
        return by_position.gather(by_child.spread(assignment), 0.0)

    for step in _em(
        by_position.gather(votes.flatten(3), 0.0),
        by_position.gather(activation[:, child], 0.0),
        by_position.gather(start[None], 0.0),
        beta_u,
        beta_a,
        children / (positions * parent_types) if settings.data_scaling == "mean" else 1.0,
        compete,
        settings,
        votes.shape[3:],
    ):
        yield step._replace(assignment=by_position.spread(step.assignment))


def _votes(children: str, matrices: str, pose: Tensor, weight: Tensor) -> Tensor:
    """V_ij = M_i W_ij, flattened: 4x4 matrices or, where W_ij is 16x16, a row of 16 numbers times a matrix."""
    if weight.shape[-1] == 16:
        return torch.einsum(f"{children}j,{matrices}jk->{children}ok", pose.flatten(-2), weight)
    return torch.einsum(f"{children}ij,{matrices}jk->{children}oik", pose, weight).flatten(-2)


def scaled_positions(height: int, width: int, like: Tensor) -> Tensor:
    """(H, W, 4, 4): what a class layer adds to the votes of the children at each position."""
    positions = torch.zeros(height, width, 4, 4, dtype=like.dtype, device=like.device)
    positions[:, :, 0, 3] = ((torch.arange(height, dtype=like.dtype, device=like.device) + 0.5) / height)[:, None]
    positions[:, :, 1, 3] = ((torch.arange(width, dtype=like.dtype, device=like.device) + 0.5) / width)[None, :]
    return positions


def _em(
    votes: Tensor,
    activation: Tensor,
    start: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    data_unit: float | Tensor,
    compete: Callable[[Tensor], Tensor],
    settings: RoutingSettings,
    pose_shape: tuple[int, ...] = (4, 4),
) -> Iterator[RoutingStep]:
    """Yield each iteration. votes (..., N, O, h); activation, start (..., N).

    `compete` turns log joints, the logarithms of a_j N(V_ij; mu_j, s2_j), into assignments.
    """
    assignment = start[..., None].expand(*votes.shape[:-1])
    for iteration in range(settings.iterations):
        # M-step
        share = assignment * activation[..., None]  # (2)
        data = share.sum(-2)  # (2)
        mean = (share[..., None] * votes).sum(-3) / (data[..., None] + EPSILON)  # (3)
        distance = (votes - mean[..., None, :, :]).square()
        variance = (share[..., None] * distance).sum(-3) / (data[..., None] + EPSILON) + settings.variance_floor  # (4)
        cost = (beta_u[:, None] + 0.5 * variance.log()).sum(-1) * data / data_unit  # (5)
        logit = routing_lambda(iteration, settings.final_lambda) * (beta_a - cost)  # (6)
        pose, spread = mean.unflatten(-1, pose_shape), variance.unflatten(-1, pose_shape)
        yield RoutingStep(assignment, pose, spread, cost, logit.sigmoid())

        # E-step. The density is a product of Gaussians, so its logarithm is a sum over h.
        if iteration + 1 < settings.iterations:
            log_norm = 0.5 * (variance.log().sum(-1) + votes.shape[-1] * math.log(2 * math.pi))
            log_density = -0.5 * (distance * (1 / variance)[..., None, :, :]).sum(-1) - log_norm[..., None, :]
            assignment = compete(log_density + F.logsigmoid(logit)[..., None, :])  # (7)
