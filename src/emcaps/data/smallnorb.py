"""smallNORB as published (LeCun, Huang, Bottou 2004): its six files, and the 48x48 images that are prepared from them.

A part, training or testing, is three matrices: -dat uint8 (24300, 2, 96, 96), the stereo pairs; -cat int32 (24300,),
the category; -info int32 (24300, 4), the instance, elevation, azimuth and lighting.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.data.matrix_format import read_matrix, write_matrix
from emcaps.data.prepared import (
    LABEL_RANGES,
    PARTS,
    SIDE,
    Examples,
    prepared_path,
    save_prepared,
)
from emcaps.files import open_regular
from emcaps.names import check_name

Progress = Callable[[int, int], None]
"""A function that long work calls with how much is done and how much there is in all."""

URL = "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"
STEMS = {"train": "5x46789x9x18x6x2x96x96-training", "test": "5x01235x9x18x6x2x96x96-testing"}
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
INFO_COLUMNS = ("instance", "elevation", "azimuth", "lighting")
FULL_COUNT = 24_300
CHUNK = 512  # images averaged at a time: a few tens of MB of intermediates


def original_name(part: str, kind: str, prefix: str = "smallnorb") -> str:
    """The published name of one file; kind is "cat", "dat" or "info"."""
    check_name("part", part, PARTS)
    return f"{prefix}-{STEMS[part]}-{kind}.mat.gz"


class Original(NamedTuple):
    """One published file, packed as it is downloaded and unpacked as it is read."""

    part: str
    kind: str
    size: int
    sha256: str
    unpacked_size: int
    unpacked_sha256: str

    @property
    def name(self) -> str:
        return original_name(self.part, self.kind)

    @property
    def url(self) -> str:
        return URL + self.name


ORIGINALS = (
    Original(
        "train",
        "cat",
        348,
        "2784e542c1922060691090952b6cd6278879a216c90f81476f0f00256d42cdaa",
        97_220,
        "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
    ),
    Original(
        "train",
        "info",
        71_052,
        "de7eb932ebe7a4ee16217fead60660d0eb3d23632c2f4d1c51f88c501c17bf32",
        388_820,
        "6b4075d3800ba0c6fa8c46a02f672572abe7b93f7ed82fb7668354a99ef03306",
    ),
    Original(
        "test",
        "cat",
        347,
        "ecaf6d5bb8c3bc5eab9cf0258f6d2198dd474e016e374836fc097f2e5ff509ff",
        97_220,
        "591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e",
    ),
    Original(
        "test",
        "info",
        10_428,
        "16adf314226327ee006d1a44db8cfef52773c06c829951d5653a9f6f310248a2",
        388_820,
        "318f817236b7c97af03cd90e07a9cbb4346e20ef83a1118a61eeb50e3b96db7e",
    ),
    Original(
        "train",
        "dat",
        131_896_188,
        "5ffd6272a07d32695ee1082a26a41a93a37aab8c28da047f8c34ed348d214873",
        447_897_624,
        "4813bf104d229583fea8ed57fdc3e9258c927b8dfb43d75412e854a7a9588067",
    ),
    Original(
        "test",
        "dat",
        130_799_817,
        "cf7104eed3e51174d2f65b66d1e5878b9da233b886f161b0d88f4510ba2c7474",
        447_897_624,
        "2b1de646c57ffdc259b8fb973a6453e90915248a8fdb4d9df948786bdae72b34",
    ),
)
"""The six files. Small ones come first, so that a download that cannot work fails early."""


def prepare_smallnorb(
    raw_folder: str | Path,
    folder: str | Path | None = None,
    on_progress: Progress | None = None,
    *,
    verify: bool = True,
) -> list[Path]:
    """Prepare both parts from the six original files in `raw_folder` (.mat.gz, or .mat unpacked); gives their paths.

    The files must be whole, belong together and, unless `verify` is off, have the published SHA-256.
    """
    files = _find_originals(Path(raw_folder))
    if verify:
        _check_published(files)
    labels = {part: (read_matrix(files[part, "cat"]), read_matrix(files[part, "info"])) for part in PARTS}
    done, total = 0, sum(len(cat) for cat, _ in labels.values())
    prepared = {}
    for part, (cat, info) in labels.items():
        dat = read_matrix(files[part, "dat"])
        try:
            examples = prepare_part(dat, cat, info, part_of_whole(done, total, on_progress))
            check_full_set(part, examples)
        except ValueError as error:
            raise ValueError(f"{raw_folder} ({part} files): {error}") from error
        del dat  # 450 MB, before the next part needs as much
        done += len(cat)
        prepared[prepared_path("smallnorb", part, folder)] = examples
    save_prepared(prepared)
    return list(prepared)


def part_of_whole(start: int, total: int, on_progress: Progress | None) -> Progress | None:
    """A function that reports the progress of one piece of the work as progress of the whole."""
    return on_progress and (lambda done, _: on_progress(start + done, total))


def prepare_part(
    dat: npt.NDArray[Any],
    cat: npt.NDArray[Any],
    info: npt.NDArray[Any],
    on_progress: Progress | None = None,
) -> Examples:
    """The 48x48 examples of one part, any number of them, after checking that the three matrices belong together."""
    count = len(dat)
    for kind, matrix, dtype, shape in (
        ("dat", dat, np.uint8, (count, 2, 2 * SIDE, 2 * SIDE)),
        ("cat", cat, np.int32, (count,)),
        ("info", info, np.int32, (count, len(INFO_COLUMNS))),
    ):
        if matrix.dtype != dtype or matrix.shape != shape:
            raise ValueError(
                f"with {count} images, {kind} must be {np.dtype(dtype).name} of shape {shape}, not "
                f"{matrix.dtype.name} of shape {matrix.shape}: take all three files from the same release"
            )
    labels = {"category": cat, **{column: info[:, k] for k, column in enumerate(INFO_COLUMNS)}}
    for column, values in labels.items():
        allowed = LABEL_RANGES[column]
        wrong = values[~np.isin(values, allowed)]
        if wrong.size:
            raise ValueError(f"{column} must be one of {list(allowed)}, not {wrong[0]}: the label files are damaged")
    images = area_mean(dat, on_progress)
    columns: dict[str, Any] = {column: values.astype(np.int16) for column, values in labels.items()}
    return Examples(images, **columns)


def area_mean(images: npt.NDArray[np.uint8], on_progress: Progress | None = None) -> npt.NDArray[np.uint8]:
    """Halve both sides of images (N, 2, H, W): the mean of each 2x2 square to the nearest whole number, halves up."""
    count, cameras, height, width = images.shape
    halved = np.empty((count, cameras, height // 2, width // 2), np.uint8)
    for start in range(0, count, CHUNK):
        chunk = images[start : start + CHUNK]
        rows = chunk[:, :, 0::2].astype(np.uint16) + chunk[:, :, 1::2]
        halved[start : start + CHUNK] = (rows[..., 0::2] + rows[..., 1::2] + 2) >> 2
        if on_progress:
            on_progress(start + len(chunk), count)
    return halved


def check_full_set(part: str, examples: Examples) -> None:
    """Raise ValueError if `examples` has instances of the other part, or is full but repeats a view."""
    found = tuple(np.unique(examples.arrays["instance"]).tolist())
    if not set(found) <= set(INSTANCES[part]):
        raise ValueError(
            f"the {part} part must have the instances {INSTANCES[part]}, found {found}: "
            "are the training and testing files exchanged?"
        )
    if len(examples.category) != FULL_COUNT:
        return
    views = np.stack([getattr(examples, column) for column in LABEL_RANGES], axis=1)
    distinct = len(np.unique(views, axis=0))
    if distinct != FULL_COUNT:
        raise ValueError(
            f"the {part} part must have {FULL_COUNT} different views, found {distinct}: the label files are damaged, "
            "fetch them again"
        )


def label_matrices(examples: Examples) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The labels as the original -cat (N,) and -info (N, 4) files hold them."""
    info = np.stack([getattr(examples, column) for column in INFO_COLUMNS], axis=1)
    return examples.category.astype(np.int32), info.astype(np.int32)


