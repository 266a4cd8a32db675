"""The sweeps of the forward pass with children that come through shared memory: together they are `m_step`.

A thread has one parent, and a program PARENTS at one position. Its children are one of several parts of the window, so
that the programs of a small layer can be divided evenly over a GPU, too. These kernels are for float32, blocks of 32
images and convolutional layers with at least PARENTS parent types, on GPUs from compute capability 8.0 on. Dims and
packed tensors as in forward.py.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.children import (
    BARE_STAGE,
    CHUNK,
    PARENTS,
    STAGE,
    TWO_BARE_STAGES,
    TWO_STAGES,
    children_of_part,
    copy_activations,
    copy_children,
    copy_edges,
    next_chunk,
    staged_activation,
    staged_edge,
    staged_matrix,
    staged_pose,
    window_of_program,
)
from emcaps.routing.triton_kernels.edge import log_joint, votes, zero_matrix
from emcaps.routing.triton_kernels.forward import merged, store_record, with_vote
from emcaps.routing.triton_kernels.indices import SIZES
from emcaps.routing.triton_kernels.memory import load_matrix
from emcaps.routing.triton_kernels.partials import (
    BB,
    PARTIAL,
    is_not_last,
    load_partial,
    partial_of_part,
    store_partial,
)
from emcaps.routing.triton_kernels.records import LOG_PEAK, MEAN, PRECISION, RECORD, field, load_field
from emcaps.routing.triton_kernels.staging import allocate, await_copies, commit_copies


@triton.jit(do_not_specialize=[*SIZES, "B"], do_not_specialize_on_alignment=["beta_u_pointer", "beta_a_pointer"])
def staged_m_step(
    pose_pointer,
    activation_pointer,
    weight_pointer,
    beta_u_pointer,
    beta_a_pointer,
    assignment_pointer,
    partial_pointer,
    arrived_pointer,
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
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """(2) to (6). In the FIRST iteration the activations are already multiplied by the even assignments (1)."""
    position, block, first_parent, window = window_of_program(H, W, C, OH, OW, O, stride_y, stride_x)
    parent = tl.arange(0, PARENTS)[:, None]
    lane = tl.arange(0, BB)[None, :]
    thread = parent * BB + lane
    stage = allocate(thread, TWO_STAGES)
    free = stage + STAGE
    first, end, child, x, count, between = children_of_part(W, C, KH, KW)
    poses = pose_pointer + window * (16 * BB)
    activations = activation_pointer + window * BB
    weights = weight_pointer + first_parent * 16
    edges = assignment_pointer + position * (KH * KW * C * O * BB) + first_parent * BB

    copy_children(stage, thread, poses + child * (16 * BB), weights + first * (O * 16), O, first < end)
    copy_activations(stage, thread, activations + child * BB, first < end)
    if not FIRST:
        copy_edges(stage, thread, edges + (first * O).to(tl.int64) * BB, O, first < end)
    commit_copies(thread)
    data = tl.zeros((PARENTS, BB), tl.float32)
    mean = zero_matrix(PARENTS, BB, tl.float32)
    spread = zero_matrix(PARENTS, BB, tl.float32)
    for n in range(first, end, CHUNK):
        await_copies(thread, 0)
        next_child, next_x = next_chunk(child, x, count, between)
        ahead = n + CHUNK
        copy_children(free, thread, poses + next_child * (16 * BB), weights + ahead * (O * 16), O, ahead < end)
        copy_activations(free, thread, activations + next_child * BB, ahead < end)
        if not FIRST:
            copy_edges(free, thread, edges + (ahead * O).to(tl.int64) * BB, O, ahead < end)
        commit_copies(thread)
        for c in tl.static_range(CHUNK):
            share = staged_activation(stage, activations + child * BB, c, lane)
            if not FIRST:
                share *= staged_edge(stage, edges + (n * O).to(tl.int64) * BB, c, parent, lane, O)
            pose = staged_pose(stage, poses + child * (16 * BB), c, lane)
            vote = votes(pose, staged_matrix(stage, weights + n * (O * 16), c, parent, O))
            data, mean, spread = with_vote(data, mean, spread, vote, share)
        child, x = next_child, next_x
        stage, free = free, stage

    if SPLIT:
        partial = partial_of_part(partial_pointer, position, first_parent + parent, tl.program_id(1), lane, O)
        store_partial(partial, data, mean, spread)
        if is_not_last(arrived_pointer):
            return
        partial = partial_of_part(partial_pointer, position, first_parent + parent, 0, lane, O)
        data, mean, spread = load_partial(partial)
        for _ in range(1, tl.num_programs(1)):
            partial += PARTIAL * BB
            more_data, more_mean, more_spread = load_partial(partial)
            total = data + more_data
            new_mean = ()
            new_spread = ()
            for row in tl.static_range(4):
                moments = merged(
                    data,
                    *mean[4 * row : 4 * row + 4],
                    *spread[4 * row : 4 * row + 4],
                    more_data,
                    *more_mean[4 * row : 4 * row + 4],
                    *more_spread[4 * row : 4 * row + 4],
                )
                new_mean = new_mean + moments[1:5]
                new_spread = new_spread + moments[5:9]
            data = total
            mean = new_mean
            spread = new_spread
    store_record(
        record_pointer,
        out_pose_pointer,
        out_activation_pointer,
        beta_u_pointer,
        beta_a_pointer,
        data,
        mean,
        spread,
        first_parent + parent,
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


@triton.jit(do_not_specialize=SIZES)
def staged_log_joints(
    pose_pointer,
    weight_pointer,
    record_pointer,
    joint_pointer,
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
):
    """The log joints (7) of every edge."""
    position, _, first_parent, window = window_of_program(H, W, C, OH, OW, O, stride_y, stride_x)
    parent = tl.arange(0, PARENTS)[:, None]
    lane = tl.arange(0, BB)[None, :]
    thread = parent * BB + lane
    stage = allocate(thread, TWO_BARE_STAGES)
    free = stage + BARE_STAGE
    first, end, child, x, count, between = children_of_part(W, C, KH, KW)
    poses = pose_pointer + window * (16 * BB)
    weights = weight_pointer + first_parent * 16
    edges = joint_pointer + position * (KH * KW * C * O * BB) + (first_parent + parent) * BB + lane

    copy_children(stage, thread, poses + child * (16 * BB), weights + first * (O * 16), O, first < end)
    commit_copies(thread)
    record = record_pointer + (position * O + first_parent + parent) * (RECORD * BB) + lane * 4
    mean = load_matrix(record + field(MEAN, BB), 4 * BB, tl.float32)
    precision = load_matrix(record + field(PRECISION, BB), 4 * BB, tl.float32)
    log_peak = load_field(record, LOG_PEAK, BB, tl.float32)
    for n in range(first, end, CHUNK):
        await_copies(thread, 0)
        next_child, next_x = next_chunk(child, x, count, between)
        ahead = n + CHUNK
        copy_children(free, thread, poses + next_child * (16 * BB), weights + ahead * (O * 16), O, ahead < end)
        commit_copies(thread)
        for c in tl.static_range(CHUNK):
            pose = staged_pose(stage, poses + child * (16 * BB), c, lane)
            vote = votes(pose, staged_matrix(stage, weights + n * (O * 16), c, parent, O))
            found = log_joint(vote, mean, precision, log_peak)
            tl.store(edges + (n * O).to(tl.int64) * BB + c * (O * BB), found)
        child, x = next_child, next_x
        stage, free = free, stage
