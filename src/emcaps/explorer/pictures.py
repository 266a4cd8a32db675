"""The pictures in the explorer's page: toys that can be turned, or images that the user names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from emcaps.config import DataConfig
from emcaps.data.picture_files import read_picture
from emcaps.data.prepared import CATEGORIES, SIDE
from emcaps.data.toys.make import TEST_INSTANCES, render_instance
from emcaps.data.toys.render import ELEVATIONS
from emcaps.explorer.page_file import packed

LIGHTINGS = {1: (0, 2, 4), 2: (0,)}
"""Those that are shown, by the number of channels: stereo pairs take twice the room."""


def turning_toys(
    data: DataConfig,
    toys: Sequence[int] = range(len(CATEGORIES)),
    elevations: Sequence[int] = range(9),
    azimuths: Sequence[int] = range(0, 36, 2),
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """A toy of each category that no network was trained on, from all sides.

    The images run over toys, elevations, azimuths and lightings, in this order.
    """
    channels = data.image_channels
    lightings = LIGHTINGS[channels]
    images = []
    for done, category in enumerate(toys, start=1):
        views, _ = render_instance(
            category, TEST_INSTANCES[0], elevations=elevations, azimuths=azimuths, lightings=lightings, size=SIDE
        )
        images.append(views[:, :channels])
        if on_progress is not None:
            on_progress(done, len(toys))
    return {
        "kind": "toys",
        "names": [CATEGORIES[category] for category in toys],
        "labels": list(toys),
        "elevations": [round(ELEVATIONS[elevation]) for elevation in elevations],
        "azimuths": [10 * azimuth for azimuth in azimuths],
        "lightings": [lighting + 1 for lighting in lightings],
        **_pixels(np.concatenate(images)),
    }


def reads_toys(data: DataConfig) -> bool:
    """Whether the network was made for images such as the toys: grey, 48 pixels wide, one or two cameras."""
    return not data.channels and (data.size or SIDE) == SIDE


def given_pictures(paths: Sequence[Path], data: DataConfig) -> dict[str, Any]:
    """Pictures from files, as the network reads them."""
    images = [read_picture(path, data.size or SIDE, data.fit, data.image_channels) for path in paths]
    return given_images(np.stack(images), [path.name for path in paths])


def given_images(
    images: npt.NDArray[np.uint8], names: Sequence[str], labels: Sequence[int] | None = None
) -> dict[str, Any]:
    """Images uint8 (N, C, side, side) with a name each and, where they are known, the numbers of their classes."""
    return {
        "kind": "images",
        "names": list(names),
        "labels": None if labels is None else list(labels),
        **_pixels(images),
    }


def _pixels(images: npt.NDArray[np.uint8]) -> dict[str, Any]:
    return {"channels": images.shape[1], "side": images.shape[2], "pixels": packed(images)}
