"""The network that training starts from: a function of the config, its seed and the first training images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from emcaps.config import RunConfig
from emcaps.data.augment import augment
from emcaps.nn import MatrixCapsNet, build_network
from emcaps.train.randomness import ExampleOrder, own_randomness, seed_for

STARTING_IMAGES = 32
"""The starting betas are chosen on this many images, if the config asks for that."""


def start_network(config: RunConfig, images: Tensor) -> nn.Module:
    """The network at step 0, on the device of the training images uint8 (N, C, H, W).

    The same config and images give the same bits every time. The caller's random number generators are left alone.
    """
    with own_randomness(images.device):
        torch.manual_seed(seed_for(config.train.seed, "network"))
        network = build_network(config.network, config.data.image_channels, config.data.crop).to(images.device)
        start_betas(network, images, config)
    return network


def start_betas(network: nn.Module, images: Tensor, config: RunConfig) -> None:
    """Give a new capsule network the starting betas that its config asks for."""
    if not isinstance(network, MatrixCapsNet) or config.network.betas == "zero":
        return
    chosen = ExampleOrder(len(images), STARTING_IMAGES, config.train.seed, images.device).batch(0)
    generator = torch.Generator(images.device).manual_seed(seed_for(config.train.seed, "start"))
    network.start_half_active(augment(images[chosen], config.data, generator))
