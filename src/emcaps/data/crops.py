"""Test crops, and how grey levels are standardised, for training and testing alike. Nothing here is random.

Dims: N images, C channels (2 stereo, 1 mono), H and W the image's sides. Everything works on whole batches, on the
images' device, without waiting for it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emcaps.config import STANDARDS
from emcaps.names import check_name

TEST_SHIFTS = ((0, 0), *((size * y, size * x) for size in (1, 2, 3) for y in (-1, 1) for x in (-1, 1)))
"""How far each of 13 test crops lies from the centre, as (rows, columns)."""

GREY_LEVELS = 40
"""How many grey levels count as 1 when grey is measured from the background."""


def evaluation_crops(images: Tensor, crop: int, crops: int = 1, standardised: str = "image") -> Tensor:
    """Test crops float32 (N, crops, C, crop, crop) of uint8 images; `standardised` is the setting data.standardise.

    One crop is the centre. Thirteen are the centre and twelve crops that lie 1, 2 or 3 pixels off along both diagonals.
    """
    check_name("part to standardise", standardised, STANDARDS)
    if crops not in (1, len(TEST_SHIFTS)):
        raise ValueError(
            f"crops must be 1 (the centre) or {len(TEST_SHIFTS)} (shifted along the diagonals), not {crops}"
        )
    shifts = TEST_SHIFTS[:crops]
    check_crop(images, crop, margin=max(max(shift) for shift in shifts))
    top, left = corner_of_centre(images, crop)
    images = before_cropping(images, standardised)
    cut = torch.stack([images[..., top + y :, left + x :][..., :crop, :crop] for y, x in shifts], dim=1)
    tested: Tensor = after_cropping(cut.flatten(0, 1), standardised).unflatten(0, cut.shape[:2])
    return tested


def centre_crop(images: Tensor, crop: int) -> Tensor:
    """The crop x crop square in the middle; if it cannot lie exactly there, half a pixel nearer to the top left."""
    check_crop(images, crop)
    top, left = corner_of_centre(images, crop)
    return images[..., top : top + crop, left : left + crop]


def before_cropping(images: Tensor, standardised: str) -> Tensor:
    """Whole images after what the setting data.standardise does to them: float32, but unchanged with "crop"."""
    if standardised == "crop":
        return images
    return above_background(images) if standardised == "background" else standardise(images)


def after_cropping(crops: Tensor, standardised: str) -> Tensor:
    """Crops (N, C, crop, crop) after what the setting data.standardise does to them: only "crop" changes them."""
    return standardise(crops) if standardised == "crop" else crops


def standardise(images: Tensor) -> Tensor:
    """Each image to mean 0 and standard deviation 1 over all its channels and pixels, as float32.

    The deviation counts as at least 1 / sqrt(n), n numbers an image: a blank image becomes zeros.
    """
    check_images(images)
    centred = images.to(torch.float32)
    centred = centred - centred.mean((1, 2, 3), keepdim=True)
    return centred / _deviation(centred)


def above_background(images: Tensor) -> Tensor:
    """Each channel less the mean of its outermost pixels, in units of 40 grey levels, as float32.

    Unlike `standardise` this keeps how light and how dark things are, for objects before a plain background.
    """
    check_images(images)
    grey = images.to(torch.float32)
    return (grey - _background(grey)) / GREY_LEVELS


def grey_scale(images: Tensor, crop: int, standardised: str) -> tuple[Tensor, Tensor]:
    """How the centre crop of each image is prepared, as (offset, scale): its grey levels less offset, over scale.

    Both are float32, (N, 1, 1, 1) or, where each channel has its own background, (N, C, 1, 1).
    """
    check_name("part to standardise", standardised, STANDARDS)
    grey = (centre_crop(images, crop) if standardised == "crop" else images).to(torch.float32)
    if standardised == "background":
        offset = _background(grey)
        return offset, torch.full_like(offset, GREY_LEVELS)
    return grey.mean((1, 2, 3), keepdim=True), grey_deviation(grey)


def grey_deviation(images: Tensor) -> Tensor:
    """What `standardise` divides each image by, (N, 1, 1, 1): its standard deviation in grey levels."""
    check_images(images)
    grey = images.to(torch.float32)
    return _deviation(grey - grey.mean((1, 2, 3), keepdim=True))


def _deviation(centred: Tensor) -> Tensor:
    return centred.square().mean((1, 2, 3), keepdim=True).sqrt().clamp_min(1 / math.sqrt(math.prod(centred.shape[1:])))


def _background(grey: Tensor) -> Tensor:
    """(N, C, 1, 1): the mean of each channel's outermost pixels."""
    edge = torch.cat([grey[..., 0, :], grey[..., -1, :], grey[..., 1:-1, 0], grey[..., 1:-1, -1]], dim=-1)
    return edge.mean(-1)[..., None, None]


def corner_of_centre(images: Tensor, crop: int) -> tuple[int, int]:
    """Row and column at which the centre crop begins."""
    height, width = images.shape[-2:]
    return (height - crop) // 2, (width - crop) // 2


def check_images(images: Tensor) -> None:
    if images.ndim != 4:
        raise ValueError(
            f"images must have the four dims (N, C, H, W), not shape {tuple(images.shape)}: "
            "add a batch dim with images[None]"
        )


def check_crop(images: Tensor, crop: int, margin: int = 0) -> None:
    check_images(images)
    height, width = images.shape[-2:]
    largest = min(height, width) - 2 * margin
    if not 1 <= crop <= largest:
        room = f" with crops shifted by {margin} pixels" if margin else ""
        raise ValueError(
            f"crop must be 1 to {largest} for images of {height} x {width}{room}, not {crop}: choose a smaller crop"
            + (", or crops=1" if margin else "")
        )
