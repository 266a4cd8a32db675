"""The arithmetic of one edge, child i to parent j, in registers: the pieces that every sweep is made of.

A 4x4 matrix is a tuple of 16 tensors, element h = 4 row + column, so that every thread holds whole matrices and no sum
over h ever leaves it. The numbers in brackets are the equations of README.md beside this file.

Votes and log joints are spelled out in multiply-adds: left to itself the compiler may fuse differently from kernel to
kernel, and beside a log joint of 1e12 the last bit decides whether an assignment is 0 or 1.
"""

import triton
import triton.language as tl

EPSILON = tl.constexpr(1e-9)  # keeps a parent without data at pose 0 instead of 0 / 0


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
