"""The sweep of the backward pass through the children of a position. Dims and packed tensors as in forward.py.

Further tensors: adjoints (T, NB, OH, OW, O, ADJOINT / 4, BB, 4), beta gradients (2, O, T, NB, OH, OW). Numbers in
brackets are the equations of README.md in this folder.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.edge import EPSILON, inverse, placed, quotient, share_gradient, votes, zero_matrix
from emcaps.routing.triton_kernels.forward import added, by_slice, merge_slices
from emcaps.routing.triton_kernels.indices import SIZES, children_of_slices, parents_of_program, rows_of_program
from emcaps.routing.triton_kernels.memory import load_four, load_matrix, store_four
from emcaps.routing.triton_kernels.records import (
    ADJOINT,
    CONSTANT,
    LINEAR,
    LOG_PEAK,
    MEAN,
    PRECISION,
    QUADRATIC,
    RECORD,
    SPREAD,
    field,
    load_field,
)


@triton.jit
def with_pull(first_moment, second_moment, vote, mean, joint_gradient):
    """The sums of e_ij (V - mu) and e_ij (V - mu)^2 after one more child (14)."""
    new_first = ()
    new_second = ()
    for h in tl.static_range(16):
        difference = vote[h] - mean[h]
        pull = joint_gradient * difference
        new_first = new_first + (first_moment[h] + pull,)
        new_second = new_second + (second_moment[h] + pull * difference,)
    return new_first, new_second


@triton.jit
def gradients_of_output(pose_gradient_pointer, activation_gradient_pointer, output, valid, logit):
    """The gradients of means and logits in the last iteration, from those of the layer's outputs."""
    mean_gradient = ()
    for h in tl.static_range(16):
        value = tl.load(pose_gradient_pointer + output * 16 + h, mask=valid, other=0.0).to(logit.dtype)
        mean_gradient = mean_gradient + (value,)
    activation_gradient = tl.load(activation_gradient_pointer + output, mask=valid, other=0.0).to(logit.dtype)
    return mean_gradient, activation_gradient * tl.sigmoid(logit) * tl.sigmoid(-logit)


@triton.jit
def gradients_of_statistics(record, total, first, second, logit, BB: tl.constexpr):
    """The gradients of means, variances and logits that go through the E-step that follows (14).

    They come from the sums over children of e_ij, e_ij (V - mu) and e_ij (V - mu)^2.
    """
    precision = load_matrix(record + field(PRECISION, BB), 4 * BB, logit.dtype)
    mean_gradient = ()
    variance_gradient = ()
    for h in tl.static_range(16):
        mean_gradient = mean_gradient + (precision[h] * first[h],)
        variance_gradient = variance_gradient + (0.5 * precision[h] * (precision[h] * second[h] - total),)
    return mean_gradient, variance_gradient, total * tl.sigmoid(-logit)


