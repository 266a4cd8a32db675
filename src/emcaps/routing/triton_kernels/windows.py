"""Kernels that combine what children and matrices got in each window. Dims as in forward.py."""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.edge import inverse, lowest
from emcaps.routing.triton_kernels.indices import SIZES, child_of_program, readers, slot_of_child

UNITS = tl.constexpr(4)  # child types of one program


@triton.jit(do_not_specialize=SIZES)
def gather_normalisers(
    slot_pointer,
    child_pointer,
    H,
    W,
    C,
    OH,
    OW,
    O,
    KH,
    KW,
    stride_y,
    stride_x,
    shared,
    by_position,
    BB: tl.constexpr,
):
    """Compute the denominator of (7) over all parents of a child from those of its slots.

    It is stored as the largest log joint and 1 / the sum of exp(log joint - largest).
    """
    DTYPE: tl.constexpr = child_pointer.dtype.element_ty
    place, row, column, block = child_of_program(H, W)
    types = tl.program_id(1) * UNITS + tl.arange(0, UNITS)[:, None]
    lane = tl.arange(0, BB)[None, :]
    first_v, last_v = readers(row, OH, KH, stride_y)
    first_u, last_u = readers(column, OW, KW, stride_x)
    largest = lowest(UNITS, BB, DTYPE)
    total = tl.zeros((UNITS, BB), DTYPE)
    for v in range(first_v, last_v + 1):
        for u in range(first_u, last_u + 1):
            slot = slot_of_child(row, column, block, v, u, OH, OW, KH, KW, stride_y, stride_x)
            part = slot_pointer + (slot * C + types) * (2 * BB) + lane
            part_largest = tl.load(part)
            new_largest = tl.maximum(largest, part_largest)
            part_total = tl.load(part + BB) * tl.exp(part_largest - new_largest)
            total = total * tl.exp(largest - new_largest) + part_total
            largest = new_largest
    result = child_pointer + (place.to(tl.int64) * C + types) * (2 * BB) + lane
    tl.store(result, largest)
    tl.store(result + BB, inverse(total))


@triton.jit(do_not_specialize=SIZES)
def gather_sums(
    slot_pointer,
    child_pointer,
    H,
    W,
    C,
    OH,
    OW,
    O,
    KH,
    KW,
    stride_y,
    stride_x,
    shared,
    by_position,
    BB: tl.constexpr,
):
    """Sum over the slots of each child; a slot has BB numbers."""
    DTYPE: tl.constexpr = child_pointer.dtype.element_ty
    place, row, column, block = child_of_program(H, W)
    types = tl.program_id(1) * UNITS + tl.arange(0, UNITS)[:, None]
    lane = tl.arange(0, BB)[None, :]
    first_v, last_v = readers(row, OH, KH, stride_y)
    first_u, last_u = readers(column, OW, KW, stride_x)
    total = tl.zeros((UNITS, BB), DTYPE)
    for v in range(first_v, last_v + 1):
        for u in range(first_u, last_u + 1):
            slot = slot_of_child(row, column, block, v, u, OH, OW, KH, KW, stride_y, stride_x)
            total += tl.load(slot_pointer + (slot * C + types) * BB + lane)
    tl.store(child_pointer + (place.to(tl.int64) * C + types) * BB + lane, total)


@triton.jit(do_not_specialize=[*SIZES, "child_gradient_step", "iterations", "B", "I"])
def gather_gradients(
    slot_pose_pointer,
    slot_activation_pointer,
    child_gradient_pointer,
    pose_pointer,
    activation_pointer,
    child_gradient_step: tl.int64,
    iterations,
    B,
    I,
    H,
    W,
    C,
    OH,
    OW,
    O,
    KH,
    KW,
    stride_y,
    stride_x,
    shared,
    by_position,
    BB: tl.constexpr,
):
    """Sum the gradients of slots to those of children: pose (B, H, W, I, 16), activation (B, H, W, I), contiguous.

    To the gradients of activations (13) it adds those of the later iterations, which are stored per child or, where
    only types compete, per slot.
    """
    DTYPE: tl.constexpr = pose_pointer.dtype.element_ty
    place, row, column, block = child_of_program(H, W)
    first = tl.program_id(1) * UNITS
    element = tl.arange(0, 16 * UNITS)[:, None]
    types = first + tl.arange(0, UNITS)[:, None]
    lane = tl.arange(0, BB)[None, :]
    first_v, last_v = readers(row, OH, KH, stride_y)
    first_u, last_u = readers(column, OW, KW, stride_x)
    pose = tl.zeros((16 * UNITS, BB), DTYPE)
    activation = tl.zeros((UNITS, BB), DTYPE)
    for v in range(first_v, last_v + 1):
        for u in range(first_u, last_u + 1):
            slot = slot_of_child(row, column, block, v, u, OH, OW, KH, KW, stride_y, stride_x)
            pose += tl.load(slot_pose_pointer + ((slot * C + first) * 16 + element) * BB + lane)
            activation += tl.load(slot_activation_pointer + (slot * C + types) * BB + lane)
            if by_position:
                for t in range(iterations - 1):
                    later = child_gradient_pointer + t * child_gradient_step
                    activation += tl.load(later + (slot * C + types) * BB + lane)
    if by_position == 0:
        for t in range(iterations - 1):
            later = child_gradient_pointer + t * child_gradient_step
            activation += tl.load(later + (place.to(tl.int64) * C + types) * BB + lane)
    image = block * BB + lane
    child = ((image * H + row) * W + column) * I
    tl.store(pose_pointer + (child + first) * 16 + element, pose, mask=(first + element // 16 < I) & (image < B))
    tl.store(activation_pointer + child + types, activation, mask=(types < I) & (image < B))


@triton.jit(do_not_specialize=["windows", "kernels", "I", "O", "C"])
def sum_matrices(window_pointer, weight_gradient_pointer, windows, kernels, I, O, C, ROWS: tl.constexpr):
    """Sum the gradients (17) of UNITS matrices over windows: (windows, K, O, C, 16) to (K, I, O, 16), contiguous."""
    program = tl.program_id(0)
    first = program % (C // UNITS) * UNITS
    o = program // (C // UNITS) % O
    kernel = (program // (C // UNITS) // O).to(tl.int64)
    element = tl.arange(0, 16 * UNITS)[None, :]
    types = first + element // 16
    source = window_pointer + ((kernel * O + o) * C + first) * 16 + element
    total = tl.zeros((ROWS, 16 * UNITS), weight_gradient_pointer.dtype.element_ty)
    for start in range(0, windows, ROWS):
        window = start + tl.arange(0, ROWS)[:, None]
        total += tl.load(source + window.to(tl.int64) * kernels * (O * 16 * C), mask=window < windows, other=0.0)
    result = ((kernel * I + types) * O + o) * 16 + element % 16
    tl.store(weight_gradient_pointer + result, tl.sum(total, 0, keep_dims=True), mask=types < I)