def write_originals(
    folder: str | Path,
    part: str,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int16],
    prefix: str = "smallnorb",
) -> list[Path]:
    """Write images (N, 2, 96, 96) and labels (N, 5) as the -dat, -cat and -info files of one part.

    The columns of labels are category, instance, elevation, azimuth and lighting. With the prefix "smallnorb" the names
    are the published ones, and `prepare_smallnorb` reads the files back.
    """
    side = 2 * SIDE
    if images.dtype != np.uint8 or images.shape[1:] != (2, side, side):
        found = f"{images.dtype} of shape {images.shape}"
        raise ValueError(f"images must be uint8 of shape (N, 2, {side}, {side}), not {found}: render them at that size")
    if labels.shape != (len(images), len(LABEL_RANGES)) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"labels must be whole numbers of shape ({len(images)}, {len(LABEL_RANGES)}), with the columns "
            f"{', '.join(LABEL_RANGES)}, not {labels.dtype} of shape {labels.shape}"
        )
    matrices: dict[str, npt.NDArray[Any]] = {
        "dat": images,
        "cat": labels[:, 0].astype(np.int32),
        "info": labels[:, 1:].astype(np.int32),
    }
    paths = []
    for kind, matrix in matrices.items():
        paths.append(Path(folder) / original_name(part, kind, prefix))
        write_matrix(paths[-1], matrix)
    return paths


def _check_published(files: dict[tuple[str, str], Path]) -> None:
    for original in ORIGINALS:
        path = files[original.part, original.kind]
        want = original.sha256 if path.suffix == ".gz" else original.unpacked_sha256
        found = file_sha256(path)
        if found != want:
            raise ValueError(
                f"{path} is not the published file (SHA-256 {found}, published {want}): fetch it again, or take it as "
                "it is with --unverified"
            )


def file_sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find_originals(folder: Path) -> dict[tuple[str, str], Path]:
    """The path of each original, unpacked if it lies there unpacked, which is faster to read."""
    files = {}
    missing = []
    for original in ORIGINALS:
        candidates = [folder / original.name.removesuffix(".gz"), folder / original.name]
        there = next((path for path in candidates if path.is_file()), None)
        if there is None:
            missing.append(original.name)
        else:
            files[original.part, original.kind] = there
    if missing:
        raise FileNotFoundError(
            f"{folder} lacks {len(missing)} of the six smallNORB files ({', '.join(missing)}, with or without .gz): "
            f"fetch them with `emcaps data get`, or by other means from {URL}"
        )
    return files
