"""The images of a training step: gathered, spliced, cropped, standardised, varied and mixed.

On a GPU one kernel makes the crops and a second one mixes them (batch_kernels.py), where torch would launch dozens. The
kernels compute what the functions of emcaps.data do, but draw the random numbers of a batch all at once: so a GPU draws
other crops than it would by these functions. The functions run everywhere else: on a CPU, for images that are mirrored,
warped or padded, and for large ones.

Dims: B batch; C channels; images uint8 (N, C, H, W) of the whole split live on the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from emcaps.config import DataConfig
from emcaps.data.augment import augment, warps
from emcaps.data.combine import Counterparts, mix
from emcaps.routing.availability import unavailable

MOST_CROP_VALUES = 2**14
"""A crop stays in the registers of one program: 128 x 128 pixels in mono, 90 x 90 in stereo."""
MOST_IMAGE_VALUES = 2**18
"""Beyond this, one program would take too long to measure the grey levels of a whole image."""


class Batch(NamedTuple):
    """What a training step shows the network."""

    crops: Tensor
    """float32 (B, C, crop, crop)."""
    own: Tensor | None
    """float32 (B,): how much of each crop is its own image; the rest is its neighbour's. None without mixing."""


def training_batch(
    images: Tensor,
    examples: Tensor,
    config: DataConfig,
    generator: torch.Generator,
    counterparts: Counterparts | None = None,
    mixup: float = 0.0,
) -> Batch:
    """Training crops of the images that `examples` (B,) numbers, varied as `config` says and mixed up to `mixup`.

    Images are spliced with `counterparts`, if there are any. Nothing waits for the device.
    """
    if fits_kernels(images, config):
        return _by_kernels(images, examples, config, generator, counterparts, mixup)
    others = None if counterparts is None else images[counterparts.draw(examples, generator)]
    crops = augment(images[examples], config, generator, others)
    return Batch(*mix(crops, mixup, generator)) if mixup else Batch(crops, None)


def fits_kernels(images: Tensor, config: DataConfig) -> bool:
    """Whether the kernels make the crops of these images. What is wrong with images or config, `augment` says."""
    if not _runs_kernels(images.device) or images.dim() != 4 or images.dtype != torch.uint8:
        return False
    if config.mirror or config.pad or warps(config):
        return False
    _, channels, height, width = images.shape
    return (
        images.is_contiguous()
        and config.crop <= min(height, width)
        and _power_of_2(channels) * _power_of_2(config.crop**2) <= MOST_CROP_VALUES
        and channels * height * width <= MOST_IMAGE_VALUES
    )


def _runs_kernels(device: torch.device) -> bool:
    """Whether Triton's kernels run on this device, and fast: its interpreter on a CPU is for tests."""
    return device.type == "cuda" and not unavailable("triton", device)


def _by_kernels(
    images: Tensor,
    examples: Tensor,
    config: DataConfig,
    generator: torch.Generator,
    counterparts: Counterparts | None,
    mixup: float,
) -> Batch:
    from emcaps.train.batch_kernels import DRAWS, make_crops, mix_crops

    shape = len(DRAWS), len(examples)
    draws = torch.rand(shape, dtype=torch.float32, generator=generator, device=images.device)
    crops = make_crops(images, examples, draws, config, counterparts)
    return Batch(*mix_crops(crops, draws, mixup)) if mixup else Batch(crops, None)


def _power_of_2(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << (number - 1).bit_length()
