"""The sweeps of the backward pass. Dims and packed tensors as in forward.py.

Further tensors: adjoints (T, NB, OH, OW, O, ADJOINT / 4, BB, 4), child gradients (T - 1, slots, BB), beta gradients
(2, O, T, NB, OH, OW). Numbers in brackets are the equations of README.md in this folder.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.edge import (
    EPSILON,
    add_pose_gradient,
    add_vote_gradient_of_e,
    add_vote_gradient_of_m,
    inverse,
    log_joint,
    per_place,
    scaled,
    share_gradient,
    votes,
    zero_matrix,
)
from emcaps.routing.triton_kernels.forward import added, by_slice, merge_slices
from emcaps.routing.triton_kernels.indices import (
    SIZES,
    locate,
    next_child,
    parents_of_program,
    readers,
    slots_of_program,
)
from emcaps.routing.triton_kernels.memory import load_four, load_matrix, store_four, store_matrix, store_sums_over_lanes
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
    prefetch_parent,
)


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
            linears = linears + ((mean_gradient[4 * row + k] - 2.0 * EPSILON * quadratic * mean[k]) * per_data,)
        store_four(adjoint + field(QUADRATIC + 4 * row, BB), quadratics, known)
        store_four(adjoint + field(LINEAR + 4 * row, BB), linears, known)
    store_four(adjoint + field(CONSTANT, BB), (constant, constant, constant, constant), known)
    tl.store(beta_gradient, tl.sum(16.0 * cost_gradient * data / data_unit, 1, keep_dims=True), mask=known)
    tl.store(beta_gradient + beta_count, tl.sum(-cost_gradient, 1, keep_dims=True), mask=known)


@triton.jit(
    do_not_specialize=["B", "positions", "O", "beta_step"],
    do_not_specialize_on_alignment=[
        "pose_gradient_pointer",
        "activation_gradient_pointer",
        "beta_gradient_pointer",
    ],
)
def output_adjoint(
    pose_gradient_pointer,
    activation_gradient_pointer,
    record_pointer,
    adjoint_pointer,
    beta_gradient_pointer,
    routing_lambda: tl.float64,
    data_unit: tl.float64,
    B,
    positions,
    O,
    beta_step: tl.int64,
    BB: tl.constexpr,
):
    """Compute the last iteration's adjoint records from the gradients of the layer's outputs, (B, positions, O, 16)."""
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    parent = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BB)[None, :]
    fours = lane * 4
    image = parent // (positions * O) * BB + lane
    output = image * (positions * O) + parent % (positions * O)
    valid = image < B
    record = record_pointer + parent * (RECORD * BB) + fours
    mean_gradient = ()
    variance_gradient = ()
    for h in tl.static_range(16):
        value = tl.load(pose_gradient_pointer + output * 16 + h, mask=valid, other=0.0).to(DTYPE)
        mean_gradient = mean_gradient + (value,)
        variance_gradient = variance_gradient + (tl.zeros((1, BB), DTYPE),)
    activation_gradient = tl.load(activation_gradient_pointer + output, mask=valid, other=0.0).to(DTYPE)
    _, _, logit, _ = load_four(record + field(LOG_PEAK, BB), DTYPE)
    logit_gradient = activation_gradient * tl.sigmoid(logit) * tl.sigmoid(-logit)
    store_adjoint(
        adjoint_pointer + parent * (ADJOINT * BB) + fours,
        beta_gradient_pointer + parent % O * beta_step + parent // O + tl.zeros((1, 1), tl.int64),
        beta_step * O,
        record,
        mean_gradient,
        variance_gradient,
        logit_gradient,
        routing_lambda,
        data_unit,
        tl.full((1, 1), 1, tl.int1),
        BB,
        DTYPE,
    )


@triton.jit(
    do_not_specialize=SIZES,
    do_not_specialize_on_alignment=[
        "pose_pointer",
        "before_pointer",
        "record_pointer",
        "adjoint_pointer",
        "normaliser_pointer",
        "child_gradient_pointer",
    ],
)
def child_gradient(
    pose_pointer,
    weight_pointer,
    before_pointer,
    record_pointer,
    adjoint_pointer,
    normaliser_pointer,
    child_gradient_pointer,
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
    """Compute K_i = sum_j R_ij D_ij (13) over the parents at one position, for CHILDREN child types at one offset.

    It is stored for each slot.
    """
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    types, slot, ky, kx, position, row, column, block = slots_of_program(
        C, OH, OW, KH, KW, stride_y, stride_x, CHILDREN
    )
    lane = tl.arange(0, BB)[None, :]
    fours = lane * 4
    place = (block * H + row) * W + column
    pose = load_matrix(pose_pointer + (place * C + types) * (16 * BB) + fours, 4 * BB, DTYPE)
    weights = weight_pointer + ((ky * KW + kx) * (1 - shared) * O).to(tl.int64) * (C * 16) + types * 16
    first_parent = position.to(tl.int64) * O
    row_share = scaled(row, per_place(H, shared, DTYPE))
    column_share = scaled(column, per_place(W, shared, DTYPE))
    normaliser = (slot.to(tl.int64) if by_position else place) * C + types
    largest = tl.load(normaliser_pointer + normaliser * (2 * BB) + lane)
    per_total = tl.load(normaliser_pointer + normaliser * (2 * BB) + BB + lane)

    total = tl.zeros((CHILDREN, BB), DTYPE)
    # Load what the next parent needs first while this one is processed.
    before = before_pointer + first_parent * (RECORD * BB) + fours
    weight = load_matrix(weights, 4, DTYPE)
    old_mean = load_matrix(before + field(MEAN, BB), 4 * BB, DTYPE)
    old_precision = load_matrix(before + field(PRECISION, BB), 4 * BB, DTYPE)
    old_log_peak = load_field(before, LOG_PEAK, BB, DTYPE)
    for o in range(O):
        following = first_parent + tl.minimum(o + 1, O - 1)
        prefetch_parent(record_pointer + following * (RECORD * BB), adjoint_pointer + following * (ADJOINT * BB), BB)
        record = record_pointer + (first_parent + o) * (RECORD * BB) + fours
        adjoint = adjoint_pointer + (first_parent + o) * (ADJOINT * BB) + fours
        mean = load_matrix(record + field(MEAN, BB), 4 * BB, DTYPE)
        quadratic = load_matrix(adjoint + field(QUADRATIC, BB), 4 * BB, DTYPE)
        linear = load_matrix(adjoint + field(LINEAR, BB), 4 * BB, DTYPE)
        constant = load_field(adjoint, CONSTANT, BB, DTYPE)
        vote = votes(pose, weight, row_share, column_share)
        joint = log_joint(vote, old_mean, old_precision, old_log_peak)
        before = before_pointer + following * (RECORD * BB) + fours
        weight = load_matrix(weights + (following - first_parent) * (C * 16), 4, DTYPE)
        old_mean = load_matrix(before + field(MEAN, BB), 4 * BB, DTYPE)
        old_precision = load_matrix(before + field(PRECISION, BB), 4 * BB, DTYPE)
        old_log_peak = load_field(before, LOG_PEAK, BB, DTYPE)
        gradient = share_gradient(vote, mean, quadratic, linear, constant)
        total += tl.exp(joint - largest) * per_total * gradient
    tl.store(child_gradient_pointer + (slot.to(tl.int64) * C + types) * BB + lane, total)


@triton.jit(do_not_specialize=[*SIZES, "beta_step"], do_not_specialize_on_alignment=["beta_gradient_pointer"])
def parent_gradient(
    pose_pointer,
    activation_pointer,
    weight_pointer,
    before_pointer,
    record_pointer,
    adjoint_pointer,
    normaliser_pointer,
    child_gradient_pointer,
    before_adjoint_pointer,
    beta_gradient_pointer,
    routing_lambda: tl.float64,
    data_unit: tl.float64,
    beta_step: tl.int64,
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
    SLICES: tl.constexpr,
    PARENTS: tl.constexpr,
    BB: tl.constexpr,
):
    """Compute the adjoint records of the iteration before, through the E-step and its statistics (14).

    The rows of the tile are those of m_step.
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
    parent = position.to(tl.int64) * O + o
    before = before_pointer + parent * (RECORD * BB) + fours
    adjoint = adjoint_pointer + parent * (ADJOINT * BB) + fours
    old_mean = load_matrix(before + field(MEAN, BB), 4 * BB, DTYPE)
    old_precision = load_matrix(before + field(PRECISION, BB), 4 * BB, DTYPE)
    old_log_peak = load_field(before, LOG_PEAK, BB, DTYPE)
    mean = load_matrix(record_pointer + parent * (RECORD * BB) + fours + field(MEAN, BB), 4 * BB, DTYPE)
    quadratic = load_matrix(adjoint + field(QUADRATIC, BB), 4 * BB, DTYPE)
    linear = load_matrix(adjoint + field(LINEAR, BB), 4 * BB, DTYPE)
    constant = load_field(adjoint, CONSTANT, BB, DTYPE)

    joint_sum = tl.zeros((SLICES * PARENTS, BB), DTYPE)
    first_moment = zero_matrix(SLICES * PARENTS, BB, DTYPE)
    second_moment = zero_matrix(SLICES * PARENTS, BB, DTYPE)
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
    largest = tl.load(normaliser_pointer + slot * (2 * BB) + lane)
    per_total = tl.load(normaliser_pointer + slot * (2 * BB) + BB + lane)
    later = tl.load(child_gradient_pointer + slot * BB + lane)
    for _ in range(KH * KW * (C // SLICES)):
        ky, kx, first_type = next_child(ky, kx, first_type, KH, KW, C, SLICES)
        row, column, child, slot, matrix = locate(ky, kx, first_type + slice, v, u, block, position, o, sizes)
        next_pose = load_matrix(pose_pointer + child * (16 * BB) + fours, 4 * BB, DTYPE)
        next_weight = load_matrix(weight_pointer + matrix, 4, DTYPE)
        next_activation = tl.load(activation_pointer + child * BB + lane)
        next_largest = tl.load(normaliser_pointer + slot * (2 * BB) + lane)
        next_per_total = tl.load(normaliser_pointer + slot * (2 * BB) + BB + lane)
        next_later = tl.load(child_gradient_pointer + slot * BB + lane)

        vote = votes(pose, weight, row_share, column_share)
        joint = log_joint(vote, old_mean, old_precision, old_log_peak)
        share = tl.exp(joint - largest) * per_total * activation
        joint_gradient = share * (share_gradient(vote, mean, quadratic, linear, constant) - later)
        joint_sum += joint_gradient
        new_first = ()
        new_second = ()
        for h in tl.static_range(16):
            difference = vote[h] - old_mean[h]
            pull = joint_gradient * difference
            new_first = new_first + (first_moment[h] + pull,)
            new_second = new_second + (second_moment[h] + pull * difference,)
        first_moment = new_first
        second_moment = new_second
        pose = next_pose
        weight = next_weight
        activation = next_activation
        largest = next_largest
        per_total = next_per_total
        later = next_later
        row_share = scaled(row, per_row)
        column_share = scaled(column, per_column)

    o = first_parent + tl.arange(0, PARENTS)[:, None]
    known = o < O
    parent = position.to(tl.int64) * O + tl.minimum(o, O - 1)
    record = before_pointer + parent * (RECORD * BB) + fours
    total = merge_slices(joint_sum, SLICES, PARENTS, BB)
    precision = load_matrix(record + field(PRECISION, BB), 4 * BB, DTYPE)
    _, _, logit, _ = load_four(record + field(LOG_PEAK, BB), DTYPE)
    mean_gradient = ()
    variance_gradient = ()
    for row in tl.static_range(4):
        first = tl.reduce(by_slice(first_moment[4 * row : 4 * row + 4], SLICES, PARENTS, BB), 0, added)
        second = tl.reduce(by_slice(second_moment[4 * row : 4 * row + 4], SLICES, PARENTS, BB), 0, added)
        for k in tl.static_range(4):
            precision_h = precision[4 * row + k]
            mean_gradient = mean_gradient + (precision_h * first[k],)
            variance_gradient = variance_gradient + (0.5 * precision_h * (precision_h * second[k] - total),)
    store_adjoint(
        before_adjoint_pointer + parent * (ADJOINT * BB) + fours,
        beta_gradient_pointer + tl.minimum(o, O - 1) * beta_step + position,
        beta_step * O,
        record,
        mean_gradient,
        variance_gradient,
        total * tl.sigmoid(-logit),
        routing_lambda,
        data_unit,
        known,
        BB,
        DTYPE,
    )


@triton.jit
def add_later_vote_gradients(
    gradient,
    vote,
    activation,
    mean,
    record,
    adjoint,
    normaliser,
    child_gradient,
    record_step,
    adjoint_step,
    normaliser_step,
    ITERATIONS: tl.constexpr,
    BB: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Add dL/dV_ij of all iterations after the first, (12) and (15), to `gradient`.

    `mean`, `record` and the other pointers are those of the first iteration.
    """
    for t in tl.static_range(1, ITERATIONS):
        before = record + (t - 1) * record_step
        current = adjoint + t * adjoint_step
        old_mean = mean
        old_precision = load_matrix(before + field(PRECISION, BB), 4 * BB, DTYPE)
        mean = load_matrix(before + record_step + field(MEAN, BB), 4 * BB, DTYPE)
        quadratic = load_matrix(current + field(QUADRATIC, BB), 4 * BB, DTYPE)
        linear = load_matrix(current + field(LINEAR, BB), 4 * BB, DTYPE)
        constant = load_field(current, CONSTANT, BB, DTYPE)
        old_log_peak = load_field(before, LOG_PEAK, BB, DTYPE)
        largest = tl.load(normaliser + (t - 1) * normaliser_step * 2)
        per_total = tl.load(normaliser + (t - 1) * normaliser_step * 2 + BB)
        later = tl.load(child_gradient + (t - 1) * normaliser_step)
        joint = log_joint(vote, old_mean, old_precision, old_log_peak)
        share = tl.exp(joint - largest) * per_total * activation
        joint_gradient = share * (share_gradient(vote, mean, quadratic, linear, constant) - later)
        gradient = add_vote_gradient_of_m(gradient, vote, mean, quadratic, linear, share)
        gradient = add_vote_gradient_of_e(gradient, vote, old_mean, old_precision, joint_gradient)
    return gradient


@triton.jit(
    do_not_specialize=[*SIZES, "record_step", "adjoint_step", "normaliser_step"],
    do_not_specialize_on_alignment=[
        "pose_pointer",
        "activation_pointer",
        "first_share_pointer",
        "record_pointer",
        "adjoint_pointer",
        "normaliser_pointer",
        "child_gradient_pointer",
        "pose_gradient_pointer",
        "activation_gradient_pointer",
        "weight_gradient_pointer",
    ],
)
def input_gradient(
    pose_pointer,
    activation_pointer,
    first_share_pointer,
    weight_pointer,
    record_pointer,
    adjoint_pointer,
    normaliser_pointer,
    child_gradient_pointer,
    pose_gradient_pointer,
    activation_gradient_pointer,
    weight_gradient_pointer,
    record_step: tl.int64,
    adjoint_step: tl.int64,
    normaliser_step: tl.int64,
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
    ITERATIONS: tl.constexpr,
    CHILDREN: tl.constexpr,
    BB: tl.constexpr,
):
    """Compute dL/dM_i (16), dL/da_i (13) of the first iteration and dL/dW_ij (17), over the parents at one position.

    All are stored per window: for each slot what its child gets there, for each matrix what it gets there,
    (slots / C, O, C, 16).
    """
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    types, slot, ky, kx, position, row, column, block = slots_of_program(
        C, OH, OW, KH, KW, stride_y, stride_x, CHILDREN
    )
    lane = tl.arange(0, BB)[None, :]
    fours = lane * 4
    place = (block * H + row) * W + column
    child = place * C + types
    pose = load_matrix(pose_pointer + child * (16 * BB) + fours, 4 * BB, DTYPE)
    activation = tl.load(activation_pointer + child * BB + lane)
    first_share = tl.load(first_share_pointer + child * BB + lane)
    weights = weight_pointer + ((ky * KW + kx) * (1 - shared) * O).to(tl.int64) * (C * 16) + types * 16
    first_parent = position.to(tl.int64) * O
    row_share = scaled(row, per_place(H, shared, DTYPE))
    column_share = scaled(column, per_place(W, shared, DTYPE))
    normaliser = (slot.to(tl.int64) if by_position else place) * C + types
    first_v, last_v = readers(row, OH, KH, stride_y)
    first_u, last_u = readers(column, OW, KW, stride_x)
    start = 1.0 / ((last_v - first_v + 1) * (last_u - first_u + 1) * O).to(DTYPE)

    total = zero_matrix(CHILDREN, BB, DTYPE)
    activation_total = tl.zeros((CHILDREN, BB), DTYPE)
    for o in range(O):
        following = first_parent + tl.minimum(o + 1, O - 1)
        for t in tl.static_range(ITERATIONS):
            prefetch_parent(
                record_pointer + t * record_step + following * (RECORD * BB),
                adjoint_pointer + t * adjoint_step + following * (ADJOINT * BB),
                BB,
            )
        weight = load_matrix(weights + o * (C * 16), 4, DTYPE)
        record = record_pointer + (first_parent + o) * (RECORD * BB) + fours
        adjoint = adjoint_pointer + (first_parent + o) * (ADJOINT * BB) + fours
        mean = load_matrix(record + field(MEAN, BB), 4 * BB, DTYPE)
        quadratic = load_matrix(adjoint + field(QUADRATIC, BB), 4 * BB, DTYPE)
        linear = load_matrix(adjoint + field(LINEAR, BB), 4 * BB, DTYPE)
        constant = load_field(adjoint, CONSTANT, BB, DTYPE)
        vote = votes(pose, weight, row_share, column_share)
        activation_total += share_gradient(vote, mean, quadratic, linear, constant)
        gradient = add_later_vote_gradients(
            add_vote_gradient_of_m(zero_matrix(CHILDREN, BB, DTYPE), vote, mean, quadratic, linear, first_share),
            vote,
            activation,
            mean,
            record,
            adjoint,
            normaliser_pointer + normaliser * (2 * BB) + lane,
            child_gradient_pointer + normaliser * BB + lane,
            record_step,
            adjoint_step,
            normaliser_step,
            ITERATIONS,
            BB,
            DTYPE,
        )
        total = add_pose_gradient(total, gradient, weight)
        matrix_gradient = ()
        for j in tl.static_range(4):
            for k in tl.static_range(4):
                value = pose[j] * gradient[k]
                for i in tl.static_range(1, 4):
                    value += pose[4 * i + j] * gradient[4 * i + k]
                matrix_gradient = matrix_gradient + (value,)
        matrix = (slot.to(tl.int64) * O + o) * C + types
        store_sums_over_lanes(weight_gradient_pointer + matrix * 16, matrix_gradient, lane, BB)
    result = slot.to(tl.int64) * C + types
    store_matrix(pose_gradient_pointer + result * (16 * BB) + lane, total, BB)
    tl.store(activation_gradient_pointer + result * BB + lane, start * activation_total)
