"""EM routing on a CPU, compiled by numba: one image after another, one position after another, votes in the cache.

Dims: B images; H, W child grid; C child types; P parent positions; S slots, the children in a window, (KH, KW, C); T
iterations; L parent types, padded to what fills vector registers. A block is (4, 4 L): the four rows of a matrix, in
each its four columns, in each all parents at a position; loops along it become vector instructions.
Arrays: pose (B, H, W, C, 16), activation (B, H, W, C), weight (K, C, 4, 4 L), records (B, T, P, ROWS, 4 L), assignments
(B, T - 1, P, S, L). `sizes` are OH, OW, O, KH, KW, stride rows, stride columns, whether matrices are shared (a class
layer), whether only types compete. Equation numbers as in the README of triton_kernels.

All in one file, because numba keeps what it compiled until the file of a function changes, whatever it calls.
"""

import math

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable

LANES = 8
"""Parent types are padded to a multiple of this."""

# Products and sums may be fused; nothing else is left to the compiler, so that infinities and NaN stay what they are.
compiled = njit(fastmath={"contract"}, nogil=True, cache=True, error_model="numpy")
compiled_sums = njit(fastmath={"contract", "reassoc"}, nogil=True, cache=True, error_model="numpy")

# Rows of a position's record: four blocks, and a row of four numbers for each parent.
MEAN, PRECISION, SPREAD, RESIDUAL, SCALARS, ROWS = 0, 4, 8, 12, 16, 17
DATA, LOGIT, UNIT_COST, LOG_PEAK = 0, 1, 2, 3
EPSILON = 1e-9  # keeps a parent without data at pose 0 instead of 0 / 0

LOWEST = -87.0
"""Below, float32 has no normal number left: taken as zero."""
PER_LOG_2 = np.float32(1 / math.log(2))
LOG_2_HIGH, LOG_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
POWERS_OF_2 = np.float32(2.0) ** np.arange(-126, 1, dtype=np.float32)
SERIES = tuple(np.float32(1 / math.factorial(n)) for n in range(8))


def exp_of_nonpositive(x: float) -> float:
    """For the kernels; elsewhere math.exp does."""
    return math.exp(x)


@register_jitable
def _float32(x):
    # exp(x) = 2^n exp(r) with |r| at most half of log 2, where eight terms of the series are exact to half a unit.
    inside = x if x > np.float32(LOWEST) else np.float32(LOWEST)  # NaN goes there too, and is put back at the end
    n = np.int32(inside * PER_LOG_2 - np.float32(0.5))
    whole = np.float32(n)
    r = (inside - whole * LOG_2_HIGH) - whole * LOG_2_LOW
    value = SERIES[7]
    value = value * r + SERIES[6]
    value = value * r + SERIES[5]
    value = value * r + SERIES[4]
    value = value * r + SERIES[3]
    value = value * r + SERIES[2]
    value = value * r + SERIES[1]
    value = value * r + SERIES[0]
    result = value * POWERS_OF_2[n + 126]
    if x > np.float32(LOWEST):
        return result
    return np.float32(0) if x <= np.float32(LOWEST) else x


@overload(exp_of_nonpositive, inline="always")
def _exp_of_nonpositive(x):
    if x == types.float32:
        return lambda x: _float32(x)
    return lambda x: math.exp(x)


@compiled
def four_times(row, factor, fours):
    """A number a parent times a factor, for each of four columns; row (L,), fours (4 L,)."""
    lanes = row.shape[0]
    for o in range(lanes):
        value = row[o] * factor
        fours[o] = value
        fours[lanes + o] = value
        fours[2 * lanes + o] = value
        fours[3 * lanes + o] = value


@compiled
def votes(pose, weight, row, column, vote):
    """V = M W (1); pose (16,). A class layer adds the child's scaled position."""
    quarter = weight.shape[1] // 4
    for i in range(4):
        a, b, c, d = pose[4 * i], pose[4 * i + 1], pose[4 * i + 2], pose[4 * i + 3]
        for e in range(weight.shape[1]):
            vote[i, e] = a * weight[0, e] + b * weight[1, e] + c * weight[2, e] + d * weight[3, e]
    if row != 0:
        for o in range(3 * quarter, 4 * quarter):
            vote[0, o] += row
            vote[1, o] += column


@compiled
def add_weighted(vote, share, total):
    """The sum of (3); share (4 L,)."""
    for i in range(4):
        for e in range(vote.shape[1]):
            total[i, e] += share[e] * vote[i, e]


