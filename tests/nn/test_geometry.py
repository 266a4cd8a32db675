import pytest
import torch

from emcaps.config import NetworkConfig, preset
from emcaps.nn import MatrixCapsNet
from emcaps.nn.geometry import check_image_size, primary_grid, routed_layers, smallest_image

TINY = NetworkConfig(conv_channels=4, primary_types=2, conv1_types=3, conv2_types=4, iterations=1)


@pytest.mark.parametrize("size", [(13, 13), (14, 20), (32, 32), (33, 17)])
def test_routed_layers_are_those_of_the_network(size):
    """Against the shapes and matrices of a network that reads such images."""
    network = MatrixCapsNet(TINY, 1)
    trace = network.trace(torch.randn(1, 1, *size))
    grids = [trace.primary_caps.activation.shape[1:]]
    grids += [step[-1].activation.shape[1:] for step in (trace.conv_caps1, trace.conv_caps2)]
    layers = routed_layers(TINY, size)
    assert [layer.name for layer in layers] == ["conv_caps1", "conv_caps2", "class_caps"]
    assert primary_grid(size) == tuple(grids[0][:2])
    for layer, module, children in zip(layers, network.routed, grids, strict=True):
        assert (*layer.child_grid, layer.child_types) == tuple(children)
        assert (layer.child_types, layer.parent_types) == tuple(module.weight.shape[-4:-2])
    for layer, module, parents in zip(layers, network.routed, grids[1:], strict=False):
        assert (*layer.parent_grid, layer.parent_types) == tuple(parents)
        assert (layer.kernel, layer.stride) == (module.kernel, module.stride)
    assert (layers[-1].parent_grid, layers[-1].kernel) == ((1, 1), layers[-1].child_grid)


def test_edges_are_the_votes_of_a_trace():
    trace = MatrixCapsNet(TINY, 1).trace(torch.randn(1, 1, 18, 15))
    votes = [step[-1].assignment.numel() for step in (trace.conv_caps1, trace.conv_caps2, trace.class_caps)]
    assert [layer.edges for layer in routed_layers(TINY, (18, 15))] == votes


def test_the_smallest_image_is_the_smallest_that_the_network_reads():
    least = smallest_image(TINY)
    assert least == smallest_image(preset("full").network) == 13
    network = MatrixCapsNet(TINY, 1)
    network(torch.randn(1, 1, least, least))
    with pytest.raises(ValueError, match="at least 13"):
        network(torch.randn(1, 1, least - 1, least))
    with pytest.raises(ValueError, match="does not fit"):
        routed_layers(TINY, least - 1)


def test_check_image_size_names_value_and_rule():
    check_image_size("data.crop", 13, TINY)
    with pytest.raises(ValueError, match=r"data\.crop must be at least 13 for a capsule network, .*, not 12: choose"):
        check_image_size("data.crop", 12, TINY)
