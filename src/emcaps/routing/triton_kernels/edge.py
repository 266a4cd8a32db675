"""The arithmetic of one edge, from child i to parent j, in registers. All sweeps are made of these functions.

A 4x4 matrix is a tuple of 16 tensors, element h = 4 row + column, so that each thread holds whole matrices and computes
every sum over h by itself. Numbers in brackets are the equations of README.md in this folder.

Votes are written as explicit multiply-adds. Otherwise the compiler may fuse products and sums differently in different
kernels, and a vote would not have the same bits in all of them.
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
def votes(pose, weight):
    """V = M W (1)."""
    vote = ()
    for i in tl.static_range(4):
        for k in tl.static_range(4):
            value = pose[4 * i] * weight[k]
            for j in tl.static_range(1, 4):
                value = tl.fma(pose[4 * i + j], weight[4 * j + k], value)
            vote = vote + (value,)
    return vote


@triton.jit
def placed(vote, place, rows, columns):
    """The votes of a class layer: the child's scaled position is added to the right-hand column."""
    row = scaled(place // columns, rows, vote[3].dtype)
    column = scaled(place % columns, columns, vote[3].dtype)
    return vote[:3] + (vote[3] + row,) + vote[4:7] + (vote[7] + column,) + vote[8:]


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
def scaled(place, size, DTYPE: tl.constexpr):
    """The scaled position of a row or column, which a class layer adds to votes."""
    return (tl.full((), 0.5, DTYPE) + place) / size
