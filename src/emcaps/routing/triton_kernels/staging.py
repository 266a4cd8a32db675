"""Shared memory that a program fills by asynchronous copies while it works on what was copied before.

Such copies take no registers, and a thread waits for them once for many numbers. What Triton makes of a loop with
`num_stages` has two barriers for each child instead. It needs compute capability 8.0.

Triton's interpreter has no such memory. There loads read what would have been copied.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.memory import INTERPRETED, load_four

COPY = tl.constexpr(
    "{ .reg .pred wanted; setp.ne.s32 wanted, $3, 0; @wanted cp.async.cg.shared.global [$1], [$2], 16; mov.b32 $0, 0; }"
)
COMMIT = tl.constexpr("cp.async.commit_group; mov.b32 $0, 0;")
AWAIT_ALL = tl.constexpr("cp.async.wait_group 0; bar.sync 0; mov.b32 $0, 0;")
AWAIT_ALL_BUT_ONE = tl.constexpr("cp.async.wait_group 1; bar.sync 0; mov.b32 $0, 0;")
LOAD_FOUR = tl.constexpr("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];")
LOAD_ONE = tl.constexpr("ld.shared.f32 $0, [$1];")


def allocation(size: int) -> tl.constexpr:
    """PTX that gives the address of `size` bytes of shared memory, at most 48 KiB with what Triton itself needs."""
    return tl.constexpr(f"{{ .shared .align 128 .b8 stages[{size}]; mov.u32 $0, stages; }}")


@triton.jit
def allocate(like, ALLOCATION: tl.constexpr):
    """The address of an `allocation`, in the shape of `like`. Every call in a kernel gets memory of its own."""
    if INTERPRETED:
        return like * 0
    return tl.inline_asm_elementwise(ALLOCATION, "=r,r", [like], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def copy_four(address, pointer, wanted):
    """Start to copy the four numbers at `pointer`, where `wanted` is true."""
    if not INTERPRETED:
        operands = [address, pointer.to(tl.int64), wanted.to(tl.int32)]
        tl.inline_asm_elementwise(COPY, "=r,r,l,r", operands, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def commit_copies(thread):
    """End a group of copies. `thread` has one element for each of the program's threads, here and below."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(COMMIT, "=r,r", [thread], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def await_copies(thread, YOUNGER: tl.constexpr):
    """Wait for all groups of copies but the YOUNGER (0 or 1) last ones, and for all threads of the program."""
    if not INTERPRETED:
        PTX: tl.constexpr = AWAIT_ALL_BUT_ONE if YOUNGER else AWAIT_ALL
        tl.inline_asm_elementwise(PTX, "=r,r", [thread], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def staged_four(address, pointer):
    """The four numbers at `address`, which were copied from `pointer`."""
    if INTERPRETED:
        return load_four(pointer, tl.float32)
    FLOATS: tl.constexpr = (tl.float32, tl.float32, tl.float32, tl.float32)
    return tl.inline_asm_elementwise(LOAD_FOUR, "=f,=f,=f,=f,r", [address], dtype=FLOATS, is_pure=False, pack=1)


@triton.jit
def staged_one(address, pointer):
    """The number at `address`, which was copied from `pointer`."""
    if INTERPRETED:
        return tl.load(pointer)
    return tl.inline_asm_elementwise(LOAD_ONE, "=f,r", [address], dtype=tl.float32, is_pure=False, pack=1)
