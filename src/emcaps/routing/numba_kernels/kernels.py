"""EM routing on a CPU, compiled by numba: one image after another, one position after another, votes in the cache.

Dims: B images; H, W child grid; C child types; P parent positions; S slots, the children in a window, (KH, KW, C); T
iterations; G groups of LANES parent types, the last one padded. Parents are worked on a group at a time. A block holds
a matrix for each parent of a group, flat: four rows, in each four columns, in each LANES parents. Sizes of blocks and
rows are constants, so that the compiler makes vector instructions of loops along them.
Arrays: pose (B, H, W, C, 16), activation (B, H, W, C), weight (K, C, G, BLOCK), records (B, T, P, G, RECORD),
assignments (B, T - 1, P, S, G * LANES). `sizes` are OH, OW, O, KH, KW, stride rows, stride columns, whether matrices
are shared (a class layer), whether only types compete. Equation numbers as in the README of triton_kernels.

All in one file, because numba keeps what it compiled until the file of a function changes, whatever it calls.
"""

import math

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable

LANES = 16
ROW = 4 * LANES
BLOCK = 4 * ROW

# A record: four blocks, then four numbers for each parent.
MEAN, PRECISION, SPREAD, RESIDUAL = 0, BLOCK, 2 * BLOCK, 3 * BLOCK
DATA, LOGIT, UNIT_COST, LOG_PEAK = (4 * BLOCK + field * LANES for field in range(4))
RECORD = 4 * BLOCK + 4 * LANES
EPSILON = 1e-9  # keeps a parent without data at pose 0 instead of 0 / 0

# Products and sums may be fused; nothing else is left to the compiler, so that infinities and NaN stay what they are.
compiled = njit(fastmath={"contract"}, nogil=True, cache=True, error_model="numpy")
compiled_sums = njit(fastmath={"contract", "reassoc"}, nogil=True, cache=True, error_model="numpy")

LOWEST = np.float32(-87)
"""The lowest exponent for which float32 has a normal number; what is below is taken as zero."""
PER_LOG_2 = np.float32(1 / math.log(2))
LOG_2_HIGH, LOG_2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
POWERS_OF_2 = np.float32(2.0) ** np.arange(-126, 1, dtype=np.float32)
SERIES = tuple(np.float32(1 / math.factorial(n)) for n in range(8))


def exp_of_nonpositive(x):
    """exp of a number that is not positive, for the kernels; in vector instructions if it is float32."""
    return math.exp(x)


@register_jitable
def _exp_in_float32(x):
    # exp(x) = 2^n exp(r), r at most half of log 2 from zero, where eight terms of the series are exact to half a unit.
    inside = x if x > LOWEST else LOWEST  # NaN goes there too, and is put back at the end
    n = min(np.int32(inside * PER_LOG_2 - np.float32(0.5)), np.int32(0))
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
    if x > LOWEST:
        return value * POWERS_OF_2[n + 126]
    return np.float32(0) if x <= LOWEST else x


@overload(exp_of_nonpositive, inline="always")
def _exp_of_nonpositive(x):
    if x == types.float32:
        return lambda x: _exp_in_float32(x)
    return lambda x: math.exp(x)


# --- One child and the parents of a group. Votes and statistics are blocks; shares and their gradients fill a row.


@compiled
def fill_row(numbers, low, factor, row):
    """The numbers of a group of parents, LANES from `low` on, times a factor, for each of four columns."""
    for o in range(LANES):
        value = numbers[low + o] * factor
        row[o] = value
        row[LANES + o] = value
        row[2 * LANES + o] = value
        row[3 * LANES + o] = value


@compiled
def votes(pose, weight, row, column, vote):
    """V = M W (1); pose (16,). A class layer adds the child's scaled position."""
    for i in range(4):
        a, b, c, d = pose[4 * i], pose[4 * i + 1], pose[4 * i + 2], pose[4 * i + 3]
        for e in range(ROW):
            vote[i * ROW + e] = a * weight[e] + b * weight[ROW + e] + c * weight[2 * ROW + e] + d * weight[3 * ROW + e]
    if row != 0:
        for o in range(3 * LANES, ROW):
            vote[o] += row
            vote[ROW + o] += column


