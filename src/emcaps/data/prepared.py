"""Prepared parts, which training and evaluating read: one .npz for the training and one for the test part of a set.

Toys and smallNORB show objects from labelled viewpoints through two cameras. All other sets have images of one size, a
class for each, the names of the classes and, if they are known, instances: images of one object or of one group.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.config import ARRAYS, DATASETS, FITS, PLAIN_DATASETS, DataConfig
from emcaps.data.archive import open_archive, read_arrays
from emcaps.files import atomic_write
from emcaps.names import check_name, unknown_name

CATEGORIES = ("animal", "human", "airplane", "truck", "car")
PARTS = ("train", "test")
SIDE = 48
"""Side of the prepared images of toys and smallNORB, in pixels."""
MAX_CLASSES, MAX_CHANNELS = 1000, 4

LABEL_RANGES = {
    "category": range(len(CATEGORIES)),
    "instance": range(10),
    "elevation": range(9),
    "azimuth": range(0, 36, 2),
    "lighting": range(6),
}
LABELLED = ("images", *LABEL_RANGES)
"""The arrays of a part that has viewpoints."""
SET = "set"
"""Beside the arrays, parts that were made together hold the same text of this name. Older files have none."""


class Examples(NamedTuple):
    """N images and what they show. With viewpoints: stereo pairs; elevation k is 30 + 5k degrees, azimuth k is 10k."""

    images: npt.NDArray[np.uint8]  # (N, C, H, W); with viewpoints (N, 2, 48, 48): left and right camera
    category: npt.NDArray[np.int16]  # (N,): index into names
    instance: npt.NDArray[Any] | None = None  # (N,): with viewpoints 0..9, which object of its category; else the group
    elevation: npt.NDArray[np.int16] | None = None  # (N,): 0..8
    azimuth: npt.NDArray[np.int16] | None = None  # (N,): 0, 2, .. 34
    lighting: npt.NDArray[np.int16] | None = None  # (N,): 0..5
    names: tuple[str, ...] = CATEGORIES
    fit: str = "crop"
    """How pictures were made square, as the setting data.fit has it."""

    @property
    def has_viewpoints(self) -> bool:
        """Whether these are views of toys or smallNORB: labelled viewpoints, and a channel for each camera."""
        return self.elevation is not None

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays that there are, by name: the images first, then one array for each kind of label."""
        return {name: array for name in LABELLED if (array := getattr(self, name)) is not None}

    def select(self, chosen: npt.NDArray[Any]) -> Examples:
        """The examples that a mask or a list of numbers chooses."""
        return self._replace(**{name: array[chosen] for name, array in self.arrays.items()})


def class_names(config: DataConfig) -> tuple[str, ...]:
    """The names of the classes that a network was trained on with this config."""
    return config.names or CATEGORIES


def data_folder(folder: str | Path | None = None) -> Path:
    """`folder`, else $EMCAPS_DATA, else the user's cache folder ($XDG_CACHE_HOME/emcaps or ~/.cache/emcaps)."""
    chosen = folder or os.environ.get("EMCAPS_DATA")
    if not chosen:
        chosen = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "emcaps"
    return Path(chosen).expanduser()


def prepared_path(dataset: str, part: str, folder: str | Path | None = None) -> Path:
    """Where the "train" or "test" part of a data set lies; that of a built-in set need not be there yet."""
    check_name("part", part, PARTS)
    if dataset in DATASETS:
        return data_folder(folder) / f"{dataset}{SIDE}-{part}.npz"
    known = (*DATASETS, *PLAIN_DATASETS, *imported_names(folder))
    if dataset not in known:
        raise ValueError(
            f"{unknown_name('dataset', dataset, known)}; your own pictures are named by their folder or .npz file, or "
            "by the name that `emcaps data import` gave them"
        )
    return data_folder(folder) / f"{dataset}-{part}.npz"