@compiled
def add_spread(vote, share, mean, squares, residual):
    """The sums of (4): squared distances from the mean, and distances, which only rounding and epsilon leave."""
    for i in range(4):
        for e in range(vote.shape[1]):
            difference = vote[i, e] - mean[i, e]
            pull = share[e] * difference
            residual[i, e] += pull
            squares[i, e] += pull * difference


@compiled
def log_joint(vote, mean, precision, log_peak, columns, joint):
    """log a_j N(V; mu, s2) (7), up to the constant that every parent shares; columns (4 L,) is for work."""
    for e in range(vote.shape[1]):
        a, b = vote[0, e] - mean[0, e], vote[1, e] - mean[1, e]
        c, d = vote[2, e] - mean[2, e], vote[3, e] - mean[3, e]
        columns[e] = (a * a * precision[0, e] + b * b * precision[1, e]) + (
            c * c * precision[2, e] + d * d * precision[3, e]
        )
    lanes = joint.shape[0]
    for o in range(lanes):
        distance = (columns[o] + columns[lanes + o]) + (columns[2 * lanes + o] + columns[3 * lanes + o])
        joint[o] = log_peak[o] - distance / 2


@compiled
def share_gradient(vote, mean, quadratic, linear, constant, columns, gradient):
    """D_ij = dL/dr_ij (11); columns (4 L,) is for work."""
    for e in range(vote.shape[1]):
        a, b = vote[0, e] - mean[0, e], vote[1, e] - mean[1, e]
        c, d = vote[2, e] - mean[2, e], vote[3, e] - mean[3, e]
        columns[e] = (a * (quadratic[0, e] * a + linear[0, e]) + b * (quadratic[1, e] * b + linear[1, e])) + (
            c * (quadratic[2, e] * c + linear[2, e]) + d * (quadratic[3, e] * d + linear[3, e])
        )
    lanes = gradient.shape[0]
    for o in range(lanes):
        value = (columns[o] + columns[lanes + o]) + (columns[2 * lanes + o] + columns[3 * lanes + o])
        gradient[o] = constant[o] + value


@compiled
def share_and_vote_gradients(vote, mean, quadratic, linear, constant, share, columns, gradient, vote_gradient):
    """The same, and dL/dV_ij through this M-step (12)."""
    for e in range(vote.shape[1]):
        columns[e] = 0
    for i in range(4):
        for e in range(vote.shape[1]):
            difference = vote[i, e] - mean[i, e]
            pull = quadratic[i, e] * difference
            slope = pull + linear[i, e]
            columns[e] += difference * slope
            vote_gradient[i, e] = share[e] * (pull + slope)
    lanes = gradient.shape[0]
    for o in range(lanes):
        value = (columns[o] + columns[lanes + o]) + (columns[2 * lanes + o] + columns[3 * lanes + o])
        gradient[o] = constant[o] + value


@compiled
def add_moments(vote, mean, joint_gradient, first, second):
    """Two of the sums of (14)."""
    for i in range(4):
        for e in range(vote.shape[1]):
            difference = vote[i, e] - mean[i, e]
            pull = joint_gradient[e] * difference
            first[i, e] += pull
            second[i, e] += pull * difference


@compiled
def add_vote_gradient_of_m(vote, mean, quadratic, linear, share, gradient):
    """dL/dV_ij through an M-step (12), added up."""
    for i in range(4):
        for e in range(vote.shape[1]):
            pull = quadratic[i, e] * (vote[i, e] - mean[i, e])
            gradient[i, e] += share[e] * (pull + (pull + linear[i, e]))


@compiled
def add_vote_gradient_of_e(vote, mean, precision, joint_gradient, gradient):
    """dL/dV_ij through an E-step (15), added up."""
    for i in range(4):
        for e in range(vote.shape[1]):
            gradient[i, e] -= joint_gradient[e] * precision[i, e] * (vote[i, e] - mean[i, e])


@compiled
def add_matrix_gradient(pose, gradient, total):
    """dL/dW += M^T dL/dV (17); pose (16,)."""
    for j in range(4):
        a, b, c, d = pose[j], pose[4 + j], pose[8 + j], pose[12 + j]
        for e in range(gradient.shape[1]):
            total[j, e] += a * gradient[0, e] + b * gradient[1, e] + c * gradient[2, e] + d * gradient[3, e]


