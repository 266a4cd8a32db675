"""A decoder: it draws an image from the pose of a class capsule, as that of Sabour et al. (2017) does from a vector.

Trained with the network, it asks poses to keep what tells the images of a class apart. No answer needs it.

Dims: B batch; C channels; units: those of the first hidden layer, and the second has twice as many.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from emcaps.nn.geometry import POSE
from emcaps.routing import RoutingOutput


class Decoder(nn.Module):
    """`decoder(capsules, chosen)` gives an image (B, C, side, side) from the pose of one class capsule each.

    The poses of all other classes count as zero, so that the image is of the chosen class. Its pixels are those that
    the network reads, standardised as in its training.
    """

    def __init__(self, classes: int, units: int, channels: int, side: int) -> None:
        super().__init__()
        self.classes = classes
        self.shape = (channels, side, side)
        self.layers = nn.Sequential(
            nn.Linear(POSE * classes, units),
            nn.ReLU(),
            nn.Linear(units, 2 * units),
            nn.ReLU(),
            nn.Linear(2 * units, math.prod(self.shape)),
        )

    def forward(self, capsules: RoutingOutput, chosen: Tensor) -> Tensor:
        """Class capsules with poses (B, classes, 4, 4), and the number (B,) of the class to show."""
        self._check_shapes(capsules.pose, chosen)
        pose = capsules.pose.flatten(2)
        mask = torch.zeros_like(pose[..., 0]).scatter(1, chosen[:, None], 1.0)
        images: Tensor = self.layers((pose * mask[..., None]).flatten(1)).unflatten(1, self.shape)
        return images

    def _check_shapes(self, pose: Tensor, chosen: Tensor) -> None:
        """Too few classes to show would leave the other images without a pose to draw them from."""
        if pose.shape[1:] != (self.classes, 4, 4):
            raise ValueError(
                f"the decoder draws from poses (batch, {self.classes}, 4, 4), not {tuple(pose.shape)}: give it the "
                "class capsules of the network that it was trained with"
            )
        if chosen.shape != pose.shape[:1]:
            raise ValueError(
                f"chosen must be the number of a class for each of the {len(pose)} poses, not {tuple(chosen.shape)}: "
                f"to show one class of all, expand its number to ({len(pose)},)"
            )
        # A GPU would have to be waited for.
        if chosen.is_cpu and not torch.compiler.is_compiling() and ((chosen < 0) | (chosen >= self.classes)).any():
            raise ValueError(f"chosen must be 0 to {self.classes - 1}, the numbers of {self.classes} classes")


def decoder_parameters(classes: int, units: int, channels: int, side: int) -> int:
    """How many numbers a decoder learns, told before it takes any memory."""
    return POSE * classes * units + units + 2 * units * (units + 1) + (2 * units + 1) * channels * side**2
