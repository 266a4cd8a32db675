"""How the CPU kernels lay out their numbers, and how they are compiled.

Dims: B images; N children, (H, W, C); P parent positions; S slots, the children in a window, (KH, KW, C); T iterations;
G groups of LANES parent types, the last one padded. A vector holds one number for each parent of a group. A column is
one column of each parent's matrix: four vectors, one a row. A block is a whole matrix: four columns.

Arrays: pose (B, N * 16), activation (B, N), weight (G, 4, K * C * COLUMN), records (B, T, P, G, RECORD), and of each
edge, for its assignment and its gradients, (B, T - 1, P, G, S * LANES). `sizes` are OH, OW, O, KH, KW, stride rows,
stride columns, whether matrices are shared (a class layer), whether only types compete. Equation numbers as in the
README of triton_kernels.
"""

import hashlib
from pathlib import Path

from numba import njit

from emcaps.routing.numba_kernels.vectors import LANES

COLUMN = 4 * LANES
BLOCK = 4 * COLUMN

# A record: four blocks, then five numbers for each parent.
MEAN, PRECISION, SPREAD, RESIDUAL = 0, BLOCK, 2 * BLOCK, 3 * BLOCK
DATA, UNIT_COST, LOG_PEAK, ACTIVATION, INACTIVATION = (4 * BLOCK + field * LANES for field in range(5))
RECORD = 4 * BLOCK + 5 * LANES

# What the backward pass has of each parent: 2 A and B of (11).
SLOPE, LINEAR = 0, BLOCK
ADJOINT = 2 * BLOCK

EPSILON = 1e-9  # keeps a parent without data at pose 0 instead of 0 / 0
LINE = 64  # bytes of a cache line

# Products and sums may be fused; nothing else is left to the compiler, so that infinities and NaN stay what they are.
OPTIONS = {"fastmath": {"contract"}, "nogil": True, "error_model": "numpy"}
compiled = njit(**OPTIONS)
inlined = njit(forceinline=True, **OPTIONS)
SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()


def kept_on_disk(function):
    """Compiled and kept, with all that it calls, until any file beside this one changes.

    numba itself would look at the function's own file alone, and run on what it kept when a file that it calls changed.
    """
    try:
        kept = njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # there is nowhere to keep it: no folder that this user may write to
        return compiled(function)
    kept._cache._cache_file._source_stamp = SOURCES
    return kept
