"""The sweeps of the backward pass with children that come through shared memory: together they are `parent_gradient`.

Programs, and the layers that these kernels are for, as in staged_forward.py.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.backward import (
    gradients_of_output,
    gradients_of_statistics,
    store_adjoint,
    with_pull,
)
from emcaps.routing.triton_kernels.children import (
    BARE_STAGE,
    CHUNK,
    PARENTS,
    STAGE,
    TWO_BARE_STAGES,
    TWO_STAGES,
    children_of_part,
    copy_children,
    copy_edges,
    next_chunk,
    staged_edge,
    staged_matrix,
    staged_pose,
    window_of_program,
)
from emcaps.routing.triton_kernels.edge import share_gradient, votes, zero_matrix
from emcaps.routing.triton_kernels.indices import SIZES
from emcaps.routing.triton_kernels.memory import load_four, load_matrix
from emcaps.routing.triton_kernels.partials import (
    BB,
    PARTIAL,
    is_not_last,
    load_partial,
    partial_of_part,
    store_partial,
)
from emcaps.routing.triton_kernels.records import (
    ADJOINT,
    CONSTANT,
    LINEAR,
    LOG_PEAK,
    MEAN,
    QUADRATIC,
    RECORD,
    field,
    load_field,
)
from emcaps.routing.triton_kernels.staging import allocate, await_copies, commit_copies


@triton.jit(do_not_specialize=[*SIZES, "beta_step"], do_not_specialize_on_alignment=["beta_gradient_pointer"])
def staged_moments(
    pose_pointer,
    weight_pointer,
    joint_gradient_pointer,
    partial_pointer,
    arrived_pointer,
    record_pointer,
    adjoint_pointer,
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
    rows,
    columns,
    SPLIT: tl.constexpr,
):
    """The adjoint records, (8) to (10), of an iteration before the last, through the E-step that follows (14)."""
    position, _, first_parent, window = window_of_program(H, W, C, OH, OW, O, stride_y, stride_x)
    parent = tl.arange(0, PARENTS)[:, None]
    lane = tl.arange(0, BB)[None, :]
    thread = parent * BB + lane
    stage = allocate(thread, TWO_STAGES)
    free = stage + STAGE
    first, end, child, x, count, between = children_of_part(W, C, KH, KW)
    poses = pose_pointer + window * (16 * BB)
    weights = weight_pointer + first_parent * 16
    edges = joint_gradient_pointer + position * (KH * KW * C * O * BB) + first_parent * BB

    copy_children(stage, thread, poses + child * (16 * BB), weights + first * (O * 16), O, first < end)
    copy_edges(stage, thread, edges + (first * O).to(tl.int64) * BB, O, first < end)
    commit_copies(thread)
    o = first_parent + parent
    record = record_pointer + (position * O + o) * (RECORD * BB) + lane * 4
    mean = load_matrix(record + field(MEAN, BB), 4 * BB, tl.float32)
    joint_sum = tl.zeros((PARENTS, BB), tl.float32)
    first_moment = zero_matrix(PARENTS, BB, tl.float32)
    second_moment = zero_matrix(PARENTS, BB, tl.float32)
    for n in range(first, end, CHUNK):
        await_copies(thread, 0)
        next_child, next_x = next_chunk(child, x, count, between)
        ahead = n + CHUNK
        copy_children(free, thread, poses + next_child * (16 * BB), weights + ahead * (O * 16), O, ahead < end)
        copy_edges(free, thread, edges + (ahead * O).to(tl.int64) * BB, O, ahead < end)
        commit_copies(thread)
        for c in tl.static_range(CHUNK):
            joint_gradient = staged_edge(stage, edges + (n * O).to(tl.int64) * BB, c, parent, lane, O)
            pose = staged_pose(stage, poses + child * (16 * BB), c, lane)
            vote = votes(pose, staged_matrix(stage, weights + n * (O * 16), c, parent, O))
            joint_sum += joint_gradient
            first_moment, second_moment = with_pull(first_moment, second_moment, vote, mean, joint_gradient)
        child, x = next_child, next_x
        stage, free = free, stage

    if SPLIT:
        partial = partial_of_part(partial_pointer, position, o, tl.program_id(1), lane, O)
        store_partial(partial, joint_sum, first_moment, second_moment)
        if is_not_last(arrived_pointer):
            return
        partial = partial_of_part(partial_pointer, position, o, 0, lane, O)
        joint_sum, first_moment, second_moment = load_partial(partial)
        for _ in range(1, tl.num_programs(1)):
            partial += PARTIAL * BB
            more, more_first, more_second = load_partial(partial)
            joint_sum += more
            new_first = ()
            new_second = ()
            for h in tl.static_range(16):
                new_first = new_first + (first_moment[h] + more_first[h],)
                new_second = new_second + (second_moment[h] + more_second[h],)
            first_moment = new_first
            second_moment = new_second
    _, _, logit, _ = load_four(record + field(LOG_PEAK, BB), tl.float32)
    mean_gradient, variance_gradient, logit_gradient = gradients_of_statistics(
        record, joint_sum, first_moment, second_moment, logit, BB
    )
    store_adjoint(
        adjoint_pointer + (position * O + o) * (ADJOINT * BB) + lane * 4,
        beta_gradient_pointer + o * beta_step + position,
        beta_step * O,
        record,
        mean_gradient,
        variance_gradient,
        logit_gradient,
        routing_lambda,
        data_unit,
        o < O,
        BB,
        tl.float32,
    )


@triton.jit(
    do_not_specialize=[*SIZES, "B", "beta_step"],
    do_not_specialize_on_alignment=["pose_gradient_pointer", "activation_gradient_pointer", "beta_gradient_pointer"],
)
def staged_share_gradients(
    pose_pointer,
    weight_pointer,
    pose_gradient_pointer,
    activation_gradient_pointer,
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
    LAST: tl.constexpr,
):
    """The gradients D_ij of the shares (11).

    In the LAST iteration the adjoint records come first, (8) to (10), from the gradients of the layer's outputs. All
    parts compute the same ones.
    """
    position, block, first_parent, window = window_of_program(H, W, C, OH, OW, O, stride_y, stride_x)
    parent = tl.arange(0, PARENTS)[:, None]
    lane = tl.arange(0, BB)[None, :]
    thread = parent * BB + lane
    stage = allocate(thread, TWO_BARE_STAGES)
    free = stage + BARE_STAGE
    first, end, child, x, count, between = children_of_part(W, C, KH, KW)
    poses = pose_pointer + window * (16 * BB)
    weights = weight_pointer + first_parent * 16
    edges = share_gradient_pointer + position * (KH * KW * C * O * BB) + (first_parent + parent) * BB + lane

    copy_children(stage, thread, poses + child * (16 * BB), weights + first * (O * 16), O, first < end)
    commit_copies(thread)
    o = first_parent + parent
    record = record_pointer + (position * O + o) * (RECORD * BB) + lane * 4
    adjoint = adjoint_pointer + (position * O + o) * (ADJOINT * BB) + lane * 4
    if LAST:
        image = block * BB + lane
        _, _, logit, _ = load_four(record + field(LOG_PEAK, BB), tl.float32)
        mean_gradient, logit_gradient = gradients_of_output(
            pose_gradient_pointer,
            activation_gradient_pointer,
            (image * (OH * OW) + position % (OH * OW)) * O + o,
            image < B,
            logit,
        )
        store_adjoint(
            adjoint,
            beta_gradient_pointer + o * beta_step + position,
            beta_step * O,
            record,
            mean_gradient,
            zero_matrix(PARENTS, BB, tl.float32),
            logit_gradient,
            routing_lambda,
            data_unit,
            o < O,
            BB,
            tl.float32,
        )
        tl.debug_barrier()  # from here on threads read what was stored
    mean = load_matrix(record + field(MEAN, BB), 4 * BB, tl.float32)
    quadratic = load_matrix(adjoint + field(QUADRATIC, BB), 4 * BB, tl.float32)
    linear = load_matrix(adjoint + field(LINEAR, BB), 4 * BB, tl.float32)
    constant = load_field(adjoint, CONSTANT, BB, tl.float32)
    for n in range(first, end, CHUNK):
        await_copies(thread, 0)
        next_child, next_x = next_chunk(child, x, count, between)
        ahead = n + CHUNK
        copy_children(free, thread, poses + next_child * (16 * BB), weights + ahead * (O * 16), O, ahead < end)
        commit_copies(thread)
        for c in tl.static_range(CHUNK):
            pose = staged_pose(stage, poses + child * (16 * BB), c, lane)
            vote = votes(pose, staged_matrix(stage, weights + n * (O * 16), c, parent, O))
            found = share_gradient(vote, mean, quadratic, linear, constant)
            tl.store(edges + (n * O).to(tl.int64) * BB + c * (O * BB), found)
        child, x = next_child, next_x
        stage, free = free, stage
