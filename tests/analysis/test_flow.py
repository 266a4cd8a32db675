import itertools

import pytest
import torch

from emcaps.analysis.flow import image_shares
from emcaps.config import NetworkConfig
from emcaps.nn import MatrixCapsNet

NETWORKS = {
    "the paper's depth": "2:3:2, 2:3:1",
    "no layer": "",
    "three": "2:2:1, 3:2:3, 2:1:1",
    "padded": "2:3:2:1, 2:3:1:2",
}


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS)
def traced(request):
    torch.manual_seed(0)
    config = NetworkConfig(conv_channels=3, primary_types=2, layers=request.param, iterations=2)
    network = MatrixCapsNet(config, 1).double()
    with torch.no_grad():
        return network, network.trace(torch.randn(2, 1, 16, 14, dtype=torch.float64))


@pytest.mark.parametrize("iteration", [0, 1, -1])
def test_image_shares_sum_to_one(traced, iteration):
    shares = image_shares(*traced, torch.tensor([1, 4]), iteration)
    assert shares.shape == (2, 8, 7)
    torch.testing.assert_close(shares.sum((1, 2)), torch.ones(2, dtype=torch.float64))
    assert bool((shares >= 0).all())


def given_by_children(assignment, activation, stride, padding):
    """{(parent, child): data} of one convolutional layer and image, by loops over every edge."""
    height, width, _ = activation.shape
    given = {}
    for v, u, y, x, c, o in itertools.product(*(range(size) for size in assignment.shape)):
        child = (v * stride - padding + y, u * stride - padding + x, c)
        if not (0 <= child[0] < height and 0 <= child[1] < width):
            continue
        given[(v, u, o), child] = float(assignment[v, u, y, x, c, o] * activation[child])
    return given


def passed_down(parent_shares, given):
    totals, shares = {}, {}
    for (parent, _), data in given.items():
        totals[parent] = totals.get(parent, 0.0) + data
    for (parent, child), data in given.items():
        shares[child] = shares.get(child, 0.0) + parent_shares.get(parent, 0.0) * data / totals[parent]
    return shares


def test_image_shares_against_loops(traced):
    network, trace = traced
    image, label, iteration = 1, 3, 1
    activations = [trace.primary_caps.activation, *(steps[-1].activation for steps in trace.routed)]
    top = trace.class_caps[iteration].assignment[image, ..., label] * activations[-2][image]
    shares = {index: float(top[index] / top.sum()) for index in itertools.product(*(range(size) for size in top.shape))}
    for number in reversed(range(len(network.config.layers))):
        step, children = trace.routed[number][iteration], activations[number][image]
        layer = network.config.layers[number]
        given = given_by_children(step.assignment[image], children, layer.stride, layer.padding)
        shares = passed_down(shares, given)
    want = torch.zeros(8, 7, dtype=torch.float64)
    for (row, column, _), share in shares.items():
        want[row, column] += share
    got = image_shares(network, trace, torch.tensor([0, label]), iteration)[image]
    torch.testing.assert_close(got, want)
