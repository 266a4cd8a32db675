"""The arithmetic that the definition needs, whether or not an implementation computes some of it twice or not at all.

An addition or multiplication counts 1, a multiply-add 2. An edge is a (child, parent) pair that routing connects; each
has a vote of 16 elements. Counted for each element of each vote, with T iterations:

    votes     8            four multiply-adds of the 4x4 product, once
    M-step    6 T          r V summed: 2; V - mu, its square, and r times that summed: 4
    E-step    4 (T - 1)    V - mu, its square, and that over s2 summed: 4

Operations that are done once per edge (the exponential, the division) or once per parent are left out: they are a
sixteenth of these or less. The two ordinary convolutions count 2 for each weight at each position. Backward counts as
twice the forward pass, the usual convention; augmentation and the optimiser are not counted.
"""

from __future__ import annotations

import math

from emcaps.bench.cases import CHANNELS, FORWARD, Case
from emcaps.config import NetworkConfig
from emcaps.nn.geometry import IMAGE_KERNEL, primary_grid, routed_layers

POSE = 16
"""Elements of a pose, and of a vote."""


def case_flops(case: Case) -> int:
    """Floating-point operations of one batch of the case."""
    forward = case.batch * forward_flops(case.config(), CHANNELS, case.size)
    return forward if case.what == FORWARD else 3 * forward


def forward_flops(config: NetworkConfig, image_channels: int, image_size: int) -> int:
    """Floating-point operations of the forward pass of one image."""
    positions = math.prod(primary_grid(image_size))
    features = 2 * positions * IMAGE_KERNEL**2 * image_channels * config.conv_channels
    primary = 2 * positions * config.conv_channels * config.primary_types * (POSE + 1)
    votes = POSE * routed_edges(config, image_size)
    return features + primary + votes * (8 + 6 * config.iterations + 4 * (config.iterations - 1))


def routed_edges(config: NetworkConfig, image_size: int) -> int:
    """How many (child, parent) pairs all routed layers connect in one image."""
    return sum(layer.edges for layer in routed_layers(config, image_size))
