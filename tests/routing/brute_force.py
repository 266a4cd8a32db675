"""The definition of routing as plain loops over every child and every parent, for the tests to compare with.

Only the 16 elements of a vote are vectorised, and dictionaries say which child votes for which parent. Autograd goes
through these loops and gives the gradients to compare with.

    R_ij   = 1 / (number of parent positions that read child i * O)            start
    r_ij   = R_ij a_i                                                          M-step
    S_j    = sum_i r_ij
    mu_jh  = sum_i r_ij V_ijh / (S_j + 1e-9)
    s2_jh  = sum_i r_ij (V_ijh - mu_jh)^2 / (S_j + 1e-9) + variance_floor
    cost_j = sum_h (beta_u_o + 1/2 log s2_jh) * S_j / mean_data
    a_j    = logistic(lambda_t (beta_a_o - cost_j)),  lambda_t = final_lambda (1 - 0.95^(t+1))
    R_ij   = a_j N(V_ij; mu_j, s2_j) / sum_j' a_j' N(V_ij'; mu_j', s2_j')      E-step, not after the last M-step

A child is (row, column, type) and so is a parent. Sizes: B batch, H W child grid, N members of a set, I child types,
OH OW parent grid, O parent types, KH KW kernel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Capsule = tuple[int, int, int]


class Step(NamedTuple):
    """One iteration. The first shapes are those of a convolutional layer, the second those of the class layer.

    Those of a set layer are like the second; its assignment is (B,N,I,O).
    """

    assignment: Tensor  # (B,OH,OW,KH,KW,I,O) or (B,H,W,I,O), as used in this iteration's M-step
    mean: Tensor  # (B,OH,OW,O,4,4) or (B,O,4,4)
    variance: Tensor  # like mean
    cost: Tensor  # (B,OH,OW,O) or (B,O)
    activation: Tensor  # like cost


def brute_force_conv(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    iterations: int = 3,
    final_lambda: float = 1.0,
    variance_floor: float = 1e-4,
    data_scaling: str = "mean",
    competition: str = "all",
) -> list[Step]:
    """Every iteration of a convolutional layer. The routing's result is the mean and the activation of the last.

    Places of a window that lie beyond the grid hold no child: there is no such pair, and its assignment is given as 0.
    """
    batch, height, width, child_types = activation.shape
    kernel_height, kernel_width, _, parent_types = weight.shape[:4]
    down, right = stride if isinstance(stride, tuple) else (stride, stride)
    above, left = padding if isinstance(padding, tuple) else (padding, padding)
    parent_rows = [v for v in range(height + above) if v * down + kernel_height <= height + 2 * above]
    parent_columns = [u for u in range(width + left) if u * right + kernel_width <= width + 2 * left]
    number_of_parents = len(parent_rows) * len(parent_columns) * parent_types
    mean_data = height * width * child_types / number_of_parents if data_scaling == "mean" else 1.0

    elements = []
    for b in range(batch):
        votes: dict[tuple[Capsule, Capsule], Tensor] = {}
        active: dict[Capsule, Tensor] = {}
        existing: list[bool] = []
        # In this order the pairs are the elements of an (OH,OW,KH,KW,I,O) array.
        for v in parent_rows:
            for u in parent_columns:
                for ky in range(kernel_height):
                    for kx in range(kernel_width):
                        for i in range(child_types):
                            for o in range(parent_types):
                                child, parent = (v * down + ky - above, u * right + kx - left, i), (v, u, o)
                                existing.append(0 <= child[0] < height and 0 <= child[1] < width)
                                if not existing[-1]:
                                    continue
                                votes[child, parent] = _vote(pose[(b, *child)], weight[ky, kx, i, o])
                                active[child] = activation[(b, *child)]
        steps = _route(votes, active, beta_u, beta_a, iterations, final_lambda, variance_floor, mean_data, competition)
        elements.append([step._replace(assignment=_placed(step.assignment, existing)) for step in steps])

    parents = (batch, len(parent_rows), len(parent_columns))
    return _lay_out(
        elements,
        assignment_shape=(*parents, kernel_height, kernel_width, child_types, parent_types),
        parent_shape=(*parents, parent_types),
    )


def brute_force_class(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    iterations: int = 3,
    final_lambda: float = 1.0,
    variance_floor: float = 1e-4,
    data_scaling: str = "mean",
    competition: str = "all",
    coordinate_scale: float = 1.0,
) -> list[Step]:
    """Every iteration of the class layer: all parents are at (0, 0), and votes include the child's scaled position."""
    batch, height, width, child_types = activation.shape
    parent_types = weight.shape[1]
    mean_data = height * width * child_types / parent_types if data_scaling == "mean" else 1.0

    elements = []
    for b in range(batch):
        votes: dict[tuple[Capsule, Capsule], Tensor] = {}
        active: dict[Capsule, Tensor] = {}
        for y in range(height):
            for x in range(width):
                place = torch.zeros(4, 4, dtype=pose.dtype)
                place[0, 3] = coordinate_scale * (y + 0.5) / height
                place[1, 3] = coordinate_scale * (x + 0.5) / width
                for i in range(child_types):
                    for o in range(parent_types):
                        child, parent = (y, x, i), (0, 0, o)
                        votes[child, parent] = _vote(pose[(b, *child)], weight[i, o]) + place.reshape(16)
                        active[child] = activation[(b, *child)]
        elements.append(
            _route(votes, active, beta_u, beta_a, iterations, final_lambda, variance_floor, mean_data, competition)
        )

    return _lay_out(
        elements,
        assignment_shape=(batch, height, width, child_types, parent_types),
        parent_shape=(batch, parent_types),
    )


