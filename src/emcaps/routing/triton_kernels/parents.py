"""What `input_gradient` reads of a parent, on its way there.

STAGED, a program copies it into shared memory while it works on the parent before: the records in two halves of two
rows each, which go through three stages, and with the first half the numbers of the edges, in one of two places.
Otherwise it is prefetched into the first-level cache. STAGED is for float32, blocks of 32 images, 4 rows of 2 child
types and 2 or 3 iterations, for which the stages fit. In Triton's interpreter loads read what would have been copied.

Half a record is, for each iteration, (2, 32, 4) of means, A, B and inverse variances, without those of the last one.
The numbers of edges are, for each warp, (T - 1, 2, 2, 32): assignments and e_ij, each for two children; then for each
warp its two matrices; then c_j, (32, 4).
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.memory import load_four
from emcaps.routing.triton_kernels.records import ADJOINT, CONSTANT, LINEAR, PRECISION
from emcaps.routing.triton_kernels.staging import allocation, commit_copies, copy_four, staged_four, staged_one

# The fields of half a record, in the order in which they lie in a stage.
MEANS, QUADRATICS, LINEARS, PRECISIONS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)


def _allocation(iterations: int) -> tl.constexpr:
    return allocation(3 * (iterations * 4096 - 1024) + 2 * (iterations * 2048 - 1024))


FOR_TWO_ITERATIONS, FOR_THREE_ITERATIONS = _allocation(2), _allocation(3)


@triton.jit
def stage_of_half(stages, slot, ITERATIONS: tl.constexpr):
    return stages + slot * (ITERATIONS * 4096 - 1024)


@triton.jit
def stage_of_edges(stages, o, ITERATIONS: tl.constexpr):
    return stage_of_half(stages, 3, ITERATIONS) + o % 2 * (ITERATIONS * 2048 - 1024)


@triton.jit
def copy_edges(
    stages, thread, weights, assignments, joint_gradients, constants, edge_step, o, O, ITERATIONS: tl.constexpr
):
    """Start to copy the numbers of the edges to parent type `o`. The pointers are for parent type 0."""
    stage = stage_of_edges(stages, o, ITERATIONS)
    warp = thread // 32
    lane = thread % 32
    # Of each warp, 8 lanes copy the 32 numbers of an array and a child.
    arrays = tl.where(lane < 16, assignments.to(tl.int64), joint_gradients.to(tl.int64))
    numbers = arrays + ((lane // 8 % 2 * O + o) * 128 + lane % 8 * 16)
    for t in tl.static_range(ITERATIONS - 1):
        address = stage + (warp * (ITERATIONS - 1) + t) * 512 + lane * 16
        copy_four(address, numbers + t * (edge_step * 4), lane >= 0)
    # Of each warp, 8 lanes copy its matrices, and 8 more a quarter of c_j.
    part = warp * 8 + lane % 8
    matrices = weights.to(tl.int64) + ((lane // 4 * O + o) * 64 + lane % 4 * 16)
    constant = constants.to(tl.int64) + (o * (ADJOINT * 128) + CONSTANT * 128 + part * 16)
    address = stage + (ITERATIONS - 1) * 2048 + tl.where(lane < 8, 0, 512) + part * 16
    copy_four(address, tl.where(lane < 8, matrices, constant), lane < 16)


@triton.jit
def copy_half(
    stages, thread, record, adjoint, record_step, adjoint_step, slot, HALF: tl.constexpr, ITERATIONS: tl.constexpr
):
    """Start to copy half of a parent's records into the stage `slot`, and end the group of copies."""
    stage = stage_of_half(stages, slot, ITERATIONS)
    second = thread // 64  # the first 64 threads copy means and A, the others inverse variances and B
    place = thread % 64
    element = HALF * 256 + place * 4
    for t in tl.static_range(ITERATIONS):
        of_record = record + t * record_step + second * (PRECISION * 32) + element
        of_adjoint = adjoint + t * adjoint_step + second * (LINEAR * 32) + element
        needed = (second == 0) | (t + 1 < ITERATIONS)
        copy_four(stage + t * 4096 + second * (PRECISIONS * 1024) + place * 16, of_record, needed)
        copy_four(stage + t * 4096 + (second + QUADRATICS) * 1024 + place * 16, of_adjoint, second >= 0)
    commit_copies(thread)


@triton.jit
def row_of_field(
    pointer,
    stages,
    slot,
    FIELD: tl.constexpr,
    T: tl.constexpr,
    ROW: tl.constexpr,
    lane,
    STAGED: tl.constexpr,
    ITERATIONS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Four numbers of a parent, which lie at `pointer`: a row of iteration T."""
    if STAGED:
        place = T * 4096 + FIELD * 1024 + ROW % 2 * 512
        return staged_four(stage_of_half(stages, slot, ITERATIONS) + place + lane * 16, pointer)
    return load_four(pointer, DTYPE)


@triton.jit
def number_of_edge(
    pointer,
    stages,
    o,
    ARRAY: tl.constexpr,
    CHILD: tl.constexpr,
    T: tl.constexpr,
    thread,
    STAGED: tl.constexpr,
    ITERATIONS: tl.constexpr,
):
    """An assignment (ARRAY 0) or e_ij (1), which lies at `pointer`, of E-step T."""
    if STAGED:
        place = (thread // 32 * (ITERATIONS - 1) + T) * 512 + ARRAY * 256 + CHILD * 128 + thread % 32 * 4
        return staged_one(stage_of_edges(stages, o, ITERATIONS) + place, pointer)
    return tl.load(pointer)


@triton.jit
def matrix_of_edge(
    pointer,
    stages,
    o,
    CHILD: tl.constexpr,
    thread,
    STAGED: tl.constexpr,
    ITERATIONS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """The matrix at `pointer`."""
    matrix = ()
    for row in tl.static_range(4):
        if STAGED:
            place = (ITERATIONS - 1) * 2048 + thread // 32 * 128 + CHILD * 64 + row * 16
            matrix = matrix + staged_four(stage_of_edges(stages, o, ITERATIONS) + place, pointer + 4 * row + 0 * thread)
        else:
            matrix = matrix + load_four(pointer + 4 * row, DTYPE)
    return matrix


@triton.jit
def constant_of_parent(pointer, stages, o, lane, STAGED: tl.constexpr, ITERATIONS: tl.constexpr, DTYPE: tl.constexpr):
    """c_j, which lies at `pointer`."""
    if STAGED:
        place = (ITERATIONS - 1) * 2048 + 512 + lane * 16
        return staged_one(stage_of_edges(stages, o, ITERATIONS) + place, pointer)
    constant, _, _, _ = load_four(pointer, DTYPE)
    return constant
