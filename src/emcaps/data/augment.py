"""From prepared images to what a network reads: standardised crops, varied at random while training.

Dims: N images, C channels (2 stereo, 1 mono), H and W the side of the prepared images. Everything works on whole
batches on the images' device, without a loop over images or a wait for the device; all chance comes from the generator
given.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emcaps.config import STANDARDS, VIEWS, DataConfig
from emcaps.data.prepared import Examples
from emcaps.data.splice import splice
from emcaps.names import check_name

TEST_SHIFTS = ((0, 0), *((size * y, size * x) for size in (1, 2, 3) for y in (-1, 1) for x in (-1, 1)))
"""Of 13 test crops: (rows, columns) from the centre."""

GREY_LEVELS = 40
"""How many of them count as 1 when grey is measured from the background."""


def to_tensors(examples: Examples, view: str, device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Images uint8 (N, C, H, W) and labels int64 (N,) on `device`.

    "stereo" keeps the pairs; "mono" makes each camera an example of its own, left and right of a pair side by side.
    """
    check_name("view", view, VIEWS)
    images = torch.from_numpy(examples.images).to(device)
    labels = torch.from_numpy(examples.category).to(device=device, dtype=torch.int64)
    if view == "mono":
        return images.flatten(0, 1).unsqueeze(1), labels.repeat_interleave(2)
    return images, labels


def augment(
    images: Tensor, config: DataConfig, generator: torch.Generator, counterparts: Tensor | None = None
) -> Tensor:
    """Training crops float32 (N, C, crop, crop) of uint8 images: standardise, splice, crop, brightness, contrast.

    With config.standardise "crop" standardising comes after cropping; with "background" grey is measured from the
    background instead of standardised. Images are spliced with their `counterparts`, uint8 too, if there are any.
    """
    whole = _WHOLE.get(config.standardise)
    if whole is not None:
        images = whole(images)
        counterparts = None if counterparts is None else whole(counterparts)
    if counterparts is not None:
        images = splice(images, counterparts, config.splice, generator)
    crops = random_crop(images, config.crop, generator, config.max_shift)
    if whole is None:
        crops = standardise(crops)
    crops = random_brightness(crops, config.brightness, generator)
    return random_contrast(crops, config.contrast_low, config.contrast_high, generator)


def evaluation_crops(images: Tensor, crop: int, crops: int = 1, standardised: str = "image") -> Tensor:
    """Test crops float32 (N, crops, C, crop, crop) of uint8 images, as config.standardise says.

    1 is the centre; 13 is the centre and twelve crops that are 1, 2 or 3 pixels off along both diagonals.
    """
    check_name("part to standardise", standardised, STANDARDS)
    if crops not in (1, len(TEST_SHIFTS)):
        raise ValueError(
            f"crops must be 1 (the centre) or {len(TEST_SHIFTS)} (shifted along the diagonals), not {crops}"
        )
    shifts = TEST_SHIFTS[:crops]
    _check_crop(images, crop, margin=max(max(shift) for shift in shifts))
    top, left = _centre(images, crop)
    if standardised != "crop":
        images = _WHOLE[standardised](images)
    cut = torch.stack([images[..., top + y :, left + x :][..., :crop, :crop] for y, x in shifts], dim=1)
    return standardise(cut.flatten(0, 1)).unflatten(0, cut.shape[:2]) if standardised == "crop" else cut


def standardise(images: Tensor) -> Tensor:
    """Each image to mean 0 and standard deviation 1 over all its channels and pixels, as float32.

    The deviation counts as at least 1 / sqrt(n), n numbers an image: a blank image becomes zeros.
    """
    _check_images(images)
    centred = images.to(torch.float32)
    centred = centred - centred.mean((1, 2, 3), keepdim=True)
    deviation = centred.square().mean((1, 2, 3), keepdim=True).sqrt()
    return centred / deviation.clamp_min(1 / math.sqrt(math.prod(images.shape[1:])))


def above_background(images: Tensor) -> Tensor:
    """Each channel less the mean of its outermost pixels, in units of 40 grey levels, as float32.

    Unlike `standardise` this keeps how light and how dark things are, for objects before a plain background.
    """
    _check_images(images)
    grey = images.to(torch.float32)
    edge = torch.cat([grey[..., 0, :], grey[..., -1, :], grey[..., 1:-1, 0], grey[..., 1:-1, -1]], dim=-1)
    return (grey - edge.mean(-1)[..., None, None]) / GREY_LEVELS


_WHOLE = {"image": standardise, "background": above_background}
"""What is done to whole images, by config.standardise."""


def centre_crop(images: Tensor, crop: int) -> Tensor:
    """The crop x crop square in the middle, nearer to the top left by half a pixel if it cannot be exact."""
    _check_crop(images, crop)
    top, left = _centre(images, crop)
    return images[..., top : top + crop, left : left + crop]


def random_crop(images: Tensor, crop: int, generator: torch.Generator, max_shift: int | None = None) -> Tensor:
    """A crop x crop square of each image, at most `max_shift` pixels off the centre along each axis.

    Every such place is equally likely, and chosen for each image by itself.
    """
    _check_crop(images, crop)
    _check_generator(images, generator)
    count, _, height, width = images.shape

    def starts(side: int, centre: int) -> Tensor:
        room = max(centre, side - crop - centre) if max_shift is None else max_shift
        first, last = max(0, centre - room), min(side - crop, centre + room)
        return first + torch.randint(last - first + 1, (count,), generator=generator, device=images.device)

    top, left = _centre(images, crop)
    tops, lefts = starts(height, top), starts(width, left)
    everywhere = images.unfold(2, crop, 1).unfold(3, crop, 1)  # a view: (N, C, top, left, crop, crop)
    return everywhere[torch.arange(count, device=images.device), :, tops, lefts]


def random_brightness(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Add to each image one number between -amount and amount."""
    _check_images(images)
    return images + amount * (2 * _uniform(images, generator) - 1)


def random_contrast(images: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Stretch each image by one factor between low and high about the mean of each of its channels."""
    _check_images(images)
    factor = low + (high - low) * _uniform(images, generator)
    mean = images.mean((2, 3), keepdim=True)
    return mean + factor * (images - mean)


def _uniform(images: Tensor, generator: torch.Generator) -> Tensor:
    """One number in [0, 1) for each image."""
    _check_generator(images, generator)
    return torch.rand((len(images), 1, 1, 1), generator=generator, device=images.device)


def _centre(images: Tensor, crop: int) -> tuple[int, int]:
    height, width = images.shape[-2:]
    return (height - crop) // 2, (width - crop) // 2


def _check_images(images: Tensor) -> None:
    if images.ndim != 4:
        raise ValueError(
            f"images must have the four dims (N, C, H, W), not shape {tuple(images.shape)}: "
            "add a batch dim with images[None]"
        )


def _check_crop(images: Tensor, crop: int, margin: int = 0) -> None:
    _check_images(images)
    height, width = images.shape[-2:]
    largest = min(height, width) - 2 * margin
    if not 1 <= crop <= largest:
        room = f" with crops shifted by {margin} pixels" if margin else ""
        raise ValueError(
            f"crop must be 1 to {largest} for images of {height} x {width}{room}, not {crop}: choose a smaller crop"
            + (", or crops=1" if margin else "")
        )


def _check_generator(images: Tensor, generator: torch.Generator) -> None:
    if generator.device.type != images.device.type:
        raise ValueError(
            f"the generator must be on the images' device, {images.device}, not {generator.device}: "
            f"make it with torch.Generator({images.device.type!r})"
        )
