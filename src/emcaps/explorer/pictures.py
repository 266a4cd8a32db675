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
from emcaps.data.toy_set import Views
from emcaps.data.toys.make import TEST_INSTANCES, render_instance
from emcaps.data.toys.render import ELEVATIONS
from emcaps.explorer.page_file import packed

VIEWS = Views(elevations=(0, 2, 4, 6, 8), lightings=(0, 2, 4))
"""Enough to turn a toy, and little enough for a page."""
QUICK = Views(elevations=(0, 8), azimuths=tuple(range(0, 36, 6)), lightings=(0,))


def turning_toys(
    data: DataConfig,
    toys: Sequence[int] = range(len(CATEGORIES)),
    views: Views = VIEWS,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """A toy of each category that no network was trained on, from all sides.

    The images run over toys, elevations, azimuths and lightings, in this order.
    """
    images = []
    for done, category in enumerate(toys, start=1):
        pairs, _ = render_instance(category, TEST_INSTANCES[0], **views._asdict(), size=SIDE)
        images.append(pairs[:, : data.image_channels])
        if on_progress is not None:
            on_progress(done, len(toys))
    return {
        "kind": "toys",
        "names": [CATEGORIES[category] for category in toys],
        "truths": [CATEGORIES[category] for category in toys],
        "elevations": [round(ELEVATIONS[elevation]) for elevation in views.elevations],
        "azimuths": [10 * azimuth for azimuth in views.azimuths],
        "lightings": [lighting + 1 for lighting in views.lightings],
        **_pixels(np.concatenate(images)),
    }


def reads_toys(data: DataConfig) -> bool:
    """Whether the network was made for images such as the toys: grey, 48 pixels wide, one or two cameras."""
    return not data.channels and (data.size or SIDE) == SIDE


def given_pictures(paths: Sequence[Path], data: DataConfig) -> dict[str, Any]:
    """Pictures from files, as the network reads them."""
    channels = data.image_channels
    if channels == 2:  # both cameras see the picture
        images = [read_picture(path, data.size or SIDE, data.fit, 1).repeat(2, axis=0) for path in paths]
    else:
        images = [read_picture(path, data.size or SIDE, data.fit, channels) for path in paths]
    return given_images(np.stack(images), [path.name for path in paths])


def given_images(
    images: npt.NDArray[np.uint8], names: Sequence[str], truths: Sequence[str] | None = None
) -> dict[str, Any]:
    """Images uint8 (N, C, side, side) with a name each and, where they are known, the names of their classes."""
    return {"kind": "images", "names": list(names), "truths": truths and list(truths), **_pixels(images)}


def _pixels(images: npt.NDArray[np.uint8]) -> dict[str, Any]:
    return {"channels": images.shape[1], "side": images.shape[2], "pixels": packed(images)}