@compiled
def add_weighted(vote, share, total):
    """The sum of (3)."""
    for row in range(0, BLOCK, ROW):
        for e in range(ROW):
            total[row + e] += share[e] * vote[row + e]


@compiled
def add_spread(vote, share, mean, squares, residual):
    """The sums of (4): squared distances from the mean, and distances, which only rounding and epsilon leave."""
    for row in range(0, BLOCK, ROW):
        for e in range(ROW):
            difference = vote[row + e] - mean[row + e]
            pull = share[e] * difference
            residual[row + e] += pull
            squares[row + e] += pull * difference


@compiled
def add_columns(columns, start, sums):
    """`start` plus the sum of a row's four columns, for each parent."""
    for o in range(LANES):
        value = (columns[o] + columns[LANES + o]) + (columns[2 * LANES + o] + columns[3 * LANES + o])
        sums[o] = start[o] + value


@compiled
def log_joint(vote, mean, precision, log_peak, columns, joint):
    """log a_j N(V; mu, s2) (7), up to the constant that every parent shares; columns (ROW,) is for work."""
    for e in range(ROW):
        a, b = vote[e] - mean[e], vote[ROW + e] - mean[ROW + e]
        c, d = vote[2 * ROW + e] - mean[2 * ROW + e], vote[3 * ROW + e] - mean[3 * ROW + e]
        upper = a * a * precision[e] + b * b * precision[ROW + e]
        lower = c * c * precision[2 * ROW + e] + d * d * precision[3 * ROW + e]
        columns[e] = (upper + lower) / -2
    add_columns(columns, log_peak, joint)


@compiled
def share_gradient(vote, mean, quadratic, linear, constant, columns, gradient):
    """D_ij = dL/dr_ij (11); columns (ROW,) is for work."""
    for e in range(ROW):
        a, b = vote[e] - mean[e], vote[ROW + e] - mean[ROW + e]
        c, d = vote[2 * ROW + e] - mean[2 * ROW + e], vote[3 * ROW + e] - mean[3 * ROW + e]
        upper = a * (quadratic[e] * a + linear[e]) + b * (quadratic[ROW + e] * b + linear[ROW + e])
        lower = c * (quadratic[2 * ROW + e] * c + linear[2 * ROW + e]) + d * (
            quadratic[3 * ROW + e] * d + linear[3 * ROW + e]
        )
        columns[e] = upper + lower
    add_columns(columns, constant, gradient)


@compiled
def add_moments(vote, mean, joint_gradient, first, second):
    """Two of the sums of (14)."""
    for row in range(0, BLOCK, ROW):
        for e in range(ROW):
            difference = vote[row + e] - mean[row + e]
            pull = joint_gradient[e] * difference
            first[row + e] += pull
            second[row + e] += pull * difference


@compiled
def vote_gradient_of_m(vote, mean, quadratic, linear, share, gradient):
    """dL/dV_ij through the first M-step (12)."""
    for row in range(0, BLOCK, ROW):
        for e in range(ROW):
            pull = quadratic[row + e] * (vote[row + e] - mean[row + e])
            gradient[row + e] = share[e] * (pull + (pull + linear[row + e]))


@compiled
def add_vote_gradient_of_m(vote, mean, quadratic, linear, share, gradient):
    """The same through a later M-step, added up."""
    for row in range(0, BLOCK, ROW):
        for e in range(ROW):
            pull = quadratic[row + e] * (vote[row + e] - mean[row + e])
            gradient[row + e] += share[e] * (pull + (pull + linear[row + e]))


