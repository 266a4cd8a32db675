import dataclasses

import pytest
import torch

from emcaps.config import LayerConfig, NetworkConfig, preset
from emcaps.nn import MatrixCapsNet
from emcaps.nn.geometry import check_image_size, parameter_count, primary_grid, routed_layers, smallest_image

TINY = NetworkConfig(conv_channels=4, primary_types=2, conv1_types=3, conv2_types=4, iterations=1)


def described(layers):
    """TINY with other layers; None leaves the paper's."""
    return dataclasses.replace(TINY, layers=layers)


@pytest.mark.parametrize(
    ("layers", "size", "names"),
    [
        (None, (13, 13), ["conv_caps1", "conv_caps2", "class_caps"]),
        (None, (14, 20), ["conv_caps1", "conv_caps2", "class_caps"]),
        (None, (33, 17), ["conv_caps1", "conv_caps2", "class_caps"]),
        ("3:4:2, 2:3:1, 4:2:3", (23, 31), ["conv_caps1", "conv_caps2", "conv_caps3", "class_caps"]),
        ("3:1:2", (9, 5), ["conv_caps1", "class_caps"]),
        ("3:3:1:1, 4:5:2:2", (9, 1), ["conv_caps1", "conv_caps2", "class_caps"]),
        ((), (7, 3), ["class_caps"]),
    ],
)
def test_routed_layers_are_those_of_the_network(layers, size, names):
    """Against the shapes and matrices of a network that reads such images."""
    network = MatrixCapsNet(described(layers), 1)
    trace = network.trace(torch.randn(1, 1, *size))
    grids = [trace.primary_caps.activation.shape[1:]]
    grids += [step[-1].activation.shape[1:] for step in trace.routed[:-1]]
    layers = routed_layers(network.config, size)
    assert [layer.name for layer in layers] == list(network.routed_names) == list(trace.names[1:]) == names
    assert primary_grid(size) == tuple(grids[0][:2])
    for layer, module, children in zip(layers, network.routed, grids, strict=True):
        assert (*layer.child_grid, layer.child_types) == tuple(children)
        assert (layer.child_types, layer.parent_types) == tuple(module.weight.shape[-4:-2])
    for layer, module, parents in zip(layers, network.routed, grids[1:], strict=False):
        assert (*layer.parent_grid, layer.parent_types) == tuple(parents)
        assert (layer.kernel, layer.stride, layer.padding) == (module.kernel, module.stride, module.padding)
    assert (layers[-1].parent_grid, layers[-1].kernel) == ((1, 1), layers[-1].child_grid)


@pytest.mark.parametrize("layers", [None, "3:5:3, 2:2:2", "3:5:1:3", ()])
def test_edges_are_the_votes_of_a_trace(layers):
    trace = MatrixCapsNet(described(layers), 1).trace(torch.randn(1, 1, 24, 21))
    votes = [steps[-1].assignment.numel() for steps in trace.routed]
    assert [layer.edges for layer in routed_layers(described(layers), (24, 21))] == votes


@pytest.mark.parametrize(
    ("layers", "least", "first_misfit"),
    [
        (None, 13, "conv_caps2's kernel of 3x3 does not fit into its grid of 2x2 children"),
        ("2:5:2, 2:3:2, 2:3:1", 33, "conv_caps3's kernel of 3x3 does not fit into its grid of 2x2 children"),
        ("2:7", 13, "conv_caps1's kernel of 7x7 does not fit into its grid of 6x6 children"),
        ("2:1:9, 2:2:1", 19, "conv_caps2's kernel of 2x2 does not fit into its grid of 1x1 children"),
    ],
)
def test_the_smallest_image_is_the_smallest_that_the_network_reads(layers, least, first_misfit):
    config = described(layers)
    assert smallest_image(config) == least
    network = MatrixCapsNet(config, 1)
    network(torch.randn(1, 1, least, least))
    check_image_size("data.crop", least, config)
    with pytest.raises(
        ValueError,
        match=rf"with H and W at least {least}, not \(1, 1, {least - 1}, {least - 1}\): choose .*{first_misfit}",
    ):
        network(torch.randn(1, 1, least - 1, least - 1))
    with pytest.raises(ValueError, match=first_misfit):
        routed_layers(config, least - 1)
    rule = rf"data\.crop must be at least {least} for a capsule network, .*, not {least - 1}: choose .*"
    with pytest.raises(ValueError, match=rule + first_misfit):
        check_image_size("data.crop", least - 1, config)


def test_the_smallest_image_of_other_networks():
    assert smallest_image(preset("full").network) == 13
    assert smallest_image(described(())) == 1
    assert smallest_image(described("4:3:1:1, 4:5:2:2")) == 1
    assert smallest_image(described("4:3:2:0, 4:3:1:1")) == 5


@pytest.mark.parametrize("pose_scale", [0.0, 0.5])
@pytest.mark.parametrize("layers", [None, (), (LayerConfig(3, kernel=5, stride=2), LayerConfig(7))])
def test_parameters_are_counted_before_they_are_made(layers, pose_scale):
    types = {} if layers is None else {"conv1_types": 0, "conv2_types": 0}
    config = NetworkConfig(classes=10, primary_types=3, layers=layers, pose_scale=pose_scale, **types)
    network = MatrixCapsNet(config, image_channels=2)
    assert parameter_count(config, 2) == sum(value.numel() for value in network.parameters())
