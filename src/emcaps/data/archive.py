"""Reading .npz files that others made: no code is run, and no more memory is taken than the file can fill.

An .npz is a zip of arrays. The headers of the arrays that are wanted are read first. The sizes that they announce are
compared with what the zip holds, with what pictures can shrink to, and with the memory of this machine. Only then is
anything unpacked, and never more than was announced.
"""

from __future__ import annotations

import io
import math
import os
import struct
import sys
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.data.unpacking import CHUNK, check_unpacked_size
from emcaps.files import open_regular

DAMAGE = (
    ValueError,
    EOFError,
    KeyError,
    MemoryError,
    RuntimeError,
    NotImplementedError,
    OverflowError,
    SyntaxError,
    TypeError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy and zipfile raise for a file that is damaged or made to do harm."""

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The ways in which numpy packs. Others can pack far more densely, and zipfile unpacks them without a bound."""
ENCRYPTED = 1
MANY = 0xFFFF
"""Stands for a number of members that is told elsewhere, since there are so many."""
LONGEST_END = 22 + 0xFFFF
"""Bytes of the record at the end of a zip, with the longest comment."""
VERSIONS = ((1, 0), (2, 0), (3, 0))
KINDS = "biufUS"
"""Types of elements that are read: numbers and texts."""
MAX_HEADER = 10_000
"""Bytes of a member among which the whole header of its array must be."""


class OtherArraysError(ValueError):
    """A file that is sound, but whose arrays are not those that are wanted."""


class Announced(NamedTuple):
    """What the header of a member says."""

    member: zipfile.ZipInfo
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    start: int
    """Where the elements begin."""

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Archive:
    """The arrays of an opened zip, by name; nothing is unpacked before it is asked for."""

    def __init__(self, opened: zipfile.ZipFile, stored_bytes: int) -> None:
        self.opened, self.stored_bytes = opened, stored_bytes
        self.members: dict[str, zipfile.ZipInfo] = {}
        for member in opened.infolist():
            name = member.filename.removesuffix(".npy")
            if name in self.members:
                raise ValueError(f"it has two members of the name {name}")
            self.members[name] = member
            # The directory has no checksum, and a name that is damaged there would make an optional array vanish.
            # To open a member compares its name with the one that stands beside its content.
            with suppress(RuntimeError):  # encrypted, or packed in a way that is not known: no matter until it is read
                opened.open(member).close()

    def __contains__(self, name: str) -> bool:
        return name in self.members

    def announced(self, name: str) -> Announced:
        """What the array of this name will be, from its header alone."""
        member = self.members[name]
        if member.flag_bits & ENCRYPTED:
            raise ValueError(f"{member.filename} is encrypted")
        if member.compress_type not in METHODS:
            raise ValueError(f"{member.filename} is packed by method {member.compress_type}, which numpy does not use")
        with self.opened.open(member) as content:
            header = io.BytesIO(content.read(MAX_HEADER))
        shape, fortran_order, dtype = _read_header(header, member)
        found = Announced(member, dtype, shape, fortran_order, header.tell())
        if not all(type(side) is int and 0 <= side < 2**63 for side in shape):
            raise ValueError(f"{member.filename} has the shape {shape}, and sides are whole numbers from 0")
        if dtype.hasobject:
            raise OtherArraysError(
                f"its array {name} holds Python objects, which could run any code, and must hold numbers, or texts "
                "such as those of labels.astype(str)"
            )
        if dtype.kind not in KINDS or dtype.itemsize == 0:
            raise ValueError(f"{member.filename} has elements of type {dtype}, and must have numbers or texts")
        holds = member.file_size - found.start
        if found.size != holds:
            raise ValueError(f"{member.filename} announces {found.size:,} bytes and holds {holds:,}")
        return found

    def read(self, announced: Announced) -> npt.NDArray[Any]:
        """The array, unpacked; ValueError if it is not exactly as long as announced, or its checksum is wrong."""
        array = np.empty(announced.shape, announced.dtype, order="F" if announced.fortran_order else "C")
        elements = array.reshape(-1, order="A").view(np.uint8).data
        done = 0
        content: Any
        with self.opened.open(announced.member) as content:
            content.read(announced.start)
            while done < announced.size:
                count = content.readinto(elements[done : done + CHUNK])
                if not count:
                    raise ValueError(f"{announced.member.filename} ends after {done:,} of {announced.size:,} bytes")
                done += count
            if content.read(1):  # at the end of the member, which is where zipfile compares the checksum
                raise ValueError(f"{announced.member.filename} holds more than the {announced.size:,} bytes announced")
        if announced.dtype.kind == "U":
            letters = array.reshape(-1, order="A").view(np.dtype(np.uint32).newbyteorder(announced.dtype.byteorder))
            if letters.size and letters.max() > sys.maxunicode:  # on which numpy fails in a way that cannot be caught
                raise ValueError(f"{announced.member.filename} has texts with characters that do not exist")
        return array


@contextmanager
def open_archive(path: Path, remedy: str) -> Iterator[Archive]:
    """The opened .npz file; a ValueError names the file and the remedy if it is damaged or has other arrays."""
    with open_regular(path) as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path} is not a whole .npz file, it is damaged or incomplete{remedy}")
        try:
            announced = _member_count(file)
            with zipfile.ZipFile(file) as opened:
                if announced not in (len(opened.infolist()), MANY):
                    raise ValueError(f"it announces {announced} members and lists {len(opened.infolist())}")
                yield Archive(opened, os.fstat(file.fileno()).st_size)
        except OtherArraysError as error:
            raise OtherArraysError(f"{path}: {error}{remedy}") from error
        except DAMAGE as error:
            raise ValueError(f"{path} is damaged: {_in_one_line(error)}{remedy}") from error
        except OSError as error:
            if error.filename is not None or error.strerror is None:
                raise
            # A zip whose directory points outside the file makes the system refuse to seek.
            raise ValueError(f"{path} is damaged: {error.strerror}{remedy}") from error


def read_arrays(archive: Archive, names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The arrays of these names in an opened archive, and those of the optional names that it has."""
    missing = [name for name in names if name not in archive]
    if missing:
        raise OtherArraysError(f"it has no {', '.join(missing)}, only {', '.join(archive.members) or 'nothing'}")
    wanted = (*names, *(name for name in optional if name in archive))
    announced = {name: archive.announced(name) for name in wanted}
    stored = sum(found.member.compress_size for found in announced.values())
    check_unpacked_size(min(stored, archive.stored_bytes), sum(found.size for found in announced.values()))
    return {name: archive.read(found) for name, found in announced.items()}


def _member_count(file: BinaryIO) -> int:
    """The number of members that the end of a zip announces. zipfile does not compare it with those that it finds."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LONGEST_END))
    end = file.read()
    at = end.rfind(b"PK\x05\x06")
    return int.from_bytes(end[at + 10 : at + 12], "little")


def _read_header(content: io.BytesIO, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(content)
    except ValueError:
        raise ValueError(f"its {member.filename} is no array") from None
    if version not in VERSIONS:
        raise ValueError(f"its {member.filename} is an array of version {version}, which is not known")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers that Python 2 wrote
        shape, fortran_order, dtype = read(content)
    return shape, fortran_order, dtype


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
