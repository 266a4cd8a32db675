"""The backward pass: for one image after another, the gradients of every iteration, from the last to the first.

Numbers in brackets are the equations of the README of triton_kernels.
"""

import numpy as np

from emcaps.routing.numba_kernels.columns import (
    aligned_memory,
    column,
    fetch_all,
    minus,
    outer,
    plus,
    plus_16,
    put,
    scaled,
    sum_over_rows,
    times,
    transposed_matrix_times,
    votes,
    zero_column,
)
from emcaps.routing.numba_kernels.layout import (
    ACTIVATION,
    ADJOINT,
    BLOCK,
    COLUMN,
    DATA,
    EPSILON,
    INACTIVATION,
    LINEAR,
    MEAN,
    PRECISION,
    RECORD,
    RESIDUAL,
    SLOPE,
    SPREAD,
    UNIT_COST,
    compiled,
    inlined,
    kept_on_disk,
)
from emcaps.routing.numba_kernels.vectors import LANES, first_lanes, load, store, sum_of_lanes, sums_of_vectors, zeros
from emcaps.routing.numba_kernels.windows import window_tables


@compiled
def column_of_votes(pose, children, matrices, starts, shift, vote):
    """Compute a column of the votes of all slots into `vote`."""
    for s in range(children.shape[0]):
        put(vote, s * COLUMN, votes(pose, children[s], matrices, starts[s], shift[0, s], shift[1, s]))


@compiled
def votes_and_moments(pose, children, matrices, starts, shift, mean, joint_gradient, vote):
    """Compute a column of the votes of all slots into `vote`; return the column's two sums over slots in (14)."""
    first, second = zero_column(vote), zero_column(vote)
    for s in range(children.shape[0]):
        found = votes(pose, children[s], matrices, starts[s], shift[0, s], shift[1, s])
        put(vote, s * COLUMN, found)
        difference = minus(found, mean)
        pull = scaled(load(joint_gradient, s * LANES), difference)
        first = plus(first, pull)
        second = plus(second, times(pull, difference))
    return first, second


@compiled
def statistics_gradient(pose, children, matrices, starts, shift, record, at, joint_gradient, whole_gradient, vote):
    """dL/dmu and dL/ds2 of a column of parents, through the E-step that follows their iteration (14)."""
    first, second = votes_and_moments(
        pose, children, matrices, starts, shift, column(record, MEAN + at), joint_gradient, vote
    )
    precision = column(record, PRECISION + at)
    second = times(precision, second)
    inner = (
        second[0] - whole_gradient,
        second[1] - whole_gradient,
        second[2] - whole_gradient,
        second[3] - whole_gradient,
    )
    return times(precision, first), scaled(zeros(vote) + 0.5, times(precision, inner))


@compiled
def set_adjoint(record, at, of_mean, of_variance, per_data, per_log_variance, adjoint):
    """Compute 2 A and B of a column from the gradients of its statistics, (8) to (10); return what to subtract from c.

    Exact arithmetic would make the sum of r (V - mu) in the gradient of (4) nearly zero. Rounding leaves more, so the
    sum is taken from the record, where the forward pass left what it really was.
    """
    whole = plus(of_variance, scaled(per_log_variance, column(record, PRECISION + at)))
    quadratic = scaled(per_data, whole)
    put(adjoint, SLOPE + at, plus(quadratic, quadratic))
    pull = times(whole, column(record, RESIDUAL + at))
    put(adjoint, LINEAR + at, scaled(per_data, minus(of_mean, plus(pull, pull))))
    return sum_over_rows(times(quadratic, column(record, SPREAD + at)))


@inlined
def pull_of_m(difference, slope, linear):
    """2 A (V - mu) + B, the derivative of D_ij (11) by V. Times r_ij it is dL/dV_ij through an M-step (12)."""
    return plus(times(slope, difference), linear)


@inlined
def share_gradient(difference, pull, linear):
    """A column's part of D_ij = dL/dr_ij (11)."""
    return sum_over_rows(times(difference, plus(pull, linear))) * 0.5


