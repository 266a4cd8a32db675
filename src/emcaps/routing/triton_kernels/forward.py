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
    zeros,
)
from emcaps.routing.triton_kernels.indices import SIZES, parents_of_program, rows_of_program, run_of_children
from emcaps.routing.triton_kernels.memory import load_matrix, prefetch_child, store_four
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
    EACH: tl.constexpr,
    BB: tl.constexpr,
):
    """Compute (2) to (6) for PARENTS parent types at one position, for a block of images, then their log joints (7).

    Each row of the tile is for one parent type and one of SLICES slices of the child types; the slices are merged in
    between. In the FIRST iteration the activations are already multiplied by the even assignments (1). The LAST one has
    no log joints; its means and activations are the layer's outputs, (B, positions, O, 16) and (B, positions, O).
    """
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    position, v, u, block, first_parent = parents_of_program(OH, OW, O, PARENTS * EACH)
    slice, parents = rows_of_program(first_parent, O, SLICES, PARENTS, EACH)
    lane = tl.arange(0, BB)[None, :]
    fours = lane * 4
    window = ((block * H + v * stride_y) * W + u * stride_x) * C
    poses = pose_pointer + window * (16 * BB)
    activations = activation_pointer + window * BB + lane
    first_edge = position * (KH * KW * C * O * BB)
    count = KW * C  # in memory the children of a row of the window are one run

    data = zeros(EACH, SLICES * PARENTS, BB, DTYPE)
    mean = zeros(16 * EACH, SLICES * PARENTS, BB, DTYPE)
    spread = zeros(16 * EACH, SLICES * PARENTS, BB, DTYPE)
    for ky in range(KH):
        run = ky * (W * C)
        edges = assignment_pointer + first_edge + (ky * count).to(tl.int64) * (O * BB) + lane
        for n in range(0, count, SLICES):
            child, matrix = run_of_children(n, slice, ky * count, C, count, SHARED, SLICES)
            pose = load_matrix(poses + (run + child) * (16 * BB) + fours, 4 * BB, DTYPE)
            activation = tl.load(activations + (run + child) * BB)
            following, next_matrix = run_of_children(n + SLICES, slice, ky * count, C, count, SHARED, SLICES)
            next_weight = weight_pointer + (next_matrix * O + parents[0]) * 16
            prefetch_child(poses + (run + following) * (16 * BB), next_weight, lane, BB)
            if SHARED:
                activation = tl.where(n + slice < count, activation, 0.0)
            new_data = ()
            new_mean = ()
            new_spread = ()
            for p in tl.static_range(EACH):
                weight = load_matrix(weight_pointer + (matrix * O + parents[p]) * 16, 4, DTYPE)
                share = activation
                if not FIRST:
                    share *= tl.load(edges + (child * O + parents[p]) * BB)
                vote = votes(pose, weight)
                if SHARED:
                    vote = placed(vote, child // C, rows, columns)
                # Welford's running mean and sum of squared distances: one pass, no large numbers are subtracted.
                total = data[p] + share
                step = tl.where(total > 0, share / total, 0.0)
                pull = data[p] * step
                nearer, factor = move_from_nearer_end(step, data[p], total)
                new_data = new_data + (total,)
                for h in tl.static_range(16):
                    old = mean[16 * p + h]
                    difference = vote[h] - old
                    new_mean = new_mean + (tl.fma(factor, difference, tl.where(nearer, vote[h], old)),)
                    new_spread = new_spread + (spread[16 * p + h] + pull * (difference * difference),)
            data = new_data
            mean = new_mean
            spread = new_spread

    routing_lambda = tl.full((1, 1), routing_lambda, DTYPE)
    variance_floor = tl.full((1, 1), variance_floor, DTYPE)
    data_unit = tl.full((1, 1), data_unit, DTYPE)
    image = block * BB + lane
    # Lanes without an image stay finite even with a floor of zero, so that sums over images need no mask.
    valid = image < B
    for p in tl.static_range(EACH):
        o = first_parent + tl.arange(0, PARENTS)[:, None] * EACH + p
        known = o < O
        beta_u = tl.load(beta_u_pointer + o, mask=known, other=0.0)
        beta_a = tl.load(beta_a_pointer + o, mask=known, other=0.0)
        record = record_pointer + (position * O + o) * (RECORD * BB) + fours
        out = (image * (OH * OW) + position % (OH * OW)) * O + o
        total = merge_slices(data[p], SLICES, PARENTS, BB)
        per_data = inverse(total + EPSILON)
        kept = quotient(total, total + EPSILON)
        log_variance = tl.zeros((PARENTS, BB), DTYPE)
        for row in tl.static_range(4):
            means = ()
            precisions = ()
            spreads = ()
            four = mean[16 * p + 4 * row : 16 * p + 4 * row + 4] + spread[16 * p + 4 * row : 16 * p + 4 * row + 4]
            moments = tl.reduce(by_slice((data[p],) + four, SLICES, PARENTS, BB), 0, merged)
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
            if LAST:
                store_four(out_pose_pointer + out * 16 + 4 * row, means, known & valid)
        unit_cost = (16.0 * beta_u + 0.5 * log_variance) / data_unit
        logit = routing_lambda * (beta_a - unit_cost * total)
        log_peak = log_sigmoid(logit) - 0.5 * log_variance
        store_four(record + field(LOG_PEAK, BB), (log_peak, total, logit, unit_cost), known)  # in the fields' order
        if LAST:
            tl.store(out_activation_pointer + out, tl.sigmoid(logit), mask=known & valid)

    if not LAST:
        tl.debug_barrier()  # from here on all slices read what was stored for their parents
        mean = ()
        precision = ()
        log_peaks = ()
        for p in tl.static_range(EACH):
            record = record_pointer + (position * O + parents[p]) * (RECORD * BB) + fours
            mean = mean + load_matrix(record + field(MEAN, BB), 4 * BB, DTYPE)
            precision = precision + load_matrix(record + field(PRECISION, BB), 4 * BB, DTYPE)
            log_peaks = log_peaks + (load_field(record, LOG_PEAK, BB, DTYPE),)
        for ky in range(KH):
            run = ky * (W * C)
            edges = joint_pointer + first_edge + (ky * count).to(tl.int64) * (O * BB) + lane
            for n in range(0, count, SLICES):
                child, matrix = run_of_children(n, slice, ky * count, C, count, SHARED, SLICES)
                pose = load_matrix(poses + (run + child) * (16 * BB) + fours, 4 * BB, DTYPE)
                following, next_matrix = run_of_children(n + SLICES, slice, ky * count, C, count, SHARED, SLICES)
                next_weight = weight_pointer + (next_matrix * O + parents[0]) * 16
                prefetch_child(poses + (run + following) * (16 * BB), next_weight, lane, BB)
                for p in tl.static_range(EACH):
                    weight = load_matrix(weight_pointer + (matrix * O + parents[p]) * 16, 4, DTYPE)
                    vote = votes(pose, weight)
                    if SHARED:
                        vote = placed(vote, child // C, rows, columns)
                    joint = log_joint(vote, mean[16 * p : 16 * p + 16], precision[16 * p : 16 * p + 16], log_peaks[p])
                    tl.store(edges + (child * O + parents[p]) * BB, joint)
