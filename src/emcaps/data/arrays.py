"""From a user's own arrays to examples: what the axes of images mean, which labels there are, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emcaps.data.prepared import MAX_CHANNELS, MAX_CLASSES, Examples, check_examples


def parts_of_arrays(
    images: Any,
    labels: Any,
    test_images: Any,
    test_labels: Any,
    *,
    names: Sequence[str] = (),
    fit: str = "crop",
    groups: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None = None,
) -> dict[str, Examples]:
    """Training and test examples from images uint8 (N, H, W), (N, C, H, W) or (N, H, W, C) and a label for each.

    Labels are whole numbers from 0 or names. Without `names`, numbered classes are called "0", "1" and so on. Arrays
    may be NumPy's or tensors. `groups` holds the number of each image's group, for training and for testing.
    """
    sides = [("images", as_images(images, "images")), ("test_images", as_images(test_images, "test_images"))]
    if sides[0][1].shape[1:] != sides[1][1].shape[1:]:
        raise ValueError(
            f"images and test_images must have the same channels and sides, not {sides[0][1].shape[1:]} and "
            f"{sides[1][1].shape[1:]}: resize them alike"
        )
    given = [as_array(labels), as_array(test_labels)]
    names = tuple(str(name) for name in names) or names_of_labels(*given)
    parts = {}
    for index, (part, (what, found)) in enumerate(zip(("train", "test"), sides, strict=True)):
        category = numbered_labels(given[index], len(found), names, "labels" if index == 0 else "test_labels")
        instance = None if groups is None else groups[index]
        parts[part] = Examples(found, category, instance, names=names, fit=fit)
        check_examples(parts[part], f"{what}: ", "")
    check_no_class_is_empty(parts["train"].category, names)
    return parts


def as_array(values: Any) -> npt.NDArray[Any]:
    """A NumPy array of an array, a list or a tensor on any device."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def as_images(images: Any, what: str = "images") -> npt.NDArray[np.uint8]:
    """Square images uint8 (N, C, side, side) from (N, H, W), (N, C, H, W) or (N, H, W, C)."""
    found = channels_first(images, what)
    if found.shape[2] != found.shape[3]:
        raise ValueError(
            f"{what} must be square, not {found.shape[2]} x {found.shape[3]}: crop, pad or stretch them, or let "
            "`emcaps data import FILE.npz --name NAME --size SIDE --fit crop` do so"
        )
    return found


def channels_first(images: Any, what: str = "images") -> npt.NDArray[np.uint8]:
    """Images uint8 (N, C, H, W) of any sides; ValueError if the array cannot be that."""
    found = as_array(images)
    rule = f"{what} must be uint8 of shape (N, H, W), (N, C, H, W) or (N, H, W, C) with 1 to {MAX_CHANNELS} channels"
    if found.dtype != np.uint8:
        raise ValueError(f"{rule}, not {found.dtype}: {_how_to_make_bytes(found)}")
    if found.ndim in (3, 4) and len(found) == 0:
        raise ValueError(f"there are no {what}: their shape is {found.shape}")
    if found.ndim == 3:
        return found[:, None]
    if found.ndim != 4:
        raise ValueError(f"{rule}, not {found.shape}: reshape them")
    first, last = (1 <= found.shape[axis] <= MAX_CHANNELS for axis in (1, 3))
    if not first and not last:
        raise ValueError(f"{rule}, not {found.shape}: leave out the other channels")
    if first and last:
        raise ValueError(f"{rule}, not {found.shape}: it cannot be told which axis holds the channels, so reorder them")
    return found if first else np.ascontiguousarray(found.transpose(0, 3, 1, 2))


