"""Augmentation: training images varied at random, and cropped.

Dims: N images, C channels (2 stereo, 1 mono), H and W the image's sides. Everything works on whole batches, on the
images' device, without waiting for it; every random number comes from the generator that is given.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from emcaps.config import DataConfig
from emcaps.data.combine import splice
from emcaps.data.crops import after_cropping, before_cropping, check_crop, check_images

KNOTS = 4
"""Knots along each side of the net by which images are bent."""
WARPS = ("turn", "zoom", "slant", "stretch", "bend")
"""The settings of data that say how far images are warped."""


def augment(
    images: Tensor, config: DataConfig, generator: torch.Generator, counterparts: Tensor | None = None
) -> Tensor:
    """Training crops float32 (N, C, crop, crop) of uint8 images.

    In this order, each if it is asked for: standardise, splice, mirror, warp, pad, crop, change brightness and
    contrast. With config.standardise "crop" standardising comes after cropping; with "background" grey is measured from
    the background instead of standardised. Images are spliced with their `counterparts`, uint8 too, if there are any.
    """
    images = before_cropping(images, config.standardise)
    if counterparts is not None:
        images = splice(images, before_cropping(counterparts, config.standardise), config.splice, generator)
    if config.mirror:
        pairs = config.view == "stereo" and not config.channels
        images = random_mirror(images, config.mirror, generator, pairs=pairs)
    if warps(config):
        images = random_warp(images, generator, **{name: getattr(config, name) for name in WARPS})
    if config.pad:
        images = F.pad(images.to(torch.float32), (config.pad,) * 4, mode="replicate")
    crops = random_crop(images, config.crop, generator, config.max_shift)
    crops = after_cropping(crops, config.standardise)
    crops = random_brightness(crops, config.brightness, generator)
    return random_contrast(crops, config.contrast_low, config.contrast_high, generator)


def random_mirror(images: Tensor, share: float, generator: torch.Generator, *, pairs: bool = False) -> Tensor:
    """The images, a `share` of them with left and right swapped.

    With `pairs` the channels are a left and a right camera, which are swapped, too: in a mirrored room the right camera
    sees what the left one saw.
    """
    check_images(images)
    mirrored = images.flip(1, -1) if pairs else images.flip(-1)
    return torch.where(_uniform(images, generator) < share, mirrored, images)


def warps(config: DataConfig) -> bool:
    """Whether training images are warped at all."""
    return any(getattr(config, name) for name in WARPS)


def random_warp(
    images: Tensor,
    generator: torch.Generator,
    *,
    turn: float = 0.0,
    zoom: float = 0.0,
    slant: float = 0.0,
    stretch: float = 0.0,
    bend: float = 0.0,
) -> Tensor:
    """Each image bent, stretched, slanted, turned and enlarged or reduced, in this order, as float32.

    All but bending is about its centre, and the amounts are drawn for each image.

    It is turned by up to `turn` degrees either way. The factor lies between 1 / (1 + zoom) and 1 + zoom, and enlarges
    as often as it reduces. Each row moves sideways by up to `slant` times its distance from the middle row. Width over
    height changes by a factor between 1 / (1 + stretch) and 1 + stretch, the area does not. A net of 4 x 4 knots is
    laid over the result, the outer ones on its corners; each moves by up to `bend` pixels of the image along both axes.
    What lies between moves smoothly with them, and in the worst case 1.9 times as far. Pixels are interpolated; what
    comes in from beyond the edge continues the edge.
    """
    check_images(images)

    def drawn(largest: float) -> Tensor:
        return largest * (2 * _uniform(images, generator) - 1)

    places = sampled_places(images, drawn(math.radians(turn)), drawn(math.log1p(zoom)).exp(), drawn(slant))
    if stretch:  # this and bend draw nothing if they are not asked for: recorded runs without them can be made again
        half = drawn(math.log1p(stretch) / 2).exp()[:, 0]
        places = places * torch.cat([1 / half, half], dim=-1)[..., None, :]
    if bend:
        places = places + _bent(images, bend, generator)
    return _sampled(images, places)


def warp(
    images: Tensor,
    angle: Tensor,
    scale: Tensor,
    sideways: Tensor,
    down_by: Tensor | float = 0.0,
    across_by: Tensor | float = 0.0,
) -> Tensor:
    """Each image slanted by `sideways`, turned by its angle, reduced by its scale and then moved, as float32.

    All of these have the shape (N, 1, 1, 1): the angle in radians, `down_by` and `across_by` in pixels. Pixels are
    interpolated; what comes in from beyond the edge continues the edge.
    """
    check_images(images)
    return _sampled(images, sampled_places(images, angle, scale, sideways, down_by, across_by))


def sampled_places(
    images: Tensor,
    angle: Tensor,
    scale: Tensor,
    sideways: Tensor,
    down_by: Tensor | float = 0.0,
    across_by: Tensor | float = 0.0,
) -> Tensor:
    """Where in the image each pixel of the warped one lies, (N, H, W, 2): across and down, -1 to 1 edge to edge."""
    height, width = images.shape[-2:]
    down = torch.arange(height, device=images.device)[:, None] - (height - 1) / 2 - down_by
    across = torch.arange(width, device=images.device) - (width - 1) / 2 - across_by
    down_there = scale * (angle.cos() * down + angle.sin() * across)
    across_there = scale * (angle.cos() * across - angle.sin() * down) + sideways * down_there
    return torch.stack([2 * across_there / width, 2 * down_there / height], dim=-1)[:, 0]


def _bent(images: Tensor, bend: float, generator: torch.Generator) -> Tensor:
    """How far the places (N, H, W, 2) move when the knots of a net move by up to `bend` pixels."""
    height, width = images.shape[-2:]
    shape = len(images), 2, KNOTS, KNOTS
    knots = bend * (2 * torch.rand(shape, generator=generator, device=images.device) - 1)
    across, down = F.interpolate(knots, (height, width), mode="bicubic", align_corners=True).unbind(1)
    return torch.stack([2 * across / width, 2 * down / height], dim=-1)


def _sampled(images: Tensor, places: Tensor) -> Tensor:
    return F.grid_sample(images.to(torch.float32), places, padding_mode="border", align_corners=False)


def random_crop(images: Tensor, crop: int, generator: torch.Generator, max_shift: int | None = None) -> Tensor:
    """A crop x crop square of each image, at most `max_shift` pixels off the centre along each axis.

    Every such place is equally likely, and chosen for each image by itself.
    """
    check_crop(images, crop)
    _check_generator(images, generator)

    def drawn(starts: range) -> Tensor:
        return starts.start + torch.randint(len(starts), (len(images),), generator=generator, device=images.device)

    height, width = images.shape[-2:]
    tops, lefts = (drawn(crop_starts(side, crop, max_shift)) for side in (height, width))
    return crop_at(images, crop, tops, lefts)


def crop_starts(side: int, crop: int, max_shift: int | None = None) -> range:
    """Where a crop may begin along an image's side: at most `max_shift` pixels off the centre, and within the image."""
    last = side - crop
    centre = last // 2
    room = last if max_shift is None else max_shift
    return range(max(0, centre - room), min(last, centre + room) + 1)


