import copy
import dataclasses
import pickle

import pytest
import torch

from emcaps import RoutingOutput, class_routing
from emcaps.config import LayerConfig, NetworkConfig, RunConfig, preset
from emcaps.nn import BaselineCNN, MatrixCapsNet, NetworkTrace, build_network, spread_loss
from emcaps.nn.geometry import parameter_count
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


def test_a_cnn_of_another_size_has_the_parameters_that_its_layers_say():
    config = NetworkConfig(kind="cnn", cnn_channels=8, cnn_hidden=63, classes=5)
    network = build_network(config, 2, 32)
    layers = (8 * (25 * 2 + 1), 16 * (25 * 8 + 1), 63 * (16 * 8 * 8 + 1), 5 * (63 + 1))
    assert sum(parameter.numel() for parameter in network.parameters()) == sum(layers) == 68_519
    assert network(torch.randn(2, 2, 32, 32)).shape == (2, 5)


def test_a_pooled_cnn_sees_the_same_wherever_a_thing_is():
    config = NetworkConfig(kind="cnn", cnn_channels=4, cnn_hidden=6, cnn_pooling="mean", input="as_given")
    torch.manual_seed(0)
    network = build_network(config, 1, 32).eval()
    layers = (4 * (25 + 1), 8 * (25 * 4 + 1), 6 * (8 + 1), 5 * (6 + 1))
    assert count_parameters(network) == sum(layers)
    images = torch.zeros(1, 1, 32, 32)
    images[..., 12:18, 12:18] = torch.rand(6, 6)
    moved = images.roll((4, 4), (2, 3))  # by whole pixels of both poolings, and away from the edges
    torch.testing.assert_close(network(moved), network(images))
    whole = build_network(dataclasses.replace(config, cnn_pooling="none"), 1, 32).eval()
    assert not torch.allclose(whole(moved), whole(images), atol=1e-4)


def test_matrix_caps_net_refuses_the_config_of_a_cnn():
    with pytest.raises(ValueError, match="needs a config of kind 'capsules'"):
        MatrixCapsNet(NetworkConfig(kind="cnn"))


def test_the_papers_layers_by_description_start_from_the_same_numbers():
    def start(config):
        torch.manual_seed(7)
        return MatrixCapsNet(config).state_dict()

    want = start(NetworkConfig(pose_scale=0.5, class_scale=2.0))
    names = [name for name in want if name.startswith(("conv_caps", "class_caps"))]
    assert names == [
        f"{layer}.{name}"
        for layer in ("conv_caps1", "conv_caps2", "class_caps")
        for name in ("weight", "beta_u", "beta_a")
    ]
    old = RunConfig.from_json(
        '{"network": {"conv1_types": 16, "conv2_types": 16, "pose_scale": 0.5, "class_scale": 2.0}}'
    )
    papers = (LayerConfig(16, kernel=3, stride=2), LayerConfig(16, kernel=3, stride=1))
    for config in (old.network, NetworkConfig(pose_scale=0.5, class_scale=2.0, layers=papers)):
        found = start(config)
        assert list(found) == list(want)
        for name, value in found.items():
            assert torch.equal(value, want[name]), name


@pytest.mark.parametrize("layers", ["", "3:1:1", "3:5:2, 2:4:3, 4:2", "2:3:2, 3:2:1, 2:3:1, 3:1:2"])
def test_networks_of_any_depth_learn_and_are_traced(layers):
    torch.manual_seed(0)
    network = MatrixCapsNet(dataclasses.replace(TINY, layers=layers, pose_scale=0.5, class_scale=2.0), 1)
    images, labels = torch.randn(4, 1, 33, 38), torch.tensor([0, 1, 2, 3])
    network.start_half_active(images)
    depth = len(network.config.layers)
    assert network.pose_gain.tolist() == [0.5] * depth + [2.0]
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(5):
        loss = spread_loss(network(images).activation, labels, 0.5)
        optimiser.zero_grad()
        loss.backward()
        assert all(bool(value.grad.isfinite().all() & value.grad.any()) for value in network.parameters())
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    trace = network.trace(images)
    assert len(trace) == depth + 2
    torch.testing.assert_close(trace.class_caps[-1].activation, network(images).activation)


