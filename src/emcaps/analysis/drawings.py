"""What a network's decoder draws: images from their poses, and one image while a number of its pose changes.

Dims: N images; classes; side: that of a crop; 16 numbers of a pose.
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
    """Of the first camera or colour."""

    classes: list[int]
    """Those that there are images of."""
    images: Pictures
    """(classes, side, side): the first image of each class."""
    drawn: Pictures
    """(classes, side, side): the same, from the pose of their class."""
    varied: int
    """The class whose image is drawn best."""
    variations: Pictures
    """(16, steps, side, side): that image, with each number of its pose moved by each of STEPS."""


@torch.no_grad()
def make_drawings(network: MatrixCapsNet, crops: Tensor, labels: Tensor) -> Drawings:
    """From crops (N, C, side, side) with their classes (N,)."""
    assert network.decoder is not None
    capsules = network(crops)
    drawn = network.decoder(capsules, labels)
    classes = labels.unique().tolist()
    first = torch.stack([(labels == label).nonzero()[0, 0] for label in classes])
    best = int((drawn - crops).square().flatten(1).mean(1)[first].argmin())
    varied, example = classes[best], first[best : best + 1]
    spread = capsules.pose[labels == varied, varied].flatten(1).std(0, correction=0)
    moved = torch.einsum("n,s,nm->nsm", spread, spread.new_tensor(STEPS), torch.eye(POSE).to(spread)).flatten(0, 1)
    pose = capsules.pose[example].repeat(len(moved), 1, 1, 1)
    pose[:, varied] += moved.unflatten(1, (4, 4))
    changed = RoutingOutput(pose, capsules.activation[example].expand(len(moved), -1))
    variations = network.decoder(changed, torch.full((len(moved),), varied, device=labels.device))
    strips = _grey(variations[:, 0]).reshape(POSE, len(STEPS), *crops.shape[-2:])
    return Drawings(classes, _grey(crops[first, 0]), _grey(drawn[first, 0]), varied, strips)


def _grey(values: Tensor) -> Pictures:
    levels = (values - DARKEST) / (LIGHTEST - DARKEST) * 255
    grey: Pictures = levels.round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    return grey
