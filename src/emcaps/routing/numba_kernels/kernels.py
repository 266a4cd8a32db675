"""EM routing on a CPU, compiled by numba: one image after another, one position after another, votes in the cache.

Dims: B images; N children, (H, W, C); P parent positions; S slots, the children in a window, (KH, KW, C); T iterations;
G groups of LANES parent types, the last one padded. A vector holds one number for each parent of a group. A column is
one column of each parent's matrix: four vectors, one a row. A block is a whole matrix: four columns.

A position's votes are worked on a column at a time. Means, variances and their gradients are of single elements, so
they need no other column, and the votes of all slots for one column fit the first-level cache, where all slots for a
block do not. Sums over slots stay in registers.

Arrays: pose (B, N * 16), activation (B, N), weight (G, 4, K * C * COLUMN), records (B, T, P, G, RECORD), and of each
edge, for its assignment and its gradients, (B, T, P, G, S * LANES). `sizes` are OH, OW, O, KH, KW, stride rows, stride
columns, whether matrices are shared (a class layer), whether only types compete. Equation numbers as in the README of
triton_kernels.
"""

import math

import numpy as np
from numba import njit

from emcaps.routing.numba_kernels.vectors import (
    LANES,
    exp_of_nonpositive,
    fetch,
    first_lanes,
    largest_lane,
    load,
    store,
    sum_of_lanes,
    sums_of_vectors,
    zeros,
)

COLUMN = 4 * LANES
BLOCK = 4 * COLUMN

# A record: four blocks, then five numbers for each parent.
MEAN, PRECISION, SPREAD, RESIDUAL = 0, BLOCK, 2 * BLOCK, 3 * BLOCK
DATA, UNIT_COST, LOG_PEAK, ACTIVATION, INACTIVATION = (4 * BLOCK + field * LANES for field in range(5))
RECORD = 4 * BLOCK + 5 * LANES
# What the backward pass has of each parent: 2 A and B of (11).
SLOPE, LINEAR = 0, BLOCK
ADJOINT = 2 * BLOCK
EPSILON = 1e-9  # keeps a parent without data at pose 0 instead of 0 / 0
LINE = 64  # bytes of a cache line
SMALL, LARGE = 1e-280, 1e280  # between them a product of variances has neither under- nor overflown

OPTIONS = {"fastmath": {"contract"}, "nogil": True, "error_model": "numpy"}
kept_on_disk = njit(cache=True, **OPTIONS)  # with all that it calls
compiled = njit(**OPTIONS)
inlined = njit(forceinline=True, **OPTIONS)


# --- Columns: tuples of four vectors.


@inlined
def column(array, start):
    return (
        load(array, start),
        load(array, start + LANES),
        load(array, start + 2 * LANES),
        load(array, start + 3 * LANES),
    )


@inlined
def put(array, start, values):
    store(array, start, values[0])
    store(array, start + LANES, values[1])
    store(array, start + 2 * LANES, values[2])
    store(array, start + 3 * LANES, values[3])


@inlined
def nothing(array):
    return zeros(array), zeros(array), zeros(array), zeros(array)


@inlined
def plus(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@inlined
def minus(a, b):
    return a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3]


@inlined
def times(a, b):
    return a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]


@inlined
def scaled(factor, a):
    """A column times one vector."""
    return factor * a[0], factor * a[1], factor * a[2], factor * a[3]


@inlined
def divided(a, divisor):
    return a[0] / divisor, a[1] / divisor, a[2] / divisor, a[3] / divisor


@inlined
def over_rows(a):
    return (a[0] + a[1]) + (a[2] + a[3])


@inlined
def matrix_times(pose, child, a):
    """M times a column."""
    m = 16 * child
    return (
        pose[m] * a[0] + pose[m + 1] * a[1] + pose[m + 2] * a[2] + pose[m + 3] * a[3],
        pose[m + 4] * a[0] + pose[m + 5] * a[1] + pose[m + 6] * a[2] + pose[m + 7] * a[3],
        pose[m + 8] * a[0] + pose[m + 9] * a[1] + pose[m + 10] * a[2] + pose[m + 11] * a[3],
        pose[m + 12] * a[0] + pose[m + 13] * a[1] + pose[m + 14] * a[2] + pose[m + 15] * a[3],
    )


@inlined
def transposed_matrix_times(pose, child, a):
    """M^T times a column."""
    m = 16 * child
    return (
        pose[m] * a[0] + pose[m + 4] * a[1] + pose[m + 8] * a[2] + pose[m + 12] * a[3],
        pose[m + 1] * a[0] + pose[m + 5] * a[1] + pose[m + 9] * a[2] + pose[m + 13] * a[3],
        pose[m + 2] * a[0] + pose[m + 6] * a[1] + pose[m + 10] * a[2] + pose[m + 14] * a[3],
        pose[m + 3] * a[0] + pose[m + 7] * a[1] + pose[m + 11] * a[2] + pose[m + 15] * a[3],
    )


