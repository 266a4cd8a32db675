"""The IDX format, in which MNIST and Fashion-MNIST are published.

A file is two zero bytes, a byte for the element type, a byte for the number of dims, the dims as big-endian 32-bit
numbers, and the elements row by row. A name that ends in .gz is read through gzip. Only bytes are read: the two sets
have no other elements.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from emcaps.data.matrix_format import open_bounded, read_elements, read_exactly

UNSIGNED_BYTE = 8
MAX_NDIM = 4
"""More dims than any file of this family has: a larger number is damage, not data."""


def read_idx(path: str | Path) -> npt.NDArray[np.uint8]:
    """The array in `path`; a ValueError says what is wrong with a damaged file. Sizes are checked before memory is
    taken."""
    path = Path(path)
    with open_bounded(path) as (file, content_limit):
        start = read_exactly(path, file, 4)
        if start[:3] != bytes([0, 0, UNSIGNED_BYTE]) or not 1 <= start[3] <= MAX_NDIM:
            raise ValueError(
                f"{path}: starts with {start!r}, expected {bytes([0, 0, UNSIGNED_BYTE])!r} and 1 to {MAX_NDIM} dims, "
                "as IDX files of bytes do: fetch the file again"
            )
        shape = struct.unpack(f">{start[3]}I", read_exactly(path, file, 4 * start[3]))
        return read_elements(path, file, np.dtype(np.uint8), shape, content_limit - 4 - 4 * start[3])


def idx_header(array: npt.NDArray[np.uint8]) -> bytes:
    """The bytes that stand before the elements of an array in an IDX file."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, UNSIGNED_BYTE, array.ndim, *array.shape)
