"""What is kept of a parent: its record from the forward pass, and its adjoint record from the backward pass.

Fields are stored in groups of four, (fields / 4, BB, 4), so that a thread loads four of them at once.
"""

import triton
import triton.language as tl

from emcaps.routing.triton_kernels.memory import load_four, prefetch

# Fields of a parent's record, (RECORD / 4, BB, 4): 16 means, 16 inverse variances, 16 spreads (variances without the
# floor), then scalars.
MEAN = tl.constexpr(0)
PRECISION = tl.constexpr(16)
SPREAD = tl.constexpr(32)
LOG_PEAK = tl.constexpr(48)  # log of a_j times the density at the mean, without the constant (2 pi)^-8
DATA = tl.constexpr(49)  # S_j
LOGIT = tl.constexpr(50)
UNIT_COST = tl.constexpr(51)  # the cost of one unit of data
RECORD = tl.constexpr(52)

# Fields of a parent's adjoint record, (ADJOINT / 4, BB, 4): the coefficients of D_ij = dL/dr_ij (11), from which the
# derivative by V_ij follows too.
QUADRATIC = tl.constexpr(0)  # A_jh
LINEAR = tl.constexpr(16)  # B_jh
CONSTANT = tl.constexpr(32)  # c_j
ADJOINT = tl.constexpr(36)  # padded to whole fours


@triton.jit
def field(FIELD: tl.constexpr, BB: tl.constexpr):
    """The offset of a field in a record, where each image of a block has four fields side by side."""
    return FIELD // 4 * (4 * BB) + FIELD % 4


@triton.jit
def load_field(record, FIELD: tl.constexpr, BB: tl.constexpr, DTYPE: tl.constexpr):
    """Load the first of four fields. It loads all four, because one alone would get another layout over threads."""
    first, _, _, _ = load_four(record + field(FIELD, BB), DTYPE)
    return first


@triton.jit
def prefetch_parent(record, adjoint, BB: tl.constexpr):
    """Prefetch a parent's record without its spreads, and its adjoint record: 72 cache lines, by 128 threads."""
    if BB == 32:  # then a field in float32 fills a cache line
        line = tl.arange(0, 128)
        in_record = tl.where(line < SPREAD, line, line + LOG_PEAK - SPREAD)
        own = SPREAD + 4
        pointer = tl.where(line < own, record + in_record * BB, adjoint + (line - own) * BB)
        prefetch(pointer, line < own + ADJOINT)
