"""How the CPU kernels lay out their numbers in memory, and how they are compiled.

Dims: B images; N children, (H, W, C); P parent positions; S slots, the children in a window, (KH, KW, C); T iterations;
G groups of LANES parent types, the last one padded. A vector holds one number for each parent of a group. A column
holds one column of each parent's 4x4 matrix: four vectors, one for each row. A block holds the whole matrix: four
columns.

Arrays: pose (B, N * 16), activation (B, N), weight (G, 4, K * C * COLUMN), records (B, T, P, G, RECORD); assignments
and their gradients, one number for each edge, (B, T - 1, P, G, S * LANES). `sizes` are OH, OW, O, KH, KW, the stride's
rows and columns, whether matrices are shared (0; 1 in a class layer, 2 in one that adds coordinates), and whether only
types compete. Numbers in brackets are the equations of the README of triton_kernels.
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

# What the backward pass keeps of each parent: 2 A and B of (11).
SLOPE, LINEAR = 0, BLOCK
ADJOINT = 2 * BLOCK

EPSILON = 1e-9  # gives a parent without data the pose 0, where 0 / 0 would be NaN
LINE = 64  # bytes of a cache line

# The compiler may fuse a product and a sum, but change nothing else, so that infinities and NaN stay what they are.
OPTIONS = {"fastmath": {"contract"}, "nogil": True, "error_model": "numpy"}
compiled = njit(**OPTIONS)
inlined = njit(forceinline=True, **OPTIONS)
SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()


def kept_on_disk(function):
    """Compile a function, and keep the result on disk until any file in this folder changes.

    numba itself checks the function's own file alone, and would run outdated code after a change in a file that the
    function uses.
    """
    try:
        kept = njit(cache=True, **OPTIONS)(function)
    except RuntimeError:  # there is no folder that this user may write to
        return compiled(function)
    kept._cache._cache_file._source_stamp = SOURCES
    return kept
