"""Children on their way to the staged sweeps: in chunks of CHUNK, copied once for the PARENTS parents of a program.

There are two stages, each with a chunk: poses (CHUNK, 4, 32, 4), matrices (CHUNK, PARENTS, 16), edges (CHUNK, PARENTS,
32) and activations (CHUNK, 32), as far as a sweep needs them. While a program works on one, the other is filled.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.staging import allocation, copy_four, staged_four, staged_one

CHUNK = tl.constexpr(4)
PARENTS = tl.constexpr(4)
# Where the parts of a stage begin, in bytes; the poses come first.
MATRICES = tl.constexpr(8192)
EDGES = tl.constexpr(9216)
ACTIVATIONS = tl.constexpr(11264)
STAGE = tl.constexpr(11776)
BARE_STAGE = EDGES  # a stage of poses and matrices alone

TWO_STAGES, TWO_BARE_STAGES = allocation(2 * STAGE.value), allocation(2 * BARE_STAGE.value)


@triton.jit
def window_of_program(H, W, C, OH, OW, O, stride_y, stride_x):
    """The position of the program's parents, its block, its first parent type and the first child of its window."""
    program = tl.program_id(0)
    groups = tl.cdiv(O, PARENTS)
    position = program // groups
    u = position % OW
    v = position // OW % OH
    block = (position // OW // OH).to(tl.int64)
    # The last programs of a position may have parents in common: what they compute for them is the same, bit by bit.
    first_parent = tl.minimum(program % groups * PARENTS, O - PARENTS)
    return position.to(tl.int64), block, first_parent, ((block * H + v * stride_y) * W + u * stride_x) * C


@triton.jit
def children_of_part(W, C, KH, KW):
    """Which children of a window are for this program: of all parts, in whole chunks, its own.

    In order: the first, counted in the window; the end of the part; the first, counted in the memory of poses from the
    window's start; its place in its row of the window; how many children a row has; how many lie between two rows.
    """
    count = KW * C
    total = KH * count
    size = tl.cdiv(total // CHUNK, tl.num_programs(1)) * CHUNK
    first = tl.minimum(tl.program_id(1) * size, total)
    between = (W - KW) * C
    return first, tl.minimum(first + size, total), first + first // count * between, first % count, count, between


@triton.jit
def next_chunk(child, x, count, between):
    """The first child of the next chunk, counted in the memory of poses, and its place in its row of the window."""
    ends = x + CHUNK == count
    return child + CHUNK + tl.where(ends, between, 0), tl.where(ends, 0, x + CHUNK)


@triton.jit
def copy_children(stage, thread, poses, matrices, O, wanted):
    """Start to copy poses and matrices of a chunk, whose first child the pointers are for, if it is `wanted`."""
    for child in tl.static_range(CHUNK):
        copy_four(stage + (child * 128 + thread) * 16, poses + (child * 128 + thread) * 4, wanted)
    of_matrices = matrices + thread // 16 * (O * 16) + thread % 16 * 4
    copy_four(stage + MATRICES + thread * 16, of_matrices, wanted & (thread < CHUNK * 16))


@triton.jit
def copy_edges(stage, thread, edges, O, wanted):
    copy_four(stage + EDGES + thread * 16, edges + thread // 32 * (O * 32) + thread % 32 * 4, wanted & (thread >= 0))


@triton.jit
def copy_activations(stage, thread, activations, wanted):
    copy_four(stage + ACTIVATIONS + thread * 16, activations + thread * 4, wanted & (thread < CHUNK * 8))


@triton.jit
def staged_pose(stage, poses, CHILD: tl.constexpr, lane):
    """The pose of a child of the chunk, whose first pose is at `poses`."""
    pose = ()
    for row in tl.static_range(4):
        element = (CHILD * 4 + row) * 128 + lane * 4
        pose = pose + staged_four(stage + element * 4, poses + element)
    return pose


@triton.jit
def staged_matrix(stage, matrices, CHILD: tl.constexpr, parent, O):
    """The matrix from a child of the chunk to a parent of the program. `matrices` is that of the first to the first."""
    matrix = ()
    for row in tl.static_range(4):
        address = stage + MATRICES + (CHILD * PARENTS + parent) * 64 + row * 16
        pointer = matrices + (CHILD * O + parent) * 16 + row * 4
        matrix = matrix + staged_four(address, tl.broadcast_to(pointer, address.shape))
    return matrix


@triton.jit
def staged_edge(stage, edges, CHILD: tl.constexpr, parent, lane, O):
    """The number of the edge from a child of the chunk to a parent of the program."""
    address = stage + EDGES + (CHILD * PARENTS + parent) * 128 + lane * 4
    return staged_one(address, edges + (CHILD * O + parent) * 32 + lane)


@triton.jit
def staged_activation(stage, activations, CHILD: tl.constexpr, lane):
    """The activation of a child of the chunk."""
    element = CHILD * 32 + lane
    return staged_one(stage + ACTIVATIONS + element * 4, activations + element)
