"""Images for the tests of crops and augmentation."""

from __future__ import annotations

import torch


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(count: int, channels: int = 2, side: int = 48) -> torch.Tensor:
    return torch.randint(256, (count, channels, side, side), generator=generator(7), dtype=torch.uint8)


def position_images(count: int, height: int, width: int) -> torch.Tensor:
    """Images whose pixels tell where they are and of which image and channel: channel 1 is channel 0 plus 0.5."""
    places = torch.arange(count * height * width, dtype=torch.float64).reshape(count, 1, height, width)
    return torch.cat([places, places + 0.5], dim=1)