@triton.jit
def store_adjoint(
    adjoint,
    beta_gradient,
    beta_count,
    record,
    mean_gradient,
    variance_gradient,
    logit_gradient,
    routing_lambda: tl.float64,
    data_unit: tl.float64,
    known,
    BB: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Compute a parent's adjoint record and the gradients of its betas from those of its statistics, (8) to (10)."""
    routing_lambda = tl.full((1, 1), routing_lambda, DTYPE)
    data_unit = tl.full((1, 1), data_unit, DTYPE)
    _, data, _, unit_cost = load_four(record + field(LOG_PEAK, BB), DTYPE)
    per_data = inverse(data + EPSILON)
    # EPSILON / (data + EPSILON), from the factor by which m_step multiplied the means: where that was rounded to 1, a
    # parent's only vote is its mean to the last bit, and the term must vanish as their difference does.
    lost = 1.0 - quotient(data, data + EPSILON)
    cost_gradient = -routing_lambda * logit_gradient
    per_log_variance = 0.5 * cost_gradient * data / data_unit
    constant = cost_gradient * unit_cost
    for row in tl.static_range(4):
        mean = load_four(record + field(MEAN + 4 * row, BB), DTYPE)
        precision = load_four(record + field(PRECISION + 4 * row, BB), DTYPE)
        spread = load_four(record + field(SPREAD + 4 * row, BB), DTYPE)
        quadratics = ()
        linears = ()
        for k in tl.static_range(4):
            quadratic = (variance_gradient[4 * row + k] + per_log_variance * precision[k]) * per_data
            constant -= quadratic * spread[k]
            quadratics = quadratics + (quadratic,)
            linears = linears + (mean_gradient[4 * row + k] * per_data - 2.0 * lost * quadratic * mean[k],)
        store_four(adjoint + field(QUADRATIC + 4 * row, BB), quadratics, known)
        store_four(adjoint + field(LINEAR + 4 * row, BB), linears, known)
    store_four(adjoint + field(CONSTANT, BB), (constant, constant, constant, constant), known)
    tl.store(beta_gradient, tl.sum(16.0 * cost_gradient * data / data_unit, 1, keep_dims=True), mask=known)
    tl.store(beta_gradient + beta_count, tl.sum(-cost_gradient, 1, keep_dims=True), mask=known)


@triton.jit(
    do_not_specialize=[*SIZES, "B", "beta_step"],
    do_not_specialize_on_alignment=[
        "pose_gradient_pointer",
        "activation_gradient_pointer",
        "beta_gradient_pointer",
    ],
)
def parent_gradient(
    pose_pointer,
    weight_pointer,
    pose_gradient_pointer,
    activation_gradient_pointer,
    joint_gradient_pointer,
    share_gradient_pointer,
    record_pointer,
    adjoint_pointer,
    beta_gradient_pointer,
    routing_lambda: tl.float64,
    data_unit: tl.float64,
    beta_step: tl.int64,
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
    """Compute an iteration's adjoint records, (8) to (10), then the gradients D_ij of its shares (11).

    Those of the LAST iteration follow from the gradients of the layer's outputs, (B, positions, O, 16) and
    (B, positions, O); those of others go through the E-step that follows (14). The FIRST iteration stores no D_ij:
    input_gradient computes them. The rows of the tile are those of m_step.
    """
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    position, v, u, block, first_parent = parents_of_program(OH, OW, O, PARENTS)
    slice, parent = rows_of_program(first_parent, O, SLICES, PARENTS)
    lane = tl.arange(0, BB)[None, :]
    fours = lane * 4
    window = ((block * H + v * stride_y) * W + u * stride_x) * C
    first_edge = position * (KH * KW * C * O * BB) + parent * BB + lane
    count = KW * C  # the children of a row of the window, which lie side by side in memory: a run
    o = first_parent + tl.arange(0, PARENTS)[:, None]
    known = o < O
    o = tl.minimum(o, O - 1)
    record = record_pointer + (position * O + o) * (RECORD * BB) + fours
    _, _, logit, _ = load_four(record + field(LOG_PEAK, BB), DTYPE)
    mean_gradient = ()
    variance_gradient = ()
    if LAST:
        image = block * BB + lane
        output = (image * (OH * OW) + position % (OH * OW)) * O + o
        mean_gradient, logit_gradient = gradients_of_output(
            pose_gradient_pointer, activation_gradient_pointer, output, image < B, logit
        )
        variance_gradient = zero_matrix(PARENTS, BB, DTYPE)
    else:
        own_record = record_pointer + (position * O + parent) * (RECORD * BB) + fours
        mean = load_matrix(own_record + field(MEAN, BB), 4 * BB, DTYPE)
        joint_sum = tl.zeros((SLICES * PARENTS, BB), DTYPE)
        first_moment = zero_matrix(SLICES * PARENTS, BB, DTYPE)
        second_moment = zero_matrix(SLICES * PARENTS, BB, DTYPE)
        for ky in range(KH):
            poses = pose_pointer + (window + ky * W * C) * (16 * BB) + fours
            weights = weight_pointer + (0 if SHARED else ky * count * O * 16) + parent * 16
            edges = joint_gradient_pointer + first_edge + (ky * count).to(tl.int64) * (O * BB)
            next_child, matrix = children_of_slices(0, slice, C, count, SHARED, SLICES)
            next_pose = load_matrix(poses + next_child * (16 * BB), 4 * BB, DTYPE)
            next_weight = load_matrix(weights + matrix * (O * 16), 4, DTYPE)
            next_gradient = tl.load(edges + next_child * (O * BB))
            for n in tl.range(0, count, SLICES, loop_unroll_factor=2):
                child = next_child
                pose = next_pose
                weight = next_weight
                joint_gradient = next_gradient
                # Load the next children while these are processed.
                next_child, matrix = children_of_slices(n + SLICES, slice, C, count, SHARED, SLICES)
                next_pose = load_matrix(poses + next_child * (16 * BB), 4 * BB, DTYPE)
                next_weight = load_matrix(weights + matrix * (O * 16), 4, DTYPE)
                next_gradient = tl.load(edges + next_child * (O * BB))
                vote = votes(pose, weight)
                if SHARED:
                    vote = placed(vote, child // C, rows, columns)
                    joint_gradient = tl.where(n + slice < count, joint_gradient, 0.0)
                joint_sum += joint_gradient
                first_moment, second_moment = with_pull(first_moment, second_moment, vote, mean, joint_gradient)
        total = merge_slices(joint_sum, SLICES, PARENTS, BB)
        first = ()
        second = ()
        for row in tl.static_range(4):
            first = first + tl.reduce(by_slice(first_moment[4 * row : 4 * row + 4], SLICES, PARENTS, BB), 0, added)
            second = second + tl.reduce(by_slice(second_moment[4 * row : 4 * row + 4], SLICES, PARENTS, BB), 0, added)
        mean_gradient, variance_gradient, logit_gradient = gradients_of_statistics(
            record, total, first, second, logit, BB
        )
    store_adjoint(
        adjoint_pointer + (position * O + o) * (ADJOINT * BB) + fours,
        beta_gradient_pointer + o * beta_step + position,
        beta_step * O,
        record,
        mean_gradient,
        variance_gradient,
        logit_gradient,
        routing_lambda,
        data_unit,
        known,
        BB,
        DTYPE,
    )
    if not FIRST:
        tl.debug_barrier()  # from here on all slices read what was stored for their parents
        own_record = record_pointer + (position * O + parent) * (RECORD * BB) + fours
        adjoint = adjoint_pointer + (position * O + parent) * (ADJOINT * BB) + fours
        mean = load_matrix(own_record + field(MEAN, BB), 4 * BB, DTYPE)
        quadratic = load_matrix(adjoint + field(QUADRATIC, BB), 4 * BB, DTYPE)
        linear = load_matrix(adjoint + field(LINEAR, BB), 4 * BB, DTYPE)
        constant = load_field(adjoint, CONSTANT, BB, DTYPE)
        # Addresses are added up late here: otherwise the compiler delays the next loads to the end of the loop.
        poses = pose_pointer + window * (16 * BB)
        for ky in range(KH):
            run = ky * (W * C)
            first_matrix = 0 if SHARED else ky * count
            edges = share_gradient_pointer + first_edge + (ky * count).to(tl.int64) * (O * BB)
            next_child, matrix = children_of_slices(0, slice, C, count, SHARED, SLICES)
            next_pose = load_matrix(poses + (run + next_child) * (16 * BB) + fours, 4 * BB, DTYPE)
            next_weight = load_matrix(weight_pointer + ((first_matrix + matrix) * O + parent) * 16, 4, DTYPE)
            for n in tl.range(0, count, SLICES, loop_unroll_factor=2):
                child = next_child
                pose = next_pose
                weight = next_weight
                next_child, matrix = children_of_slices(n + SLICES, slice, C, count, SHARED, SLICES)
                next_pose = load_matrix(poses + (run + next_child) * (16 * BB) + fours, 4 * BB, DTYPE)
                next_weight = load_matrix(weight_pointer + ((first_matrix + matrix) * O + parent) * 16, 4, DTYPE)
                vote = votes(pose, weight)
                if SHARED:
                    vote = placed(vote, child // C, rows, columns)
                found = share_gradient(vote, mean, quadratic, linear, constant)
                tl.store(edges + child * (O * BB), found)
