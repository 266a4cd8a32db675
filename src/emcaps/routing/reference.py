"""EM routing by its definition, in plain PyTorch: one line per equation, any device, differentiable throughout.

Dims: B batch; H, W child grid; I child types; OH, OW parent grid; O parent types; KH, KW kernel; N the children
that one parent reads (KH KW I of them, or H W I in a class layer); h the 16 elements of a pose, row by row.
In the einsums: v, u parent row and column; y, x kernel offset; h, w child row and column; c, o child and parent type;
i, j, k rows and columns of the 4x4 matrices.
Everything lives on the edges that exist, (..., N, O): there is no table of all children by all parents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from emcaps.routing.geometry import Pair, mean_data, parent_grid
from emcaps.routing.results import RoutingStep
from emcaps.routing.settings import RoutingSettings, routing_lambda
from emcaps.routing.windows import Windows

EPSILON = 1e-9  # keeps a parent without data at pose 0 instead of 0 / 0


def conv_routing_steps(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: Pair,
    settings: RoutingSettings,
) -> Iterator[RoutingStep]:
    """Route a convolutional layer, yielding each iteration. Shapes as in `conv_routing`, checked by the caller."""
    _, height, width, child_types = activation.shape
    kernel = (weight.shape[0], weight.shape[1])
    parent_types = weight.shape[3]
    grid = parent_grid((height, width), kernel, stride)
    windows = Windows((height, width), kernel, stride)

    votes = torch.einsum("bvuyxcij,yxcojk->bvuyxcoik", windows.spread(pose), weight)
    # Counted on the device: a copy of a table would have to be waited for. (1, OH, OW, KH, KW, 1)
    readers = windows.spread(windows.total(pose.new_ones(1, *grid, *kernel, 1)))
    start = 1 / (readers * parent_types)

    def compete(log_joint: Tensor) -> Tensor:
        if settings.competition == "types":
            return log_joint.softmax(-1)
        log_joint = log_joint.unflatten(3, (*kernel, child_types))
        # Divided by the sum itself, not by exp of its logarithm: beside log densities of 1e12 a log 2 would be lost.
        share = (log_joint - windows.spread(windows.largest(log_joint.detach().amax(-1)))[..., None]).exp()
        return (share / windows.spread(windows.total(share.sum(-1)))[..., None]).flatten(3, 5)

    for step in _em(
        votes.flatten(3, 5).flatten(-2),
        windows.spread(activation).flatten(3, 5),
        start.expand(-1, -1, -1, -1, -1, child_types).flatten(3, 5),
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
) -> Iterator[RoutingStep]:
    """Route a class layer, yielding each iteration. Shapes as in `class_routing`, checked by the caller."""
    _, height, width, child_types = activation.shape
    classes = weight.shape[1]

    votes = torch.einsum("bhwcij,cojk->bhwcoik", pose, weight)
    votes = votes + scaled_positions(height, width, pose)[:, :, None, None]
    start = torch.full((1, height * width * child_types), 1 / classes, dtype=pose.dtype, device=pose.device)

    for step in _em(
        votes.flatten(1, 3).flatten(-2),
        activation.flatten(1),
        start,
        beta_u,
        beta_a,
        mean_data((height, width), child_types, (1, 1), classes) if settings.data_scaling == "mean" else 1.0,
        lambda log_joint: log_joint.softmax(-1),  # one position, so its types are all the parents of a child
        settings,
    ):
        yield step._replace(assignment=step.assignment.unflatten(1, (height, width, child_types)))


def scaled_positions(height: int, width: int, like: Tensor) -> Tensor:
    """(H, W, 4, 4): what a class layer adds to the votes of each child position, in the right-hand column."""
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
    data_unit: float,
    compete: Callable[[Tensor], Tensor],
    settings: RoutingSettings,
) -> Iterator[RoutingStep]:
    """The iterations. votes (..., N, O, h); activation, start (..., N); compete turns log joints into assignments."""
    assignment = start[..., None].expand(*votes.shape[:-1])
    for iteration in range(settings.iterations):
        # M-step
        share = assignment * activation[..., None]
        data = share.sum(-2)
        mean = (share[..., None] * votes).sum(-3) / (data[..., None] + EPSILON)
        distance = (votes - mean[..., None, :, :]).square()
        variance = (share[..., None] * distance).sum(-3) / (data[..., None] + EPSILON) + settings.variance_floor
        cost = (beta_u[:, None] + 0.5 * variance.log()).sum(-1) * data / data_unit
        logit = routing_lambda(iteration, settings.final_lambda) * (beta_a - cost)
        yield RoutingStep(assignment, mean.unflatten(-1, (4, 4)), variance.unflatten(-1, (4, 4)), cost, logit.sigmoid())

        # E-step; its product of 16 Gaussians is a sum of logarithms
        if iteration + 1 < settings.iterations:
            log_norm = 0.5 * (variance.log().sum(-1) + 16 * math.log(2 * math.pi))
            log_density = -0.5 * (distance * (1 / variance)[..., None, :, :]).sum(-1) - log_norm[..., None, :]
            assignment = compete(log_density + F.logsigmoid(logit)[..., None, :])
