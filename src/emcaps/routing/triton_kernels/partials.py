"""Sums over a parent's children that several programs share: each has a part of the children.

The parts meet in memory as partial sums, (parents, parts, 9, 32, 4): one number, repeated, and two matrices. The
program that stores the last of them adds them up, in order, whichever it is, so that the result has the same bits every
time.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.memory import load_four, load_matrix, store_four

BB = tl.constexpr(32)
PARTIAL = tl.constexpr(36)  # numbers of a partial sum


@triton.jit
def partial_of_part(pointer, position, parent, part, lane, O):
    """The place of a partial sum."""
    return pointer + ((position * O + parent) * tl.num_programs(1) + part) * (PARTIAL * BB) + lane * 4


@triton.jit
def store_partial(partial, number, first, second):
    every = tl.full(partial.shape, True, tl.int1)
    store_four(partial, (number, number, number, number), every)
    for row in tl.static_range(4):
        store_four(partial + (4 + 4 * row) * BB, first[4 * row : 4 * row + 4], every)
        store_four(partial + (20 + 4 * row) * BB, second[4 * row : 4 * row + 4], every)


@triton.jit
def load_partial(partial):
    number, _, _, _ = load_four(partial, tl.float32)
    first = load_matrix(partial + 4 * BB, 4 * BB, tl.float32)
    return number, first, load_matrix(partial + 20 * BB, 4 * BB, tl.float32)


@triton.jit
def is_not_last(arrived_pointer):
    """Whether another part of the program's parents is still to be stored. The last one sets the count back to zero.

    One thread counts for all, so all have to be done with storing first.
    """
    tl.debug_barrier()
    arrived = tl.atomic_add(arrived_pointer + tl.program_id(0), 1)
    last = tl.num_programs(1) - 1
    tl.store(arrived_pointer + tl.program_id(0), 0, mask=arrived == last)
    return arrived < last
