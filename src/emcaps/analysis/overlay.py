"""Pictures of routing: the image, and over it how much of the answer's data came from each place.

Dims: B batch; T iterations; C channels; H, W the picture's sides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from emcaps.analysis.flow import image_shares
from emcaps.nn import MatrixCapsNet, NetworkTrace

HEAT = ((0, 0, 4), (66, 10, 104), (147, 38, 103), (221, 81, 58), (252, 165, 10), (252, 255, 164))
"""Colours from little to much, from dark violet to light yellow, equally far apart."""
OPAQUE = 0.6
"""How much of a picture's pixel its heat replaces."""


@torch.no_grad()
def routing_overlays(network: MatrixCapsNet, trace: NetworkTrace, pictures: Tensor) -> npt.NDArray[np.uint8]:
    """(B, T, H, W, 3): where the answer's data came from, for each iteration, over uint8 pictures (B, C, H, W).

    The place that gave most is the lightest. The first iteration shows the even start.
    """
    last = trace.class_caps
    answers = last[-1].activation.argmax(-1)
    grey = pictures.cpu().float().mean(1) / 255
    overlays = []
    for iteration in range(len(last)):
        shares = image_shares(network, trace, answers, iteration).cpu().float()
        heat = shares / shares.amax((1, 2), keepdim=True).clamp(min=1e-9)
        smooth = interpolate(heat[:, None], pictures.shape[2:], mode="bilinear", align_corners=False)[:, 0]
        overlays.append((1 - OPAQUE) * grey[..., None] + OPAQUE * _coloured(smooth))
    blended = torch.stack(overlays, 1).nan_to_num(0.0)
    mixed: npt.NDArray[np.uint8] = (255 * blended).round().clamp(0, 255).to(torch.uint8).numpy()
    return mixed


def shown_picture(image: Tensor) -> npt.NDArray[np.uint8]:
    """A uint8 image (C, H, W) as pixels to look at: grey, colour, or the two cameras of a pair side by side."""
    pixels = image.cpu().numpy()
    if len(pixels) >= 3:
        return np.ascontiguousarray(pixels[:3].transpose(1, 2, 0))
    return np.concatenate(list(pixels), axis=1)


def _coloured(heat: Tensor) -> Tensor:
    """Colours (..., 3) between 0 and 1 for heat between 0 and 1."""
    colours = torch.tensor(HEAT, dtype=torch.float32) / 255
    place = heat.nan_to_num(0.0).clamp(0, 1) * (len(HEAT) - 1)
    below = place.floor().long().clamp(max=len(HEAT) - 2)
    between = (place - below)[..., None]
    return (1 - between) * colours[below] + between * colours[below + 1]
