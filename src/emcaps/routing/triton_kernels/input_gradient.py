"""The sweep of the backward pass through the parents of a position: gradients of poses, activations and matrices.

Dims and packed tensors as in forward.py and backward.py. Numbers in brackets are the equations of README.md in this
folder.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.edge import scaled, zero_matrix
from emcaps.routing.triton_kernels.indices import SIZES, readers, slots_of_program
from emcaps.routing.triton_kernels.memory import load_matrix, prefetch_edges, store_matrix, store_sums_over_lanes
from emcaps.routing.triton_kernels.parents import (
    FOR_THREE_ITERATIONS,
    FOR_TWO_ITERATIONS,
    LINEARS,
    MEANS,
    PRECISIONS,
    QUADRATICS,
    constant_of_parent,
    copy_edges,
    copy_half,
    matrix_of_edge,
    number_of_edge,
    row_of_field,
)
from emcaps.routing.triton_kernels.records import (
    ADJOINT,
    CONSTANT,
    LINEAR,
    MEAN,
    PRECISION,
    QUADRATIC,
    RECORD,
    field,
    prefetch_parent,
)
from emcaps.routing.triton_kernels.staging import allocate, await_copies


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
    STAGED: tl.constexpr,
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

    thread = tl.arange(0, GROUPS)[:, None] * BB + lane
    stages = lane
    stage = 0
    if STAGED:
        stages = allocate(lane, FOR_TWO_ITERATIONS if ITERATIONS == 2 else FOR_THREE_ITERATIONS)
        of_edges = weights, assignment_pointer + edges, joint_gradient_pointer + edges
        records = record_pointer + first_parent * (RECORD * BB)
        adjoints = adjoint_pointer + first_parent * (ADJOINT * BB)
        copy_edges(stages, thread, *of_edges, adjoints, edge_step, 0, O, ITERATIONS)
        for half in tl.static_range(2):
            copy_half(stages, thread, records, adjoints, record_step, adjoint_step, half, half, ITERATIONS)
    else:
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
        following = tl.minimum(o + 1, O - 1)
        next_record = record_pointer + (first_parent + following) * (RECORD * BB)
        next_adjoint = adjoint_pointer + (first_parent + following) * (ADJOINT * BB)
        if STAGED:
            await_copies(thread, 1)
            copy_edges(stages, thread, *of_edges, adjoints, edge_step, following, O, ITERATIONS)
            free = (stage + 2) % 3
            copy_half(stages, thread, next_record, next_adjoint, record_step, adjoint_step, free, 0, ITERATIONS)
        else:
            for t in tl.static_range(ITERATIONS):
                prefetch_parent(next_record + t * record_step, next_adjoint + t * adjoint_step, BB)
        record = record_pointer + (first_parent + o) * (RECORD * BB) + fours
        adjoint = adjoint_pointer + (first_parent + o) * (ADJOINT * BB) + fours
        weight = ()
        matrix_gradient = ()
        shares = ()
        joint_gradients = ()
        share_gradients = ()
        constant = constant_of_parent(adjoint + field(CONSTANT, BB), stages, o, lane, STAGED, ITERATIONS, DTYPE)
        for c in tl.static_range(CHILDREN):
            of_edge = weights + (c * O + o) * 16
            weight = weight + matrix_of_edge(of_edge, stages, o, c, thread, STAGED, ITERATIONS, DTYPE)
            matrix_gradient = matrix_gradient + zero_matrix(GROUPS, BB, DTYPE)
            share_gradients = share_gradients + (constant,)
            for t in tl.static_range(ITERATIONS - 1):
                edge = edges + ((c * O + o) * BB + t * edge_step) + lane
                assignment = number_of_edge(assignment_pointer + edge, stages, o, 0, c, t, thread, STAGED, ITERATIONS)
                shares = shares + (activation[c] * assignment,)
                joint_gradient = number_of_edge(
                    joint_gradient_pointer + edge, stages, o, 1, c, t, thread, STAGED, ITERATIONS
                )
                joint_gradients = joint_gradients + (joint_gradient,)
        new_total = ()
        row_stage = stage
        for i in tl.static_range(4):
            if STAGED and i == 2:
                await_copies(thread, 1)
                copy_half(stages, thread, next_record, next_adjoint, record_step, adjoint_step, stage, 1, ITERATIONS)
                row_stage = (stage + 1) % 3
            means = ()
            precisions = ()
            quadratics = ()
            linears = ()
            for t in tl.static_range(ITERATIONS):
                of_record = record + t * record_step + field(4 * i, BB)
                of_adjoint = adjoint + t * adjoint_step + field(4 * i, BB)
                means = means + row_of_field(
                    of_record + MEAN * BB, stages, row_stage, MEANS, t, i, lane, STAGED, ITERATIONS, DTYPE
                )
                quadratics = quadratics + row_of_field(
                    of_adjoint + QUADRATIC * BB, stages, row_stage, QUADRATICS, t, i, lane, STAGED, ITERATIONS, DTYPE
                )
                linears = linears + row_of_field(
                    of_adjoint + LINEAR * BB, stages, row_stage, LINEARS, t, i, lane, STAGED, ITERATIONS, DTYPE
                )
                if t + 1 < ITERATIONS:
                    precisions = precisions + row_of_field(
                        of_record + PRECISION * BB, stages, row_stage, PRECISIONS, t, i, lane, STAGED, ITERATIONS, DTYPE
                    )
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
        stage = (stage + 2) % 3
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