def _how_to_make_bytes(images: npt.NDArray[Any]) -> str:
    """How images that are not uint8 become grey levels from 0 to 255, by the range of what they hold."""
    least, most = (float(images.min()), float(images.max())) if images.size and images.dtype.kind in "iuf" else (0, 0)
    if images.dtype.kind == "f" and 0 <= least <= most <= 1:
        return "give grey levels from 0 to 255, as in (255 * images).round().astype('uint8')"
    if images.dtype.kind == "f" and 0 <= least <= most <= 255:
        return "they are grey levels already, so images.round().astype('uint8') will do"
    if images.dtype.kind in "iu" and 1 < most <= 255 and least >= 0:
        return "they are grey levels already, so images.astype('uint8') will do"
    if images.dtype.kind in "iu" and 255 < most <= 65535 and least >= 0:
        return "give the upper 8 of their 16 bits, as in (images >> 8).astype('uint8')"
    return f"bring them to grey levels from 0 to 255 first; they go from {least:g} to {most:g}"


def texts(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Labels or names as they are, but bytes as the text that they hold in UTF-8."""
    return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values


def names_of_labels(*labels: npt.NDArray[Any]) -> tuple[str, ...]:
    """The classes of labels that come without names: the different texts in order, or "0" to the largest number."""
    if labels[0].dtype.kind in "US":
        return tuple(str(name) for name in np.unique(texts(labels[0])))
    largest = max((int(array.max()) for array in labels if array.size and array.dtype.kind in "iu"), default=-1)
    if largest >= MAX_CLASSES:
        raise ValueError(
            f"labels must be below {MAX_CLASSES}, the most classes there may be, not {largest}: number the classes "
            "from 0, or give their names"
        )
    return tuple(str(number) for number in range(largest + 1))


def numbered_labels(labels: npt.NDArray[Any], count: int, names: Sequence[str], what: str) -> npt.NDArray[np.int16]:
    """Labels int16 (N,), from whole numbers or from the names of the classes."""
    if labels.shape != (count,):
        raise ValueError(
            f"{what} must have the shape ({count},), one for each image, not {labels.shape}: "
            + _how_to_flatten(labels.shape, count, what)
        )
    if labels.dtype.kind in "US":
        labels = texts(labels)
        number_of = {name: number for number, name in enumerate(names)}
        unknown = sorted({str(label) for label in labels} - number_of.keys())
        if unknown:
            raise ValueError(
                f"{what} must be names of the {len(names)} classes, and {unknown[0]!r} is none: add the class to the "
                "training images, or leave these images out"
            )
        return np.array([number_of[str(label)] for label in labels], np.int16)
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{what} must be whole numbers or names, not {labels.dtype}: use labels.astype(int)")
    if (negative := labels[labels < 0]).size:
        raise ValueError(
            f"{what} must be numbers of classes, counted from 0, not {negative[0]}: number the classes anew, as "
            "numpy.unique(labels, return_inverse=True)[1] does"
        )
    if (nameless := labels[labels >= len(names)]).size:
        raise ValueError(
            f"{what} must be 0 to {len(names) - 1}, since {len(names)} classes have names, not {nameless[0]}: count "
            "the classes from 0, and name all of them"
        )
    return labels.astype(np.int16)


def _how_to_flatten(shape: tuple[int, ...], count: int, what: str) -> str:
    if shape == (count, 1):
        return f"use {what}.reshape(-1)"
    if len(shape) == 2 and shape[0] == count:
        return f"if they are one-hot, use {what}.argmax(1)"
    return "give every image one label, and leave out images that have none"


def check_no_class_is_empty(category: npt.NDArray[Any], names: Sequence[str]) -> None:
    """Raise ValueError if a class has no training image."""
    empty = sorted(set(range(len(names))) - set(category.tolist()))
    if empty:
        numbered = empty == [0] and tuple(names) == tuple(map(str, range(len(names))))
        raise ValueError(
            f"{len(empty)} of {len(names)} classes have no training image ({names[empty[0]]!r} is one): "
            + ("number the classes from 0, as labels - 1 does" if numbered else "add images, or leave such classes out")
        )
