"""Kernels that combine a child's edges, or what children and parameters got in each window. Dims as in forward.py."""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.edge import inverse
from emcaps.routing.triton_kernels.indices import SIZES, child_of_program, readers, slot_of_child

UNITS = tl.constexpr(4)  # child types or matrices of one program


@triton.jit
def edges_of_child(C, O, TYPES: tl.constexpr, PARENTS: tl.constexpr, BB: tl.constexpr):
    """Offsets of a slot's edges, (TYPES, PARENTS, BB), and which of them exist: PARENTS is a power of 2."""
    type = tl.program_id(1) * TYPES + tl.arange(0, TYPES)[:, None, None]
    o = tl.arange(0, PARENTS)[None, :, None]
    lane = tl.arange(0, BB)[None, None, :]
    return (type * O + o) * BB + lane, (o < O) & (type < C)


@triton.jit
def over_parents(largest, total):
    """The largest log joint of a child and the sum of exp(log joint - largest), from those of its parent types."""
    most = tl.max(largest, 1, keep_dims=True)
    return most, tl.sum(total * tl.exp(largest - most), 1, keep_dims=True)


@triton.jit(do_not_specialize=SIZES)
def assign(
    edge_pointer,
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
    rows,
    columns,
    BY_POSITION: tl.constexpr,
    TYPES: tl.constexpr,
    PARENTS: tl.constexpr,
    BB: tl.constexpr,
):
    """Turn the log joints of children into assignments (7), in place.

    With BY_POSITION the parents of each position compete among themselves.
    """
    DTYPE: tl.constexpr = edge_pointer.dtype.element_ty
    # Below every log joint, and finite, because infinity minus infinity is NaN.
    LOWEST: tl.constexpr = -1.7e308 if tl.float64 == DTYPE else -3.4e38
    _, row, column, block = child_of_program(H, W)
    edges, known = edges_of_child(C, O, TYPES, PARENTS, BB)
    first_v, last_v = readers(row, OH, KH, stride_y)
    first_u, last_u = readers(column, OW, KW, stride_x)
    most = tl.full((TYPES, 1, BB), 0.0, DTYPE)
    per_total = most
    if not BY_POSITION:
        largest = tl.full((TYPES, PARENTS, BB), LOWEST, DTYPE)
        total = tl.zeros((TYPES, PARENTS, BB), DTYPE)
        for v in range(first_v, last_v + 1):
            for u in range(first_u, last_u + 1):
                slot = slot_of_child(row, column, block, v, u, OH, OW, KH, KW, stride_y, stride_x)
                joint = tl.load(edge_pointer + slot * (C * O * BB) + edges, mask=known, other=LOWEST)
                new_largest = tl.maximum(largest, joint)
                total = total * tl.exp(largest - new_largest) + tl.where(known, tl.exp(joint - new_largest), 0.0)
                largest = new_largest
        most, total = over_parents(largest, total)
        per_total = inverse(total)
    for v in range(first_v, last_v + 1):
        for u in range(first_u, last_u + 1):
            slot = slot_of_child(row, column, block, v, u, OH, OW, KH, KW, stride_y, stride_x)
            joint = tl.load(edge_pointer + slot * (C * O * BB) + edges, mask=known, other=LOWEST)
            if BY_POSITION:
                most, total = over_parents(joint, tl.where(known, 1.0, 0.0).to(DTYPE))
                per_total = inverse(total)
            tl.store(edge_pointer + slot * (C * O * BB) + edges, tl.exp(joint - most) * per_total, mask=known)


