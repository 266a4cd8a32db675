"""Tables of the windows: which children a position reads, where their matrices are, how many parents read a child."""

import numpy as np

from emcaps.routing.numba_kernels.layout import COLUMN, compiled


@compiled
def child_indices(height, width, child_types, sizes):
    """(P, S): the index of the child in each slot."""
    rows, columns, _, kernel_rows, kernel_columns, down, right, _, _ = sizes
    result = np.empty((rows * columns, kernel_rows * kernel_columns * child_types), np.int64)
    for p in range(rows * columns):
        top, left = p // columns * down, p % columns * right
        slot = 0
        for ky in range(kernel_rows):
            for kx in range(kernel_columns):
                for c in range(child_types):
                    result[p, slot] = ((top + ky) * width + left + kx) * child_types + c
                    slot += 1
    return result


@compiled
def matrix_starts(slots, child_types, shared):
    """(S,): where the matrix of each slot begins in a column of all matrices. A class layer's positions share them."""
    result = np.empty(slots, np.int64)
    for s in range(slots):
        result[s] = (s % child_types if shared else s) * COLUMN
    return result


@compiled
def shifts(height, width, child_types, slots, shared, like):
    """(2, 4, S): what is added to rows 0 and 1 of a slot's votes, by column. It is zero but in a class layer's last."""
    result = np.zeros((2, 4, slots), like.dtype)
    if shared == 2:
        for s in range(slots):
            place = s // child_types
            result[0, 3, s] = (place // width + 0.5) / height
            result[1, 3, s] = (place % width + 0.5) / width
    return result


@compiled
def even_assignments(height, width, child_types, sizes, like):
    """1 / the number of parents that read each child (1); 1 where none does."""
    rows, columns, parents, kernel_rows, kernel_columns, down, right, _, _ = sizes
    result = np.empty(height * width * child_types, like.dtype)
    for y in range(height):
        vertical = min(y // down, rows - 1) - max((y - kernel_rows + down) // down, 0) + 1
        for x in range(width):
            horizontal = min(x // right, columns - 1) - max((x - kernel_columns + right) // right, 0) + 1
            readers = max(vertical, 0) * max(horizontal, 0) * parents
            for c in range(child_types):
                result[(y * width + x) * child_types + c] = 1 / max(readers, 1)
    return result


@compiled
def window_tables(grid, sizes, like):
    """All four tables: children of slots, even assignments, starts of matrices, shifts. grid is H, W, C."""
    height, width, child_types = grid
    shared = sizes[7]
    children = child_indices(height, width, child_types, sizes)
    slots = children.shape[1]
    return (
        children,
        even_assignments(height, width, child_types, sizes, like),
        matrix_starts(slots, child_types, shared),
        shifts(height, width, child_types, slots, shared, like),
    )
