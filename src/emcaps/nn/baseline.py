"""The convolutional baseline of Hinton et al. (2018): 4,253,349 parameters on 32x32 stereo pairs, or fewer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from emcaps.nn.classifier import Classifier
from emcaps.nn.images import check_dtype, standardised


class BaselineCNN(Classifier):
    """Two 5x5 convolutions (32 and 64 channels) with 2x2 max-pooling, 1024 hidden units with dropout, class logits.

    `channels` are those of the first convolution, and the second has twice as many. With fewer of them and of `hidden`
    units it is a CNN with as many parameters as a capsule network. If it is `pooled`, the hidden layer reads the mean
    of each channel over all positions.

    With `raw_images` it standardises its images itself, as a capsule network does with network.input "standardised".
    """

    def __init__(
        self,
        image_channels: int = 2,
        image_size: int = 32,
        classes: int = 5,
        *,
        raw_images: bool = False,
        channels: int = 32,
        hidden: int = 1024,
        pooled: bool = False,
    ) -> None:
        super().__init__()
        if image_size < 4:
            raise ValueError(f"image_size must be at least 4 to be pooled twice, not {image_size}")
        self.image_channels, self.image_size = image_channels, image_size
        self.raw_images, self.pooled = raw_images, pooled
        self.conv1 = nn.Sequential(nn.Conv2d(image_channels, channels, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
        self.conv2 = nn.Sequential(nn.Conv2d(channels, 2 * channels, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
        features = hidden_inputs(channels, image_size, pooled)
        self.hidden = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(0.5))
        self.output = nn.Linear(hidden, classes)

    def forward(self, images: Tensor) -> Tensor:
        """images (B, channels, size, size), standardised unless `raw_images`; gives logits (B, classes)."""
        logits: Tensor = self.output(self.hidden_units(images))
        return logits

    def hidden_units(self, images: Tensor) -> Tensor:
        """The hidden layer's units (B, hidden) for images as `forward` takes them."""
        if images.shape[1:] != (self.image_channels, self.image_size, self.image_size):
            raise ValueError(
                f"images must be (B, {self.image_channels}, {self.image_size}, {self.image_size}), "
                f"not {tuple(images.shape)}: this network is built for one image size"
            )
        if self.raw_images:
            images = standardised(images, self.output.weight.dtype)
        check_dtype(images, self.output.weight.dtype)
        maps = self.conv2(self.conv1(images))
        units: Tensor = self.hidden(maps.mean((2, 3)) if self.pooled else torch.flatten(maps, 1))
        return units


def hidden_inputs(channels: int, image_size: int, pooled: bool) -> int:
    """How many numbers a hidden unit of such a network reads."""
    return 2 * channels * (1 if pooled else (image_size // 4) ** 2)
