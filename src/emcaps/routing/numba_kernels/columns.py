"""Columns, which are tuples of four vectors: their arithmetic, votes, and memory for them."""

import numpy as np

from emcaps.routing.numba_kernels.layout import LINE, compiled, inlined
from emcaps.routing.numba_kernels.vectors import LANES, fetch, load, store, zeros


@inlined
def column(array, start):
    """Load a column."""
    return (
        load(array, start),
        load(array, start + LANES),
        load(array, start + 2 * LANES),
        load(array, start + 3 * LANES),
    )


@inlined
def put(array, start, values):
    """Store a column."""
    store(array, start, values[0])
    store(array, start + LANES, values[1])
    store(array, start + 2 * LANES, values[2])
    store(array, start + 3 * LANES, values[3])


@inlined
def zero_column(array):
    """A column of zeros."""
    return zeros(array), zeros(array), zeros(array), zeros(array)


@inlined
def plus(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@inlined
def minus(a, b):
    return a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3]


@inlined
def times(a, b):
    return a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]


@inlined
def scaled(factor, a):
    """A column times one vector."""
    return factor * a[0], factor * a[1], factor * a[2], factor * a[3]


@inlined
def divided(a, divisor):
    return a[0] / divisor, a[1] / divisor, a[2] / divisor, a[3] / divisor


@inlined
def sum_over_rows(a):
    """The sum of a column's four vectors."""
    return (a[0] + a[1]) + (a[2] + a[3])


@inlined
def outer(a, b):
    """The products of each vector of one column with each of another: sixteen vectors."""
    return (
        a[0] * b[0],
        a[0] * b[1],
        a[0] * b[2],
        a[0] * b[3],
        a[1] * b[0],
        a[1] * b[1],
        a[1] * b[2],
        a[1] * b[3],
        a[2] * b[0],
        a[2] * b[1],
        a[2] * b[2],
        a[2] * b[3],
        a[3] * b[0],
        a[3] * b[1],
        a[3] * b[2],
        a[3] * b[3],
    )


@inlined
def plus_16(a, b):
    return (
        a[0] + b[0],
        a[1] + b[1],
        a[2] + b[2],
        a[3] + b[3],
        a[4] + b[4],
        a[5] + b[5],
        a[6] + b[6],
        a[7] + b[7],
        a[8] + b[8],
        a[9] + b[9],
        a[10] + b[10],
        a[11] + b[11],
        a[12] + b[12],
        a[13] + b[13],
        a[14] + b[14],
        a[15] + b[15],
    )


@inlined
def matrix_times(pose, child, a):
    """M times a column."""
    m = 16 * child
    return (
        pose[m] * a[0] + pose[m + 1] * a[1] + pose[m + 2] * a[2] + pose[m + 3] * a[3],
        pose[m + 4] * a[0] + pose[m + 5] * a[1] + pose[m + 6] * a[2] + pose[m + 7] * a[3],
        pose[m + 8] * a[0] + pose[m + 9] * a[1] + pose[m + 10] * a[2] + pose[m + 11] * a[3],
        pose[m + 12] * a[0] + pose[m + 13] * a[1] + pose[m + 14] * a[2] + pose[m + 15] * a[3],
    )


@inlined
def transposed_matrix_times(pose, child, a):
    """M^T times a column."""
    m = 16 * child
    return (
        pose[m] * a[0] + pose[m + 4] * a[1] + pose[m + 8] * a[2] + pose[m + 12] * a[3],
        pose[m + 1] * a[0] + pose[m + 5] * a[1] + pose[m + 9] * a[2] + pose[m + 13] * a[3],
        pose[m + 2] * a[0] + pose[m + 6] * a[1] + pose[m + 10] * a[2] + pose[m + 14] * a[3],
        pose[m + 3] * a[0] + pose[m + 7] * a[1] + pose[m + 11] * a[2] + pose[m + 15] * a[3],
    )


@inlined
def votes(pose, child, matrices, matrix, shift_row, shift_column):
    """A column of V = M W (1). A class layer adds the child's scaled position to the last column."""
    found = matrix_times(pose, child, column(matrices, matrix))
    return found[0] + shift_row, found[1] + shift_column, found[2], found[3]


@compiled
def aligned_memory(count, like):
    """Memory that begins where a cache line begins: a vector that lies across two lines takes two loads."""
    room = np.empty(count + LANES, like.dtype)
    skipped = -room.ctypes.data % LINE // room.itemsize
    return room[skipped : skipped + count]


@compiled
def fetch_all(array):
    """Bring an array into the cache before it is needed."""
    for start in range(0, array.shape[0], LINE // array.itemsize):
        fetch(array, start)
