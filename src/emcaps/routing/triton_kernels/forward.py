"""The sweeps of the forward pass.

Dims: NB blocks of BB images; H, W child grid; C child types, padded; OH, OW parent grid; O parent types; KH, KW kernel.
The images of a block lie side by side in memory and along the lanes of a warp; all other parts of an index are the same
for all lanes. Packed tensors: pose (NB, H, W, C, 4, BB, 4), activation (NB, H, W, C, BB), weight (K, C, O, 16), records
(T, NB, OH, OW, O, RECORD / 4, BB, 4). A slot is a child in the window of one parent position,
(NB, OH, OW, KH, KW, C); an edge is a slot and a parent type, (slots, O, BB).
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.edge import (
    EPSILON,
    inverse,
    log_joint,
    log_sigmoid,
    placed,
    quotient,
    votes,
    zero_matrix,
)
from emcaps.routing.triton_kernels.indices import SIZES, children_of_slices, parents_of_program, rows_of_program
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


@triton.jit
def with_vote(data, mean, spread, vote, share):
    """A parent's data, mean and sum of squared distances after one more vote, by Welford's recurrence.

    One pass suffices, and no large numbers are subtracted.
    """
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
    return new_data, new_mean, new_spread


@triton.jit
def store_record(
    record_pointer,
    out_pose_pointer,
    out_activation_pointer,
    beta_u_pointer,
    beta_a_pointer,
    data,
    mean,
    spread,
    o,
    position,
    block,
    routing_lambda: tl.float64,
    variance_floor: tl.float64,
    data_unit: tl.float64,
    B,
    positions,
    O,
    LAST: tl.constexpr,
    BB: tl.constexpr,
):
    """Store (2) to (6) for the parent types `o`, and the outputs in the LAST iteration.

    They come from the data, means and sums of squared distances of all children. Types beyond the last are left out.
    """
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    lane = tl.arange(0, BB)[None, :]
    routing_lambda = tl.full((1, 1), routing_lambda, DTYPE)
    variance_floor = tl.full((1, 1), variance_floor, DTYPE)
    data_unit = tl.full((1, 1), data_unit, DTYPE)
    known = o < O
    beta_u = tl.load(beta_u_pointer + o, mask=known, other=0.0)
    beta_a = tl.load(beta_a_pointer + o, mask=known, other=0.0)
    record = record_pointer + (position * O + o) * (RECORD * BB) + lane * 4
    image = block * BB + lane
    out = (image * positions + position % positions) * O + o
    # Lanes without an image stay finite even with a floor of zero, so that sums over images need no mask.
    valid = image < B
    per_data = inverse(data + EPSILON)
    kept = quotient(data, data + EPSILON)
    log_variance = tl.zeros(data.shape, DTYPE)
    for row in tl.static_range(4):
        means = ()
        precisions = ()
        spreads = ()
        for k in tl.static_range(4):
            all_mean = mean[4 * row + k]
            pose_h = all_mean * kept
            squares = spread[4 * row + k] + data * (all_mean - pose_h) * (all_mean - pose_h)
            variance = tl.where(valid, squares * per_data + variance_floor, 1.0)
            log_variance += tl.log(variance)
            means = means + (pose_h,)
            precisions = precisions + (inverse(variance),)
            spreads = spreads + (squares * per_data,)
        store_four(record + field(MEAN + 4 * row, BB), means, known)
        store_four(record + field(PRECISION + 4 * row, BB), precisions, known)
        store_four(record + field(SPREAD + 4 * row, BB), spreads, known)
        if LAST:
            store_four(out_pose_pointer + out * 16 + 4 * row, means, known & valid)
    unit_cost = (16.0 * beta_u + 0.5 * log_variance) / data_unit
    logit = routing_lambda * (beta_a - unit_cost * data)
    log_peak = log_sigmoid(logit) - 0.5 * log_variance
    store_four(record + field(LOG_PEAK, BB), (log_peak, data, logit, unit_cost), known)  # in the order of the fields
    if LAST:
        tl.store(out_activation_pointer + out, tl.sigmoid(logit), mask=known & valid)


@triton.jit(do_not_specialize=[*SIZES, "B"], do_not_specialize_on_alignment=["beta_u_pointer", "beta_a_pointer"])
def m_step(
    pose_pointer,
    activation_pointer,
    weight_pointer,
    beta_u_pointer,
    beta_a_pointer,
    assignment_pointer,
    joint_pointer,
    record_pointer,
    out_pose_pointer,
    out_activation_pointer,
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
    rows,
    columns,
    SHARED: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    SLICES: tl.constexpr,
    PARENTS: tl.constexpr,
    BB: tl.constexpr,
):
    """Compute (2) to (6) for PARENTS parent types at one position, for a block of images, then their log joints (7).

    Each row of the tile is for one parent type and one of SLICES slices of the child types; the slices are merged in
    between. In the FIRST iteration the activations are already multiplied by the even assignments (1). The LAST one has
    no log joints; its means and activations are the layer's outputs, (B, positions, O, 16) and (B, positions, O).
    """
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    position, v, u, block, first_parent = parents_of_program(OH, OW, O, PARENTS)
    slice, parent = rows_of_program(first_parent, O, SLICES, PARENTS)
    lane = tl.arange(0, BB)[None, :]
    fours = lane * 4
    window = ((block * H + v * stride_y) * W + u * stride_x) * C
    first_edge = position * (KH * KW * C * O * BB) + parent * BB + lane
    count = KW * C  # the children of a row of the window, which lie side by side in memory: a run

    data = tl.zeros((SLICES * PARENTS, BB), DTYPE)
    mean = zero_matrix(SLICES * PARENTS, BB, DTYPE)
    spread = zero_matrix(SLICES * PARENTS, BB, DTYPE)
    for ky in range(KH):
        poses = pose_pointer + (window + ky * W * C) * (16 * BB) + fours
        activations = activation_pointer + (window + ky * W * C) * BB + lane
        weights = weight_pointer + (0 if SHARED else ky * count * O * 16) + parent * 16
        edges = assignment_pointer + first_edge + (ky * count).to(tl.int64) * (O * BB)
        next_child, matrix = children_of_slices(0, slice, C, count, SHARED, SLICES)
        next_pose = load_matrix(poses + next_child * (16 * BB), 4 * BB, DTYPE)
        next_weight = load_matrix(weights + matrix * (O * 16), 4, DTYPE)
        next_activation = tl.load(activations + next_child * BB)
        next_assignment = next_activation if FIRST else tl.load(edges + next_child * (O * BB))
        for n in tl.range(0, count, SLICES, loop_unroll_factor=2):
            child = next_child
            pose = next_pose
            weight = next_weight
            share = next_activation
            if not FIRST:
                share *= next_assignment
            # Load the next children while these are processed.
            next_child, matrix = children_of_slices(n + SLICES, slice, C, count, SHARED, SLICES)
            next_pose = load_matrix(poses + next_child * (16 * BB), 4 * BB, DTYPE)
            next_weight = load_matrix(weights + matrix * (O * 16), 4, DTYPE)
            next_activation = tl.load(activations + next_child * BB)
            next_assignment = next_activation if FIRST else tl.load(edges + next_child * (O * BB))
            vote = votes(pose, weight)
            if SHARED:
                vote = placed(vote, child // C, rows, columns)
                share = tl.where(n + slice < count, share, 0.0)
            data, mean, spread = with_vote(data, mean, spread, vote, share)

    total = merge_slices(data, SLICES, PARENTS, BB)
    total_mean = ()
    total_spread = ()
    for row in tl.static_range(4):
        four = (data,) + mean[4 * row : 4 * row + 4] + spread[4 * row : 4 * row + 4]
        moments = tl.reduce(by_slice(four, SLICES, PARENTS, BB), 0, merged)
        total_mean = total_mean + moments[1:5]
        total_spread = total_spread + moments[5:9]
    store_record(
        record_pointer,
        out_pose_pointer,
        out_activation_pointer,
        beta_u_pointer,
        beta_a_pointer,
        total,
        total_mean,
        total_spread,
        first_parent + tl.arange(0, PARENTS)[:, None],
        position,
        block,
        routing_lambda,
        variance_floor,
        data_unit,
        B,
        OH * OW,
        O,
        LAST,
        BB,
    )
    if not LAST:
        tl.debug_barrier()  # from here on all slices read what was stored for their parents
        record = record_pointer + (position * O + parent) * (RECORD * BB) + fours
        mean = load_matrix(record + field(MEAN, BB), 4 * BB, DTYPE)
        precision = load_matrix(record + field(PRECISION, BB), 4 * BB, DTYPE)
        log_peak = load_field(record, LOG_PEAK, BB, DTYPE)
        for ky in range(KH):
            poses = pose_pointer + (window + ky * W * C) * (16 * BB) + fours
            weights = weight_pointer + (0 if SHARED else ky * count * O * 16) + parent * 16
            edges = joint_pointer + first_edge + (ky * count).to(tl.int64) * (O * BB)
            next_child, matrix = children_of_slices(0, slice, C, count, SHARED, SLICES)
            next_pose = load_matrix(poses + next_child * (16 * BB), 4 * BB, DTYPE)
            next_weight = load_matrix(weights + matrix * (O * 16), 4, DTYPE)
            for n in tl.range(0, count, SLICES, loop_unroll_factor=2):
                child = next_child
                pose = next_pose
                weight = next_weight
                next_child, matrix = children_of_slices(n + SLICES, slice, C, count, SHARED, SLICES)
                next_pose = load_matrix(poses + next_child * (16 * BB), 4 * BB, DTYPE)
                next_weight = load_matrix(weights + matrix * (O * 16), 4, DTYPE)
                vote = votes(pose, weight)
                if SHARED:
                    vote = placed(vote, child // C, rows, columns)
                tl.store(edges + child * (O * BB), log_joint(vote, mean, precision, log_peak))
