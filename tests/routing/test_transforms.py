"""Routing under torch's function transforms."""

import pytest
import torch

from emcaps import class_routing, conv_routing
from routing.cases import class_inputs, conv_inputs
from routing.compare import assert_close

CASES = {"conv": (conv_routing, conv_inputs()), "class": (class_routing, class_inputs())}


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("layer", CASES)
def test_compile_in_one_graph(layer, impl):
    routing, inputs = CASES[layer]
    compiled = torch.compile(
        lambda *tensors: routing(*tensors, iterations=2, impl=impl), backend="eager", fullgraph=True
    )
    got, want = compiled(*inputs), routing(*inputs, iterations=2)
    assert_close("pose", got.pose, want.pose, 1e-12)
    assert_close("activation", got.activation, want.activation, 1e-12)


@pytest.mark.parametrize("layer", CASES)
def test_vmap_over_a_second_batch_dimension(layer):
    routing, inputs = CASES[layer]
    pose, activation = (torch.stack([tensor, tensor.flip(0)]) for tensor in inputs[:2])
    got = torch.func.vmap(lambda p, a: routing(p, a, *inputs[2:], iterations=3))(pose, activation)
    for index in range(2):
        want = routing(pose[index], activation[index], *inputs[2:], iterations=3)
        assert_close("pose", got.pose[index], want.pose, 1e-12)
        assert_close("activation", got.activation[index], want.activation, 1e-12)