def brute_force_set(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    mask: Tensor | None = None,
    iterations: int = 3,
    final_lambda: float = 1.0,
    variance_floor: float = 1e-4,
    data_scaling: str = "mean",
    competition: str = "all",
) -> list[Step]:
    """Every iteration of a set layer, whose sets must not be empty. A child is (member, 0, type).

    There are no pairs for children that the mask leaves out, and their assignments are given as 0.
    """
    batch, size, child_types = activation.shape
    parent_types = weight.shape[1]
    if mask is None:
        mask = torch.ones(batch, size, dtype=torch.bool)
    elements = []
    for b in range(batch):
        votes: dict[tuple[Capsule, Capsule], Tensor] = {}
        active: dict[Capsule, Tensor] = {}
        existing: list[bool] = []
        for n in range(size):
            for i in range(child_types):
                for o in range(parent_types):
                    existing.append(bool(mask[b, n, i] if mask.dim() == 3 else mask[b, n]))
                    if existing[-1]:
                        votes[(n, 0, i), (0, 0, o)] = _vote(pose[b, n, i], weight[i, o])
                        active[n, 0, i] = activation[b, n, i]
        mean_data = len(active) / parent_types if data_scaling == "mean" else 1.0
        steps = _route(votes, active, beta_u, beta_a, iterations, final_lambda, variance_floor, mean_data, competition)
        elements.append([step._replace(assignment=_placed(step.assignment, existing)) for step in steps])

    return _lay_out(
        elements,
        assignment_shape=(batch, size, child_types, parent_types),
        parent_shape=(batch, parent_types),
    )


def brute_force_graph(
    votes: Tensor,
    activation: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    child: list[int],
    position: list[int],
    *,
    positions: int,
    iterations: int = 3,
    final_lambda: float = 1.0,
    variance_floor: float = 1e-4,
    data_scaling: str = "mean",
) -> list[Step]:
    """Every iteration of a graph in which each position has an edge.

    Child n is (n, 0, 0), a parent (position, 0, type). A vote has any shape. Assignments are (B,E,O), means and
    variances (B,positions,O,...).
    """
    batch, edges, parent_types = votes.shape[:3]
    mean_data = activation.shape[1] / (positions * parent_types) if data_scaling == "mean" else 1.0
    elements = []
    for b in range(batch):
        pairs = [((child[e], 0, 0), (position[e], 0, o)) for e in range(edges) for o in range(parent_types)]
        vote_of = dict(zip(pairs, votes[b].flatten(0, 1).flatten(1), strict=True))
        active = {(n, 0, 0): activation[b, n] for n in range(activation.shape[1])}
        elements.append(
            _route(vote_of, active, beta_u, beta_a, iterations, final_lambda, variance_floor, mean_data, "all")
        )
    parents = (batch, positions, parent_types)
    return _lay_out(elements, (batch, edges, parent_types), parents, votes.shape[3:])


def _placed(assignment: Tensor, existing: list[bool]) -> Tensor:
    """The assignments of the pairs that exist, with zeros in the places of those that do not."""
    return torch.zeros(len(existing), dtype=assignment.dtype).masked_scatter(torch.tensor(existing), assignment)