@compiled_sums
def add_pose_gradient(gradient, weight, total):
    """dL/dM += dL/dV W^T (16); total (16,)."""
    for i in range(4):
        for j in range(4):
            value = total[4 * i + j]
            for e in range(gradient.shape[1]):
                value += gradient[i, e] * weight[j, e]
            total[4 * i + j] = value


@compiled
def window_votes(pose, weight, sizes, position, vote):
    """The votes of all slots of a position, (S, 4, 4 L)."""
    _, columns, _, kernel_rows, kernel_columns, down, right, shared, _ = sizes
    height, width, types = pose.shape[:3]
    top, left = position // columns * down, position % columns * right
    slot = 0
    for ky in range(kernel_rows):
        for kx in range(kernel_columns):
            matrix = 0 if shared else ky * kernel_columns + kx
            row = (top + ky + 0.5) / height if shared else 0.0
            column = (left + kx + 0.5) / width
            for c in range(types):
                votes(pose[top + ky, left + kx, c], weight[matrix, c], row, column, vote[slot])
                slot += 1


@compiled
def window_children(values, sizes, position, result):
    """A number of each child of a window, (S,); values (H, W, C)."""
    _, columns, _, kernel_rows, kernel_columns, down, right, _, _ = sizes
    top, left = position // columns * down, position % columns * right
    slot = 0
    for ky in range(kernel_rows):
        for kx in range(kernel_columns):
            for c in range(values.shape[2]):
                result[slot] = values[top + ky, left + kx, c]
                slot += 1


