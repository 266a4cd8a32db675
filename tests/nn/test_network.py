import pytest
import torch

from emcaps.config import NetworkConfig, preset
from emcaps.nn import BaselineCNN, MatrixCapsNet, build_network
from emcaps.nn.summary import count_parameters

TINY = NetworkConfig(conv_channels=4, primary_types=2, conv1_types=3, conv2_types=2)


@pytest.mark.parametrize(
    ("name", "channels", "parameters"),
    [("small", 1, 67_154), ("small", 2, 68_754), ("full", 2, 317_194), ("cnn", 2, 4_253_349)],
)
def test_parameter_counts_of_the_papers(name, channels, parameters):
    assert count_parameters(build_network(preset(name).network, channels, 32)) == parameters


@pytest.mark.parametrize(("height", "width", "channels"), [(32, 32, 1), (13, 13, 2), (20, 31, 3)])
def test_network_takes_any_image_size_and_channels(height, width, channels):
    network = MatrixCapsNet(TINY, channels)
    pose, activation = network(torch.randn(2, channels, height, width))
    assert pose.shape == (2, 5, 4, 4)
    assert activation.shape == (2, 5)
    assert bool(((activation >= 0) & (activation <= 1)).all())


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_every_parameter_gets_a_finite_gradient(iterations):
    torch.manual_seed(0)
    network = MatrixCapsNet(NetworkConfig(**{**TINY.__dict__, "iterations": iterations}), 1)
    network(torch.randn(3, 1, 32, 32)).activation.square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool(parameter.grad.abs().sum() > 0), name


def test_trace_ends_where_forward_does():
    torch.manual_seed(0)
    network = MatrixCapsNet(TINY, 1)
    images = torch.randn(2, 1, 24, 24)
    trace = network.trace(images)
    output = network(images)
    torch.testing.assert_close(trace.class_caps[-1].mean, output.pose)  # not to the bit: only the reference traces
    torch.testing.assert_close(trace.class_caps[-1].activation, output.activation)
    assert trace.conv_caps1[0].assignment.shape == (2, 5, 5, 3, 3, 2, 3)


def test_settings_reach_every_routed_layer():
    config = NetworkConfig(**{**TINY.__dict__, "iterations": 4, "variance_floor": 1e-2, "competition": "types"})
    network = MatrixCapsNet(config, 1)
    for layer in (network.conv_caps1, network.conv_caps2, network.class_caps):
        assert layer.routing["iterations"] == 4
        assert layer.routing["variance_floor"] == 1e-2
        assert layer.routing["competition"] == "types"


@pytest.mark.parametrize("shape", [(1, 2, 32, 32), (1, 1, 12, 32), (1, 32, 32)])
def test_images_of_a_wrong_shape(shape):
    with pytest.raises(ValueError, match=r"images must be \(B, 1, H, W\) with H and W at least 13, not"):
        MatrixCapsNet(TINY, 1)(torch.zeros(shape))


def test_cnn_gives_logits_and_rejects_another_size():
    network = BaselineCNN(image_channels=1, image_size=20, classes=7)
    assert network(torch.randn(2, 1, 20, 20)).shape == (2, 7)
    with pytest.raises(ValueError, match=r"images must be \(B, 1, 20, 20\), not \(2, 1, 32, 32\)"):
        network(torch.randn(2, 1, 32, 32))
    with pytest.raises(ValueError, match="image_size must be at least 4"):
        BaselineCNN(image_size=3)


def test_matrix_caps_net_refuses_the_config_of_a_cnn():
    with pytest.raises(ValueError, match="needs a config of kind 'capsules'"):
        MatrixCapsNet(NetworkConfig(kind="cnn"))
