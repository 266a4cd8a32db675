import itertools

import pytest
import torch
from torch import nn

from bench.counted import route
from emcaps import conv_routing
from emcaps.bench.cases import BACKWARD, CHANNELS, FORWARD, STEP, Case
from emcaps.bench.flops import backward_flops, case_flops, forward_flops, routed_edges
from emcaps.config import NetworkConfig, preset
from emcaps.nn import ClassCaps, ConvCaps, MatrixCapsNet
from emcaps.nn.summary import summarise

FORWARD_OF_AN_ELEMENT = {1: 14, 2: 24, 3: 34}
BACKWARD_OF_AN_ELEMENT = {1: 25, 2: 40, 3: 55}
"""By iterations."""


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_an_element_takes_what_the_equations_take_when_they_are_carried_out(iterations):
    """Three children and two parents, in numbers that count; the equations give what the reference gives."""
    torch.manual_seed(iterations)
    pose, weight = torch.randn(1, 1, 1, 3, 4, 4).double(), torch.randn(1, 1, 3, 2, 4, 4).double()
    activation = torch.rand(1, 1, 1, 3).double()
    beta_u, beta_a = torch.randn(2).double(), torch.randn(2).double()
    pose_bar, activation_bar = torch.randn(2, 16).double(), torch.randn(2).double()
    inputs = [value.requires_grad_() for value in (pose, activation, weight)]
    options = {"iterations": iterations, "final_lambda": 1.0, "variance_floor": 1e-4, "impl": "reference"}
    want = conv_routing(*inputs, beta_u, beta_a, **options)
    loss = (want.pose.flatten() * pose_bar.flatten()).sum() + (want.activation.flatten() * activation_bar).sum()
    want_gradients = torch.autograd.grad(loss, inputs)
    outputs, gradients, (forward, backward) = route(
        pose.detach().reshape(3, 16).tolist(),
        activation.detach().flatten().tolist(),
        weight.detach().reshape(3, 2, 16).tolist(),
        beta_u.tolist(),
        beta_a.tolist(),
        iterations,
        1e-4,
        3 / 2,
        pose_bar.tolist(),
        activation_bar.tolist(),
    )
    for got, exact in zip((*outputs, *gradients), (*want, *want_gradients), strict=True):
        torch.testing.assert_close(
            torch.tensor(got, dtype=torch.float64).flatten(), exact.flatten(), rtol=1e-8, atol=1e-10
        )
    elements = 3 * 2 * 16
    assert forward == elements * FORWARD_OF_AN_ELEMENT[iterations]
    assert backward == elements * BACKWARD_OF_AN_ELEMENT[iterations]


def counted_by_hand(config, channels, size):
    """Forward and backward, one by one, over every weight of the convolutions and every element of every vote."""
    network = MatrixCapsNet(config, channels)
    rows = summarise(config, channels, size)
    forward = backward = 0
    for (name, layer), children, parents in zip(network.named_children(), rows, rows[1:], strict=False):
        positions = parents.output_shape[0] * parents.output_shape[1]
        for part in layer.modules():
            if isinstance(part, nn.Conv2d):
                for _ in range(positions * part.weight.numel()):
                    forward += 2  # a multiply-add
                    backward += 2 if name == "relu_conv1" else 4  # of weights and inputs; images need none
        if isinstance(layer, ConvCaps | ClassCaps):
            windows = children.output_shape[0] * children.output_shape[1] if isinstance(layer, ClassCaps) else 9
            pairs = itertools.product(
                range(positions), range(windows), range(children.output_shape[2]), range(parents.output_shape[2])
            )
            for _ in pairs:
                forward += 16 * FORWARD_OF_AN_ELEMENT[config.iterations]
                backward += 16 * BACKWARD_OF_AN_ELEMENT[config.iterations]
    return forward, backward


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_flops_are_what_counting_by_hand_gives(iterations):
    config = NetworkConfig(conv_channels=3, primary_types=2, conv1_types=3, conv2_types=2, iterations=iterations)
    assert (forward_flops(config, 2, 17), backward_flops(config, 2, 17)) == counted_by_hand(config, 2, 17)


def test_routed_edges_of_the_small_network():
    assert routed_edges(preset("small").network, 32) == 49 * 9 * 8 * 16 + 25 * 9 * 16 * 16 + 25 * 16 * 5


def test_case_flops_grow_with_the_batch_and_count_both_passes():
    config = preset("tiny").network
    forward, backward = (count(config, CHANNELS, 32) for count in (forward_flops, backward_flops))
    assert case_flops(Case("tiny", 8, 32, 1, 2, FORWARD)) == forward
    assert case_flops(Case("tiny", 8, 32, 5, 2, FORWARD)) == 5 * forward
    assert case_flops(Case("tiny", 8, 32, 5, 2, BACKWARD)) == 5 * (forward + backward)
    assert case_flops(Case("tiny", 8, 32, 5, 2, STEP)) == 5 * (forward + backward)


@pytest.mark.parametrize("gradients", [False, True])
def test_the_convolutions_are_those_of_the_network(gradients):
    """torch's own counter agrees about the part that it knows."""
    from torch.utils.flop_counter import FlopCounterMode

    config = preset("tiny").network
    network = MatrixCapsNet(config, 2)
    count = forward_flops(config, 2, 32) - 16 * routed_edges(config, 32) * FORWARD_OF_AN_ELEMENT[config.iterations]
    if gradients:
        count += backward_flops(config, 2, 32)
        count -= 16 * routed_edges(config, 32) * BACKWARD_OF_AN_ELEMENT[config.iterations]
    with FlopCounterMode(display=False) as counter:
        capsules = network.primary_caps(network.relu_conv1(torch.zeros(1, 2, 32, 32)))
        if gradients:
            (capsules.pose.sum() + capsules.activation.sum()).backward()
    assert counter.get_total_flops() == count
