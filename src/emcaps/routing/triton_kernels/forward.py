"""The sweeps of the forward pass.

Dims: NB blocks of BB images; H, W child grid; C child types, padded; OH, OW parent grid; O parent types; KH, KW kernel.
The images of a block lie side by side in memory and along the lanes of a warp; all other parts of an index are the same
for all lanes. Packed tensors: pose (NB, H, W, C, 4, BB, 4), activation (NB, H, W, C, BB), weight (K, O, C, 16), records
(T, NB, OH, OW, O, RECORD / 4, BB, 4). A slot is a child in the window of one parent position,
(NB, OH, OW, KH, KW, C); normalisers are (children, 2, BB), or (slots, 2, BB) where only types compete.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.edge import (
    EPSILON,
    inverse,
    log_joint,
    log_sigmoid,
    lowest,
    per_place,
    quotient,
    scaled,
    votes,
    zero_matrix,
)
from emcaps.routing.triton_kernels.indices import SIZES, locate, next_child, parents_of_program, slots_of_program
from emcaps.routing.triton_kernels.memory import load_matrix, store_four
from emcaps.routing.triton_kernels.records import LOG_PEAK, MEAN, PRECISION, RECORD, SPREAD, field, load_field


@triton.jit
def merge_slices(rows, SLICES: tl.constexpr, PARENTS: tl.constexpr, BB: tl.constexpr):
    """The sum over the slices of each parent."""
    return tl.sum(tl.reshape(rows, (SLICES, PARENTS, BB)), 0)


@triton.jit
def move_from_nearer_end(step, data, total):
    """How to move a mean towards a target, by the fraction `step` of their difference, with a small rounding error.

    Returns whether to start from the target (else from the mean), and what fraction of the difference to add to the
    start. With a `step` of almost 1, mean + step * difference would be off by the rounding error of the whole
    difference, which (10) multiplies by the inverse variance. From the target, only a small part of it is added.
    """
    nearer = step > 0.5
    return nearer, tl.where(nearer, -data / total, step)


@triton.jit
def merged(n, m0, m1, m2, m3, s0, s1, s2, s3, n_, m0_, m1_, m2_, m3_, s0_, s1_, s2_, s3_):
    """Merge two slices by Chan's rule: their data, and for four elements the means and the sums of squared distances.

    If both means are equal, the result is equal to them to the last bit.
    """
    total = n + n_
    step = tl.where(total > 0, n_ / total, 0.0)
    pull = n * step
    nearer, factor = move_from_nearer_end(step, n, total)
    return (
        total,
        tl.fma(factor, m0_ - m0, tl.where(nearer, m0_, m0)),
        tl.fma(factor, m1_ - m1, tl.where(nearer, m1_, m1)),
        tl.fma(factor, m2_ - m2, tl.where(nearer, m2_, m2)),
        tl.fma(factor, m3_ - m3, tl.where(nearer, m3_, m3)),
        s0 + s0_ + pull * (m0_ - m0) * (m0_ - m0),
        s1 + s1_ + pull * (m1_ - m1) * (m1_ - m1),
        s2 + s2_ + pull * (m2_ - m2) * (m2_ - m2),
        s3 + s3_ + pull * (m3_ - m3) * (m3_ - m3),
    )


@triton.jit
def added(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def by_slice(values, SLICES: tl.constexpr, PARENTS: tl.constexpr, BB: tl.constexpr):
    """Reshape each tensor of a tuple so that slices have an axis of their own."""
    slices = ()
    for i in tl.static_range(len(values)):
        slices = slices + (tl.reshape(values[i], (SLICES, PARENTS, BB)),)
    return slices


@triton.jit(do_not_specialize=[*SIZES, "B"], do_not_specialize_on_alignment=["beta_u_pointer", "beta_a_pointer"])
def m_step(
    pose_pointer,
    activation_pointer,
    weight_pointer,
    beta_u_pointer,
    beta_a_pointer,
    before_pointer,
    normaliser_pointer,
    record_pointer,
    routing_lambda: tl.float64,
    variance_floor: tl.float64,
    data_unit: tl.float64,
    B,
    H,
    W,
    C,
    OH,
    OW,
    O,
    KH,
    KW,
    stride_y,
    stride_x,
    shared,
    by_position,
    FIRST: tl.constexpr,
    SLICES: tl.constexpr,
    PARENTS: tl.constexpr,
    BB: tl.constexpr,
):
    """Compute (2) to (6) for PARENTS parent types at one position, for a block of images.

    Each row of the tile is for one parent type and one of SLICES slices of the child types; the slices are merged at
    the end. In the FIRST iteration the activations are already multiplied by the even assignments (1).
    """
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    sizes = (H, W, C, OH, OW, O, KH, KW, stride_y, stride_x, shared, by_position)
    position, v, u, block, first_parent = parents_of_program(OH, OW, O, PARENTS)
    lane = tl.arange(0, BB)[None, :]
    fours = lane * 4
    rows = tl.arange(0, SLICES * PARENTS)[:, None]
    # Rows beyond the last parent type repeat it and are not stored.
    o = tl.minimum(first_parent + rows % PARENTS, O - 1)
    slice = rows // PARENTS

    if not FIRST:
        before = before_pointer + (position.to(tl.int64) * O + o) * (RECORD * BB) + fours
        old_mean = load_matrix(before + field(MEAN, BB), 4 * BB, DTYPE)
        old_precision = load_matrix(before + field(PRECISION, BB), 4 * BB, DTYPE)
        old_log_peak = load_field(before, LOG_PEAK, BB, DTYPE)

    data = tl.zeros((SLICES * PARENTS, BB), DTYPE)
    mean = zero_matrix(SLICES * PARENTS, BB, DTYPE)
    spread = zero_matrix(SLICES * PARENTS, BB, DTYPE)
    per_row = per_place(H, shared, DTYPE)
    per_column = per_place(W, shared, DTYPE)
    ky = 0
    kx = 0
    first_type = 0
    row, column, child, slot, matrix = locate(ky, kx, first_type + slice, v, u, block, position, o, sizes)
    row_share = scaled(row, per_row)
    column_share = scaled(column, per_column)
    pose = load_matrix(pose_pointer + child * (16 * BB) + fours, 4 * BB, DTYPE)
    weight = load_matrix(weight_pointer + matrix, 4, DTYPE)
    activation = tl.load(activation_pointer + child * BB + lane)
    if not FIRST:
        largest = tl.load(normaliser_pointer + slot * (2 * BB) + lane)
        per_total = tl.load(normaliser_pointer + slot * (2 * BB) + BB + lane)
    for _ in range(KH * KW * (C // SLICES)):
        # Load the next children while these are processed.
        ky, kx, first_type = next_child(ky, kx, first_type, KH, KW, C, SLICES)
        row, column, child, slot, matrix = locate(ky, kx, first_type + slice, v, u, block, position, o, sizes)
        next_pose = load_matrix(pose_pointer + child * (16 * BB) + fours, 4 * BB, DTYPE)
        next_weight = load_matrix(weight_pointer + matrix, 4, DTYPE)
        next_activation = tl.load(activation_pointer + child * BB + lane)
        if not FIRST:
            next_largest = tl.load(normaliser_pointer + slot * (2 * BB) + lane)
            next_per_total = tl.load(normaliser_pointer + slot * (2 * BB) + BB + lane)

        vote = votes(pose, weight, row_share, column_share)
        if FIRST:
            share = activation
        else:
            joint = log_joint(vote, old_mean, old_precision, old_log_peak)
            share = tl.exp(joint - largest) * per_total * activation
        # Welford's running mean and sum of squared distances: one pass, and no large numbers are subtracted.
        new_data = data + share
        step = tl.where(new_data > 0, share / new_data, 0.0)
        pull = data * step
        nearer, factor = move_from_nearer_end(step, data, new_data)
        new_mean = ()
        new_spread = ()
        for h in tl.static_range(16):
            difference = vote[h] - mean[h]
            new_mean = new_mean + (tl.fma(factor, difference, tl.where(nearer, vote[h], mean[h])),)
            new_spread = new_spread + (spread[h] + pull * (difference * difference),)
        data = new_data
        mean = new_mean
        spread = new_spread
        pose = next_pose
        weight = next_weight
        activation = next_activation
        row_share = scaled(row, per_row)
        column_share = scaled(column, per_column)
        if not FIRST:
            largest = next_largest
            per_total = next_per_total

    routing_lambda = tl.full((1, 1), routing_lambda, DTYPE)
    variance_floor = tl.full((1, 1), variance_floor, DTYPE)
    data_unit = tl.full((1, 1), data_unit, DTYPE)
    o = first_parent + tl.arange(0, PARENTS)[:, None]
    known = o < O
    beta_u = tl.load(beta_u_pointer + o, mask=known, other=0.0)
    beta_a = tl.load(beta_a_pointer + o, mask=known, other=0.0)
    record = record_pointer + (position.to(tl.int64) * O + o) * (RECORD * BB) + fours
    # Lanes without an image stay finite even with a floor of zero, so that sums over images need no mask.
    valid = block * BB + lane < B
    total = merge_slices(data, SLICES, PARENTS, BB)
    per_data = inverse(total + EPSILON)
    kept = quotient(total, total + EPSILON)
    log_variance = tl.zeros((PARENTS, BB), DTYPE)
    for row in tl.static_range(4):
        means = ()
        precisions = ()
        spreads = ()
        four = (data,) + mean[4 * row : 4 * row + 4] + spread[4 * row : 4 * row + 4]
        moments = tl.reduce(by_slice(four, SLICES, PARENTS, BB), 0, merged)
        for k in tl.static_range(4):
            all_mean = moments[1 + k]
            pose_h = all_mean * kept
            squares = moments[5 + k] + total * (all_mean - pose_h) * (all_mean - pose_h)
            variance = tl.where(valid, squares * per_data + variance_floor, 1.0)
            log_variance += tl.log(variance)
            means = means + (pose_h,)
            precisions = precisions + (inverse(variance),)
            spreads = spreads + (squares * per_data,)
        store_four(record + field(MEAN + 4 * row, BB), means, known)
        store_four(record + field(PRECISION + 4 * row, BB), precisions, known)
        store_four(record + field(SPREAD + 4 * row, BB), spreads, known)
    unit_cost = (16.0 * beta_u + 0.5 * log_variance) / data_unit
    logit = routing_lambda * (beta_a - unit_cost * total)
    log_peak = log_sigmoid(logit) - 0.5 * log_variance
    store_four(record + field(LOG_PEAK, BB), (log_peak, total, logit, unit_cost), known)  # in the order of the fields


@triton.jit(
    do_not_specialize=SIZES,
    do_not_specialize_on_alignment=["pose_pointer", "record_pointer", "normaliser_pointer"],
)
def normaliser(
    pose_pointer,
    weight_pointer,
    record_pointer,
    normaliser_pointer,
    H,
    W,
    C,
    OH,
    OW,
    O,
    KH,
    KW,
    stride_y,
    stride_x,
    shared,
    by_position,
    CHILDREN: tl.constexpr,
    BB: tl.constexpr,
):
    """Compute the denominator of (7) over the parents at one position, for CHILDREN child types at one kernel offset.

    It is stored for each slot as the largest log joint and the sum of exp(log joint - largest), or the inverse of this
    sum where only types compete.
    """
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    types, slot, ky, kx, position, row, column, block = slots_of_program(
        C, OH, OW, KH, KW, stride_y, stride_x, CHILDREN
    )
    lane = tl.arange(0, BB)[None, :]
    fours = lane * 4
    child = ((block * H + row) * W + column) * C + types
    pose = load_matrix(pose_pointer + child * (16 * BB) + fours, 4 * BB, DTYPE)
    weights = weight_pointer + ((ky * KW + kx) * (1 - shared) * O).to(tl.int64) * (C * 16) + types * 16
    records = record_pointer + position.to(tl.int64) * O * (RECORD * BB) + fours
    row_share = scaled(row, per_place(H, shared, DTYPE))
    column_share = scaled(column, per_place(W, shared, DTYPE))

    largest = lowest(CHILDREN, BB, DTYPE)
    total = tl.zeros((CHILDREN, BB), DTYPE)
    # Load the next parent while this one is processed.
    weight = load_matrix(weights, 4, DTYPE)
    mean = load_matrix(records + field(MEAN, BB), 4 * BB, DTYPE)
    precision = load_matrix(records + field(PRECISION, BB), 4 * BB, DTYPE)
    log_peak = load_field(records, LOG_PEAK, BB, DTYPE)
    for o in range(O):
        following = tl.minimum(o + 1, O - 1)
        record = records + following * (RECORD * BB)
        next_weight = load_matrix(weights + following * (C * 16), 4, DTYPE)
        next_mean = load_matrix(record + field(MEAN, BB), 4 * BB, DTYPE)
        next_precision = load_matrix(record + field(PRECISION, BB), 4 * BB, DTYPE)
        next_log_peak = load_field(record, LOG_PEAK, BB, DTYPE)
        vote = votes(pose, weight, row_share, column_share)
        joint = log_joint(vote, mean, precision, log_peak)
        new_largest = tl.maximum(largest, joint)
        total = total * tl.exp(largest - new_largest) + tl.exp(joint - new_largest)
        largest = new_largest
        weight = next_weight
        mean = next_mean
        precision = next_precision
        log_peak = next_log_peak
    if by_position:
        total = inverse(total)
    result = normaliser_pointer + (slot.to(tl.int64) * C + types) * (2 * BB) + lane
    tl.store(result, largest)
    tl.store(result + BB, total)
