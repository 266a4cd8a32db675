"""Training images that are made of two others: spliced along a line, or mixed.

Splicing: a network that has seen five cars shall know a sixth. A car whose rear is another car's rear, seen from the
same viewpoint in the same light, is a car that the network has not seen, and any two cars can be spliced along any
line. This takes more labels of the training images than their category: those of viewpoint and light.

Mixing: a part of its neighbour in the batch is added to each image, and both labels count by their shares.

Dims: N images, C channels, H and W the image's sides.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from emcaps.config import VIEWS
from emcaps.data.prepared import Examples
from emcaps.names import check_name

FARTHEST = 1 / 6
"""How far from the centre a line may pass, as a share of the image's side."""


class Counterparts(NamedTuple):
    """For every example, all examples of the same category, viewpoint, light and camera, itself included.

    With n instances one draw in n is the example itself, and splicing an image with itself changes nothing.
    """

    grouped: Tensor
    """int64 (N,): the numbers of the examples, group after group."""
    first: Tensor
    """int64 (N,): where in `grouped` the group of each example begins."""
    size: Tensor
    """int64 (N,): how many examples that group has."""

    def draw(self, examples: Tensor, generator: torch.Generator) -> Tensor:
        """One counterpart of each of these examples, all equally likely."""
        return self.choose(examples, torch.rand(len(examples), generator=generator, device=examples.device))

    def choose(self, examples: Tensor, drawn: Tensor) -> Tensor:
        """The counterparts that `draw` makes of the uniform numbers (N,) that it draws."""
        size = self.size[examples]
        number = torch.minimum((drawn * size).long(), size - 1)  # a product may round up to the size itself
        return self.grouped[self.first[examples] + number]


def find_counterparts(examples: Examples, view: str, device: str | torch.device) -> Counterparts:
    """The counterparts of all examples, numbered as `to_tensors` does: with "mono", each camera is an example."""
    check_name("view", view, VIEWS)
    if examples.elevation is None or examples.azimuth is None or examples.lighting is None:
        raise ValueError("splicing needs labels of viewpoint and light, and these images have none: set data.splice=0")
    seen = np.stack([examples.category, examples.elevation, examples.azimuth, examples.lighting])
    _, group = np.unique(seen, axis=1, return_inverse=True)
    group = group.reshape(-1)
    if view == "mono":
        group = (2 * group[:, None] + np.arange(2)).reshape(-1)
    sizes = np.bincount(group)
    if sizes.max() < 2:
        raise ValueError(
            "data.splice needs several instances of a category at one viewpoint in one light, and the training "
            "examples have one each: set data.splice=0"
        )
    first = np.cumsum(sizes) - sizes
    arrays = np.argsort(group, kind="stable"), first[group], sizes[group]
    return Counterparts(*(torch.from_numpy(array.astype(np.int64)).to(device) for array in arrays))


def splice(images: Tensor, others: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """The images (N, C, H, W), of which a `share` show the same-numbered image of `others` beyond a random line."""
    if others.shape != images.shape:
        raise ValueError(
            f"images are spliced one by one, so others must have their shape {tuple(images.shape)}, "
            f"not {tuple(others.shape)}"
        )

    def drawn() -> Tensor:
        return torch.rand((len(images), 1, 1), generator=generator, device=images.device)

    return splice_along(images, others, share, drawn(), drawn(), drawn())


def splice_along(images: Tensor, others: Tensor, share: float, chosen: Tensor, turn: Tensor, offset: Tensor) -> Tensor:
    """What `splice` makes of the uniform numbers (N, 1, 1) that it draws: which images, and each line's place."""
    height, width = images.shape[-2:]
    is_chosen, angle = chosen < share, 2 * math.pi * turn
    distance = FARTHEST * min(height, width) * (2 * offset - 1)
    down, across = (torch.arange(side, device=images.device) - (side - 1) / 2 for side in (height, width))
    beyond = down[:, None] * angle.sin() + across * angle.cos() > distance
    return torch.where((is_chosen & beyond)[:, None], others, images)


def mix(crops: Tensor, largest: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix up to `largest` of its neighbour in the batch into each crop; gives the crops and each one's own share (N,).

    The foreign share is a squared uniform number, so that most images stay nearly themselves.
    """
    return mix_in(crops, largest, torch.rand(len(crops), generator=generator, device=crops.device))


def mix_in(crops: Tensor, largest: float, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """What `mix` makes of the uniform numbers (N,) that it draws."""
    share = 1 - largest * drawn.square()
    wide = share[:, None, None, None]
    return wide * crops + (1 - wide) * crops.roll(1, 0), share
