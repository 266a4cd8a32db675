"""Holding out a part of the images for testing: by a seed, evenly from all classes, and never half of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

FOLDS = 10
"""Validation without viewpoints holds out one of this many parts."""


def seeded_share(
    category: npt.NDArray[Any], group: npt.NDArray[Any] | None, share: float, seed: int
) -> npt.NDArray[np.bool_]:
    """True for the examples that are held out: about `share` of each class, at least one, and whole groups only.

    Every class keeps at least one image, or one group, for training; a class that has only one is held out nowhere.
    """
    check_share(share)

    def chosen(place: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
        few: npt.NDArray[np.bool_] = place < min(max(1, round(share * count)), count - 1)
        return few

    return _held_out(category, group, seed, chosen)


def check_share(share: float) -> None:
    """Raise ValueError unless this share of the images can be held out."""
    if not 0 < share < 1:
        raise ValueError(f"the share of images to hold out must lie between 0 and 1, not {share}: 0.2 is usual")


def fold_of(category: npt.NDArray[Any], group: npt.NDArray[Any] | None, fold: int) -> npt.NDArray[np.bool_]:
    """True for the examples of one tenth, by number: the ten together are all images of classes that have several."""
    if not 0 <= fold < FOLDS:
        raise ValueError(f"data.fold must be 0 to {FOLDS - 1} for a set without viewpoints, not {fold}: choose another")

    def chosen(place: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
        part: npt.NDArray[np.bool_] = (place % FOLDS == fold) & (count > 1)
        return part

    return _held_out(category, group, 0, chosen)


def check_groups_apart(train: npt.NDArray[Any], test: npt.NDArray[Any], names: list[str]) -> None:
    """Raise ValueError if a group has images in both parts; `names` says what each group is called."""
    both = np.intersect1d(train, test)
    if both.size:
        raise ValueError(
            f"{both.size} groups have images in the training and in the test part ({names[int(both[0])]!r} is one): a "
            "group must lie in one of them, so move its images"
        )


def _held_out(
    category: npt.NDArray[Any],
    group: npt.NDArray[Any] | None,
    seed: int,
    chosen: Callable[[npt.NDArray[np.int64], int], npt.NDArray[np.bool_]],
) -> npt.NDArray[np.bool_]:
    """Shuffle the groups of each class, or its images where there are no groups, and let `chosen` pick by place.

    A group with images of several classes is counted to the class of its first image.
    """
    groups = np.arange(len(category)) if group is None else group
    _, first, unit = np.unique(groups, return_index=True, return_inverse=True)
    category_of = category[first]
    random = np.random.default_rng(seed)
    held_out = np.zeros(len(first), np.bool_)
    for number in np.unique(category_of):
        units = np.flatnonzero(category_of == number)
        place = random.permutation(len(units))
        held_out[units] = chosen(place, len(units))
    examples: npt.NDArray[np.bool_] = held_out[unit.reshape(-1)]
    return examples
