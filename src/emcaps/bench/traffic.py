"""The bytes that a pass over the network has to move, in float32, and those that the fused kernels choose to move.

Fewest bytes: a layer reads its inputs and parameters and writes its outputs. Going back it reads inputs, parameters and
the gradients of its outputs, and writes the gradients of its parameters and of its inputs, unless those are the images.
Each counts once. Votes are not among them: nothing forces a kernel to store what it can compute again.

Edge numbers: the GPU kernels keep one number for each edge between sweeps, as many times as EDGE_PASSES lists.
"""

from __future__ import annotations

import math

from emcaps.bench.cases import CHANNELS, FORWARD, Case
from emcaps.bench.flops import routed_edges
from emcaps.nn.geometry import IMAGE_KERNEL, POSE, capsule_layers, primary_grid, routed_layers

NUMBER = 4
"""Bytes of a float32."""
EDGE_PASSES = {
    "forward": (
        "the log joint is written",
        "the softmax over parents reads it",
        "and writes the assignment in its place",
        "the M-step of the next iteration reads it",
    ),
    "backward": (
        "D is written",
        "the gradient of the softmax reads it",
        "and the assignment",
        "and writes e in the place of D",
        "the moments read e",
        "the input gradient reads e",
        "and the assignment",
    ),
}
"""What each E-step moves of one number for every edge. There is one between any two iterations."""


def case_bytes(case: Case) -> int:
    """The fewest bytes that one batch of the case has to move."""
    total = 0
    for number, (read, parameters, written) in enumerate(_layers(case)):
        total += case.batch * (read + written) + parameters
        if case.what != FORWARD:
            gradients = 0 if number == 0 else read
            total += case.batch * (read + written + gradients) + 2 * parameters
    return NUMBER * total


def edge_bytes(case: Case) -> int:
    """The bytes of edge numbers that one batch moves, each time that it is written or read."""
    passes = len(EDGE_PASSES["forward"]) + (0 if case.what == FORWARD else len(EDGE_PASSES["backward"]))
    return NUMBER * passes * (case.iterations - 1) * case.batch * routed_edges(case.config(), case.size)


def _layers(case: Case) -> list[tuple[int, int, int]]:
    """Of every layer: the numbers that it reads for one image, its parameters, and the numbers that it writes."""
    config = case.config()
    capsule = POSE + 1
    positions = math.prod(primary_grid(case.size))
    features = positions * config.conv_channels
    primary = positions * config.primary_types * capsule
    layers = [
        (CHANNELS * case.size**2, config.conv_channels * (IMAGE_KERNEL**2 * CHANNELS + 1), features),
        (features, config.primary_types * capsule * (config.conv_channels + 1), primary),
    ]
    for described, layer in zip(capsule_layers(config), routed_layers(config, case.size), strict=True):
        matrices = math.prod(described.kernel or ()) * layer.child_types * layer.parent_types
        layers.append(
            (
                math.prod(layer.child_grid) * layer.child_types * capsule,
                POSE * matrices + 2 * layer.parent_types,
                math.prod(layer.parent_grid) * layer.parent_types * capsule,
            )
        )
    return layers
