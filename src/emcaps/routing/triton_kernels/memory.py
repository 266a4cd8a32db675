"""Loads and stores of four numbers at a time, prefetching, and sums over the lanes of a warp.

What Triton cannot express is written in PTX. The plain form next to it does the same in Triton's interpreter.
"""

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

# PTX that loads four numbers which lie side by side; bfloat16 becomes float32 by appending zero bits.
FOUR_FLOATS = tl.constexpr("ld.global.v4.f32 {$0, $1, $2, $3}, [$4];")
FOUR_DOUBLES = tl.constexpr("ld.global.v2.f64 {$0, $1}, [$4]; ld.global.v2.f64 {$2, $3}, [$4 + 16];")
FOUR_BFLOATS = tl.constexpr(
    "{ .reg .b32 low, high; ld.global.v2.b32 {low, high}, [$4]; shl.b32 $0, low, 16; and.b32 $1, low, 0xffff0000; "
    "shl.b32 $2, high, 16; and.b32 $3, high, 0xffff0000; }"
)


@triton.jit
def load_four(pointer, DTYPE: tl.constexpr):
    """Load the four numbers at `pointer`, which has to be aligned to four numbers."""
    KIND: tl.constexpr = pointer.dtype.element_ty
    FLOATS: tl.constexpr = (tl.float32, tl.float32, tl.float32, tl.float32)
    DOUBLES: tl.constexpr = (tl.float64, tl.float64, tl.float64, tl.float64)
    if not INTERPRETED and tl.float32 == KIND and tl.float32 == DTYPE:
        four = tl.inline_asm_elementwise(FOUR_FLOATS, "=f,=f,=f,=f,l", [pointer], dtype=FLOATS, is_pure=False, pack=1)
    elif not INTERPRETED and tl.bfloat16 == KIND and tl.float32 == DTYPE:
        four = tl.inline_asm_elementwise(FOUR_BFLOATS, "=f,=f,=f,=f,l", [pointer], dtype=FLOATS, is_pure=False, pack=1)
    elif not INTERPRETED and tl.float64 == KIND:
        four = tl.inline_asm_elementwise(FOUR_DOUBLES, "=d,=d,=d,=d,l", [pointer], dtype=DOUBLES, is_pure=False, pack=1)
    else:
        four = ()
        for k in tl.static_range(4):
            four = four + (tl.load(pointer + k).to(DTYPE),)
    return four


@triton.jit
def load_matrix(pointer, STEP: tl.constexpr, DTYPE: tl.constexpr):
    """Load a matrix whose rows of four numbers are STEP apart."""
    matrix = ()
    for row in tl.static_range(4):
        matrix = matrix + load_four(pointer + row * STEP, DTYPE)
    return matrix


STORE_FLOATS = tl.constexpr(
    "{ .reg .pred known; setp.ne.s32 known, $6, 0; @known st.global.v4.f32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0; }"
)
STORE_DOUBLES = tl.constexpr(
    "{ .reg .pred known; setp.ne.s32 known, $6, 0; @known st.global.v2.f64 [$1], {$2, $3}; "
    "@known st.global.v2.f64 [$1 + 16], {$4, $5}; mov.b32 $0, 0; }"
)


@triton.jit
def store_four(pointer, four, known):
    """Store four numbers side by side at `pointer`, where `known` is true."""
    if INTERPRETED:
        for k in tl.static_range(4):
            tl.store(pointer + k, four[k], mask=known)
    else:
        operands = [pointer.to(tl.int64), four[0], four[1], four[2], four[3], known.to(tl.int32)]
        if pointer.dtype.element_ty == tl.float32:
            tl.inline_asm_elementwise(STORE_FLOATS, "=r,l,f,f,f,f,r", operands, dtype=tl.int32, is_pure=False, pack=1)
        else:
            tl.inline_asm_elementwise(STORE_DOUBLES, "=r,l,d,d,d,d,r", operands, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def store_matrix(pointer, matrix, STEP: tl.constexpr):
    for h in tl.static_range(16):
        tl.store(pointer + h * STEP, matrix[h])


PREFETCH = tl.constexpr(
    "{ .reg .pred wanted; setp.ne.s32 wanted, $2, 0; @wanted prefetch.global.L1 [$1]; mov.b32 $0, 0; }"
)


@triton.jit
def prefetch(pointer, wanted):
    """Prefetch the 128-byte lines at `pointer` into the first-level cache where `wanted` is true; uses no registers."""
    if not INTERPRETED:
        operands = [pointer.to(tl.int64), wanted.to(tl.int32)]
        tl.inline_asm_elementwise(PREFETCH, "=r,l,r", operands, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def prefetch_edges(
    weight,
    assignment,
    joint_gradient,
    edge_step,
    lane,
    O,
    ITERATIONS: tl.constexpr,
    CHILDREN: tl.constexpr,
    BB: tl.constexpr,
):
    """Prefetch the matrices and the edges of CHILDREN child types, in one slot, to the first 32 parent types."""
    if BB == 32:
        for c in tl.static_range(CHILDREN):
            prefetch(weight + (c * O * 16 + lane * 32), lane * 2 < O)
            for t in tl.static_range(ITERATIONS - 1):
                edge = c * O * 32 + lane * 32 + t * edge_step
                prefetch(assignment + edge, lane < O)
                prefetch(joint_gradient + edge, lane < O)


def _warp_sums() -> str:
    """PTX with 16 registers in and one out: lane l gets the sum over the warp of register l % 16.

    In each of four rounds a lane gives half of its numbers to a partner, and adds the numbers that it gets to the other
    half. This takes 16 exchanges in all; summing each register by itself would take 80.
    """
    lines = [".reg .pred upper;", ".reg .b32 lane, side, keep, give;", ".reg .b32 n<16>;", "mov.u32 lane, %laneid;"]
    lines += [f"mov.b32 n{h}, ${h + 1};" for h in range(16)]
    for half in (8, 4, 2, 1):
        lines += [f"and.b32 side, lane, {half};", "setp.ne.u32 upper, side, 0;"]
        for h in range(half):
            lines += [
                f"selp.b32 keep, n{h + half}, n{h}, upper;",
                f"selp.b32 give, n{h}, n{h + half}, upper;",
                f"shfl.sync.bfly.b32 give, give, {half}, 31, 0xffffffff;",
                f"add.f32 n{h}, keep, give;",
            ]
    lines += ["shfl.sync.bfly.b32 give, n0, 16, 31, 0xffffffff;", "add.f32 $0, n0, give;"]
    return "{ " + " ".join(lines) + " }"


WARP_SUMS = tl.constexpr(_warp_sums())
WARP_SUMS_REGISTERS = tl.constexpr(",".join(["=f"] + 16 * ["f"]))


@triton.jit
def store_sums_over_lanes(pointer, matrix, lane, BB: tl.constexpr):
    """Store the 16 sums over lanes side by side at `pointer`."""
    if BB == 32 and matrix[0].dtype == tl.float32 and not INTERPRETED:  # the lanes are a whole warp
        sums = tl.inline_asm_elementwise(WARP_SUMS, WARP_SUMS_REGISTERS, matrix, dtype=tl.float32, is_pure=True, pack=1)
        tl.store(pointer + lane, sums, mask=lane < 16)
    else:
        for h in tl.static_range(16):
            # The first lane stores the sum. Triton would have to convert the layout of a tensor without lanes.
            total = tl.broadcast_to(tl.sum(matrix[h], 1, keep_dims=True), matrix[h].shape)
            tl.store(pointer + lane + h, total, mask=lane == 0)
