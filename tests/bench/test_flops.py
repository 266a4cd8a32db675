import itertools

import pytest
import torch
from torch import nn

from emcaps.bench.cases import BACKWARD, FORWARD, STEP, Case
from emcaps.bench.flops import case_flops, forward_flops, routed_edges
from emcaps.config import NetworkConfig, preset
from emcaps.nn import ClassCaps, ConvCaps, MatrixCapsNet
from emcaps.nn.summary import summarise


def counted_by_hand(config, channels, size):
    """One by one, over every weight of the convolutions and every element of every vote."""
    network = MatrixCapsNet(config, channels)
    rows = summarise(config, channels, size)
    count = 0
    for (_, layer), children, parents in zip(network.named_children(), rows, rows[1:], strict=False):
        positions = parents.output_shape[0] * parents.output_shape[1]
        for part in layer.modules():
            if isinstance(part, nn.Conv2d):
                for _ in range(positions * part.weight.numel()):
                    count += 2  # a multiply-add
        if isinstance(layer, ConvCaps | ClassCaps):
            windows = children.output_shape[0] * children.output_shape[1] if isinstance(layer, ClassCaps) else 9
            pairs = itertools.product(
                range(positions), range(windows), range(children.output_shape[2]), range(parents.output_shape[2])
            )
            for _ in pairs:
                for _element in range(16):
                    count += 4 * 2  # the matrix product
                    for iteration in range(config.iterations):
                        count += 2 + (1 + 1 + 2)  # r V; V - mu, its square, times r
                        if iteration + 1 < config.iterations:
                            count += 1 + 1 + 2  # V - mu, its square, over s2
    return count


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_forward_flops_is_what_counting_by_hand_gives(iterations):
    config = NetworkConfig(conv_channels=3, primary_types=2, conv1_types=3, conv2_types=2, iterations=iterations)
    assert forward_flops(config, 2, 17) == counted_by_hand(config, 2, 17)


def test_routed_edges_of_the_small_network():
    assert routed_edges(preset("small").network, 32) == 49 * 9 * 8 * 16 + 25 * 9 * 16 * 16 + 25 * 16 * 5


def test_case_flops_grow_with_the_batch_and_count_backward_twice():
    forward = case_flops(Case("tiny", 8, 32, 1, 2, FORWARD))
    assert case_flops(Case("tiny", 8, 32, 5, 2, FORWARD)) == 5 * forward
    assert case_flops(Case("tiny", 8, 32, 1, 2, BACKWARD)) == 3 * forward
    assert case_flops(Case("tiny", 8, 32, 1, 2, STEP)) == 3 * forward


def test_the_convolutions_are_those_of_the_network():
    """torch's own counter agrees about the part that it knows."""
    from torch.utils.flop_counter import FlopCounterMode

    config = preset("tiny").network
    with FlopCounterMode(display=False) as counter:
        network = MatrixCapsNet(config, 2)
        network.primary_caps(network.relu_conv1(torch.zeros(1, 2, 32, 32)))
    routed = 16 * routed_edges(config, 32) * (8 + 6 * 2 + 4)
    assert counter.get_total_flops() == forward_flops(config, 2, 32) - routed
