"""A user's own images: a folder of class subfolders, a folder with train/ and test/ of these, or an .npz file.

What comes out is a training and a test part of uint8 images of one size. The test part is the one that the source has,
or a seeded share of every class. Images of one group, such as views of one object, are never in both.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emcaps.config import ARRAYS, DATASETS, PLAIN_DATASETS
from emcaps.data.archive import open_archive, read_arrays
from emcaps.data.arrays import (
    as_images,
    channels_first,
    check_no_class_is_empty,
    names_of_labels,
    numbered_labels,
    parts_of_arrays,
    texts,
)
from emcaps.data.hold_out import check_groups_apart, check_share, seeded_share
from emcaps.data.picture_files import BrokenPictureError, check_inside, is_grey, pictures_below, read_picture, resized
from emcaps.data.prepared import MAX_CLASSES, PARTS, Examples, check_examples, imported_names
from emcaps.files import check_regular
from emcaps.names import first_of

SIZE, SMALLEST, LARGEST = 32, 8, 1024
"""Side to which pictures of a folder are resized, unless another is named, and the sides that may be named."""
PART_NAMES = {"train", "training", "test", "testing", "val", "valid", "validation"}
"""Names of folders that are more likely parts than classes."""
NPZ_REMEDY = ": write it again with numpy.savez(file, images=..., labels=...)"


class Source(NamedTuple):
    """What was read."""

    parts: dict[str, Examples]
    skipped: list[str]
    """What is wrong with each picture that was left out."""
    ignored: int
    """How many files are no pictures by their names."""


class Options(NamedTuple):
    """How images are read."""

    size: int | None = None
    """Side of the prepared images; None means 32 for pictures, and the images' own side for an .npz."""
    fit: str = "crop"
    colour: bool | None = None
    """Three channels, or one; None keeps the colours that there are."""
    test_share: float = 0.2
    seed: int = 0
    groups: Path | None = None
    """A CSV file with lines "picture,group", pictures by their path below the source."""
    skip_broken: bool = False
    everything: bool = False
    """To test on all images of a source without a test part of its own: none is held out, and both parts have all."""


Progress = Callable[[int, int], None]


def source_path(dataset: str, folder: str | Path | None = None) -> Path | None:
    """The folder or file that `dataset` names, or None if it is the name of a prepared set, or of nothing."""
    if dataset in (*DATASETS, *PLAIN_DATASETS, ARRAYS, *imported_names(folder)):
        return None
    path = Path(dataset).expanduser()
    return path if path.exists() or os.sep in dataset or dataset.endswith(".npz") else None


def read_source(path: str | Path, options: Options | None = None, on_progress: Progress | None = None) -> Source:
    """The training and test part of a folder of pictures or an .npz file."""
    path, options = Path(path).expanduser(), options or Options()
    if options.size is not None and not SMALLEST <= options.size <= LARGEST:
        raise ValueError(f"the size of the images must be {SMALLEST} to {LARGEST} pixels, not {options.size}")
    check_share(options.test_share)
    if options.seed < 0:
        raise ValueError(f"the seed must be zero or more, not {options.seed}")
    if path.is_dir():
        return _read_folder(path, options, on_progress)
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: name a folder of pictures or an .npz file")
    check_regular(path)
    if path.suffix != ".npz":
        raise ValueError(f"{path} is neither a folder of class subfolders nor an .npz file: name one of these")
    if options.groups is not None:
        raise ValueError(f"--groups is for folders: put the groups of {path} into it, as the array 'groups'")
    try:
        return Source(_read_npz(path, options), [], 0)
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _read_npz(path: Path, options: Options) -> dict[str, Examples]:
    with open_archive(path, NPZ_REMEDY) as archive:
        optional = ("test_images", "test_labels", "names", "groups", "test_groups")
        arrays = read_arrays(archive, ("images", "labels"), optional)
    if ("test_images" in arrays) != ("test_labels" in arrays):
        raise ValueError("test_images and test_labels belong together, and one is missing: give both, or neither")
    if "test_images" in arrays and ("groups" in arrays) != ("test_groups" in arrays):
        raise ValueError("groups and test_groups belong together, and one is missing: give both, or neither")
    names = tuple(str(name) for name in np.atleast_1d(texts(arrays["names"]))) if "names" in arrays else ()
    images = as_images(_fitted(channels_first(arrays["images"]), options))
    labels = arrays["labels"]
    names = names or names_of_labels(*(arrays[name] for name in ("labels", "test_labels") if name in arrays))
    group = _numbered_groups(arrays, len(images))
    if "test_images" in arrays:
        test = _fitted(channels_first(arrays["test_images"], "test_images"), options)
        return parts_of_arrays(
            images, labels, test, arrays["test_labels"], names=names, fit=options.fit, groups=_groups_of_parts(arrays)
        )
    category = numbered_labels(labels, len(images), names, "labels")
    return _split(Examples(images, category, group, names=names, fit=options.fit), options)