def _vote(pose: Tensor, matrix: Tensor) -> Tensor:
    """Of a pose that is a matrix, or a vector where the matrix has 16 rows."""
    return pose.reshape(16) @ matrix if len(matrix) == 16 else (pose @ matrix).reshape(16)


def _route(
    votes: dict[tuple[Capsule, Capsule], Tensor],
    active: dict[Capsule, Tensor],
    beta_u: Tensor,
    beta_a: Tensor,
    iterations: int,
    final_lambda: float,
    variance_floor: float,
    mean_data: float,
    competition: str,
) -> list[Step]:
    """The iterations of one batch element as flat tensors: assignments in the order of `votes`, parents sorted."""
    parents_of: dict[Capsule, list[Capsule]] = {}
    children_of: dict[Capsule, list[Capsule]] = {}
    for child, parent in votes:
        parents_of.setdefault(child, []).append(parent)
        children_of.setdefault(parent, []).append(child)

    assignment: dict[tuple[Capsule, Capsule], Tensor] = {}
    for child, parents in parents_of.items():
        positions = {(v, u) for v, u, _ in parents}
        for parent in parents:
            assignment[child, parent] = torch.tensor(1 / (len(positions) * len(beta_u)), dtype=beta_u.dtype)

    steps = []
    for t in range(iterations):
        inverse_temperature = final_lambda * (1 - 0.95 ** (t + 1))
        mean, variance, cost, logit = {}, {}, {}, {}
        for parent in sorted(children_of):
            o = parent[2]
            data = {child: assignment[child, parent] * active[child] for child in children_of[parent]}
            total = sum(data.values())
            weighted = [data[child] * votes[child, parent] for child in data]
            mean[parent] = sum(weighted) / (total + 1e-9)
            squares = [data[child] * (votes[child, parent] - mean[parent]) ** 2 for child in data]
            variance[parent] = sum(squares) / (total + 1e-9) + variance_floor
            cost[parent] = (beta_u[o] + 0.5 * variance[parent].log()).sum() * total / mean_data
            logit[parent] = inverse_temperature * (beta_a[o] - cost[parent])
        by_parent = (mean, variance, cost, {parent: torch.sigmoid(logit[parent]) for parent in logit})
        steps.append(
            Step(
                torch.stack([assignment[pair] for pair in votes]),
                *(torch.stack([values[parent] for parent in sorted(children_of)]) for values in by_parent),
            )
        )
        if t == iterations - 1:
            break

        # log (a_j N(V_ij; mu_j, s2_j)), where log a_j is computed from the logit.
        score = {}
        for child, parent in votes:
            distance = (votes[child, parent] - mean[parent]) ** 2 / (2 * variance[parent])
            log_density = -(distance + 0.5 * (2 * math.pi * variance[parent]).log()).sum()
            score[child, parent] = logsigmoid(logit[parent]) + log_density

        assignment = {}
        for child, parents in parents_of.items():
            for rivals in _competitors(parents, competition):
                # A softmax. The largest score is subtracted first, so that no exponential overflows.
                shares = torch.stack([score[child, rival] for rival in rivals]).softmax(0)
                assignment |= {(child, rival): share for rival, share in zip(rivals, shares, strict=True)}
    return steps


def _competitors(parents: list[Capsule], competition: str) -> list[list[Capsule]]:
    """The parents of one child, in groups; its assignments sum to 1 over each group."""
    if competition == "all":
        return [parents]
    assert competition == "types"
    positions = sorted({(v, u) for v, u, _ in parents})
    return [[parent for parent in parents if parent[:2] == position] for position in positions]


def _lay_out(
    elements: list[list[Step]],
    assignment_shape: tuple[int, ...],
    parent_shape: tuple[int, ...],
    pose_shape: tuple[int, ...] = (4, 4),
) -> list[Step]:
    """The flat steps of all batch elements, stacked and reshaped to the shapes of the layer."""
    poses = (*parent_shape, *pose_shape)
    shapes = Step(assignment_shape, poses, poses, parent_shape, parent_shape)
    return [
        Step(*(torch.stack(flat).reshape(shape) for flat, shape in zip(zip(*steps, strict=True), shapes, strict=True)))
        for steps in zip(*elements, strict=True)
    ]
