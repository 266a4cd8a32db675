"""The sweeps of the backward pass. Dims and packed tensors as in forward.py.

Further tensors: adjoints (T, NB, OH, OW, O, ADJOINT / 4, BB, 4), beta gradients (2, O, T, NB, OH, OW). Numbers in
brackets are the equations of README.md in this folder.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.edge import (
    EPSILON,
    inverse,
    placed,
    quotient,
    scaled,
    share_gradient,
    votes,
    zero_matrix,
)
from emcaps.routing.triton_kernels.forward import added, by_slice, merge_slices
from emcaps.routing.triton_kernels.indices import (
    SIZES,
    children_of_slices,
    parents_of_program,
    readers,
    rows_of_program,
    slots_of_program,
)
from emcaps.routing.triton_kernels.memory import (
    load_four,
    load_matrix,
    prefetch_edges,
    store_four,
    store_matrix,
    store_sums_over_lanes,
)
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
        valid = image < B
        for h in tl.static_range(16):
            value = tl.load(pose_gradient_pointer + output * 16 + h, mask=valid, other=0.0).to(DTYPE)
            mean_gradient = mean_gradient + (value,)
        variance_gradient = zero_matrix(PARENTS, BB, DTYPE)
        activation_gradient = tl.load(activation_gradient_pointer + output, mask=valid, other=0.0).to(DTYPE)
        logit_gradient = activation_gradient * tl.sigmoid(logit) * tl.sigmoid(-logit)
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
                new_first = ()
                new_second = ()
                for h in tl.static_range(16):
                    difference = vote[h] - mean[h]
                    pull = joint_gradient * difference
                    new_first = new_first + (first_moment[h] + pull,)
                    new_second = new_second + (second_moment[h] + pull * difference,)
                first_moment = new_first
                second_moment = new_second
        total = merge_slices(joint_sum, SLICES, PARENTS, BB)
        precision = load_matrix(record + field(PRECISION, BB), 4 * BB, DTYPE)
        for row in tl.static_range(4):
            first = tl.reduce(by_slice(first_moment[4 * row : 4 * row + 4], SLICES, PARENTS, BB), 0, added)
            second = tl.reduce(by_slice(second_moment[4 * row : 4 * row + 4], SLICES, PARENTS, BB), 0, added)
            for k in tl.static_range(4):
                precision_h = precision[4 * row + k]
                mean_gradient = mean_gradient + (precision_h * first[k],)
                variance_gradient = variance_gradient + (0.5 * precision_h * (precision_h * second[k] - total),)
        logit_gradient = total * tl.sigmoid(-logit)
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


@triton.jit(
    do_not_specialize=[*SIZES, "record_step", "adjoint_step", "edge_step"],
    do_not_specialize_on_alignment=[
        "pose_pointer",
        "activation_pointer",
        "first_share_pointer",
        "assignment_pointer",
        "joint_gradient_pointer",
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
    assignment_pointer,
    joint_gradient_pointer,
    pose_gradient_pointer,
    activation_gradient_pointer,
    weight_gradient_pointer,
    record_step: tl.int64,
    adjoint_step: tl.int64,
    edge_step: tl.int64,
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
    ITERATIONS: tl.constexpr,
    GROUPS: tl.constexpr,
    CHILDREN: tl.constexpr,
    BB: tl.constexpr,
):
    """Compute dL/dM_i (16), dL/da_i (13) of the first iteration and dL/dW_ij (17), over the parents at one position.

    Each thread has CHILDREN child types, which share what it loads of a parent. All is stored per window: for each slot
    what its child gets there, for each matrix what it gets there, (slots, O, 16).
    """
    DTYPE: tl.constexpr = record_pointer.dtype.element_ty
    types, slot, ky, kx, position, row, column, block = slots_of_program(
        C, OH, OW, KH, KW, stride_y, stride_x, GROUPS, CHILDREN
    )
    lane = tl.arange(0, BB)[None, :]
    fours = lane * 4
    child = ((block * H + row) * W + column) * C + types
    pose = ()
    activation = ()
    first_share = ()
    total = ()
    activation_total = ()
    for c in tl.static_range(CHILDREN):
        pose = pose + load_matrix(pose_pointer + (child + c) * (16 * BB) + fours, 4 * BB, DTYPE)
        activation = activation + (tl.load(activation_pointer + (child + c) * BB + lane),)
        first_share = first_share + (tl.load(first_share_pointer + (child + c) * BB + lane),)
        total = total + zero_matrix(GROUPS, BB, DTYPE)
        activation_total = activation_total + (tl.zeros((GROUPS, BB), DTYPE),)
    matrix = types if SHARED else (ky * KW + kx) * C + types
    weights = weight_pointer + matrix * (O * 16)
    edges = (slot * C + types) * (O * BB)
    first_parent = position * O
    row_share = scaled(column // columns, rows, DTYPE)
    column_share = scaled(column % columns, columns, DTYPE)

    prefetch_edges(
        weights,
        assignment_pointer + edges,
        joint_gradient_pointer + edges,
        edge_step,
        lane,
        O,
        ITERATIONS,
        CHILDREN,
        BB,
    )
    for o in range(O):
        following = first_parent + tl.minimum(o + 1, O - 1)
        for t in tl.static_range(ITERATIONS):
            prefetch_parent(
                record_pointer + t * record_step + following * (RECORD * BB),
                adjoint_pointer + t * adjoint_step + following * (ADJOINT * BB),
                BB,
            )
        record = record_pointer + (first_parent + o) * (RECORD * BB) + fours
        adjoint = adjoint_pointer + (first_parent + o) * (ADJOINT * BB) + fours
        weight = ()
        matrix_gradient = ()
        shares = ()
        joint_gradients = ()
        share_gradients = ()
        constant = load_field(adjoint, CONSTANT, BB, DTYPE)
        for c in tl.static_range(CHILDREN):
            weight = weight + load_matrix(weights + (c * O + o) * 16, 4, DTYPE)
            matrix_gradient = matrix_gradient + zero_matrix(GROUPS, BB, DTYPE)
            share_gradients = share_gradients + (constant,)
            for t in tl.static_range(1, ITERATIONS):
                edge = edges + ((c * O + o) * BB + (t - 1) * edge_step) + lane
                shares = shares + (activation[c] * tl.load(assignment_pointer + edge),)
                joint_gradients = joint_gradients + (tl.load(joint_gradient_pointer + edge),)
        new_total = ()
        for i in tl.static_range(4):
            means = ()
            precisions = ()
            quadratics = ()
            linears = ()
            for t in tl.static_range(ITERATIONS):
                means = means + load_four(record + t * record_step + field(MEAN + 4 * i, BB), DTYPE)
                quadratics = quadratics + load_four(adjoint + t * adjoint_step + field(QUADRATIC + 4 * i, BB), DTYPE)
                linears = linears + load_four(adjoint + t * adjoint_step + field(LINEAR + 4 * i, BB), DTYPE)
                if t + 1 < ITERATIONS:
                    precisions = precisions + load_four(record + t * record_step + field(PRECISION + 4 * i, BB), DTYPE)
            new_matrix_gradient = ()
            new_share_gradients = ()
            for c in tl.static_range(CHILDREN):
                gradient = ()
                in_row = 0.0
                for k in tl.static_range(4):
                    vote = pose[16 * c + 4 * i] * weight[16 * c + k]
                    for j in tl.static_range(1, 4):
                        vote = tl.fma(pose[16 * c + 4 * i + j], weight[16 * c + 4 * j + k], vote)
                    if SHARED and k == 3 and i == 0:
                        vote += row_share
                    if SHARED and k == 3 and i == 1:
                        vote += column_share
                    difference = vote - means[k]
                    slope = tl.fma(quadratics[k], difference, linears[k])
                    in_row += difference * slope  # D_ij (11)
                    value = first_share[c] * tl.fma(quadratics[k], difference, slope)  # dL/dV_ij: (12), then (15)
                    for t in tl.static_range(1, ITERATIONS):
                        value -= joint_gradients[c * (ITERATIONS - 1) + t - 1] * (
                            precisions[4 * t - 4 + k] * difference
                        )
                        difference = vote - means[4 * t + k]
                        slope = tl.fma(2 * quadratics[4 * t + k], difference, linears[4 * t + k])
                        value += shares[c * (ITERATIONS - 1) + t - 1] * slope
                    gradient = gradient + (value,)
                new_share_gradients = new_share_gradients + (share_gradients[c] + in_row,)
                for j in tl.static_range(4):
                    for k in tl.static_range(4):
                        old = matrix_gradient[16 * c + 4 * j + k]
                        new_matrix_gradient = new_matrix_gradient + (
                            tl.fma(pose[16 * c + 4 * i + j], gradient[k], old),
                        )
                for j in tl.static_range(4):
                    value = total[16 * c + 4 * i + j]
                    for k in tl.static_range(4):
                        value = tl.fma(gradient[k], weight[16 * c + 4 * j + k], value)
                    new_total = new_total + (value,)
            matrix_gradient = new_matrix_gradient
            share_gradients = new_share_gradients
        total = ordered(new_total, CHILDREN)
        new_activation_total = ()
        for c in tl.static_range(CHILDREN):
            new_activation_total = new_activation_total + (activation_total[c] + share_gradients[c],)
            result = weight_gradient_pointer + ((slot * C + types + c) * O + o) * 16
            store_sums_over_lanes(result, matrix_gradient[16 * c : 16 * c + 16], lane, BB)
        activation_total = new_activation_total
    first_v, last_v = readers(row, OH, KH, stride_y)
    first_u, last_u = readers(column, OW, KW, stride_x)
    start = 1.0 / ((last_v - first_v + 1) * (last_u - first_u + 1) * O).to(DTYPE)
    for c in tl.static_range(CHILDREN):
        result = slot * C + types + c
        store_matrix(pose_gradient_pointer + result * (16 * BB) + lane, total[16 * c : 16 * c + 16], BB)
        tl.store(activation_gradient_pointer + result * BB + lane, start * activation_total[c])


@triton.jit
def ordered(rows, CHILDREN: tl.constexpr):
    """Matrices of several children, each whole, from their rows: the first rows of all children come first."""
    matrices = ()
    for c in tl.static_range(CHILDREN):
        for i in tl.static_range(4):
            matrices = matrices + rows[(i * CHILDREN + c) * 4 : (i * CHILDREN + c) * 4 + 4]
    return matrices
