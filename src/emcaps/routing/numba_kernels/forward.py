"""The forward pass: one image after another, one iteration after another, one position after another.

A position's votes are computed and used a column at a time. The mean and variance of an element depend on no other
element, so a column needs no other column. The votes of all slots for one column fit into the first-level cache, or
nearly so; those for a whole block do not. Sums over slots stay in registers.
Numbers in brackets are the equations of the README of triton_kernels.
"""

import math

import numpy as np

from emcaps.routing.numba_kernels.columns import (
    aligned_memory,
    column,
    divided,
    minus,
    plus,
    put,
    scaled,
    sum_over_rows,
    times,
    votes,
    zero_column,
)
from emcaps.routing.numba_kernels.layout import (
    ACTIVATION,
    BLOCK,
    COLUMN,
    DATA,
    EPSILON,
    INACTIVATION,
    LOG_PEAK,
    MEAN,
    PRECISION,
    RECORD,
    RESIDUAL,
    SPREAD,
    UNIT_COST,
    compiled,
    kept_on_disk,
)
from emcaps.routing.numba_kernels.vectors import (
    LANES,
    exp_of_nonpositive,
    first_lanes,
    larger,
    largest_lane,
    load,
    store,
    sum_of_lanes,
    zeros,
)
from emcaps.routing.numba_kernels.windows import window_tables

LARGE = 1e17  # the product of sixteen numbers between 1 / LARGE and LARGE neither underflows nor overflows


@compiled
def even_shares(own, even, children, parents, share):
    """r_ij (2) of the first iteration: a_i times the even assignment, and zero for padding."""
    for s in range(children.shape[0]):
        child = children[s]
        store(share, s * LANES, first_lanes(zeros(share) + own[child] * even[child], parents, 0))


@compiled
def later_shares(own, assignments, children, share):
    """r_ij (2) of a later iteration: a_i times the assignment."""
    for s in range(children.shape[0]):
        store(share, s * LANES, load(assignments, s * LANES) * own[children[s]])


@compiled
def votes_and_sum(pose, children, matrices, starts, shift, share, vote):
    """Compute a column of the votes of all slots into `vote`; return the sum of r V in (3)."""
    total = zero_column(vote)
    for s in range(children.shape[0]):
        found = votes(pose, children[s], matrices, starts[s], shift[0, s], shift[1, s])
        put(vote, s * COLUMN, found)
        total = plus(total, scaled(load(share, s * LANES), found))
    return total


@compiled
def spread_around(mean, vote, share, slots):
    """The sum of r (V - mu)^2 in (4), and that of r (V - mu), which is zero but for rounding and epsilon."""
    squares, residual = zero_column(vote), zero_column(vote)
    for s in range(slots):
        difference = minus(column(vote, s * COLUMN), mean)
        pull = scaled(load(share, s * LANES), difference)
        residual = plus(residual, pull)
        squares = plus(squares, times(pull, difference))
    return squares, residual


@compiled
def add_distances(mean, precision, vote, slots, joint):
    """Add a column's part of the sum in (7): squared distances divided by the variance."""
    for s in range(slots):
        difference = minus(column(vote, s * COLUMN), mean)
        found = sum_over_rows(times(times(difference, precision), difference))
        store(joint, s * LANES, load(joint, s * LANES) + found)


@compiled
def m_step(pose, children, weight, starts, shift, share, floor, parents, last, vote, variance, extreme, record, joint):
    """Compute (2) to (4) for a group of parents at a position into their record, and into `joint` the sum in (7).

    `extreme` gets, for each parent, the largest of its variances and of their inverses.
    """
    slots = children.shape[0]
    data = zeros(share)
    for s in range(slots):
        data += load(share, s * LANES)
    if not last:
        joint[:] = 0
    store(record, DATA, data)
    divisor = data + EPSILON
    furthest = zeros(share)
    for k in range(4):
        at = k * COLUMN
        mean = divided(votes_and_sum(pose, children, weight[k], starts, shift[:, k], share, vote), divisor)
        squares, residual = spread_around(mean, vote, share, slots)
        spread = divided(squares, divisor)
        floored = spread[0] + floor, spread[1] + floor, spread[2] + floor, spread[3] + floor
        # Padding has variance zero. With a floor of zero its inverse would be infinite, and infinity times zero is NaN.
        precision = (
            first_lanes(1 / floored[0], parents, 1),
            first_lanes(1 / floored[1], parents, 1),
            first_lanes(1 / floored[2], parents, 1),
            first_lanes(1 / floored[3], parents, 1),
        )
        for row in range(4):
            furthest = larger(furthest, larger(floored[row], precision[row]))
        put(record, MEAN + at, mean)
        put(record, PRECISION + at, precision)
        put(record, SPREAD + at, spread)
        put(record, RESIDUAL + at, divided(residual, divisor))
        put(variance, at, floored)
        if not last:
            add_distances(mean, precision, vote, slots, joint)
    store(extreme, 0, furthest)


@compiled
def log_products(variance, extreme, parents, product):
    """The sum of the logarithms of a block's 16 elements, for each parent, in double precision.

    One logarithm of the product is quicker than sixteen, and is taken where the product stays in range.
    """
    product[:] = 1
    for start in range(0, BLOCK, LANES):
        for o in range(LANES):
            product[o] *= variance[start + o]
    for o in range(parents):
        if extreme[o] < LARGE:
            product[o] = math.log(product[o])
        else:
            product[o] = 0
            for start in range(0, BLOCK, LANES):
                product[o] += math.log(variance[start + o])


@compiled
def activate(log_variance, beta_u, beta_a, routing_lambda, unit, last, record):
    """Compute (5) and (6) for a group of parents; padding gets zeros."""
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
    """Turn `joint`, the sums in (7), into the assignments R_ij. joint (P, G, S * LANES)."""
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
    """Route each image. grid is H, W, C; out_pose (B, P, O, 16), out_activation (B, P, O).

    Records and assignments may have room for one image and one iteration only: then nothing is kept.
    """
    parents, by_position = sizes[2], sizes[8]
    children, even, starts, shift = window_tables(grid, sizes, pose)
    positions, slots = children.shape
    iterations = lambdas.shape[0]
    vote, share = aligned_memory(slots * COLUMN, pose), aligned_memory(slots * LANES, pose)
    variance, extreme, log_variance = aligned_memory(BLOCK, pose), aligned_memory(LANES, pose), np.empty(LANES)
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
                    # Where all iterations share one place, this position's old assignments are read just below, before
                    # m_step overwrites them.
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
                        extreme,
                        record,
                        joint,
                    )
                    log_products(variance, extreme, high - low, log_variance)
                    activate(log_variance, beta_u[low:high], beta_a[low:high], lambdas[t], unit, last, record)
                    if last:
                        for o in range(high - low):
                            for h in range(16):
                                out_pose[b, p, low + o, h] = record[h % 4 * COLUMN + h // 4 * LANES + o]
                            out_activation[b, p, low + o] = record[ACTIVATION + o]
            if not last:
                joints = assignments[kept, place]
                e_step(joints, records[kept, found], children, parents, by_position, lowest, largest, total)
