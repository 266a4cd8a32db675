"""Reading .npz files that others made: no code is run, and no more memory is taken than the file can fill.

An .npz is a zip of arrays. Before an array is read, the size that its header announces is compared with what the zip
holds and with the memory of this machine, so that a small file cannot unpack to more than that.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

MAX_DEFLATE_RATIO = 1032
"""Deflate cannot shrink data further than this."""

DAMAGE = (ValueError, EOFError, MemoryError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise for a file that is damaged or made to do harm."""


@contextmanager
def open_archive(path: Path, remedy: str) -> Iterator[Any]:
    """The opened .npz file; a ValueError names the file and the remedy if anything in it is damaged."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path} is not a whole .npz file, it is damaged or incomplete{remedy}")
        file.seek(0)
        try:
            _check_sizes(file, path.stat().st_size)
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                yield archive
        except DAMAGE as error:
            raise ValueError(f"{path} is damaged: {error}{remedy}") from error


def read_arrays(archive: Any, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The arrays of these names in an opened archive, and those of the optional names that it has."""
    missing = [name for name in names if name not in archive]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}, only {', '.join(archive.files) or 'nothing'}")
    arrays = {name: archive[name] for name in (*names, *(name for name in optional if name in archive))}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"its {name} is no array")
    return arrays


def _check_sizes(file: IO[bytes], stored_bytes: int) -> None:
    """Raise ValueError if the members announce more than they hold, or more than half of this machine's memory."""
    with zipfile.ZipFile(file) as archive:
        total = sum(member.file_size for member in archive.infolist())
        most = min(stored_bytes * MAX_DEFLATE_RATIO, _half_of_memory())
        if total > most:
            raise ValueError(f"it would unpack to {total:,} bytes, more than the {most:,} that are allowed here")
        for member in archive.infolist():
            if member.filename.endswith(".npy"):
                with archive.open(member) as content:
                    _check_header(content, member)


def _check_header(content: IO[bytes], member: zipfile.ZipInfo) -> None:
    version = np.lib.format.read_magic(content)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(content)
    announced = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and announced != member.file_size - content.tell():
        raise ValueError(
            f"{member.filename} announces {announced:,} bytes and holds {member.file_size - content.tell():,}"
        )


def _half_of_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # not every system can say
        return 1 << 33