@compiled
def even_assignment(y, x, sizes):
    """1 / the number of parents that read a child at (y, x) (1); 1 where none does."""
    rows, columns, parents, kernel_rows, kernel_columns, down, right, _, _ = sizes
    vertical = min(y // down, rows - 1) - max((y - kernel_rows + down) // down, 0) + 1
    horizontal = min(x // right, columns - 1) - max((x - kernel_columns + right) // right, 0) + 1
    return 1 / max(max(vertical, 0) * max(horizontal, 0) * parents, 1)


@compiled
def first_shares(activation, sizes, result):
    """a_i times the even assignment; (H, W, C)."""
    for y in range(activation.shape[0]):
        for x in range(activation.shape[1]):
            even = even_assignment(y, x, sizes)
            for c in range(activation.shape[2]):
                result[y, x, c] = activation[y, x, c] * even


@compiled
def scalar(record, which):
    """One of the scalars of a record, (L,)."""
    lanes = record.shape[1] // 4
    return record[SCALARS, which * lanes : (which + 1) * lanes]


@compiled
def m_step(vote, of_children, assignments, beta_u, beta_a, routing_lambda, floor, unit, parents, record):
    """(2) to (6) for the parents at a position, from the votes (S, 4, 4 L) of its slots into their record.

    r_ij is the child's number times the assignment, of which there is one for all slots, or one for each.
    """
    slots, width = vote.shape[0], vote.shape[2]
    lanes = width // 4
    each = 1 if assignments.shape[0] > 1 else 0
    share, per_data = np.empty(width, vote.dtype), np.empty(width, vote.dtype)
    product, log_variance = np.empty(lanes), np.zeros(lanes)
    record[:] = 0
    mean, squares, residual = record[MEAN:PRECISION], record[SPREAD:RESIDUAL], record[RESIDUAL:SCALARS]
    data, logit, unit_cost = scalar(record, DATA), scalar(record, LOGIT), scalar(record, UNIT_COST)
    for s in range(slots):
        four_times(assignments[s * each], of_children[s], share)
        for o in range(lanes):
            data[o] += share[o]
        add_weighted(vote[s], share, mean)
    for e in range(width):
        per_data[e] = 1 / (data[e % lanes] + EPSILON)
    for i in range(4):
        for e in range(width):
            mean[i, e] *= per_data[e]
    for s in range(slots):
        four_times(assignments[s * each], of_children[s], share)
        add_spread(vote[s], share, mean, squares, residual)
    for i in range(4):
        for e in range(width):
            residual[i, e] *= per_data[e]
            squares[i, e] *= per_data[e]
        for e in range(width):
            record[PRECISION + i, e] = squares[i, e] + floor
        for o in range(lanes):  # four at a time, in double precision: one logarithm instead of four
            product[o] = 1
        for k in range(4):
            for o in range(lanes):
                product[o] *= record[PRECISION + i, k * lanes + o]
        for o in range(parents):
            log_variance[o] += math.log(product[o])
        for e in range(width):
            record[PRECISION + i, e] = 1 / record[PRECISION + i, e] if e % lanes < parents else 1
    for o in range(parents):
        unit_cost[o] = (16 * beta_u[o] + log_variance[o] / 2) / unit
        logit[o] = routing_lambda * (beta_a[o] - unit_cost[o] * data[o])
        log_activation = min(logit[o], 0.0) - math.log1p(math.exp(-abs(logit[o])))
        record[SCALARS, LOG_PEAK * lanes + o] = log_activation - log_variance[o] / 2


@compiled
def e_step(joint, sizes, children, largest, total):
    """R_ij (7) in place of the log joints (P, S, L); children is a child's index for each (P, S)."""
    parents, by_position = sizes[2], sizes[8]
    for p in range(joint.shape[0]):
        for s in range(joint.shape[1]):
            i = p * joint.shape[1] + s if by_position else children[p, s]
            most = largest[i]
            for o in range(parents):
                most = max(most, joint[p, s, o])
            largest[i] = most
    for p in range(joint.shape[0]):
        for s in range(joint.shape[1]):
            i = p * joint.shape[1] + s if by_position else children[p, s]
            most = largest[i]
            for o in range(joint.shape[2]):
                joint[p, s, o] = exp_of_nonpositive(joint[p, s, o] - most)
            joint[p, s, parents:] = 0
            value = total[i]
            for o in range(parents):
                value += joint[p, s, o]
            total[i] = value
    for p in range(joint.shape[0]):
        for s in range(joint.shape[1]):
            i = p * joint.shape[1] + s if by_position else children[p, s]
            per_total = 1 / total[i]
            for o in range(joint.shape[2]):
                joint[p, s, o] *= per_total


@compiled
def child_indices(height, width, types, sizes, slots):
    """(P, S): which child, counted over (H, W, C), a slot is."""
    rows, columns, _, kernel_rows, kernel_columns, down, right, _, _ = sizes
    result = np.empty((rows * columns, slots), np.int64)
    for p in range(rows * columns):
        top, left = p // columns * down, p % columns * right
        slot = 0
        for ky in range(kernel_rows):
            for kx in range(kernel_columns):
                for c in range(types):
                    result[p, slot] = ((top + ky) * width + left + kx) * types + c
                    slot += 1
    return result


@compiled
def forward_images(
    pose,
    activation,
    weight,
    beta_u,
    beta_a,
    lambdas,
    floor,
    unit,
    sizes,
    lowest,
    records,
    assignments,
    out_pose,
    out_activation,
):
    """Every iteration for each image; out_pose (B, P, O, 16), out_activation (B, P, O).

    Records and assignments may be those of one image and, of records, one iteration: then nothing is kept.
    """
    parents = sizes[2]
    height, width, types = activation.shape[1:]
    lanes = weight.shape[3] // 4
    slots = sizes[3] * sizes[4] * types
    positions = sizes[0] * sizes[1]
    iterations = lambdas.shape[0]
    vote = np.empty((slots, 4, 4 * lanes), pose.dtype)
    of_children, columns = np.empty(slots, pose.dtype), np.empty(4 * lanes, pose.dtype)
    first = np.empty((height, width, types), pose.dtype)
    children = child_indices(height, width, types, sizes, slots)
    normalisers = positions * slots if sizes[8] else height * width * types
    largest, total = np.empty(normalisers, pose.dtype), np.empty(normalisers, pose.dtype)
    even = np.zeros((1, lanes), pose.dtype)
    even[0, :parents] = 1
    for b in range(pose.shape[0]):
        kept = min(b, records.shape[0] - 1)
        first_shares(activation[b], sizes, first)
        for t in range(iterations):
            for p in range(positions):
                record = records[kept, min(t, records.shape[1] - 1), p]
                window_votes(pose[b], weight, sizes, p, vote)
                window_children(first if t == 0 else activation[b], sizes, p, of_children)
                before = even if t == 0 else assignments[kept, min(t - 1, assignments.shape[1] - 1), p]
                m_step(vote, of_children, before, beta_u, beta_a, lambdas[t], floor, unit, parents, record)
                if t + 1 < iterations:
                    # Where one iteration's place is all there is, only this position still needed what was there.
                    joint = assignments[kept, min(t, assignments.shape[1] - 1), p]
                    mean, precision = record[MEAN:PRECISION], record[PRECISION:SPREAD]
                    log_peak = scalar(record, LOG_PEAK)
                    for s in range(slots):
                        log_joint(vote[s], mean, precision, log_peak, columns, joint[s])
                else:
                    for o in range(parents):
                        for h in range(16):
                            out_pose[b, p, o, h] = record[MEAN + h // 4, h % 4 * lanes + o]
                        out_activation[b, p, o] = 1 / (1 + math.exp(-record[SCALARS, LOGIT * lanes + o]))
            if t + 1 < iterations:
                largest[:] = lowest
                total[:] = 0
                e_step(assignments[kept, min(t, assignments.shape[1] - 1)], sizes, children, largest, total)


@compiled
def set_adjoint(
    record, mean_gradient, variance_gradient, logit_gradient, routing_lambda, unit, adjoint, constant, beta_gradient
):
    """From the gradients of the statistics of the parents at a position to A, B, c and those of the betas, (8) to (10).

    The sum of r (V - mu) in the gradient of (4) is the one that the record has, rounding and all, and not zero.
    """
    width = record.shape[1]
    lanes = width // 4
    per_data, per_log_variance = np.empty(width, record.dtype), np.empty(width, record.dtype)
    data, unit_cost = scalar(record, DATA), scalar(record, UNIT_COST)
    for o in range(lanes):
        cost_gradient = -routing_lambda * logit_gradient[o]
        constant[o] = cost_gradient * unit_cost[o]
        beta_gradient[0, o] += 16 * cost_gradient * data[o] / unit
        beta_gradient[1, o] -= cost_gradient
        for k in range(4):
            per_data[k * lanes + o] = 1 / (data[o] + EPSILON)
            per_log_variance[k * lanes + o] = cost_gradient * data[o] / (2 * unit)
    for i in range(4):
        for e in range(width):
            of_variance = variance_gradient[i, e] + per_log_variance[e] * record[PRECISION + i, e]
            adjoint[i, e] = of_variance * per_data[e]
            adjoint[4 + i, e] = (mean_gradient[i, e] - 2 * of_variance * record[RESIDUAL + i, e]) * per_data[e]
        for k in range(4):
            for o in range(lanes):
                constant[o] -= adjoint[i, k * lanes + o] * record[SPREAD + i, k * lanes + o]


@compiled
def spread_child_gradients(gradient, assignments, activation, sizes, children, found, activation_gradient):
    """K_i (13), added to dL/da_i, and e_ij (14) in place of D_ij; gradient and assignments (P, S, L), flat children."""
    parents, by_position = sizes[2], sizes[8]
    slots = gradient.shape[1]
    for p in range(gradient.shape[0]):
        for s in range(slots):
            i = p * slots + s if by_position else children[p, s]
            value = found[i]
            for o in range(parents):
                value += assignments[p, s, o] * gradient[p, s, o]
            found[i] = value
    for p in range(gradient.shape[0]):
        for s in range(slots):
            child = children[p, s]
            mean = found[p * slots + s if by_position else child]
            if by_position:
                activation_gradient[child] += mean
            for o in range(parents):
                gradient[p, s, o] = assignments[p, s, o] * activation[child] * (gradient[p, s, o] - mean)
            for o in range(parents, gradient.shape[2]):
                gradient[p, s, o] = 0
    if not by_position:
        for i in range(found.shape[0]):
            activation_gradient[i] += found[i]


@compiled
def backward_images(
    pose,
    activation,
    weight,
    lambdas,
    unit,
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
    """The gradients of each image's children, and those of matrices and betas added up over the images."""
    parents = sizes[2]
    height, width, types = activation.shape[1:]
    lanes = weight.shape[3] // 4
    slots = sizes[3] * sizes[4] * types
    positions = sizes[0] * sizes[1]
    iterations = lambdas.shape[0]
    kind = pose.dtype
    vote = np.empty((slots, 4, 4 * lanes), kind)
    of_children, logit_gradient = np.empty(slots, kind), np.empty(lanes, kind)
    share, columns = np.empty(4 * lanes, kind), np.empty(4 * lanes, kind)
    even = np.zeros(lanes, kind)
    even[:parents] = 1
    first = np.empty((height, width, types), kind)
    children = child_indices(height, width, types, sizes, slots)
    adjoints = np.zeros((iterations, positions, 8, 4 * lanes), kind)
    constant = np.zeros(lanes, kind)
    gradients = np.zeros((iterations, positions, slots, lanes), kind)  # D_ij, then e_ij
    found = np.empty(positions * slots if sizes[8] else height * width * types, kind)
    mean_gradient, variance_gradient = np.zeros((4, 4 * lanes), kind), np.zeros((4, 4 * lanes), kind)
    vote_gradient = np.zeros((4, 4 * lanes), kind)
    pose_gradient[:] = 0
    activation_gradient[:] = 0
    for b in range(pose.shape[0]):
        first_shares(activation[b], sizes, first)
        own_activation = activation[b].reshape(-1)
        own_gradient = activation_gradient[b].reshape(-1)
        for t in range(iterations - 1, -1, -1):
            for p in range(positions):
                record = records[b, t, p]
                window_votes(pose[b], weight, sizes, p, vote)
                mean_gradient[:] = 0
                variance_gradient[:] = 0
                logit_gradient[:] = 0
                mean, logit = record[MEAN:PRECISION], scalar(record, LOGIT)
                if t == iterations - 1:
                    for o in range(parents):
                        for h in range(16):
                            mean_gradient[h // 4, h % 4 * lanes + o] = out_pose_gradient[b, p, o, h]
                        a = 1 / (1 + math.exp(-logit[o]))
                        logit_gradient[o] = out_activation_gradient[b, p, o] * a / (1 + math.exp(logit[o]))
                else:
                    for s in range(slots):
                        four_times(gradients[t + 1, p, s], 1, share)
                        for o in range(lanes):
                            logit_gradient[o] += share[o]
                        add_moments(vote[s], mean, share, mean_gradient, variance_gradient)
                    for i in range(4):
                        for e in range(4 * lanes):
                            precision = record[PRECISION + i, e]
                            mean_gradient[i, e] *= precision
                            second = precision * variance_gradient[i, e] - logit_gradient[e % lanes]
                            variance_gradient[i, e] = precision * second / 2
                    for o in range(lanes):
                        logit_gradient[o] /= 1 + math.exp(logit[o])
                adjoint = adjoints[t, p]
                set_adjoint(
                    record,
                    mean_gradient,
                    variance_gradient,
                    logit_gradient,
                    lambdas[t],
                    unit,
                    adjoint,
                    constant,
                    beta_gradient,
                )
                quadratic, linear = adjoint[:4], adjoint[4:]
                if t > 0:
                    for s in range(slots):
                        share_gradient(vote[s], mean, quadratic, linear, constant, columns, gradients[t, p, s])
                else:
                    window_children(first, sizes, p, of_children)
                    for s in range(slots):
                        four_times(even, of_children[s], share)
                        share_and_vote_gradients(
                            vote[s],
                            mean,
                            quadratic,
                            linear,
                            constant,
                            share,
                            columns,
                            gradients[0, p, s],
                            vote_gradient,
                        )
                        for later in range(1, iterations):
                            four_times(assignments[b, later - 1, p, s], own_activation[children[p, s]], share)
                            add_vote_gradient_of_m(
                                vote[s],
                                records[b, later, p, MEAN:PRECISION],
                                adjoints[later, p, :4],
                                adjoints[later, p, 4:],
                                share,
                                vote_gradient,
                            )
                            four_times(gradients[later, p, s], 1, share)
                            add_vote_gradient_of_e(
                                vote[s],
                                records[b, later - 1, p, MEAN:PRECISION],
                                records[b, later - 1, p, PRECISION:SPREAD],
                                share,
                                vote_gradient,
                            )
                        child = children[p, s]
                        c = child % types
                        matrix = 0 if sizes[7] else s // types
                        y, x = child // types // width, child // types % width
                        add_matrix_gradient(pose[b, y, x, c], vote_gradient, weight_gradient[matrix, c])
                        add_pose_gradient(vote_gradient, weight[matrix, c], pose_gradient[b, y, x, c])
                        # dL/da_i of the first iteration: the even assignment times the sum over parents of D_ij
                        value = gradients[0, p, s, 0]
                        for o in range(1, parents):
                            value += gradients[0, p, s, o]
                        own_gradient[child] += value * even_assignment(y, x, sizes)
            if t > 0:
                found[:] = 0
                spread_child_gradients(
                    gradients[t], assignments[b, t - 1], own_activation, sizes, children, found, own_gradient
                )
