"""The arithmetic that the definition needs, whether or not an implementation computes some of it twice or not at all.

An addition or multiplication counts 1, a multiply-add 2. An edge is a (child, parent) pair that routing connects; each
has a vote of 16 elements. Counted for each element of each vote, by the equations of triton_kernels/README.md:

    once                            (1)         votes: four multiply-adds of the 4x4 product                    8
    each iteration                  (2)-(4)     M-step: r V summed; V - mu, squared, times r, summed            6
    each iteration but the last     (7)         log joint: V - mu, squared, over s2, summed                     4

    backward, each iteration        (11)        D: V - mu; A times that, plus B, times that, summed             5
                                    (12)        gradient of the vote: 2 A (V - mu) + B, times r, added          4
    backward, but the last          (14)        moments: e (V - mu), summed; times V - mu, summed               4
                                    (15)        gradient of the vote: e (V - mu) over s2, subtracted            2
    backward, once                  (16), (17)  gradients of the pose and of the matrix: two 4x4 products      16

Operations that are done once per edge (the exponential, the division) or once per parent are left out: they are a
sixteenth of these or less. The two ordinary convolutions count 2 for each weight at each position, and as much for each
gradient: of the weights, and of the inputs where those are not the images. Augmentation, the loss and the optimiser are
not counted.
"""

from __future__ import annotations

import math

from emcaps.bench.cases import CHANNELS, FORWARD, Case
from emcaps.config import NetworkConfig
from emcaps.nn.geometry import IMAGE_KERNEL, POSE, primary_grid, routed_layers

VOTES, M_STEP, LOG_JOINT = 8, 6, 4
DATA_GRADIENT, VOTE_GRADIENT, MOMENTS, LOG_JOINT_GRADIENT, INPUT_GRADIENT = 5, 4, 4, 2, 16


def case_flops(case: Case) -> int:
    """Floating-point operations of one batch of the case."""
    config = case.config()
    flops = forward_flops(config, CHANNELS, case.size)
    if case.what != FORWARD:
        flops += backward_flops(config, CHANNELS, case.size)
    return case.batch * flops


def forward_flops(config: NetworkConfig, image_channels: int, image_size: int) -> int:
    """Floating-point operations of the forward pass of one image."""
    rounds = config.iterations
    each = VOTES + M_STEP * rounds + LOG_JOINT * (rounds - 1)
    return sum(_convolutions(config, image_channels, image_size)) + POSE * routed_edges(config, image_size) * each


def backward_flops(config: NetworkConfig, image_channels: int, image_size: int) -> int:
    """Floating-point operations of the backward pass of one image."""
    rounds = config.iterations
    each = INPUT_GRADIENT + (DATA_GRADIENT + VOTE_GRADIENT) * rounds + (MOMENTS + LOG_JOINT_GRADIENT) * (rounds - 1)
    features, primary = _convolutions(config, image_channels, image_size)
    return features + 2 * primary + POSE * routed_edges(config, image_size) * each


def routed_edges(config: NetworkConfig, image_size: int) -> int:
    """How many (child, parent) pairs all routed layers connect in one image."""
    return sum(layer.edges for layer in routed_layers(config, image_size))


def _convolutions(config: NetworkConfig, image_channels: int, image_size: int) -> tuple[int, int]:
    """Forward, of one image: of the convolution of the images, and of the one that gives the primary capsules."""
    positions = math.prod(primary_grid(image_size))
    features = 2 * positions * IMAGE_KERNEL**2 * image_channels * config.conv_channels
    return features, 2 * positions * config.conv_channels * config.primary_types * (POSE + 1)
