"""The binary format of CIFAR-10: records of a label byte and 32x32 red, then green, then blue bytes, in six files.

The files are read from the published archive, cifar-10-binary.tar.gz, or from the folder that it unpacks to.
"""

from __future__ import annotations

import gzip
import struct
import tarfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from emcaps.data.matrix_format import DAMAGED
from emcaps.files import open_regular

CHANNELS, SIDE = 3, 32
RECORD = 1 + CHANNELS * SIDE * SIDE
MAX_RECORDS = 10_000
"""Records in each of the published files."""
FILES = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test": ("test_batch.bin",)}
MAX_UNPACKED = 8 * MAX_RECORDS * RECORD
"""Bytes of the unpacked archive: the six files and some more. Other members are unpacked as well to pass over them."""
ARCHIVE_FOLDER = "cifar-10-batches-bin"

Part = tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]


def read_cifar(source: Path) -> dict[str, Part]:
    """Images uint8 (N, 3, 32, 32) and labels uint8 (N,) of both parts, from the archive or from a folder."""
    return _read_archive(source) if source.is_file() else _read_folder(source)


def _read_folder(folder: Path) -> dict[str, Part]:
    batches = {}
    for name in (name for names in FILES.values() for name in names):
        path = next((path for path in (folder / name, folder / ARCHIVE_FOLDER / name) if path.is_file()), None)
        if path is None:
            raise FileNotFoundError(f"{folder} lacks {name}, one of the six files of CIFAR-10: unpack them all there")
        with open_regular(path) as file:
            try:
                batches[name] = _read_records(str(path), file, path.stat().st_size)
            except ValueError as error:
                raise ValueError(f"{error}; {DAMAGED}") from error
    return _parts(batches)


def _read_archive(path: Path) -> dict[str, Part]:
    """Read the six members by name; nothing is unpacked to the disk, and other members are passed over."""
    wanted = {f"{ARCHIVE_FOLDER}/{name}": name for names in FILES.values() for name in names}
    batches = {}
    with open_regular(path) as raw:
        try:
            stream: Any = _Bounded(gzip.GzipFile(fileobj=raw))
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    if member.isfile() and member.name in wanted:
                        file = archive.extractfile(member)
                        assert file is not None
                        batches[wanted[member.name]] = _read_records(member.name, file, member.size)
        except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError, struct.error) as error:
            raise ValueError(f"{path}: expected a .tar.gz archive of CIFAR-10, found: {error}; {DAMAGED}") from error
    missing = sorted(set(wanted.values()) - batches.keys())
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}: this is not the binary version of CIFAR-10; {DAMAGED}")
    return _parts(batches)


class _Bounded:
    """A stream that gives MAX_UNPACKED bytes at most: tarfile unpacks and keeps whatever a long header announces."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.left = stream, MAX_UNPACKED

    def read(self, count: int) -> bytes:
        self.left -= count
        if self.left < 0:
            raise ValueError(f"more than {MAX_UNPACKED} unpacked bytes")
        found: bytes = self.stream.read(count)
        return found


def _read_records(what: str, file: IO[bytes], size: int) -> Part:
    """Labels and images of one file; its size is checked before memory is taken."""
    if size == 0 or size % RECORD or size > MAX_RECORDS * RECORD:
        raise ValueError(f"{what}: expected 1 to {MAX_RECORDS} records of {RECORD} bytes, found {size} bytes")
    content = file.read(size)
    if len(content) < size:
        raise ValueError(f"{what}: expected {size} bytes, found {len(content)}")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE), records[:, 0]


def _parts(batches: dict[str, Part]) -> dict[str, Part]:
    found = {}
    for part, names in FILES.items():
        images, labels = zip(*(batches[name] for name in names), strict=True)
        found[part] = np.concatenate(images), np.concatenate(labels)
    return found