def imported_names(folder: str | Path | None = None) -> list[str]:
    """The names of the sets that were imported into the folder of prepared data."""
    known = {*PLAIN_DATASETS, *(f"{dataset}{SIDE}" for dataset in DATASETS)}
    found = {path.name.removesuffix("-train.npz") for path in data_folder(folder).glob("*-train.npz")}
    return sorted(found - known)


def imported_path(name: str, part: str, folder: str | Path | None = None) -> Path:
    """Where `emcaps data import` puts a part of the set with this new name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name) or name.endswith(".npz"):
        raise ValueError(
            f"a data set's name must be letters, digits, '-', '_' and '.', such as 'my-birds', not {name!r}: choose "
            "another name"
        )
    taken = (*DATASETS, *PLAIN_DATASETS, *(f"{dataset}{SIDE}" for dataset in DATASETS), ARRAYS)
    if name in taken:
        raise ValueError(f"{name!r} is the name of a built-in data set: choose another than {', '.join(taken)}")
    return data_folder(folder) / f"{name}-{part}.npz"


def save_prepared(parts: Mapping[Path, Examples]) -> None:
    """Write each part to its path, all of them or none; the same examples give the same bytes.

    A kill between two files leaves a new one beside an old one, so each says which set it belongs to.
    """
    for path, examples in parts.items():
        check_examples(examples, f"cannot write {path}: ", "")
    made_together = _set_name(parts)
    with ExitStack() as stack:
        for path, examples in parts.items():
            arrays: dict[str, Any] = dict(examples.arrays)
            if not examples.has_viewpoints:
                arrays |= {"names": np.array(examples.names), "fit": np.array(examples.fit)}
            if len(parts) > 1:
                arrays[SET] = np.array(made_together)
            with stack.enter_context(atomic_write(path)).open("wb") as file:
                np.savez(file, **arrays)


def check_replaces_no_other_set(name: str, parts: Mapping[Path, Examples]) -> None:
    """Raise ValueError if a whole set lies at these paths that is not made of these parts; a damaged one may go."""
    try:
        before = {path: load_prepared(path) for path in parts}
    except (OSError, ValueError):
        return
    for path, examples in parts.items():
        old = before[path]
        if (fingerprint(old), old.fit) != (fingerprint(examples), examples.fit):
            raise ValueError(
                f"{path.parent} has another set of the name {name!r} already: choose another --name, or replace that "
                "set by --replace; runs that were trained on it can then not be resumed"
            )


def load_prepared(path: str | Path) -> Examples:
    """Read and check a prepared part; the errors name the file and the command that makes it."""
    path = Path(path)
    command = _command(path.name)
    remedy = f"; delete it and make it again with `{command}`"
    try:
        with open_archive(path, remedy) as archive:
            if "names" in archive and "elevation" not in archive:
                arrays = read_arrays(archive, ("images", "category", "names", "fit"), ("instance", SET))
                made_together = arrays.pop(SET, None)
                names, fit = tuple(str(name) for name in np.atleast_1d(arrays.pop("names"))), str(arrays.pop("fit"))
                examples = Examples(**arrays, names=names, fit=fit)
            else:
                arrays = read_arrays(archive, LABELLED, (SET,))
                made_together = arrays.pop(SET, None)
                examples = Examples(**arrays)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is not there: make it with `{command}`") from None
    check_examples(examples, f"{path}: ", remedy)
    _check_made_together(path, made_together, command)
    return examples


def _set_name(parts: Mapping[Path, Examples]) -> str:
    """A name for parts that belong together: a digest of all of them."""
    digests = [fingerprint(parts[path]) for path in sorted(parts)]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _check_made_together(path: Path, made_together: npt.NDArray[Any] | None, command: str) -> None:
    """Raise ValueError if the other part lies beside this one and belongs to another set."""
    stem, _, part = path.name.removesuffix(".npz").rpartition("-")
    if part not in PARTS or not stem:
        return
    other = path.with_name(f"{stem}-{PARTS[1 - PARTS.index(part)]}.npz")
    try:
        with open_archive(other, "") as archive:
            theirs = read_arrays(archive, (), (SET,)).get(SET)
    except (OSError, ValueError):  # it is missing or damaged, which whoever reads it will be told
        return
    if str(made_together) != str(theirs):
        raise ValueError(
            f"{path} and {other} were not made together, so one of them is of another set, as when a process is killed "
            f"that replaces both: make both again with `{command}`"
        )


def _command(name: str) -> str:
    """The command that makes a prepared file of this name."""
    dataset = name.rpartition("-")[0]
    if dataset == f"toys{SIDE}":
        return "emcaps data make"
    if dataset == f"smallnorb{SIDE}":
        return "emcaps data get"
    return f"emcaps data get {dataset}" if dataset in PLAIN_DATASETS else "emcaps data import"


def check_examples(examples: Examples, start: str = "", end: str = "") -> None:
    """Raise ValueError with `start` and `end` around the reason unless every array is as Examples describes it."""
    images = examples.images
    found = f"{images.dtype} of shape {images.shape}"
    if examples.has_viewpoints:
        ranges, types = LABEL_RANGES, dict.fromkeys(LABEL_RANGES, "int16")
        if images.dtype != np.uint8 or images.shape[1:] != (2, SIDE, SIDE):
            raise ValueError(f"{start}images must be uint8 of shape (N, 2, {SIDE}, {SIDE}), not {found}{end}")
    else:
        ranges = {"category": range(len(examples.names)), "instance": range(2**31)}
        types = {"category": "int16", "instance": "int32"}
        square = images.ndim == 4 and 1 <= images.shape[1] <= MAX_CHANNELS and images.shape[2] == images.shape[3]
        if images.dtype != np.uint8 or not square:
            raise ValueError(
                f"{start}images must be uint8 of shape (N, C, side, side) with 1 to {MAX_CHANNELS} channels, not "
                f"{found}{end}"
            )
        _check_names(examples.names, start, end)
        if examples.fit not in FITS:
            raise ValueError(f"{start}{unknown_name('fit', examples.fit, FITS)}{end}")
    count = len(images)
    if count == 0:
        raise ValueError(f"{start}there must be at least one example, found none{end}")
    for name, labels in list(examples.arrays.items())[1:]:
        allowed, wanted = ranges[name], types[name]
        if labels.dtype != wanted or labels.shape != (count,):
            found = f"{labels.dtype} of shape {labels.shape}"
            raise ValueError(
                f"{start}{name} must be {wanted} of shape ({count},), one for each image, not {found}{end}"
            )
        wrong = labels[(labels < allowed.start) | (labels >= allowed.stop) | (labels % allowed.step != 0)]
        if wrong.size:
            step = f" in steps of {allowed.step}" if allowed.step > 1 else ""
            raise ValueError(f"{start}{name} must be {allowed[0]} to {allowed[-1]}{step}, not {wrong[0]}{end}")


def _check_names(names: tuple[str, ...], start: str, end: str) -> None:
    if not 2 <= len(names) <= MAX_CLASSES:
        raise ValueError(
            f"{start}there must be 2 to {MAX_CLASSES} classes to tell apart, found {len(names)} "
            f"({', '.join(names[:3])}){end or ': add or merge classes'}"
        )
    if len(set(names)) < len(names) or not all(names):
        twice = next(name for name in names if names.count(name) > 1 or not name)
        raise ValueError(f"{start}every class needs a name of its own, and {twice!r} is not{end or ': rename it'}")


def fingerprint(examples: Examples) -> str:
    """SHA-256 of images and labels, which tells whether two runs saw the same data."""
    digest = hashlib.sha256()
    for array in examples.arrays.values():
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    if not examples.has_viewpoints:
        digest.update(repr(examples.names).encode())
    return digest.hexdigest()


def file_fingerprint(path: Path) -> str | None:
    """Names, sizes and checksums of what a prepared part's file holds, but for SET, which the other part changes, too.

    None if there is no such file.
    """
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as opened:
            members = [(one.filename, one.file_size, one.CRC) for one in opened.infolist()]
    except (zipfile.BadZipFile, ValueError):
        return "damaged"
    return repr([one for one in members if one[0] != f"{SET}.npy"])
