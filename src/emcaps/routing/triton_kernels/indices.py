"""Which parents, slots or children a program works on, and the indices of their data.

Dims and packed tensors as in forward.py.
"""

import triton
import triton.language as tl

# The sizes of a layer, which every sweep takes. Triton would compile a kernel anew for layers that have a 1 or a
# multiple of 16 in one of them, unless told not to.
SIZES = ["H", "W", "C", "OH", "OW", "O", "KH", "KW", "stride_y", "stride_x", "shared", "by_position"]


@triton.jit
def parents_of_program(OH, OW, O, PARENTS: tl.constexpr):
    """For sweeps through the children of a position: its index, v, u and block, and the program's first parent type."""
    program = tl.program_id(0)
    groups = tl.cdiv(O, PARENTS)
    position = program // groups
    u = position % OW
    v = position // OW % OH
    block = (position // OW // OH).to(tl.int64)
    return position, v, u, block, program % groups * PARENTS


@triton.jit
def slots_of_program(C, OH, OW, KH, KW, stride_y, stride_x, CHILDREN: tl.constexpr):
    """For sweeps through the parents of a position: the slots that the program is for.

    In order: their child types, their index without the type, ky, kx, the position of the parents, row and column of
    the children, block.
    """
    program = tl.program_id(0)
    groups = C // CHILDREN
    types = program % groups * CHILDREN + tl.arange(0, CHILDREN)[:, None]
    slot = program // groups
    kx = slot % KW
    ky = slot // KW % KH
    position = slot // KW // KH
    row = position // OW % OH * stride_y + ky
    column = position % OW * stride_x + kx
    block = (position // OW // OH).to(tl.int64)
    return types, slot, ky, kx, position, row, column, block


@triton.jit
def child_of_program(H, W):
    """For kernels that work on one child position: its index, row, column and block."""
    place = tl.program_id(0)
    column = place % W
    row = place // W % H
    block = (place // W // H).to(tl.int64)
    return place, row, column, block


@triton.jit
def next_child(ky, kx, first_type, KH, KW, C, SLICES: tl.constexpr):
    """The next child types of a window, offset by offset. What follows the last is valid, but must not be used."""
    first_type += SLICES
    done = (first_type >= C).to(tl.int32)
    first_type -= done * C
    kx += done
    done = (kx >= KW).to(tl.int32)
    kx -= done * KW
    ky += done
    return tl.minimum(ky, KH - 1), kx, first_type


@triton.jit
def locate(ky, kx, types, v, u, block, position, o, sizes):
    """Children in the window at (v, u): their row and column, then the indices of child, normaliser and matrix.

    `sizes` are those of SIZES.
    """
    H, W, C, _, _, O, KH, KW, stride_y, stride_x, shared, by_position = sizes
    row = v * stride_y + ky
    column = u * stride_x + kx
    place = (block * H + row) * W + column
    slot = tl.where(by_position != 0, (position.to(tl.int64) * KH + ky) * KW + kx, place)
    matrix = ((ky * KW + kx) * (1 - shared) * O + o).to(tl.int64) * (C * 16) + types * 16
    return row, column, place * C + types, slot * C + types, matrix


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
