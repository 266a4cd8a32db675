"""The kernel that converts a layer's inputs to packed tensors, where BB images lie side by side.

Dims as in forward.py.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.indices import SIZES, child_of_program, readers

UNITS = tl.constexpr(4)  # child types of one program
MATRICES = tl.constexpr(64)  # matrices of one program


@triton.jit(do_not_specialize=[*SIZES, "B", "I", "places", "matrices", "groups"])
def pack(
    pose_pointer,
    activation_pointer,
    weight_pointer,
    packed_pose_pointer,
    packed_activation_pointer,
    first_share_pointer,
    packed_weight_pointer,
    arrived_pointer,
    pose_b,
    pose_y,
    pose_x,
    pose_i,
    pose_h,
    activation_b,
    activation_y,
    activation_x,
    activation_i,
    B,
    I,
    places,
    matrices,
    groups,
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
    """Pack pose (B, H, W, I, 16) and activation (B, H, W, I), of any strides, and weight (K, I, O, 16), contiguous.

    Images and types of padding get zeros. The first shares are the activations times the even assignments (1), which
    depend on the position alone. Programs beyond the last place pack matrices, (K, C, O, 16). If there is a count of
    parts that have arrived, for each of the groups of parents, all of them are set to zero.
    """
    if arrived_pointer is not None:
        program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        for group in range(program, groups, tl.num_programs(0) * tl.num_programs(1)):
            tl.store(arrived_pointer + group, 0)
    if tl.program_id(0) >= places:
        chunk = (tl.program_id(0) - places) * tl.num_programs(1) + tl.program_id(1)
        element = chunk * (16 * MATRICES) + tl.arange(0, 16 * MATRICES)
        matrix = element // 16
        type = matrix // O % C
        source = ((matrix // O // C * I + type) * O + matrix % O) * 16 + element % 16
        value = tl.load(weight_pointer + source, mask=(type < I) & (matrix < matrices), other=0.0)
        tl.store(packed_weight_pointer + element, value, mask=matrix < matrices)
        return
    place, row, column, block = child_of_program(H, W)
    first = tl.program_id(1) * UNITS
    lane = tl.arange(0, BB)[None, :]
    image = block * BB + lane
    # Where the child lies in the tensors: H and W are not their height and width in a class layer.
    y = (row * W + column) // columns
    x = (row * W + column) % columns
    element = tl.arange(0, 16 * UNITS)[:, None]
    type = first + element // 16
    source = (
        pose_pointer
        + y.to(tl.int64) * pose_y
        + x.to(tl.int64) * pose_x
        + image * pose_b
        + type.to(tl.int64) * pose_i
        + element % 16 * pose_h
    )
    value = tl.load(source, mask=(type < I) & (image < B), other=0.0)
    packed = ((place * C + first) * 16 + element // 4 * 4) * BB + lane * 4 + element % 4
    tl.store(packed_pose_pointer + packed, value)

    type = first + tl.arange(0, UNITS)[:, None]
    source = (
        activation_pointer
        + y.to(tl.int64) * activation_y
        + x.to(tl.int64) * activation_x
        + image * activation_b
        + type.to(tl.int64) * activation_i
    )
    value = tl.load(source, mask=(type < I) & (image < B), other=0.0)
    first_v, last_v = readers(row, OH, KH, stride_y)
    first_u, last_u = readers(column, OW, KW, stride_x)
    parents = tl.maximum((last_v - first_v + 1) * (last_u - first_u + 1) * O, 1)
    tl.store(packed_activation_pointer + (place * C + type) * BB + lane, value)
    tl.store(first_share_pointer + (place * C + type) * BB + lane, value / parents)
