"""Which parents, slots or children a program works on, and the indices of their data.

Dims and packed tensors as in forward.py.
"""

import triton
import triton.language as tl

# The sizes of a layer, which every sweep takes. Triton would compile a kernel anew for layers that have a 1 or a
# multiple of 16 in one of them, unless told not to.
SIZES = ["H", "W", "C", "OH", "OW", "O", "KH", "KW", "stride_y", "stride_x", "rows", "columns"]
"""A class layer is one window over a single row, which has all children of the grid of `rows` by `columns`."""


@triton.jit
def parents_of_program(OH, OW, O, PARENTS: tl.constexpr):
    """For sweeps through the children of a position: its index, v, u and block, and the program's first parent type."""
    program = tl.program_id(0)
    groups = tl.cdiv(O, PARENTS)
    position = program // groups
    u = position % OW
    v = position // OW % OH
    block = (position // OW // OH).to(tl.int64)
    return position.to(tl.int64), v, u, block, program % groups * PARENTS


@triton.jit
def rows_of_program(first_parent, O, SLICES: tl.constexpr, PARENTS: tl.constexpr):
    """The slice of the children and the parent type of each row of a tile.

    Rows beyond the last parent type repeat it: what they compute is the same, bit by bit.
    """
    rows = tl.arange(0, SLICES * PARENTS)[:, None]
    return rows // PARENTS, tl.minimum(first_parent + rows % PARENTS, O - 1)


@triton.jit
def children_of_slices(n, slice, C, count, SHARED: tl.constexpr, SLICES: tl.constexpr):
    """The children that the slices have at step n of a run of `count`, and their matrices, both counted from its first.

    A step beyond the last repeats it. In a class layer matrices are shared over positions, and the last step may have
    fewer children than there are slices: then slices without one repeat the last child.
    """
    if SHARED:
        child = tl.minimum(n + slice, count - 1)
        return child, child % C
    child = tl.minimum(n, count - SLICES) + slice
    return child, child


@triton.jit
def slots_of_program(C, OH, OW, KH, KW, stride_y, stride_x, GROUPS: tl.constexpr, CHILDREN: tl.constexpr):
    """For sweeps through the parents of a position: the slots that the program is for.

    In order: the first of CHILDREN child types of each of the GROUPS rows, the slots' index without the type, ky, kx,
    the position of the parents, row and column of the children, block.
    """
    program = tl.program_id(0)
    programs = C // (GROUPS * CHILDREN)
    types = (program % programs * GROUPS + tl.arange(0, GROUPS)[:, None]) * CHILDREN
    slot = program // programs
    kx = slot % KW
    ky = slot // KW % KH
    position = slot // KW // KH
    row = position // OW % OH * stride_y + ky
    column = position % OW * stride_x + kx
    block = (position // OW // OH).to(tl.int64)
    return types, slot.to(tl.int64), ky, kx, position.to(tl.int64), row, column, block


@triton.jit
def child_of_program(H, W):
    """For kernels that work on one child position: its index, row, column and block."""
    place = tl.program_id(0)
    column = place % W
    row = place // W % H
    block = (place // W // H).to(tl.int64)
    return place.to(tl.int64), row, column, block


@triton.jit
def readers(place, parents, kernel, stride):
    """The first and last parent, along one axis, whose window covers a place; first > last where none does."""
    first = tl.maximum((place - kernel + stride) // stride, 0)
    last = tl.minimum(place // stride, parents - 1)
    return first, last


@triton.jit
def slot_of_child(row, column, block, v, u, OH, OW, KH, KW, stride_y, stride_x):
    """The slot, without its type, that a child has in the window at (v, u)."""
    return (((block * OH + v) * OW + u) * KH + row - v * stride_y) * KW + column - u * stride_x