@compiled
def add_vote_gradient_of_e(vote, mean, precision, joint_gradient, gradient):
    """dL/dV_ij through an E-step (15), added up."""
    for row in range(0, BLOCK, ROW):
        for e in range(ROW):
            gradient[row + e] -= joint_gradient[e] * precision[row + e] * (vote[row + e] - mean[row + e])


@compiled
def add_matrix_gradient(pose, gradient, total):
    """dL/dW += M^T dL/dV (17); pose (16,)."""
    for j in range(4):
        a, b, c, d = pose[j], pose[4 + j], pose[8 + j], pose[12 + j]
        for e in range(ROW):
            total[j * ROW + e] += (
                a * gradient[e] + b * gradient[ROW + e] + c * gradient[2 * ROW + e] + d * gradient[3 * ROW + e]
            )


@compiled_sums
def add_pose_gradient(gradient, weight, total):
    """dL/dM += dL/dV W^T (16); total (16,)."""
    for i in range(4):
        for j in range(4):
            value = total[4 * i + j]
            for e in range(ROW):
                value += gradient[i * ROW + e] * weight[j * ROW + e]
            total[4 * i + j] = value


# --- The slots of a position.


@compiled
def window_votes(pose, weight, group, sizes, position, vote):
    """The votes of all slots for a group of parents at a position, (S, BLOCK)."""
    _, columns, _, kernel_rows, kernel_columns, down, right, shared, _ = sizes
    height, width, child_types = pose.shape[:3]
    top, left = position // columns * down, position % columns * right
    slot = 0
    for ky in range(kernel_rows):
        for kx in range(kernel_columns):
            matrix = 0 if shared else ky * kernel_columns + kx
            row = (top + ky + 0.5) / height if shared else 0.0
            column = (left + kx + 0.5) / width
            for c in range(child_types):
                votes(pose[top + ky, left + kx, c], weight[matrix, c, group], row, column, vote[slot])
                slot += 1


