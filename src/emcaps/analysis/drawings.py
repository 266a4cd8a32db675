"""What a network's decoder draws: images from their poses, and one image while a number of its pose changes.

Dims: classes: those that there are images of; C channels; side: that of a crop; 16 numbers of a pose.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emcaps.nn import MatrixCapsNet
from emcaps.nn.geometry import POSE
from emcaps.routing import RoutingOutput

STEPS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""How far a number of the pose is moved, in its standard deviations over the images of the class."""
DARKEST, LIGHTEST = -3.0, 3.0
"""The standardised grey values that become black and white."""

Pictures = npt.NDArray[np.uint8]


class Drawings(NamedTuple):
    """Grey pictures. Of several cameras or colours they show the first."""

    classes: list[int]
    """The class of each image."""
    images: Pictures
    """(classes, side, side): the images."""
    drawn: Pictures
    """(classes, side, side): what the decoder draws of each image from the pose of its class."""
    varied: int
    """The class whose image is drawn best."""
    variations: Pictures
    """(16, steps, side, side): that image, with each number of its pose moved by each of STEPS."""


@torch.no_grad()
def make_drawings(network: MatrixCapsNet, crops: Tensor, labels: Tensor, spread: Tensor) -> Drawings:
    """From one crop of each class (classes, C, side, side), with the numbers of the classes (classes,).

    `spread` (classes, 16) holds the standard deviations of the numbers of each class's pose.
    """
    assert network.decoder is not None
    capsules = network(crops)
    drawn = network.decoder(capsules, labels)
    best = int((drawn - crops).square().flatten(1).mean(1).argmin())
    varied = int(labels[best])
    step = torch.tensor(STEPS).to(spread)
    moved = torch.einsum("n,s,nm->nsm", spread[best], step, torch.eye(POSE).to(spread)).flatten(0, 1)
    pose = capsules.pose[best].repeat(len(moved), 1, 1, 1)
    pose[:, varied] += moved.unflatten(1, (4, 4))
    changed = RoutingOutput(pose, capsules.activation[best].expand(len(moved), -1))
    variations = network.decoder(changed, labels[best].expand(len(moved)))
    strips = _grey(variations[:, 0]).reshape(POSE, len(STEPS), *crops.shape[-2:])
    return Drawings(labels.tolist(), _grey(crops[:, 0]), _grey(drawn[:, 0]), varied, strips)


def _grey(values: Tensor) -> Pictures:
    levels = (values - DARKEST) / (LIGHTEST - DARKEST) * 255
    grey: Pictures = levels.round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    return grey