@inlined
def votes(pose, child, matrices, matrix, shift_row, shift_column):
    """A column of V = M W (1). The last column of a class layer is shifted by the child's scaled position."""
    found = matrix_times(pose, child, column(matrices, matrix))
    return found[0] + shift_row, found[1] + shift_column, found[2], found[3]


@compiled
def lines(count, like):
    """Room for numbers, from the start of a cache line on: a vector across two lines costs two."""
    room = np.empty(count + LANES, like.dtype)
    skipped = -room.ctypes.data % LINE // room.itemsize
    return room[skipped : skipped + count]


@compiled
def fetch_all(array):
    for start in range(0, array.shape[0], LINE // array.itemsize):
        fetch(array, start)


# --- Windows: which children a position reads.


@compiled
def child_indices(height, width, child_types, sizes):
    """(P, S): which child a slot is."""
    rows, columns, _, kernel_rows, kernel_columns, down, right, _, _ = sizes
    result = np.empty((rows * columns, kernel_rows * kernel_columns * child_types), np.int64)
    for p in range(rows * columns):
        top, left = p // columns * down, p % columns * right
        slot = 0
        for ky in range(kernel_rows):
            for kx in range(kernel_columns):
                for c in range(child_types):
                    result[p, slot] = ((top + ky) * width + left + kx) * child_types + c
                    slot += 1
    return result


@compiled
def matrix_starts(slots, child_types, shared):
    """(S,): where, in a column of all matrices, a slot's begins. A class layer has one matrix for all places."""
    result = np.empty(slots, np.int64)
    for s in range(slots):
        result[s] = (s % child_types if shared else s) * COLUMN
    return result


@compiled
def shifts(height, width, child_types, slots, shared, like):
    """(2, 4, S): by how much rows 0 and 1 of a slot's votes are shifted in each column: a class layer's last one."""
    result = np.zeros((2, 4, slots), like.dtype)
    if shared:
        for s in range(slots):
            place = s // child_types
            result[0, 3, s] = (place // width + 0.5) / height
            result[1, 3, s] = (place % width + 0.5) / width
    return result


@compiled
def even_assignments(height, width, child_types, sizes, like):
    """1 / the number of parents that read a child (1); 1 where none does."""
    rows, columns, parents, kernel_rows, kernel_columns, down, right, _, _ = sizes
    result = np.empty(height * width * child_types, like.dtype)
    for y in range(height):
        vertical = min(y // down, rows - 1) - max((y - kernel_rows + down) // down, 0) + 1
        for x in range(width):
            horizontal = min(x // right, columns - 1) - max((x - kernel_columns + right) // right, 0) + 1
            readers = max(vertical, 0) * max(horizontal, 0) * parents
            for c in range(child_types):
                result[(y * width + x) * child_types + c] = 1 / max(readers, 1)
    return result


# --- Forward.


@compiled
def even_shares(own, even, children, parents, share):
    """r_ij (2) of the first iteration: a_i times the even assignment; nothing for padding."""
    for s in range(children.shape[0]):
        child = children[s]
        store(share, s * LANES, first_lanes(zeros(share) + own[child] * even[child], parents, 0))


@compiled
def later_shares(own, assignments, children, share):
    """r_ij (2): a_i times the assignment."""
    for s in range(children.shape[0]):
        store(share, s * LANES, load(assignments, s * LANES) * own[children[s]])


@compiled
def votes_and_sum(pose, children, matrices, starts, shift, share, vote):
    """A column of the votes of all slots, and their sum for (3)."""
    total = nothing(vote)
    for s in range(children.shape[0]):
        found = votes(pose, children[s], matrices, starts[s], shift[0, s], shift[1, s])
        put(vote, s * COLUMN, found)
        total = plus(total, scaled(load(share, s * LANES), found))
    return total


@compiled
def spread_around(mean, vote, share, slots):
    """The sums of (4): squared distances from the mean, and distances, which only rounding and epsilon leave."""
    squares, residual = nothing(vote), nothing(vote)
    for s in range(slots):
        difference = minus(column(vote, s * COLUMN), mean)
        pull = scaled(load(share, s * LANES), difference)
        residual = plus(residual, pull)
        squares = plus(squares, times(pull, difference))
    return squares, residual


@compiled
def add_distances(mean, precision, vote, slots, joint):
    """The sum of (7) over the elements of a column: squared distances in units of the variance."""
    for s in range(slots):
        difference = minus(column(vote, s * COLUMN), mean)
        found = over_rows(times(times(difference, precision), difference))
        store(joint, s * LANES, load(joint, s * LANES) + found)


@compiled
def m_step(pose, children, weight, starts, shift, share, floor, parents, last, vote, variance, record, joint):
    """(2) to (4) for a group of parents at a position, into their record, and what (7) needs of the votes."""
    slots = children.shape[0]
    data = zeros(share)
    for s in range(slots):
        data += load(share, s * LANES)
    if not last:
        joint[:] = 0
    store(record, DATA, data)
    divisor = data + EPSILON
    for k in range(4):
        at = k * COLUMN
        mean = divided(votes_and_sum(pose, children, weight[k], starts, shift[:, k], share, vote), divisor)
        squares, residual = spread_around(mean, vote, share, slots)
        spread = divided(squares, divisor)
        floored = spread[0] + floor, spread[1] + floor, spread[2] + floor, spread[3] + floor
        # Padding has no variance: with a floor of zero its inverse were infinite, and infinity times zero no number.
        precision = (
            first_lanes(1 / floored[0], parents, 1),
            first_lanes(1 / floored[1], parents, 1),
            first_lanes(1 / floored[2], parents, 1),
            first_lanes(1 / floored[3], parents, 1),
        )
        put(record, MEAN + at, mean)
        put(record, PRECISION + at, precision)
        put(record, SPREAD + at, spread)
        put(record, RESIDUAL + at, divided(residual, divisor))
        put(variance, at, floored)
        if not last:
            add_distances(mean, precision, vote, slots, joint)


@compiled
def log_products(variance, parents, product):
    """The sum of the logarithms of a block's elements, for each parent, in double precision."""
    product[:] = 1
    for start in range(0, BLOCK, LANES):
        for o in range(LANES):
            product[o] *= variance[start + o]
    for o in range(parents):
        if SMALL < product[o] < LARGE:
            product[o] = math.log(product[o])
        else:
            product[o] = 0
            for start in range(0, BLOCK, LANES):
                product[o] += math.log(variance[start + o])


@compiled
def activate(log_variance, beta_u, beta_a, routing_lambda, unit, last, record):
    """(5) and (6) for a group of parents; nothing for padding."""
    for start in range(UNIT_COST, RECORD, LANES):
        store(record, start, zeros(record))
    for o in range(beta_u.shape[0]):
        unit_cost = (16 * beta_u[o] + log_variance[o] / 2) / unit
        logit = routing_lambda * (beta_a[o] - unit_cost * record[DATA + o])
        small = math.exp(-abs(logit))
        smaller, larger = small / (1 + small), 1 / (1 + small)
        record[UNIT_COST + o] = unit_cost
        record[ACTIVATION + o] = larger if logit >= 0 else smaller
        record[INACTIVATION + o] = smaller if logit >= 0 else larger
        if not last:
            record[LOG_PEAK + o] = min(logit, 0.0) - math.log1p(small) - log_variance[o] / 2


@compiled
def e_step(joint, records, children, parents, by_position, lowest, largest, total):
    """R_ij (7) in place of the squared distances, (P, G, S * LANES)."""
    positions, slots = children.shape
    largest[:] = lowest
    total[:] = 0
    for p in range(positions):
        for g in range(joint.shape[1]):
            edge, own_parents = joint[p, g], min(parents - g * LANES, LANES)
            peak = load(records[p, g], LOG_PEAK)
            for s in range(slots):
                i = p * slots + s if by_position else children[p, s]
                logarithm = peak - load(edge, s * LANES) * 0.5
                store(edge, s * LANES, logarithm)
                largest[i] = max(largest[i], largest_lane(first_lanes(logarithm, own_parents, lowest)))
    for p in range(positions):
        for g in range(joint.shape[1]):
            edge, own_parents = joint[p, g], min(parents - g * LANES, LANES)
            for s in range(slots):
                i = p * slots + s if by_position else children[p, s]
                part = first_lanes(exp_of_nonpositive(load(edge, s * LANES) - largest[i]), own_parents, 0)
                store(edge, s * LANES, part)
                total[i] += sum_of_lanes(part)
    for i in range(total.shape[0]):
        total[i] = 1 / total[i]
    for p in range(positions):
        for g in range(joint.shape[1]):
            edge = joint[p, g]
            for s in range(slots):
                i = p * slots + s if by_position else children[p, s]
                store(edge, s * LANES, load(edge, s * LANES) * total[i])


@kept_on_disk
def forward_images(
    pose,
    activation,
    weight,
    beta_u,
    beta_a,
    lambdas,
    floor,
    unit,
    grid,
    sizes,
    lowest,
    records,
    assignments,
    out_pose,
    out_activation,
):
    """Every iteration for each image; grid is H, W, C; out_pose (B, P, O, 16), out_activation (B, P, O).

    Records and assignments may have the places of one image and one iteration: then nothing is kept.
    """
    parents, shared, by_position = sizes[2], sizes[7], sizes[8]
    height, width, child_types = grid
    children = child_indices(height, width, child_types, sizes)
    even = even_assignments(height, width, child_types, sizes, pose)
    positions, slots = children.shape
    starts = matrix_starts(slots, child_types, shared)
    shift = shifts(height, width, child_types, slots, shared, pose)
    iterations = lambdas.shape[0]
    vote, share, variance = lines(slots * COLUMN, pose), lines(slots * LANES, pose), lines(BLOCK, pose)
    log_variance = np.empty(LANES)
    normalisers = positions * slots if by_position else even.shape[0]
    largest, total = np.empty(normalisers, pose.dtype), np.empty(normalisers, pose.dtype)
    for b in range(pose.shape[0]):
        kept = min(b, records.shape[0] - 1)
        own = activation[b]
        for t in range(iterations):
            last = t + 1 == iterations
            found, place = min(t, records.shape[1] - 1), min(t, assignments.shape[1] - 1)
            for p in range(positions):
                for g in range(weight.shape[0]):
                    low, high = g * LANES, min(parents, (g + 1) * LANES)
                    record = records[kept, found, p, g]
                    # Where there is one place for all iterations, nobody else still needs what was here.
                    joint = share if last else assignments[kept, place, p, g]
                    if t == 0:
                        even_shares(own, even, children[p], high - low, share)
                    else:
                        before = assignments[kept, min(t - 1, assignments.shape[1] - 1), p, g]
                        later_shares(own, before, children[p], share)
                    m_step(
                        pose[b],
                        children[p],
                        weight[g],
                        starts,
                        shift,
                        share,
                        floor,
                        high - low,
                        last,
                        vote,
                        variance,
                        record,
                        joint,
                    )
                    log_products(variance, high - low, log_variance)
                    activate(log_variance, beta_u[low:high], beta_a[low:high], lambdas[t], unit, last, record)
                    if last:
                        for o in range(high - low):
                            for h in range(16):
                                out_pose[b, p, low + o, h] = record[h % 4 * COLUMN + h // 4 * LANES + o]
                            out_activation[b, p, low + o] = record[ACTIVATION + o]
            if not last:
                joints = assignments[kept, place]
                e_step(joints, records[kept, found], children, parents, by_position, lowest, largest, total)


# --- Backward.


@compiled
def column_of_votes(pose, children, matrices, starts, shift, vote):
    """Of all slots."""
    for s in range(children.shape[0]):
        put(vote, s * COLUMN, votes(pose, children[s], matrices, starts[s], shift[0, s], shift[1, s]))


@compiled
def votes_and_moments(pose, children, matrices, starts, shift, mean, joint_gradient, vote):
    """A column of the votes of all slots, and two of the sums of (14)."""
    first, second = nothing(vote), nothing(vote)
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
    """dL/dmu and dL/ds2 of a column of parents through the E-step after theirs (14)."""
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
    """2 A and B of a column from the gradients of its statistics, (8) to (10); returns what they take from c.

    The sum of r (V - mu) in the gradient of (4) is the one that the record has, rounding and all, and not zero.
    """
    whole = plus(of_variance, scaled(per_log_variance, column(record, PRECISION + at)))
    quadratic = scaled(per_data, whole)
    put(adjoint, SLOPE + at, plus(quadratic, quadratic))
    pull = times(whole, column(record, RESIDUAL + at))
    put(adjoint, LINEAR + at, scaled(per_data, minus(of_mean, plus(pull, pull))))
    return over_rows(times(quadratic, column(record, SPREAD + at)))


@inlined
def pull_of_m(difference, slope, linear):
    """2 A (V - mu) + B: r_ij times it is dL/dV_ij through an M-step (12), and half of D_ij's slope in V (11)."""
    return plus(times(slope, difference), linear)


@inlined
def share_gradient(difference, pull, linear):
    """A column's part of D_ij = dL/dr_ij (11)."""
    return over_rows(times(difference, plus(pull, linear))) * 0.5


@compiled
def votes_and_share_gradients(pose, children, matrices, starts, shift, record, adjoint, at, gradient):
    """A column's part of the D_ij of all slots, added, from votes that nobody else needs."""
    mean = column(record, MEAN + at)
    slope, linear = column(adjoint, SLOPE + at), column(adjoint, LINEAR + at)
    for s in range(children.shape[0]):
        difference = minus(votes(pose, children[s], matrices, starts[s], shift[0, s], shift[1, s]), mean)
        part = share_gradient(difference, pull_of_m(difference, slope, linear), linear)
        store(gradient, s * LANES, load(gradient, s * LANES) + part)


@compiled
def share_gradients(vote, record, adjoint, at, gradient):
    """The same, from votes that are there."""
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
    """dL/dV_ij of all slots, a column of each, and dL/dW += M^T dL/dV (17); the column's part of the first D_ij, too.

    `adjoint` and `gradient` are the first iteration's. What several have is flat, and `record`, `parent` and `edges`
    say where the first one's begins: of records all, of the others those after the first iteration.
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
            # the E-step before iteration t, with the statistics of t - 1 (15), and the M-step of t
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
def vote_gradients_in_any(iterations, *rest):
    """The same. The compiler knows the usual numbers of iterations, and needs no loop over them."""
    if iterations == 2:
        vote_gradients(2, *rest)
    elif iterations == 3:
        vote_gradients(3, *rest)
    else:
        vote_gradients(iterations, *rest)


@inlined
def outer(a, b):
    """All products of two columns' rows: sixteen vectors."""
    return (
        a[0] * b[0],
        a[0] * b[1],
        a[0] * b[2],
        a[0] * b[3],
        a[1] * b[0],
        a[1] * b[1],
        a[1] * b[2],
        a[1] * b[3],
        a[2] * b[0],
        a[2] * b[1],
        a[2] * b[2],
        a[2] * b[3],
        a[3] * b[0],
        a[3] * b[1],
        a[3] * b[2],
        a[3] * b[3],
    )


@inlined
def plus_16(a, b):
    return (
        a[0] + b[0],
        a[1] + b[1],
        a[2] + b[2],
        a[3] + b[3],
        a[4] + b[4],
        a[5] + b[5],
        a[6] + b[6],
        a[7] + b[7],
        a[8] + b[8],
        a[9] + b[9],
        a[10] + b[10],
        a[11] + b[11],
        a[12] + b[12],
        a[13] + b[13],
        a[14] + b[14],
        a[15] + b[15],
    )


@compiled
def pose_gradients(vote_gradient, weight, children, starts, pose_gradient):
    """dL/dM += dL/dV W^T (16) of all slots; vote_gradient (4, S * COLUMN), weight (4, K * C * COLUMN)."""
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
    """K_i (13), added to dL/da_i, and e_ij (14) in place of D_ij less its constant c, (P, G, S * LANES)."""
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
    """dL/da_i of the first iteration: the even assignment times the sum over parents of D_ij."""
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
    """The gradients of each image's children, and those of matrices and betas added up over the images.

    beta_gradient (2, G, LANES); the other gradients are laid out as what they are of.
    """
    parents, shared, by_position = sizes[2], sizes[7], sizes[8]
    groups = weight.shape[0]
    height, width, child_types = grid
    children = child_indices(height, width, child_types, sizes)
    even = even_assignments(height, width, child_types, sizes, pose)
    positions, slots = children.shape
    starts = matrix_starts(slots, child_types, shared)
    shift = shifts(height, width, child_types, slots, shared, pose)
    iterations = lambdas.shape[0]
    kind = pose.dtype
    vote, vote_gradient = lines(slots * COLUMN, pose), lines(4 * slots * COLUMN, pose).reshape((4, -1))
    of_outputs = lines(BLOCK + LANES, pose)
    constants = lines(positions * groups * LANES, pose).reshape((positions, groups, LANES))
    # Of the first iteration nothing is needed beyond its parents; of the others A, B, and D_ij, later e_ij.
    first_adjoint, first_gradient = lines(ADJOINT, pose), lines(slots * LANES, pose)
    rest = (iterations - 1, positions, groups)
    adjoints = lines((iterations - 1) * positions * groups * ADJOINT, pose)
    gradients = lines((iterations - 1) * positions * groups * slots * LANES, pose)
    adjoints_of, gradients_of = adjoints.reshape((*rest, ADJOINT)), gradients.reshape((*rest, slots * LANES))
    found = np.empty(positions * slots if by_position else even.shape[0], kind)
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
                    whole_gradient = zeros(pose)  # of log a_j in (7)
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
                            of_mean, of_variance = column(of_outputs, at), nothing(pose)
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
                            vote_gradients_in_any(
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
