"""Kernels that convert a layer's inputs to packed tensors, where BB images lie side by side, and records to outputs.

Dims as in forward.py.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.indices import SIZES, child_of_program, readers
from emcaps.routing.triton_kernels.records import LOGIT, MEAN, RECORD, field

UNITS = tl.constexpr(4)  # child types of one program


@triton.jit(do_not_specialize=[*SIZES, "B", "I"])
def pack_children(
    pose_pointer,
    activation_pointer,
    packed_pose_pointer,
    packed_activation_pointer,
    first_share_pointer,
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
    """Pack pose (B, H, W, I, 16) and activation (B, H, W, I), of any strides; images and types of padding get zeros.

    The first shares are the activations times the even assignments (1), which depend on the position alone.
    """
    place, row, column, block = child_of_program(H, W)
    first = tl.program_id(1) * UNITS
    lane = tl.arange(0, BB)[None, :]
    image = block * BB + lane
    element = tl.arange(0, 16 * UNITS)[:, None]
    type = first + element // 16
    source = (
        pose_pointer
        + row.to(tl.int64) * pose_y
        + column.to(tl.int64) * pose_x
        + image * pose_b
        + type.to(tl.int64) * pose_i
        + element % 16 * pose_h
    )
    value = tl.load(source, mask=(type < I) & (image < B), other=0.0)
    packed = ((place.to(tl.int64) * C + first) * 16 + element // 4 * 4) * BB + lane * 4 + element % 4
    tl.store(packed_pose_pointer + packed, value)

    type = first + tl.arange(0, UNITS)[:, None]
    source = (
        activation_pointer
        + row.to(tl.int64) * activation_y
        + column.to(tl.int64) * activation_x
        + image * activation_b
        + type.to(tl.int64) * activation_i
    )
    value = tl.load(source, mask=(type < I) & (image < B), other=0.0)
    first_v, last_v = readers(row, OH, KH, stride_y)
    first_u, last_u = readers(column, OW, KW, stride_x)
    parents = tl.maximum((last_v - first_v + 1) * (last_u - first_u + 1) * O, 1)
    tl.store(packed_activation_pointer + (place.to(tl.int64) * C + type) * BB + lane, value)
    tl.store(first_share_pointer + (place.to(tl.int64) * C + type) * BB + lane, value / parents)


@triton.jit(do_not_specialize=["B", "parents"])
def unpack_parents(record_pointer, pose_pointer, activation_pointer, B, parents, BB: tl.constexpr):
    """Write means and activations of records to pose (B, parents, 16) and activation (B, parents), contiguous."""
    parent = tl.program_id(0).to(tl.int64)
    image = parent // parents * BB + tl.arange(0, BB)[None, :]
    element = tl.arange(0, 16)[:, None]
    record = record_pointer + parent * (RECORD * BB) + tl.arange(0, BB)[None, :] * 4
    place = image * parents + parent % parents
    tl.store(pose_pointer + place * 16 + element, tl.load(record + field(MEAN + element, BB)), mask=image < B)
    tl.store(activation_pointer + place, tl.sigmoid(tl.load(record + field(LOGIT, BB))), mask=image < B)