def _fitted(images: npt.NDArray[np.uint8], options: Options) -> npt.NDArray[np.uint8]:
    """The images in the size and the colours that the options ask for."""
    if options.size is not None:
        images = resized(images, options.size, options.fit)
    channels = images.shape[1]
    if options.colour is None or channels == (3 if options.colour else 1):
        return images
    if channels not in (1, 3):
        raise ValueError(f"images of {channels} channels are neither grey nor colour: leave out --grey and --colour")
    if options.colour:
        return np.repeat(images, 3, axis=1)
    red, green, blue = (images[:, [channel]].astype(np.uint32) for channel in range(3))
    grey: npt.NDArray[np.uint8] = ((299 * red + 587 * green + 114 * blue) // 1000).astype(np.uint8)
    return grey


def _numbered_groups(arrays: dict[str, npt.NDArray[Any]], count: int) -> npt.NDArray[np.int32] | None:
    if "groups" not in arrays:
        return None
    if arrays["groups"].shape != (count,):
        raise ValueError(f"groups must have the shape ({count},), one for each image, not {arrays['groups'].shape}")
    return np.unique(arrays["groups"], return_inverse=True)[1].reshape(-1).astype(np.int32)


def _groups_of_parts(arrays: dict[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None:
    if "groups" not in arrays:
        return None
    both = np.concatenate([np.ravel(arrays["groups"]), np.ravel(arrays["test_groups"])])
    found, inverse = np.unique(both, return_inverse=True)
    number = inverse.reshape(-1).astype(np.int32)
    train, test = number[: arrays["groups"].size], number[arrays["groups"].size :]
    check_groups_apart(train, test, [str(name) for name in found])
    return train, test


def _split(examples: Examples, options: Options) -> dict[str, Examples]:
    """Hold out a seeded share of every class for testing."""
    check_examples(examples)
    check_no_class_is_empty(examples.category, examples.names)
    if options.everything:
        return {"train": examples, "test": examples}
    held_out = seeded_share(examples.category, examples.instance, options.test_share, options.seed)
    if not held_out.any():
        raise ValueError(
            "every class has one image or group only, so none can be held out for testing: add images, or give a test "
            "part of its own"
        )
    check_no_class_is_empty(examples.category[~held_out], examples.names)
    return {"train": examples.select(~held_out), "test": examples.select(held_out)}


def _read_folder(root: Path, options: Options, on_progress: Progress | None) -> Source:
    """The pictures of a folder; class and part of each are those of its subfolders."""
    places = _class_folders(root)
    names = tuple(sorted({name for _, name, _ in places}))
    files: list[tuple[Path, str, str]] = []
    ignored = 0
    for part, name, folder in places:
        found, others = pictures_below(folder, root)
        ignored += others
        if not found:
            raise ValueError(f"the class folder {folder} has no PNG or JPEG pictures: add some, or remove the folder")
        files += [(path, part, name) for path in found]
    _check_counted_once([path for path, _, _ in files])
    group_of, groups = _read_groups(options.groups, root, files) if options.groups else ({}, [])
    images, kept, skipped = _decode([path for path, _, _ in files], options, on_progress)
    files = [files[number] for number in kept]
    number_of = {name: number for number, name in enumerate(names)}
    category = np.array([number_of[name] for _, _, name in files], np.int16)
    instance = np.array([group_of[path] for path, _, _ in files], np.int32) if groups else None
    examples = Examples(images, category, instance, names=names, fit=options.fit)
    if not files:
        raise ValueError(f"none of the {len(skipped)} pictures in {root} can be read: {skipped[0]}")
    if places[0][0] == "":
        return Source(_split(examples, options), skipped, ignored)
    is_test = np.array([part == "test" for _, part, _ in files])
    parts = {"train": examples.select(~is_test), "test": examples.select(is_test)}
    if parts["train"].instance is not None and parts["test"].instance is not None:
        check_groups_apart(parts["train"].instance, parts["test"].instance, groups)
    for part, found_part in parts.items():
        check_examples(found_part, f"{root / part}: ", "")
    check_no_class_is_empty(parts["train"].category, names)
    return Source(parts, skipped, ignored)


def _check_counted_once(pictures: list[Path]) -> None:
    """A picture and a link to it could fall into the training and the test part."""
    links = {path.resolve(): path for path in pictures if path.is_symlink()}
    twice = sorted(links.keys() & {path.resolve() for path in pictures if not path.is_symlink()})
    if twice:
        raise ValueError(f"{links[twice[0]]} is a link to {twice[0]}, which would count twice: remove the link")


def _class_folders(root: Path) -> list[tuple[str, str, Path]]:
    """(part, class, folder) of every class folder below `root`; the part is "" if the source is not split."""
    top = _subfolders(root, root)
    if not top:
        raise ValueError(f"{root} has no subfolders: put the pictures of each class into a subfolder of its own")
    names = {path.name for path in top}
    if names == set(PARTS) and all(_subfolders(path, root) for path in top):
        classes = {part: _subfolders(root / part, root) for part in PARTS}
        unknown = {path.name for path in classes["test"]} - {path.name for path in classes["train"]}
        if unknown:
            raise ValueError(
                f"{root / 'test'} has the class {min(unknown)!r}, which {root / 'train'} lacks: every class needs "
                "pictures to train on"
            )
        return [(part, path.name, path) for part in PARTS for path in classes[part]]
    if {name.lower() for name in names} <= PART_NAMES:
        raise ValueError(
            f"{root} has the subfolders {', '.join(sorted(names))}, which look like parts of a data set, not classes: "
            "name them train and test, both with a subfolder for each class"
        )
    if not 2 <= len(names) <= MAX_CLASSES:
        raise ValueError(
            f"{root} has {len(names)} class folders ({first_of(sorted(names))}), and there must be 2 to {MAX_CLASSES} "
            "to tell apart: add or merge classes"
        )
    return [("", path.name, path) for path in top]


def _subfolders(folder: Path, root: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    for path in found:
        check_inside(path, root)
    return found


def _read_groups(path: Path, root: Path, files: list[tuple[Path, str, str]]) -> tuple[dict[Path, int], list[str]]:
    """The number of each picture's group and the groups' names, from a CSV file with the lines "picture,group"."""
    if not path.exists():
        raise FileNotFoundError(f"there is no groups file {path}: name a CSV file with lines PICTURE,GROUP")
    check_regular(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin it with a byte-order mark
            rows = [row for row in csv.reader(file) if row]
    except (ValueError, csv.Error) as error:  # not UTF-8, or no table
        raise ValueError(f"{path} cannot be read ({error}): write lines PICTURE,GROUP in UTF-8") from error
    wrong = next((number for number, row in enumerate(rows, 1) if len(row) != 2), None)
    if wrong is not None:
        raise ValueError(
            f"{path}, line {wrong}: a line must be PICTURE,GROUP, with a comma, not {','.join(rows[wrong - 1])!r}"
        )
    named: dict[Path, str] = {}
    for number, (picture, group) in enumerate(rows, 1):
        if named.setdefault(root / picture.strip(), group.strip()) != group.strip():
            raise ValueError(f"{path}, line {number}: {picture.strip()} is in two groups: leave it in one of them")
    missing = next((picture for picture, _, _ in files if picture not in named), None)
    if missing is not None:
        raise ValueError(
            f"{path} has no line for {missing.relative_to(root)}: every picture needs a group, in a line that begins "
            "with its path below the source, with slashes"
        )
    groups = sorted(set(named.values()))
    number_of = {group: number for number, group in enumerate(groups)}
    return {picture: number_of[named[picture]] for picture, _, _ in files}, groups


def _decode(
    paths: list[Path], options: Options, on_progress: Progress | None
) -> tuple[npt.NDArray[np.uint8], list[int], list[str]]:
    """The pictures uint8 (N, C, size, size), the numbers of those that could be read, and why others could not."""
    size, skipped = options.size or SIZE, list[str]()

    def attempt(work: Callable[..., Any], *arguments: Any) -> Any:
        """What the work gives; None if the picture is broken and is to be skipped."""
        try:
            return work(*arguments)
        except BrokenPictureError as error:
            if not options.skip_broken:
                remedy = (
                    "or import the folder without such pictures: emcaps data import FOLDER --name NAME --skip-broken"
                )
                raise ValueError(f"{error}, {remedy}") from error
            skipped.append(str(error))

    numbers, channels = list(range(len(paths))), 3 if options.colour else 1
    if options.colour is None:  # by the headers of all pictures, before the first one is decoded
        grey = [attempt(is_grey, path) for path in paths]
        numbers = [number for number in numbers if grey[number] is not None]
        channels = 3 if False in grey else 1
    images, kept = np.empty((len(numbers), channels, size, size), np.uint8), list[int]()
    for done, number in enumerate(numbers, 1):
        picture = attempt(read_picture, paths[number], size, options.fit, channels)
        if picture is not None:
            images[len(kept)] = picture
            kept.append(number)
        if on_progress:
            on_progress(done, len(numbers))
    return images[: len(kept)], kept, skipped