@triton.jit(do_not_specialize=SIZES)
def assignment_gradients(
    activation_pointer,
    assignment_pointer,
    gradient_pointer,
    child_gradient_pointer,
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
    rows,
    columns,
    BY_POSITION: tl.constexpr,
    TYPES: tl.constexpr,
    PARENTS: tl.constexpr,
    BB: tl.constexpr,
):
    """Compute K_i = sum_j R_ij D_ij (13), which is stored, and turn D_ij into e_ij = r_ij (D_ij - K_i) (14), in place.

    With BY_POSITION each position has a K_i of its own, and their sum is stored.
    """
    DTYPE: tl.constexpr = gradient_pointer.dtype.element_ty
    place, row, column, block = child_of_program(H, W)
    edges, known = edges_of_child(C, O, TYPES, PARENTS, BB)
    type = tl.program_id(1) * TYPES + tl.arange(0, TYPES)[:, None, None]
    child = (place * C + type) * BB + tl.arange(0, BB)[None, None, :]
    activation = tl.load(activation_pointer + child, mask=type < C, other=0.0)
    first_v, last_v = readers(row, OH, KH, stride_y)
    first_u, last_u = readers(column, OW, KW, stride_x)
    total = tl.zeros((TYPES, PARENTS, BB), DTYPE)
    for v in range(first_v, last_v + 1):
        for u in range(first_u, last_u + 1):
            slot = slot_of_child(row, column, block, v, u, OH, OW, KH, KW, stride_y, stride_x) * (C * O * BB)
            assignment = tl.load(assignment_pointer + slot + edges, mask=known, other=0.0)
            total += assignment * tl.load(gradient_pointer + slot + edges, mask=known, other=0.0)
    child_gradient = tl.sum(total, 1, keep_dims=True)
    tl.store(child_gradient_pointer + child, child_gradient, mask=type < C)
    for v in range(first_v, last_v + 1):
        for u in range(first_u, last_u + 1):
            slot = slot_of_child(row, column, block, v, u, OH, OW, KH, KW, stride_y, stride_x) * (C * O * BB)
            assignment = tl.load(assignment_pointer + slot + edges, mask=known, other=0.0)
            gradient = tl.load(gradient_pointer + slot + edges, mask=known, other=0.0)
            if BY_POSITION:
                child_gradient = tl.sum(assignment * gradient, 1, keep_dims=True)
            joint_gradient = assignment * activation * (gradient - child_gradient)
            tl.store(gradient_pointer + slot + edges, joint_gradient, mask=known)


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
    rows,
    columns,
    BB: tl.constexpr,
):
    """Sum the gradients of slots to those of children: pose (B, H, W, I, 16), activation (B, H, W, I), contiguous.

    To the gradients of activations (13) it adds those of the later iterations, which are stored per child.
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
    for t in range(iterations - 1):
        later = child_gradient_pointer + t * child_gradient_step
        activation += tl.load(later + (place * C + types) * BB + lane)
    image = block * BB + lane
    child = ((image * H + row) * W + column) * I
    tl.store(pose_pointer + (child + first) * 16 + element, pose, mask=(first + element // 16 < I) & (image < B))
    tl.store(activation_pointer + child + types, activation, mask=(types < I) & (image < B))


@triton.jit(do_not_specialize=["windows", "matrices", "betas", "parts", "I", "O", "C"])
def sum_parameters(
    window_pointer,
    beta_pointer,
    weight_gradient_pointer,
    beta_gradient_pointer,
    windows,
    matrices,
    betas,
    parts,
    I,
    O,
    C,
    ROWS: tl.constexpr,
):
    """Sum the gradients (17) of UNITS matrices over windows: (windows, K, C, O, 16) to (K, I, O, 16), contiguous.

    The first programs, one for each, sum the gradients of betas: (betas, parts) to (betas,).
    """
    program = tl.program_id(0)
    if program < betas:
        place = tl.arange(0, 1024)
        sums = tl.zeros((1024,), beta_gradient_pointer.dtype.element_ty)
        for start in range(0, parts, 1024):
            part = start + place
            sums += tl.load(beta_pointer + program.to(tl.int64) * parts + part, mask=part < parts, other=0.0)
        tl.store(beta_gradient_pointer + program, tl.sum(sums, 0))
        return
    element = (program - betas) * (16 * UNITS) + tl.arange(0, 16 * UNITS)[None, :]
    matrix = element // 16
    total = tl.zeros((ROWS, 16 * UNITS), weight_gradient_pointer.dtype.element_ty)
    for start in range(0, windows, ROWS):
        window = start + tl.arange(0, ROWS)[:, None]
        source = window_pointer + window.to(tl.int64) * (matrices * 16) + element
        total += tl.load(source, mask=(window < windows) & (matrix < matrices), other=0.0)
    type = matrix // O % C
    result = ((matrix // O // C * I + type) * O + matrix % O) * 16 + element % 16
    known = (type < I) & (matrix < matrices)
    tl.store(weight_gradient_pointer + result, tl.sum(total, 0, keep_dims=True), mask=known)