def test_a_described_network_is_the_same_by_every_implementation():
    pytest.importorskip("numba")

    def run(impl):
        torch.manual_seed(0)
        network = MatrixCapsNet(dataclasses.replace(TINY, layers="3:5:2, 2:4:3, 4:2", impl=impl)).double()
        output = network(torch.randn(2, 1, 41, 38, dtype=torch.float64))
        (output.activation.sum() + output.pose.square().sum()).backward()
        gradients = {name: value.grad for name, value in network.named_parameters()}
        return {"pose": output.pose, "activation": output.activation} | gradients

    found, wanted = run("numba"), run("reference")
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert bool(value.isfinite().all()), name
        torch.testing.assert_close(
            value, wanted[name], rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_trace_has_its_layers_by_name_and_by_number():
    trace = MatrixCapsNet(TINY, 1).trace(torch.randn(1, 1, 16, 16))
    primary, first, second, last = trace
    assert trace.names == ("primary_caps", "conv_caps1", "conv_caps2", "class_caps")
    assert [getattr(trace, name) is layer for name, layer in zip(trace.names, trace, strict=True)] == [True] * 4
    assert (trace.primary_caps, trace.conv_caps1, trace[2], trace[-1]) == (primary, first, second, last)
    assert trace[1:] == trace.routed == (first, second, last)
    with pytest.raises(AttributeError, match="no layer 'conv_caps3': its layers are primary_caps, conv_caps1, conv_c"):
        _ = trace.conv_caps3
    for copied in (copy.copy(trace), pickle.loads(pickle.dumps(trace)), NetworkTrace(*trace)):
        assert isinstance(copied, NetworkTrace)
        assert torch.equal(copied.conv_caps2[-1].mean, second[-1].mean)


@pytest.mark.parametrize(
    ("config", "image_size"),
    [
        (NetworkConfig(conv1_types=10_000, conv2_types=10_000), 32),
        (NetworkConfig(kind="cnn"), 40_000),
        (NetworkConfig(kind="cnn", cnn_hidden=10_000, cnn_channels=10_000), 32),
    ],
    ids=["capsules", "cnn", "wide cnn"],
)
def test_a_network_that_no_memory_holds_is_refused(config, image_size, monkeypatch):
    """Such as one that the header of a stranger's weights asks for."""
    monkeypatch.setattr("emcaps.nn.network.half_of_memory", lambda: 12 * 2**30)  # some machines could hold it
    with pytest.raises(ValueError, match=r"would have [\d,]+ parameters, more than the .* choose fewer channels"):
        build_network(config, 1, image_size)


def test_dropout_switches_capsules_off_before_the_class_layer_and_only_in_training():
    torch.manual_seed(0)
    network = MatrixCapsNet(dataclasses.replace(TINY, dropout=0.25))
    images, read = torch.randn(64, 1, 20, 20), []
    for name in ("conv_caps2", "class_caps"):
        network.get_submodule(name).register_forward_pre_hook(lambda _module, inputs: read.append(inputs[0].activation))
    first = network(images)
    again = network(images)
    assert torch.equal(read[0], read[2])  # the layers before read all of their children
    assert not torch.equal(first.activation, again.activation)
    network.eval()
    whole = network(images)
    dropped, children = read[1], read[5]
    off = dropped == 0
    assert 0.2 < off.float().mean() < 0.3
    assert torch.equal(dropped[~off], children[~off])
    assert (children > 0).all()
    assert torch.equal(whole.activation, network(images).activation)
    torch.testing.assert_close(network.trace(images)[-1][-1].activation, whole.activation, rtol=0, atol=1e-5)


def test_dropout_of_every_capsule_leaves_finite_numbers():
    network = MatrixCapsNet(dataclasses.replace(TINY, dropout=1.0))
    output = network(torch.randn(2, 1, 20, 20))
    output.activation.sum().backward()
    assert torch.equal(output.pose, torch.zeros_like(output.pose))
    assert all(value.grad is None or value.grad.isfinite().all() for value in network.parameters())


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_coordinates_can_be_left_out(impl):
    torch.manual_seed(0)
    network = MatrixCapsNet(dataclasses.replace(TINY, coordinate_scale=0.0, impl=impl))
    images = torch.randn(2, 1, 20, 20)
    assert network.class_caps.coordinate_scale == 0
    capsules = network.trace(images)[-2][-1]
    children = RoutingOutput(capsules.mean, capsules.activation)
    expected = class_routing(
        *children,
        network.class_caps.weight,
        network.class_caps.beta_u,
        network.class_caps.beta_a,
        iterations=2,
        coordinate_scale=0,
        impl="reference",
    )
    torch.testing.assert_close(network(images).pose, expected.pose, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(network.trace(images)[-1][-1].mean, expected.pose, rtol=1e-4, atol=1e-5)
    with_coordinates = MatrixCapsNet(TINY)
    with_coordinates.load_state_dict(network.state_dict())
    assert not torch.allclose(with_coordinates(images).pose, expected.pose, atol=1e-2)


def test_poses_as_vectors():
    torch.manual_seed(0)
    config = dataclasses.replace(TINY, pose="vector", weight_noise=0.0)
    network = MatrixCapsNet(config)
    assert network.conv_caps1.weight.shape == (3, 3, 2, 3, 16, 16)
    assert count_parameters(network) == parameter_count(config, 1)
    routed = sum(layer.weight.numel() for layer in network.routed)
    assert routed == 16 * sum(layer.weight.numel() for layer in MatrixCapsNet(TINY).routed)
    matrices = MatrixCapsNet(dataclasses.replace(TINY, weight_noise=0.0))
    ours = {name: value for name, value in network.state_dict().items() if not name.endswith("caps.weight")}
    matrices.load_state_dict(
        {name: value for name, value in ours.items() if value.shape[-2:] != (16, 16)}, strict=False
    )
    images = torch.randn(2, 1, 20, 20)
    # The identity leaves a vector as it is, as it leaves a matrix.
    torch.testing.assert_close(network(images).pose, matrices(images).pose, rtol=1e-4, atol=1e-5)
    network(images).activation.sum().backward()
    assert all(layer.weight.grad.abs().sum() > 0 for layer in network.routed)
    with pytest.raises(ValueError, match="must be 'auto' or 'reference' with"):
        dataclasses.replace(config, impl="numba")


@pytest.mark.parametrize("pose_scale", [0.0, 0.5])
def test_class_logits_are_the_inputs_of_the_logistic_functions(pose_scale):
    torch.manual_seed(0)
    config = NetworkConfig(
        conv_channels=4, primary_types=2, conv1_types=3, conv2_types=3, pose_scale=pose_scale, input="as_given"
    )
    network, images = MatrixCapsNet(config), torch.randn(3, 1, 20, 20)
    torch.testing.assert_close(network.class_logits(images).sigmoid(), network(images).activation)


def test_class_logits_have_a_gradient_where_activations_are_rounded_to_1():
    torch.manual_seed(0)
    config = NetworkConfig(conv_channels=4, primary_types=2, conv1_types=3, conv2_types=3, input="as_given")
    network = MatrixCapsNet(config)
    torch.nn.init.constant_(network.class_caps.beta_a, 1e4)
    images = torch.randn(1, 1, 20, 20, requires_grad=True)
    assert torch.equal(network(images).activation, torch.ones(1, 5))
    (rounded,) = torch.autograd.grad(network(images).activation.sum(), images)
    (found,) = torch.autograd.grad(network.class_logits(images).sum(), images)
    assert not rounded.any()
    assert found.abs().sum() > 0


@pytest.mark.parametrize("build", [MatrixCapsNet, lambda config: build_network(config, 1)])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (preset("tiny"), r"not a RunConfig: give its \.network, as in preset\(\"small\"\)\.network"),
        ("tiny", "the config of a network must be a NetworkConfig, not a str"),
    ],
)
def test_what_is_no_config_of_a_network_is_refused(build, config, message):
    with pytest.raises(ValueError, match=message):
        build(config)


@pytest.mark.parametrize("kind", ["capsules", "cnn"])
def test_images_without_channels_are_refused(kind):
    with pytest.raises(ValueError, match="image_channels must be at least 1, not 0: 1 is grey, 3 is colour"):
        build_network(NetworkConfig(kind=kind), 0)


def test_class_logits_drop_what_forward_drops_in_training():
    torch.manual_seed(0)
    network = MatrixCapsNet(dataclasses.replace(TINY, dropout=0.5), 1)
    images = torch.randn(2, 1, 16, 16)
    torch.manual_seed(1)
    activation = network(images).activation
    torch.manual_seed(1)
    torch.testing.assert_close(network.class_logits(images).sigmoid(), activation, rtol=1e-4, atol=1e-5)
