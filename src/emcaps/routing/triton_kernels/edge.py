"""The arithmetic of one edge, from child i to parent j, in registers. All sweeps are made of these functions.

A 4x4 matrix is a tuple of 16 tensors, element h = 4 row + column, so that each thread holds whole matrices and computes
every sum over h by itself. Numbers in brackets are the equations of README.md in this folder.

Votes and log joints are written as explicit multiply-adds. Otherwise the compiler may fuse products and sums
differently in different kernels, and for log joints of 1e12 the last bit decides whether an assignment is 0 or 1.
"""

import triton
import triton.language as tl

EPSILON = tl.constexpr(1e-9)  # gives a parent without data the pose 0, where 0 / 0 would be NaN


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
    """log a_j N(V; mu, s2) (7), without the constant that all parents share."""
    distance = 0.0
    for i in tl.static_range(4):  # row by row, because shorter chains of additions have smaller errors
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
    """total + dL/dV_ij through the M-step (12)."""
    result = ()
    for h in tl.static_range(16):
        result = result + (total[h] + share * (2 * quadratic[h] * (vote[h] - mean[h]) + linear[h]),)
    return result


@triton.jit
def add_vote_gradient_of_e(total, vote, mean, precision, joint_gradient):
    """total + dL/dV_ij through the E-step (15)."""
    result = ()
    for h in tl.static_range(16):
        result = result + (total[h] - joint_gradient * precision[h] * (vote[h] - mean[h]),)
    return result


@triton.jit
def add_pose_gradient(total, vote_gradient, weight):
    """total + dL/dV W^T, which is dL/dM (16)."""
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
    """x / y, correctly rounded. The operator / may be off by two units in the last place."""
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
    """How much one row or column adds to the votes of a class layer; zero in other layers."""
    return shared / tl.full((), size, DTYPE)


@triton.jit
def scaled(place, per_place):
    """The scaled position of a row or column. Sweeps must agree on votes to the last bit, so all of them use this."""
    return tl.fma(place.to(per_place.dtype) + 0.5, per_place, 0.0)


@triton.jit
def lowest(ROWS: tl.constexpr, COLUMNS: tl.constexpr, DTYPE: tl.constexpr):
    """A number below every log joint. It is finite, because infinity minus infinity is NaN."""
    LOWEST: tl.constexpr = -1.7e308 if tl.float64 == DTYPE else -3.4e38
    return tl.full((ROWS, COLUMNS), LOWEST, DTYPE)
