"""How much arithmetic the definition asks for, whatever an implementation computes twice or not at all.

An addition or multiplication counts 1, a multiply-add 2. An edge is a (child, parent) pair that routing connects; each
has a vote of 16 elements. Counted for each element of each vote, with T iterations:

    votes     8            four multiply-adds of the 4x4 product, once
    M-step    6 T          r V summed: 2; V - mu, its square, and r times that summed: 4
    E-step    4 (T - 1)    V - mu, its square, and that over s2 summed: 4

What happens once an edge (the exponential, the division) or once a parent is left out: it is a sixteenth of this or
less. The two ordinary convolutions are counted as 2 for each weight at each position. Backward counts as twice the
forward pass, the usual convention; augmentation and the optimiser count nothing.
"""

from __future__ import annotations

from emcaps.bench.cases import CHANNELS, FORWARD, Case
from emcaps.config import NetworkConfig
from emcaps.routing.geometry import parent_grid

POSE = 16
IMAGE_KERNEL, IMAGE_STRIDE, IMAGE_PADDING = 5, 2, 2
CAPSULE_KERNEL, CAPSULE_STRIDES = 3, (2, 1)


def case_flops(case: Case) -> int:
    """Of one whole batch of the case."""
    forward = case.batch * forward_flops(case.config(), CHANNELS, case.size)
    return forward if case.what == FORWARD else 3 * forward


def forward_flops(config: NetworkConfig, image_channels: int, image_size: int) -> int:
    """Of the forward pass of one image."""
    grid = _first_grid(image_size)
    features = 2 * grid**2 * IMAGE_KERNEL**2 * image_channels * config.conv_channels
    primary = 2 * grid**2 * config.conv_channels * config.primary_types * (POSE + 1)
    votes = POSE * routed_edges(config, image_size)
    return features + primary + votes * (8 + 6 * config.iterations + 4 * (config.iterations - 1))


def routed_edges(config: NetworkConfig, image_size: int) -> int:
    """(child, parent) pairs of the three routed layers, for one image."""
    first = _first_grid(image_size)
    second, _ = parent_grid(first, CAPSULE_KERNEL, CAPSULE_STRIDES[0])
    third, _ = parent_grid(second, CAPSULE_KERNEL, CAPSULE_STRIDES[1])
    return (
        second**2 * CAPSULE_KERNEL**2 * config.primary_types * config.conv1_types
        + third**2 * CAPSULE_KERNEL**2 * config.conv1_types * config.conv2_types
        + third**2 * config.conv2_types * config.classes
    )


def _first_grid(image_size: int) -> int:
    """Side of the grid of primary capsules."""
    grid, _ = parent_grid(image_size + 2 * IMAGE_PADDING, IMAGE_KERNEL, IMAGE_STRIDE)
    return grid
