"""The arithmetic of one edge, child i to parent j, in registers: the pieces that every sweep is made of.

A 4x4 matrix is a tuple of 16 tensors, element h = 4 row + column, so that every thread holds whole matrices and no sum
over h ever leaves it. The numbers in brackets are the equations of README.md beside this file.

Votes and log joints are spelled out in multiply-adds: left to itself the compiler may fuse differently from kernel to
kernel, and beside a log joint of 1e12 the last bit decides whether an assignment is 0 or 1.
"""

import os

import triton
import triton.language as tl

# Fields of a parent's record, (RECORD / 4, BB, 4): 16 means, 16 inverse variances, 16 spreads (variances without the
# floor), then scalars.
MEAN = tl.constexpr(0)
PRECISION = tl.constexpr(16)
SPREAD = tl.constexpr(32)
LOG_PEAK = tl.constexpr(48)  # log of a_j times the density at the mean, without the constant (2 pi)^-8
DATA = tl.constexpr(49)  # S_j
LOGIT = tl.constexpr(50)
UNIT_COST = tl.constexpr(51)  # the cost of one unit of data
RECORD = tl.constexpr(52)

# Fields of a parent's adjoint record, (ADJOINT / 4, BB, 4): what a unit of r_ij and V_ij change in the loss through
# this parent's statistics.
QUADRATIC = tl.constexpr(0)  # A_jh
LINEAR = tl.constexpr(16)  # B_jh
CONSTANT = tl.constexpr(32)  # c_j
ADJOINT = tl.constexpr(36)  # padded to whole fours

# Arguments that would otherwise have a kernel compiled anew for layers that have a 1 or a multiple of 16 there.
SIZES = ["H", "W", "C", "OH", "OW", "O", "KH", "KW", "stride_y", "stride_x", "shared", "by_position"]

EPSILON = tl.constexpr(1e-9)  # keeps a parent without data at pose 0 instead of 0 / 0
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

# Four numbers that lie side by side, in one load: float32 as they are, bfloat16 with zeros behind.
FOUR_FLOATS = tl.constexpr("ld.global.v4.f32 {$0, $1, $2, $3}, [$4];")
FOUR_BFLOATS = tl.constexpr(
    "{ .reg .b32 low, high; ld.global.v2.b32 {low, high}, [$4]; shl.b32 $0, low, 16; and.b32 $1, low, 0xffff0000; "
    "shl.b32 $2, high, 16; and.b32 $3, high, 0xffff0000; }"
)


@triton.jit
def load_four(pointer, DTYPE: tl.constexpr):
    """The four numbers at `pointer`, which has to be a multiple of four of them."""
    KIND: tl.constexpr = pointer.dtype.element_ty
    if INTERPRETED or tl.float32 != DTYPE:
        a = tl.load(pointer).to(DTYPE)
        b = tl.load(pointer + 1).to(DTYPE)
        c = tl.load(pointer + 2).to(DTYPE)
        d = tl.load(pointer + 3).to(DTYPE)
    else:
        FOUR: tl.constexpr = FOUR_FLOATS if tl.float32 == KIND else FOUR_BFLOATS
        TYPES: tl.constexpr = (tl.float32, tl.float32, tl.float32, tl.float32)
        a, b, c, d = tl.inline_asm_elementwise(FOUR, "=f,=f,=f,=f,l", [pointer], dtype=TYPES, is_pure=False, pack=1)
    return a, b, c, d


STORE_FOUR = tl.constexpr(
    "{ .reg .pred known; setp.ne.s32 known, $6, 0; @known st.global.v4.f32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0; }"
)


