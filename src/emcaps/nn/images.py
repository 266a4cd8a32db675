"""What a network does with images before its first layer: check them, and standardise them if its config says so."""

from __future__ import annotations

import torch
from torch import Tensor

from emcaps.config import NetworkConfig
from emcaps.nn.geometry import routed_layers


def check_images(
    images: Tensor, channels: int, smallest: int, config: NetworkConfig, *, whole_numbers: bool = False
) -> None:
    """Raise unless a network with these `channels` can read the images; `whole_numbers` allows uint8 and the like.

    `smallest` is the least side of an image for the config, which the network has at hand.
    """
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a tensor, not {type(images).__name__}: torch.as_tensor makes one")
    if images.is_complex() or not (images.is_floating_point() or whole_numbers):
        raise TypeError(
            f"images must be a tensor of floating-point numbers, not {images.dtype}: emcaps.crops_for prepares uint8 "
            "images for a trained network as its training did, and a network with network.input='standardised' takes "
            "them raw"
        )
    if images.dim() != 4 or images.shape[1] != channels or min(images.shape[2:]) < smallest:
        rule = f"images must be (B, {channels}, H, W) with H and W at least {smallest}, not {tuple(images.shape)}"
        if images.dim() == 4 and images.shape[1] == channels:
            try:
                routed_layers(config, (images.shape[2], images.shape[3]))
            except ValueError as error:
                raise ValueError(f"{rule}: {error}") from None
        raise ValueError(
            f"{rule}: this network was built for that many channels (mono 1, stereo 2), and its windows need that many "
            "pixels"
        )


def check_dtype(images: Tensor, dtype: torch.dtype) -> None:
    """Raise TypeError unless the images have the dtype of the network's weights, outside of autocast."""
    if images.dtype != dtype and not torch.is_autocast_enabled(images.device.type):
        raise TypeError(
            f"images must be {dtype}, as the network's weights are, not {images.dtype}: use images.to({dtype})"
        )


def standardised(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Each image to mean 0 and standard deviation 1 over all its channels and pixels; a blank image to zeros.

    The result is the same to rounding for grey levels from 0 to 255, numbers between 0 and 1, or any other scale and
    offset, so no smallest deviation is built in: each image is brought to the range from 0 to 1 first.
    """
    grey = images.to(torch.promote_types(dtype, torch.float32))
    tiny = torch.finfo(grey.dtype).tiny
    low, high = (bound.detach() for bound in (grey.amin((1, 2, 3), keepdim=True), grey.amax((1, 2, 3), keepdim=True)))
    part = (grey - low) / (high - low).clamp_min(tiny)
    centred = part - part.mean((1, 2, 3), keepdim=True)
    blank = low == high
    # The root of 0 has no gradient, and torch would make NaN of it.
    variance = torch.where(blank, 1.0, centred.square().mean((1, 2, 3), keepdim=True))
    return torch.where(blank, 0.0, centred / variance.sqrt().clamp_min(tiny)).to(dtype)