def crop_at(images: Tensor, crop: int, tops: Tensor, lefts: Tensor) -> Tensor:
    """The crop x crop square of each image that begins at its own row and column, int64 (N,) each."""
    everywhere = images.unfold(2, crop, 1).unfold(3, crop, 1)  # a view: (N, C, top, left, crop, crop)
    return everywhere[torch.arange(len(images), device=images.device), :, tops, lefts]


def random_brightness(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Add to each image one number between -amount and amount."""
    check_images(images)
    return brighten(images, amount, _uniform(images, generator))


def brighten(images: Tensor, amount: float, drawn: Tensor) -> Tensor:
    """What `random_brightness` makes of the uniform numbers (N, 1, 1, 1) that it draws."""
    return images + amount * (2 * drawn - 1)


def random_contrast(images: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Multiply the contrast of each image by one factor between low and high; its channels keep their means."""
    check_images(images)
    return scale_contrast(images, low, high, _uniform(images, generator))


def scale_contrast(images: Tensor, low: float, high: float, drawn: Tensor) -> Tensor:
    """What `random_contrast` makes of the uniform numbers (N, 1, 1, 1) that it draws."""
    factor = low + (high - low) * drawn
    mean = images.mean((2, 3), keepdim=True)
    return mean + factor * (images - mean)


def _uniform(images: Tensor, generator: torch.Generator) -> Tensor:
    """One number in [0, 1) for each image."""
    _check_generator(images, generator)
    return torch.rand((len(images), 1, 1, 1), generator=generator, device=images.device)


def _check_generator(images: Tensor, generator: torch.Generator) -> None:
    if generator.device.type != images.device.type:
        raise ValueError(
            f"the generator must be on the images' device, {images.device}, not {generator.device}: "
            f"make it with torch.Generator({images.device.type!r})"
        )