@triton.jit
def store_four(pointer, four, known):
    """Four numbers side by side at `pointer`, where `known`."""
    if INTERPRETED or tl.float32 != pointer.dtype.element_ty:
        for k in tl.static_range(4):
            tl.store(pointer + k, four[k], mask=known)
    else:
        operands = [pointer.to(tl.int64), four[0], four[1], four[2], four[3], known.to(tl.int32)]
        tl.inline_asm_elementwise(STORE_FOUR, "=r,l,f,f,f,f,r", operands, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def field(FIELD: tl.constexpr, BB: tl.constexpr):
    """Where a field of a record lies: four fields side by side for each image of a block."""
    return FIELD // 4 * (4 * BB) + FIELD % 4


@triton.jit
def load_field(record, FIELD: tl.constexpr, BB: tl.constexpr, DTYPE: tl.constexpr):
    """The first of four fields. All four are loaded: by itself one would be loaded in an order that suits no other."""
    first, _, _, _ = load_four(record + field(FIELD, BB), DTYPE)
    return first


@triton.jit
def load_matrix(pointer, STEP: tl.constexpr, DTYPE: tl.constexpr):
    """16 tensors from memory, whose rows of four are STEP apart."""
    matrix = ()
    for row in tl.static_range(4):
        matrix = matrix + load_four(pointer + row * STEP, DTYPE)
    return matrix


PREFETCH = tl.constexpr(
    "{ .reg .pred wanted; setp.ne.s32 wanted, $2, 0; @wanted prefetch.global.L1 [$1]; mov.b32 $0, 0; }"
)


@triton.jit
def prefetch(pointer, wanted):
    """Bring the lines of 128 bytes at `pointer` to the first-level cache, where `wanted`; it takes no registers."""
    if not INTERPRETED:
        operands = [pointer.to(tl.int64), wanted.to(tl.int32)]
        tl.inline_asm_elementwise(PREFETCH, "=r,l,r", operands, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def prefetch_parent(record, adjoint, BB: tl.constexpr):
    """A parent's record, all but its spreads, and its adjoint record: 128 threads, 72 lines."""
    if BB == 32:  # a field of 32 images is a line of float32
        line = tl.arange(0, 128)
        in_record = tl.where(line < SPREAD, line, line + LOG_PEAK - SPREAD)
        own = SPREAD + 4
        pointer = tl.where(line < own, record + in_record * BB, adjoint + (line - own) * BB)
        prefetch(pointer, line < own + ADJOINT)


@triton.jit
def store_matrix(pointer, matrix, STEP: tl.constexpr):
    for h in tl.static_range(16):
        tl.store(pointer + h * STEP, matrix[h])


@triton.jit
def zero_matrix(ROWS: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr):
    matrix = ()
    for _ in tl.static_range(16):
        matrix = matrix + (tl.zeros((ROWS, COLUMNS), DTYPE),)
    return matrix


@triton.jit
def votes(pose, weight, row, column):
    """V = M W (1); a class layer adds the child's scaled position, (row, column), to the right-hand column."""
    vote = ()
    for i in tl.static_range(4):
        for k in tl.static_range(4):
            value = pose[4 * i] * weight[k]
            for j in tl.static_range(1, 4):
                value = tl.fma(pose[4 * i + j], weight[4 * j + k], value)
            if i == 0 and k == 3:
                value += row
            if i == 1 and k == 3:
                value += column
            vote = vote + (value,)
    return vote


@triton.jit
def log_joint(vote, mean, precision, log_peak):
    """log a_j N(V; mu, s2) (7), up to the constant that every parent shares."""
    distance = 0.0
    for i in tl.static_range(4):  # a row at a time: shorter chains of additions, and smaller errors
        difference = vote[4 * i] - mean[4 * i]
        row = difference * difference * precision[4 * i]
        for k in tl.static_range(1, 4):
            difference = vote[4 * i + k] - mean[4 * i + k]
            row = tl.fma(difference * difference, precision[4 * i + k], row)
        distance += row
    return tl.fma(distance, -0.5, log_peak)


@triton.jit
def share_gradient(vote, mean, quadratic, linear, constant):
    """D_ij = dL/dr_ij (11)."""
    value = constant
    for i in tl.static_range(4):
        difference = vote[4 * i] - mean[4 * i]
        row = difference * (quadratic[4 * i] * difference + linear[4 * i])
        for k in tl.static_range(1, 4):
            difference = vote[4 * i + k] - mean[4 * i + k]
            row += difference * (quadratic[4 * i + k] * difference + linear[4 * i + k])
        value += row
    return value


@triton.jit
def add_vote_gradient_of_m(total, vote, mean, quadratic, linear, share):
    """dL/dV_ij through the M-step (12), added up."""
    result = ()
    for h in tl.static_range(16):
        result = result + (total[h] + share * (2 * quadratic[h] * (vote[h] - mean[h]) + linear[h]),)
    return result


@triton.jit
def add_vote_gradient_of_e(total, vote, mean, precision, joint_gradient):
    """dL/dV_ij through the E-step (15), added up."""
    result = ()
    for h in tl.static_range(16):
        result = result + (total[h] - joint_gradient * precision[h] * (vote[h] - mean[h]),)
    return result


@triton.jit
def add_pose_gradient(total, vote_gradient, weight):
    """dL/dM += dL/dV W^T (16)."""
    result = ()
    for i in tl.static_range(4):
        for j in tl.static_range(4):
            value = total[4 * i + j]
            for k in tl.static_range(4):
                value += vote_gradient[4 * i + k] * weight[4 * j + k]
            result = result + (value,)
    return result


def _warp_sums() -> str:
    """PTX: 16 registers in, one out; lane l gets the sum over the warp of register l % 16.

    In each of four rounds a lane passes half of its numbers to a partner and adds what it gets to the other half: 16
    exchanges in all, where a sum of its own for each register would take 80.
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
    """The 16 sums over lanes, side by side at `pointer`."""
    if BB == 32 and matrix[0].dtype == tl.float32 and not INTERPRETED:  # the lanes are a whole warp
        sums = tl.inline_asm_elementwise(WARP_SUMS, WARP_SUMS_REGISTERS, matrix, dtype=tl.float32, is_pure=True, pack=1)
        tl.store(pointer + lane, sums, mask=lane < 16)
    else:
        for h in tl.static_range(16):
            # Written by the first lane, from where the sum is: a tensor without lanes would have to be laid out anew.
            total = tl.broadcast_to(tl.sum(matrix[h], 1, keep_dims=True), matrix[h].shape)
            tl.store(pointer + lane + h, total, mask=lane == 0)


@triton.jit
def quotient(x, y):
    """x / y, correctly rounded: the usual quotient may be off by two units in the last place."""
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)
    return x / y


@triton.jit
def inverse(x):
    return quotient(tl.full(x.shape, 1.0, x.dtype), x)


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def per_place(size, shared, DTYPE: tl.constexpr):
    """What a row or column counts in a class layer's votes; nothing elsewhere."""
    return shared / tl.full((), size, DTYPE)


@triton.jit
def scaled(place, per_place):
    """The scaled position of a row or column. Always by this product: sweeps that differ in a bit disagree on votes."""
    return tl.fma(place.to(per_place.dtype) + 0.5, per_place, 0.0)


@triton.jit
def lowest(ROWS: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr):
    """Below every log joint, but finite: infinity minus infinity is not a number."""
    LOWEST: tl.constexpr = -1.7e308 if tl.float64 == DTYPE else -3.4e38
    return tl.full((ROWS, COLUMNS), LOWEST, DTYPE)


@triton.jit
def readers(place, parents, kernel, stride):
    """First and last parent, along one axis, whose window covers a place; first > last where none does."""
    first = tl.maximum((place - kernel + stride) // stride, 0)
    last = tl.minimum(place // stride, parents - 1)
    return first, last
