"""Prepared parts, which training and evaluating read: one .npz for the training and one for the test part of a set."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.config import DATASETS
from emcaps.files import atomic_write
from emcaps.names import check_name

CATEGORIES = ("animal", "human", "airplane", "truck", "car")
PARTS = ("train", "test")
SIDE = 48
"""Side of the prepared images, in pixels."""

LABEL_RANGES = {
    "category": range(len(CATEGORIES)),
    "instance": range(10),
    "elevation": range(9),
    "azimuth": range(0, 36, 2),
    "lighting": range(6),
}


class Examples(NamedTuple):
    """N stereo pairs and what they show. Elevation k is 30 + 5k degrees, azimuth k is 10k degrees."""

    images: npt.NDArray[np.uint8]  # (N, 2, 48, 48): left and right camera
    category: npt.NDArray[np.int16]  # (N,): index into CATEGORIES
    instance: npt.NDArray[np.int16]  # (N,): 0..9, which object of its category
    elevation: npt.NDArray[np.int16]  # (N,): 0..8
    azimuth: npt.NDArray[np.int16]  # (N,): 0, 2, .. 34
    lighting: npt.NDArray[np.int16]  # (N,): 0..5


def data_folder(folder: str | Path | None = None) -> Path:
    """`folder`, else $EMCAPS_DATA, else the user's cache folder ($XDG_CACHE_HOME/emcaps or ~/.cache/emcaps)."""
    chosen = folder or os.environ.get("EMCAPS_DATA")
    if not chosen:
        chosen = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "emcaps"
    return Path(chosen).expanduser()


def prepared_path(dataset: str, part: str, folder: str | Path | None = None) -> Path:
    """Where the "train" or "test" part of a data set lies, whether or not it is there yet."""
    check_name("dataset", dataset, DATASETS)
    check_name("part", part, PARTS)
    return data_folder(folder) / f"{dataset}{SIDE}-{part}.npz"


def save_prepared(parts: Mapping[Path, Examples]) -> None:
    """Write each part to its path, all of them or none; the same examples give the same bytes."""
    with ExitStack() as stack:
        for path, examples in parts.items():
            _check(examples, f"cannot write {path}: ", "")
            with stack.enter_context(atomic_write(path)).open("wb") as file:
                np.savez(file, **examples._asdict())


def load_prepared(path: str | Path) -> Examples:
    """Read and check a prepared part; the errors name the file and the command that makes it."""
    path = Path(path)
    command = "emcaps data get" if path.name.startswith("smallnorb") else "emcaps data make"
    remedy = f"; delete it and make it again with `{command}`"
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is not there: make it with `{command}`") from None
    with file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path} is not a whole .npz file, it is damaged or incomplete{remedy}")
        file.seek(0)
        try:
            examples = Examples(**_load_arrays(file))
        except (ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} is damaged: {error}{remedy}") from error
    _check(examples, f"{path}: ", remedy)
    return examples


def _load_arrays(file: IO[bytes]) -> dict[str, npt.NDArray[Any]]:
    with np.load(file, allow_pickle=False) as archive:
        missing = [name for name in Examples._fields if name not in archive]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}, only {', '.join(archive.files) or 'nothing'}")
        arrays = {name: archive[name] for name in Examples._fields}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise ValueError(f"its {name} is no array")
        return arrays


def _check(examples: Examples, start: str, end: str) -> None:
    """Raise ValueError with `start` and `end` around the reason unless every array is as Examples describes it."""
    images = examples.images
    if images.dtype != np.uint8 or images.shape[1:] != (2, SIDE, SIDE):
        found = f"{images.dtype} of shape {images.shape}"
        raise ValueError(f"{start}images must be uint8 of shape (N, 2, {SIDE}, {SIDE}), not {found}{end}")
    count = len(images)
    if count == 0:
        raise ValueError(f"{start}there must be at least one example, found none{end}")
    for name, allowed in LABEL_RANGES.items():
        labels = getattr(examples, name)
        if labels.dtype != np.int16 or labels.shape != (count,):
            found = f"{labels.dtype} of shape {labels.shape}"
            raise ValueError(f"{start}{name} must be int16 of shape ({count},), one for each image, not {found}{end}")
        wrong = labels[(labels < allowed.start) | (labels >= allowed.stop) | (labels % allowed.step != 0)]
        if wrong.size:
            step = f" in steps of {allowed.step}" if allowed.step > 1 else ""
            raise ValueError(f"{start}{name} must be {allowed[0]} to {allowed[-1]}{step}, not {wrong[0]}{end}")


def fingerprint(examples: Examples) -> str:
    """SHA-256 of images and labels, which tells whether two runs saw the same data."""
    digest = hashlib.sha256()
    for array in examples:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def file_fingerprint(path: Path) -> str | None:
    """SHA-256 of a prepared part's file; None if there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
