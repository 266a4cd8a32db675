"""The NORB binary-matrix format, in which smallNORB is published.

A file is a header of int32 numbers (a magic number that names the element type, ndim, then max(3, ndim) dims, unused
ones 1) and the elements, row by row. We write little-endian, as the originals are; big-endian files, whose magic number
reads byte-swapped, are read as well. A name that ends in .gz is read and written through gzip.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from emcaps.data.unpacking import CHUNK, MAX_RATIO, most_unpacked
from emcaps.files import atomic_write, half_of_memory, open_regular

DTYPES: dict[int, np.dtype[Any]] = {
    0x1E3D4C51: np.dtype(np.float32),
    0x1E3D4C53: np.dtype(np.float64),
    0x1E3D4C54: np.dtype(np.int32),
    0x1E3D4C55: np.dtype(np.uint8),
    0x1E3D4C56: np.dtype(np.int16),
}
PACKED_MAGIC = 0x1E3D4C52
MAX_NDIM = 8
"""More dims than any file of this family has: a larger ndim is damage, not data."""

DAMAGED = "the file is damaged or incomplete: fetch or write it again"


def read_matrix(path: str | Path) -> npt.NDArray[Any]:
    """The array in `path`, in the machine's byte order; ValueError says what is wrong with a damaged file."""
    path = Path(path)
    with open_bounded(path) as (file, content_limit):
        dtype, shape, header_bytes = _read_header(path, file)
        return read_elements(path, file, dtype, shape, content_limit - header_bytes)


@contextlib.contextmanager
def open_bounded(path: Path) -> Iterator[tuple[Any, int]]:
    """A file, through gzip if its name ends in .gz, and the most bytes that it may hold, by its size on disk."""
    with open_regular(path) as raw:
        stored_bytes = os.fstat(raw.fileno()).st_size
        if path.suffix != ".gz":
            yield raw, min(stored_bytes, half_of_memory())
            return
        try:
            with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                yield unpacked, most_unpacked(stored_bytes)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise ValueError(
                f"{path}: expected gzip data of {stored_bytes} bytes, found: {error}; {DAMAGED}"
            ) from error


def write_matrix(path: str | Path, array: npt.ArrayLike) -> None:
    """Write `array` to `path`; the same array gives the same bytes, and a reader never meets half of a file."""
    path, array = Path(path), np.asarray(array)
    magic = next((magic for magic, dtype in DTYPES.items() if dtype == array.dtype.newbyteorder("=")), None)
    if magic is None:
        allowed = ", ".join(str(dtype) for dtype in DTYPES.values())
        raise ValueError(f"{path}: cannot hold elements of type {array.dtype} (allowed: {allowed}): use array.astype")
    if not 1 <= array.ndim <= MAX_NDIM:
        raise ValueError(f"{path}: an array must have 1 to {MAX_NDIM} dims, not {array.ndim}: reshape it")
    if max(array.shape) >= 2**31:
        raise ValueError(f"{path}: a dim must fit in 31 bits, and one of {array.shape} does not: split the array")

    dims = (*array.shape, 1, 1)[: max(3, array.ndim)]
    header = struct.pack(f"<{2 + len(dims)}i", magic, array.ndim, *dims)
    elements = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    with atomic_write(path) as temporary, temporary.open("wb") as raw, _packed(path, raw) as file:
        file.write(header)
        file.write(elements.data)


@contextlib.contextmanager
def _packed(path: Path, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """`raw` itself, or a gzip stream into it that carries no name and no time, so that its bytes are reproducible."""
    if path.suffix != ".gz":
        yield raw
        return
    with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
        yield packed  # type: ignore[misc]  # a GzipFile is a binary file in all that matters here


def read_elements(
    path: Path, file: Any, dtype: np.dtype[Any], shape: tuple[int, ...], content_limit: int
) -> npt.NDArray[Any]:
    """The array that fills the rest of a file, which may hold `content_limit` bytes at most."""
    data_bytes = math.prod(shape) * dtype.itemsize
    expected = f"{data_bytes} bytes of data for {dtype.name} of shape {shape}"
    if data_bytes > content_limit:  # before a damaged header can ask for all the memory there is
        found = f"at most {content_limit} bytes"
        if path.suffix == ".gz":
            found += f", since a .gz may unpack to {MAX_RATIO} times its size and to half of this machine's memory"
        raise ValueError(f"{path}: expected {expected}, found {found}; {DAMAGED}")
    try:
        array = np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise ValueError(
            f"{path}: the header asks for {expected}, more than this machine can hold; {DAMAGED}"
        ) from error

    elements = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < data_bytes:
        count = file.readinto(elements[done : done + CHUNK])
        if not count:
            raise ValueError(f"{path}: expected {expected}, found {done} bytes; {DAMAGED}")
        done += count
    if file.read(1):  # in a .gz this also reaches the checksum
        raise ValueError(f"{path}: expected {expected}, found more bytes after them; {DAMAGED}")
    return array if dtype.isnative else array.byteswap(inplace=True).view(dtype.newbyteorder("="))


def _read_header(path: Path, file: Any) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """The element type (with its byte order), the shape, and the size of the header in bytes."""
    start = read_exactly(path, file, 8)
    order: Literal["<", ">"] = "<"
    magic = int.from_bytes(start[:4], "little")
    swapped = int.from_bytes(start[:4], "big")
    if swapped in DTYPES or swapped == PACKED_MAGIC:
        order, magic = ">", swapped
    if magic == PACKED_MAGIC:
        raise ValueError(
            f"{path}: is a packed matrix (magic number {magic:#010x}), expected plain elements; "
            "no public program unpacks these: look for the file in one of the plain types"
        )
    if magic not in DTYPES:
        raise ValueError(
            f"{path}: starts with {start!r}, expected the magic number of a NORB matrix, 0x1e3d4c51 to 0x1e3d4c56; "
            + _unknown_magic_remedy(start)
        )
    (ndim,) = struct.unpack(f"{order}i", start[4:])
    if not 1 <= ndim <= MAX_NDIM:
        raise ValueError(f"{path}: found ndim {ndim}, expected 1 to {MAX_NDIM}; {DAMAGED}")
    stored = max(3, ndim)
    dims = struct.unpack(f"{order}{stored}i", read_exactly(path, file, 4 * stored))
    if min(dims) < 0:
        raise ValueError(f"{path}: found dims {dims}, expected none to be negative; {DAMAGED}")
    if any(dim != 1 for dim in dims[ndim:]):
        raise ValueError(f"{path}: found dims {dims} with ndim {ndim}, expected unused dims to be 1; {DAMAGED}")
    return DTYPES[magic].newbyteorder(order), dims[:ndim], 8 + 4 * stored


def read_exactly(path: Path, file: Any, count: int) -> bytes:
    """The next bytes of a header; ValueError if the file ends before them."""
    found: bytes = file.read(count)
    if len(found) < count:
        raise ValueError(f"{path}: expected {count} more bytes of the header, found {len(found)}; {DAMAGED}")
    return found


def _unknown_magic_remedy(start: bytes) -> str:
    if start[:2] == b"\x1f\x8b":
        return "this is gzip data: give the file a name that ends in .gz"
    if start.lstrip()[:1] == b"<":
        return "this looks like a web page saved in place of the file: fetch the file again"
    return "this is another kind of file, or a damaged one: fetch it again"
