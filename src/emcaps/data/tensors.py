"""From examples in memory to tensors on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from emcaps.config import VIEWS
from emcaps.data.prepared import Examples
from emcaps.names import check_name


def to_tensors(examples: Examples, view: str, device: str | torch.device) -> tuple[Tensor, Tensor]:
    """Images uint8 (N, C, H, W) and labels int64 (N,) on `device`.

    "stereo" keeps the pairs; "mono" makes each camera an example of its own, left and right of a pair side by side. For
    sets without cameras the view has no meaning.
    """
    check_name("view", view, VIEWS)
    images = torch.from_numpy(examples.images).to(device)
    labels = torch.from_numpy(examples.category).to(device=device, dtype=torch.int64)
    if view == "mono" and examples.has_viewpoints:
        return images.flatten(0, 1).unsqueeze(1), labels.repeat_interleave(2)
    return images, labels