@compiled
def child_indices(height, width, child_types, sizes):
    """(P, S): which child, counted over (H, W, C), a slot is."""
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
def even_assignments(height, width, child_types, sizes):
    """1 / the number of parents that read a child (1), counted over (H, W, C); 1 where none does."""
    rows, columns, parents, kernel_rows, kernel_columns, down, right, _, _ = sizes
    result = np.empty(height * width * child_types)
    for y in range(height):
        vertical = min(y // down, rows - 1) - max((y - kernel_rows + down) // down, 0) + 1
        for x in range(width):
            horizontal = min(x // right, columns - 1) - max((x - kernel_columns + right) // right, 0) + 1
            readers = max(vertical, 0) * max(horizontal, 0) * parents
            for c in range(child_types):
                result[(y * width + x) * child_types + c] = 1 / max(readers, 1)
    return result


@compiled
def m_step(
    vote, children, of_children, assignments, low, beta_u, beta_a, routing_lambda, floor, unit, parents, share, record
):
    """(2) to (6) for a group of parents at a position, from the votes of its slots into their record.

    r_ij is the child's number times the assignment, of which there is one for all slots, or one for each.
    """
    slots = vote.shape[0]
    each = 1 if assignments.shape[0] > 1 else 0
    divisor = np.empty(LANES, vote.dtype)
    product, log_variance = np.empty(LANES), np.zeros(LANES)
    record[:] = 0
    mean, squares, residual = record[:BLOCK], record[SPREAD : SPREAD + BLOCK], record[RESIDUAL : RESIDUAL + BLOCK]
    precision, data = record[PRECISION : PRECISION + BLOCK], record[DATA : DATA + LANES]
    for s in range(slots):
        fill_row(assignments[s * each], low, of_children[children[s]], share)
        for o in range(LANES):
            data[o] += share[o]
        add_weighted(vote[s], share, mean)
    for o in range(LANES):
        divisor[o] = data[o] + EPSILON
    for start in range(0, BLOCK, LANES):
        for o in range(LANES):
            mean[start + o] /= divisor[o]
    for s in range(slots):
        fill_row(assignments[s * each], low, of_children[children[s]], share)
        add_spread(vote[s], share, mean, squares, residual)
    for row in range(0, BLOCK, ROW):
        product[:] = 1  # of four variances, in double precision: one logarithm instead of four
        for start in range(row, row + ROW, LANES):
            for o in range(LANES):
                squares[start + o] /= divisor[o]
                residual[start + o] /= divisor[o]
            for o in range(LANES):
                variance = squares[start + o] + floor
                precision[start + o] = 1 / variance
                product[o] *= variance
        for o in range(parents):
            log_variance[o] += math.log(product[o])
    for o in range(parents, LANES):
        for start in range(0, BLOCK, LANES):
            precision[start + o] = 1  # with a floor of zero it would be infinite, and infinity times zero is no number
    for o in range(parents):
        unit_cost = (16 * beta_u[o] + log_variance[o] / 2) / unit
        logit = routing_lambda * (beta_a[o] - unit_cost * data[o])
        record[UNIT_COST + o] = unit_cost
        record[LOGIT + o] = logit
        record[LOG_PEAK + o] = min(logit, 0.0) - math.log1p(math.exp(-abs(logit))) - log_variance[o] / 2


@compiled
def e_step(joint, sizes, children, lowest, largest, total):
    """R_ij (7) in place of the log joints (P, S, G * LANES)."""
    parents, by_position = sizes[2], sizes[8]
    slots = joint.shape[1]
    largest[:] = lowest
    total[:] = 0
    for p in range(joint.shape[0]):
        for s in range(slots):
            i = p * slots + s if by_position else children[p, s]
            most = largest[i]
            for o in range(parents):
                most = max(most, joint[p, s, o])
            largest[i] = most
    for p in range(joint.shape[0]):
        for s in range(slots):
            i = p * slots + s if by_position else children[p, s]
            most, value = largest[i], total[i]
            for o in range(parents):
                joint[p, s, o] = exp_of_nonpositive(joint[p, s, o] - most)
            for o in range(parents):
                value += joint[p, s, o]
            total[i] = value
    for p in range(joint.shape[0]):
        for s in range(slots):
            whole = total[p * slots + s if by_position else children[p, s]]
            for o in range(parents):
                joint[p, s, o] /= whole
            joint[p, s, parents:] = 0


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

    Records and assignments may have the places of one image and one iteration: then nothing is kept.
    """
    parents, groups = sizes[2], weight.shape[2]
    height, width, child_types = activation.shape[1:]
    children = child_indices(height, width, child_types, sizes)
    even = even_assignments(height, width, child_types, sizes)
    positions, slots = children.shape
    iterations = lambdas.shape[0]
    vote = np.empty((slots, BLOCK), pose.dtype)
    share, columns = np.empty(ROW, pose.dtype), np.empty(ROW, pose.dtype)
    first = np.empty(even.shape[0], pose.dtype)
    ones = np.zeros((1, groups * LANES), pose.dtype)
    ones[0, :parents] = 1
    normalisers = positions * slots if sizes[8] else even.shape[0]
    largest, total = np.empty(normalisers, pose.dtype), np.empty(normalisers, pose.dtype)
    for b in range(pose.shape[0]):
        kept = min(b, records.shape[0] - 1)
        own = activation[b].reshape(-1)
        for i in range(even.shape[0]):
            first[i] = own[i] * even[i]
        for t in range(iterations):
            place = min(t, assignments.shape[1] - 1)
            for p in range(positions):
                before = ones if t == 0 else assignments[kept, min(t - 1, assignments.shape[1] - 1), p]
                for g in range(groups):
                    low, high = g * LANES, min(parents, (g + 1) * LANES)
                    record = records[kept, min(t, records.shape[1] - 1), p, g]
                    window_votes(pose[b], weight, g, sizes, p, vote)
                    m_step(
                        vote,
                        children[p],
                        first if t == 0 else own,
                        before,
                        low,
                        beta_u[low:high],
                        beta_a[low:high],
                        lambdas[t],
                        floor,
                        unit,
                        high - low,
                        share,
                        record,
                    )
                    if t + 1 < iterations:
                        # Where there is one place for all iterations, nobody else still needs what was here.
                        for s in range(slots):
                            log_joint(
                                vote[s],
                                record[:BLOCK],
                                record[PRECISION : PRECISION + BLOCK],
                                record[LOG_PEAK : LOG_PEAK + LANES],
                                columns,
                                assignments[kept, place, p, s][low : low + LANES],
                            )
                    else:
                        for o in range(high - low):
                            for h in range(16):
                                out_pose[b, p, low + o, h] = record[h * LANES + o]
                            out_activation[b, p, low + o] = 1 / (1 + math.exp(-record[LOGIT + o]))
            if t + 1 < iterations:
                e_step(assignments[kept, place], sizes, children, lowest, largest, total)


@compiled
def set_adjoint(record, of_mean, of_variance, of_logit, routing_lambda, unit, adjoint, constant, beta_gradient):
    """From the gradients of the statistics of a group to A, B, c and those of the betas, (8) to (10).

    The sum of r (V - mu) in the gradient of (4) is the one that the record has, rounding and all, and not zero.
    """
    per_data, per_log_variance = np.empty(LANES, record.dtype), np.empty(LANES, record.dtype)
    for o in range(LANES):
        data = record[DATA + o]
        cost_gradient = -routing_lambda * of_logit[o]
        constant[o] = cost_gradient * record[UNIT_COST + o]
        beta_gradient[0, o] += 16 * cost_gradient * data / unit
        beta_gradient[1, o] -= cost_gradient
        per_data[o] = 1 / (data + EPSILON)
        per_log_variance[o] = cost_gradient * data / (2 * unit)
    for start in range(0, BLOCK, LANES):
        for o in range(LANES):
            e = start + o
            whole = of_variance[e] + per_log_variance[o] * record[PRECISION + e]
            adjoint[e] = whole * per_data[o]
            adjoint[BLOCK + e] = (of_mean[e] - 2 * whole * record[RESIDUAL + e]) * per_data[o]
        for o in range(LANES):
            constant[o] -= adjoint[start + o] * record[SPREAD + start + o]


@compiled
def spread_child_gradients(gradient, assignments, activation, sizes, children, found, activation_gradient):
    """K_i (13), added to dL/da_i, and e_ij (14) in place of D_ij; gradient and assignments (P, S, G * LANES)."""
    parents, by_position = sizes[2], sizes[8]
    slots = gradient.shape[1]
    found[:] = 0
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
            factor = activation[child]
            for o in range(parents):
                gradient[p, s, o] = assignments[p, s, o] * factor * (gradient[p, s, o] - mean)
            gradient[p, s, parents:] = 0
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
    parents, groups = sizes[2], weight.shape[2]
    height, width, child_types = activation.shape[1:]
    children = child_indices(height, width, child_types, sizes)
    even = even_assignments(height, width, child_types, sizes)
    positions, slots = children.shape
    iterations = lambdas.shape[0]
    kind = pose.dtype
    vote = np.empty((slots, BLOCK), kind)
    share, columns, vote_gradient = np.empty(ROW, kind), np.empty(ROW, kind), np.empty(BLOCK, kind)
    of_mean, of_variance, of_logit = np.empty(BLOCK, kind), np.empty(BLOCK, kind), np.empty(LANES, kind)
    ones = np.ones(LANES, kind)
    adjoints = np.empty((iterations, positions, groups, 2 * BLOCK), kind)
    constant = np.empty(LANES, kind)
    gradients = np.zeros((iterations, positions, slots, groups * LANES), kind)  # D_ij, then e_ij
    found = np.empty(positions * slots if sizes[8] else even.shape[0], kind)
    pose_gradient[:] = 0
    activation_gradient[:] = 0
    for b in range(pose.shape[0]):
        own = activation[b].reshape(-1)
        own_gradient = activation_gradient[b].reshape(-1)
        own_pose, own_pose_gradient = pose[b].reshape((-1, 16)), pose_gradient[b].reshape((-1, 16))
        for t in range(iterations - 1, -1, -1):
            for p in range(positions):
                for g in range(groups):
                    low, high = g * LANES, min(parents, (g + 1) * LANES)
                    record, adjoint = records[b, t, p, g], adjoints[t, p, g]
                    mean = record[:BLOCK]
                    window_votes(pose[b], weight, g, sizes, p, vote)
                    of_mean[:] = 0
                    of_variance[:] = 0
                    of_logit[:] = 0
                    if t == iterations - 1:
                        for o in range(high - low):
                            for h in range(16):
                                of_mean[h * LANES + o] = out_pose_gradient[b, p, low + o, h]
                            z = record[LOGIT + o]
                            slope = 1 / (1 + math.exp(-z)) / (1 + math.exp(z))
                            of_logit[o] = out_activation_gradient[b, p, low + o] * slope
                    else:
                        for s in range(slots):
                            fill_row(gradients[t + 1, p, s], low, 1, share)
                            for o in range(LANES):
                                of_logit[o] += share[o]
                            add_moments(vote[s], mean, share, of_mean, of_variance)
                        for start in range(0, BLOCK, LANES):
                            for o in range(LANES):
                                precision = record[PRECISION + start + o]
                                of_mean[start + o] *= precision
                                second = precision * of_variance[start + o] - of_logit[o]
                                of_variance[start + o] = precision * second / 2
                        for o in range(LANES):
                            of_logit[o] /= 1 + math.exp(record[LOGIT + o])
                    own_betas = beta_gradient[:, low : low + LANES]
                    set_adjoint(record, of_mean, of_variance, of_logit, lambdas[t], unit, adjoint, constant, own_betas)
                    quadratic, linear = adjoint[:BLOCK], adjoint[BLOCK:]
                    for s in range(slots):
                        gradient = gradients[t, p, s][low : low + LANES]
                        share_gradient(vote[s], mean, quadratic, linear, constant, columns, gradient)
                    if t > 0:
                        continue
                    for s in range(slots):
                        child = children[p, s]
                        fill_row(ones, 0, own[child] * even[child], share)
                        vote_gradient_of_m(vote[s], mean, quadratic, linear, share, vote_gradient)
                        for later in range(1, iterations):
                            after, before = records[b, later, p, g], records[b, later - 1, p, g]
                            fill_row(assignments[b, later - 1, p, s], low, own[child], share)
                            add_vote_gradient_of_m(
                                vote[s],
                                after[:BLOCK],
                                adjoints[later, p, g][:BLOCK],
                                adjoints[later, p, g][BLOCK:],
                                share,
                                vote_gradient,
                            )
                            fill_row(gradients[later, p, s], low, 1, share)
                            add_vote_gradient_of_e(
                                vote[s],
                                before[:BLOCK],
                                before[PRECISION : PRECISION + BLOCK],
                                share,
                                vote_gradient,
                            )
                        matrix = 0 if sizes[7] else s // child_types
                        c = s % child_types
                        add_matrix_gradient(own_pose[child], vote_gradient, weight_gradient[matrix, c, g])
                        add_pose_gradient(vote_gradient, weight[matrix, c, g], own_pose_gradient[child])
                        # dL/da_i of the first iteration: the even assignment times the sum over parents of D_ij
                        value = 0.0
                        for o in range(low, high):
                            value += gradients[0, p, s, o]
                        own_gradient[child] += value * even[child]
            if t > 0:
                spread_child_gradients(gradients[t], assignments[b, t - 1], own, sizes, children, found, own_gradient)