@compiled
def votes_and_share_gradients(pose, children, matrices, starts, shift, record, adjoint, at, gradient):
    """Add a column's part of D_ij to all slots, from votes that are computed here because nothing else needs them."""
    mean = column(record, MEAN + at)
    slope, linear = column(adjoint, SLOPE + at), column(adjoint, LINEAR + at)
    for s in range(children.shape[0]):
        difference = minus(votes(pose, children[s], matrices, starts[s], shift[0, s], shift[1, s]), mean)
        part = share_gradient(difference, pull_of_m(difference, slope, linear), linear)
        store(gradient, s * LANES, load(gradient, s * LANES) + part)


@compiled
def share_gradients(vote, record, adjoint, at, gradient):
    """Add a column's part of D_ij to all slots, from votes that have been computed already."""
    mean = column(record, MEAN + at)
    slope, linear = column(adjoint, SLOPE + at), column(adjoint, LINEAR + at)
    for s in range(gradient.shape[0] // LANES):
        difference = minus(column(vote, s * COLUMN), mean)
        part = share_gradient(difference, pull_of_m(difference, slope, linear), linear)
        store(gradient, s * LANES, load(gradient, s * LANES) + part)


@inlined
def vote_gradients(
    iterations,
    vote,
    pose,
    own,
    even,
    children,
    starts,
    records,
    record,
    adjoint,
    later_adjoints,
    parent,
    assignments,
    joint_gradients,
    edges,
    at,
    gradient,
    vote_gradient,
    matrix_gradient,
):
    """Compute a column of dL/dV_ij of all slots, add M^T dL/dV to dL/dW (17), and add to D_ij of the first iteration.

    `adjoint` and `gradient` belong to the first iteration. Arrays that hold several iterations are flat: `record` is
    where this parent's first record begins, `parent` where its first later adjoint begins, and `edges` where its first
    later edges begin; "later" means after the first iteration.
    """
    rest = max(iterations - 1, 1)
    record_step, adjoint_step, edge_step = (
        records.shape[0] // iterations,
        later_adjoints.shape[0] // rest,
        joint_gradients.shape[0] // rest,
    )
    mean, precision = column(records, record + at + MEAN), column(records, record + at + PRECISION)
    slope, linear = column(adjoint, SLOPE + at), column(adjoint, LINEAR + at)
    for s in range(children.shape[0]):
        child, edge = children[s], edges + s * LANES
        there = column(vote, s * COLUMN)
        difference = minus(there, mean)
        pull = pull_of_m(difference, slope, linear)
        part = share_gradient(difference, pull, linear)
        store(gradient, s * LANES, load(gradient, s * LANES) + part)
        found = scaled(zeros(vote) + own[child] * even[child], pull)
        for t in range(1, iterations):
            # first the E-step before iteration t, with the statistics of t - 1 (15), then the M-step of t
            distance = times(precision, difference)
            if t > 1:
                before = record + at + (t - 1) * record_step
                distance = times(column(records, before + PRECISION), minus(there, column(records, before + MEAN)))
            found = minus(found, scaled(load(joint_gradients, edge), distance))
            here = parent + at + (t - 1) * adjoint_step
            difference_now = minus(there, column(records, record + at + t * record_step + MEAN))
            pull = pull_of_m(
                difference_now, column(later_adjoints, here + SLOPE), column(later_adjoints, here + LINEAR)
            )
            found = plus(found, scaled(load(assignments, edge) * own[child], pull))
            edge += edge_step
        put(vote_gradient, s * COLUMN, found)
        total = column(matrix_gradient, starts[s])
        put(matrix_gradient, starts[s], plus(total, transposed_matrix_times(pose, child, found)))


@compiled
def vote_gradients_unrolled(iterations, *rest):
    """Call vote_gradients, compiled without a loop over iterations for the usual numbers of them."""
    if iterations == 2:
        vote_gradients(2, *rest)
    elif iterations == 3:
        vote_gradients(3, *rest)
    else:
        vote_gradients(iterations, *rest)


@compiled
def pose_gradients(vote_gradient, weight, children, starts, pose_gradient):
    """Add dL/dV W^T of all slots to dL/dM (16). vote_gradient (4, S * COLUMN), weight (4, K * C * COLUMN)."""
    of_votes, matrices = vote_gradient.reshape(-1), weight.reshape(-1)
    votes_step, matrices_step = vote_gradient.shape[1], weight.shape[1]
    for s in range(children.shape[0]):
        at, start = s * COLUMN, starts[s]
        found = outer(column(of_votes, at), column(matrices, start))
        for k in range(1, 4):
            part = outer(column(of_votes, at + k * votes_step), column(matrices, start + k * matrices_step))
            found = plus_16(found, part)
        child = 16 * children[s]
        store(pose_gradient, child, load(pose_gradient, child) + sums_of_vectors(found))


@compiled
def spread_child_gradients(
    gradient, constants, assignments, activation, children, parents, by_position, found, activation_gradient
):
    """Compute K_i (13), add it to dL/da_i, and turn `gradient`, D_ij without its constant c, into e_ij (14).

    gradient (P, G, S * LANES).
    """
    positions, slots = children.shape
    found[:] = 0
    for p in range(positions):
        for g in range(gradient.shape[1]):
            edge, assignment, constant = gradient[p, g], assignments[p, g], load(constants[p, g], 0)
            for s in range(slots):
                i = p * slots + s if by_position else children[p, s]
                whole = load(edge, s * LANES) + constant
                store(edge, s * LANES, whole)
                found[i] += sum_of_lanes(load(assignment, s * LANES) * whole)
    for p in range(positions):
        for g in range(gradient.shape[1]):
            edge, assignment = gradient[p, g], assignments[p, g]
            for s in range(slots):
                child = children[p, s]
                mean = found[p * slots + s if by_position else child]
                share = load(assignment, s * LANES) * activation[child]
                own_parents = min(parents - g * LANES, LANES)
                store(edge, s * LANES, first_lanes(share * (load(edge, s * LANES) - mean), own_parents, 0))
    if by_position:
        for p in range(positions):
            for s in range(slots):
                activation_gradient[children[p, s]] += found[p * slots + s]
    else:
        for i in range(found.shape[0]):
            activation_gradient[i] += found[i]


@compiled
def first_activation_gradients(gradient, constant, even, children, parents, activation_gradient):
    """Add to dL/da_i what the first iteration gives: the even assignment times the sum of D_ij over parents."""
    for s in range(children.shape[0]):
        child = children[s]
        whole = sum_of_lanes(first_lanes(load(gradient, s * LANES) + constant, parents, 0))
        activation_gradient[child] += even[child] * whole


@kept_on_disk
def backward_images(
    pose,
    activation,
    weight,
    lambdas,
    unit,
    grid,
    sizes,
    records,
    assignments,
    out_pose_gradient,
    out_activation_gradient,
    pose_gradient,
    activation_gradient,
    weight_gradient,
    beta_gradient,
):
    """Compute the gradients of each image's children, and the sums over images of those of matrices and betas.

    beta_gradient (2, G, LANES); the other gradients have the layout of what they are the gradients of.
    """
    parents, by_position = sizes[2], sizes[8]
    groups = weight.shape[0]
    children, even, starts, shift = window_tables(grid, sizes, pose)
    positions, slots = children.shape
    iterations = lambdas.shape[0]
    vote = aligned_memory(slots * COLUMN, pose)
    vote_gradient = aligned_memory(4 * slots * COLUMN, pose).reshape((4, -1))
    of_outputs = aligned_memory(BLOCK + LANES, pose)
    constants = aligned_memory(positions * groups * LANES, pose).reshape((positions, groups, LANES))
    # The last sweep needs 2 A, B and e_ij (first D_ij) of all iterations but the first, which it computes in passing.
    first_adjoint, first_gradient = aligned_memory(ADJOINT, pose), aligned_memory(slots * LANES, pose)
    rest = (iterations - 1, positions, groups)
    adjoints = aligned_memory((iterations - 1) * positions * groups * ADJOINT, pose)
    gradients = aligned_memory((iterations - 1) * positions * groups * slots * LANES, pose)
    adjoints_of, gradients_of = adjoints.reshape((*rest, ADJOINT)), gradients.reshape((*rest, slots * LANES))
    found = np.empty(positions * slots if by_position else even.shape[0], pose.dtype)
    pose_gradient[:] = 0
    activation_gradient[:] = 0
    weight_gradient[:] = 0
    beta_gradient[:] = 0
    for b in range(pose.shape[0]):
        own = activation[b]
        own_records, own_assignments = records[b].reshape(-1), assignments[b].reshape(-1)
        for t in range(iterations - 1, -1, -1):
            last = t == iterations - 1
            for p in range(positions):
                for g in range(groups):
                    low, high = g * LANES, min(parents, (g + 1) * LANES)
                    if p + 1 < positions:
                        fetch_all(records[b, t, p + 1, g])
                    record = records[b, t, p, g]
                    adjoint = adjoints_of[t - 1, p, g] if t > 0 else first_adjoint
                    gradient = gradients_of[t - 1, p, g] if t > 0 else first_gradient
                    after = gradient if last else gradients_of[t, p, g]
                    whole_gradient = zeros(pose)  # dL / d log a_j in (7)
                    if last:
                        for o in range(high - low):
                            for h in range(16):
                                of_outputs[h % 4 * COLUMN + h // 4 * LANES + o] = out_pose_gradient[b, p, low + o, h]
                            of_outputs[BLOCK + o] = out_activation_gradient[b, p, low + o] * record[ACTIVATION + o]
                        for o in range(high - low, LANES):
                            for start in range(0, BLOCK + LANES, LANES):
                                of_outputs[start + o] = 0
                        of_activation = load(of_outputs, BLOCK)
                    else:
                        for s in range(slots):
                            whole_gradient += load(after, s * LANES)
                        of_activation = whole_gradient
                    cost_gradient = of_activation * load(record, INACTIVATION) * -lambdas[t]
                    data = load(record, DATA)
                    per_data = 1 / (data + EPSILON)
                    per_log_variance = cost_gradient * data * (0.5 / unit)
                    constant = cost_gradient * load(record, UNIT_COST)
                    betas = beta_gradient[0, g], beta_gradient[1, g]
                    store(betas[0], 0, load(betas[0], 0) + cost_gradient * data * (16 / unit))
                    store(betas[1], 0, load(betas[1], 0) - cost_gradient)
                    gradient[:] = 0
                    for k in range(4):
                        at = k * COLUMN
                        if last:
                            of_mean, of_variance = column(of_outputs, at), zero_column(pose)
                            if t == 0:
                                column_of_votes(pose[b], children[p], weight[g, k], starts, shift[:, k], vote)
                        else:
                            of_mean, of_variance = statistics_gradient(
                                pose[b],
                                children[p],
                                weight[g, k],
                                starts,
                                shift[:, k],
                                record,
                                at,
                                after,
                                whole_gradient,
                                vote,
                            )
                        constant -= set_adjoint(record, at, of_mean, of_variance, per_data, per_log_variance, adjoint)
                        if t == 0:
                            parent = p * groups + g
                            vote_gradients_unrolled(
                                iterations,
                                vote,
                                pose[b],
                                own,
                                even,
                                children[p],
                                starts,
                                own_records,
                                parent * RECORD,
                                adjoint,
                                adjoints,
                                parent * ADJOINT,
                                own_assignments,
                                gradients,
                                parent * slots * LANES,
                                at,
                                gradient,
                                vote_gradient[k],
                                weight_gradient[g, k],
                            )
                        elif last:
                            votes_and_share_gradients(
                                pose[b], children[p], weight[g, k], starts, shift[:, k], record, adjoint, at, gradient
                            )
                        else:
                            share_gradients(vote, record, adjoint, at, gradient)
                    store(constants[p, g], 0, constant)
                    if t == 0:
                        first_activation_gradients(
                            gradient, constant, even, children[p], high - low, activation_gradient[b]
                        )
                        pose_gradients(vote_gradient, weight[g], children[p], starts, pose_gradient[b])
            if t > 0:
                spread_child_gradients(
                    gradients_of[t - 1],
                    constants,
                    assignments[b, t - 1],
                    own,
                    children,
                    parents,
                    by_position,
                    found,
                    activation_gradient[b],
                )
