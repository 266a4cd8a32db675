import copy
import dataclasses

import pytest
import torch

from emcaps.analysis.sharpness import layer_statistics
from emcaps.analysis.warning_signs import stuck_layers, warning_signs
from emcaps.config import NetworkConfig, preset
from emcaps.nn import MatrixCapsNet, build_network

TINY = NetworkConfig(conv_channels=8, primary_types=4, conv1_types=4, conv2_types=4, classes=4)


def network(**changes):
    torch.manual_seed(0)
    made = MatrixCapsNet(dataclasses.replace(TINY, **changes))
    made.start_half_active(images())
    return made


def images(count=8):
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(1))


def signs_of(tried):
    return {one.layer: one for one in warning_signs(tried, images())}


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (None, ["conv_caps1", "conv_caps2", "class_caps"]),
        ("3:2:3, 4:3:1, 2:2:1", ["conv_caps1", "conv_caps2", "conv_caps3", "class_caps"]),
        ((), ["class_caps"]),
    ],
)
def test_the_figures_are_those_of_the_last_iteration(layers, names):
    tried = network(iterations=3, layers=layers)
    trace = tried.trace(images())
    children = (trace.primary_caps.activation, *(steps[-1].activation for steps in trace.routed[:-1]))
    found = warning_signs(tried, images())
    assert [one.layer for one in found] == names
    for one, layer, steps, below in zip(found, tried.routed, trace[1:], children, strict=True):
        row = layer_statistics(layer, steps, below)[-1]
        assert one.saturated == pytest.approx(1 - row["logit_useful"])
        assert (one.lone_parents, one.entropy) == pytest.approx((row["lone_parents"], row["entropy"]))


def test_a_network_that_starts_half_active_has_no_signs():
    for one in warning_signs(network(), images()):
        assert (one.verdict, one.remedy) == ("", ""), one
        assert str(one).endswith("no warning sign")
    assert stuck_layers(network(), images())[0] == []


@torch.no_grad()
def test_a_class_that_takes_every_answer_is_named():
    tried = network()
    tried.class_caps.beta_a[2] += 100
    found = signs_of(tried)
    assert "class 2 is active on every image" in found["class_caps"].verdict
    assert "network.input='standardised'" in found["class_caps"].remedy
    assert found["class_caps"].saturated >= 0.25
    assert not found["conv_caps2"].verdict


@torch.no_grad()
@pytest.mark.parametrize(("beta", "verdict"), [(1000.0, "saturated, since "), (-1000.0, "dead, since ")])
@pytest.mark.parametrize("name", ["conv_caps1", "conv_caps2", "class_caps"])
def test_a_layer_that_is_saturated_or_dead_is_named(name, beta, verdict):
    tried = network()
    getattr(tried, name).beta_a.add_(beta)
    one = signs_of(tried)[name]
    assert one.verdict.startswith(verdict)
    assert one.saturated == 1
    assert "network.final_lambda" in one.remedy
    assert str(one).endswith(f"{one.verdict}. {one.remedy}.")
    found, activation = stuck_layers(tried, images())
    assert f"{name} is {one.verdict}. {one.remedy}" in found, "a forward pass alone finds it, too"
    assert torch.equal(activation, tried(images()).activation)
    assert not any(layer._forward_hooks for layer in tried.routed)


@torch.no_grad()
def test_several_classes_at_once_are_counted():
    tried = network(classes=9)
    tried.class_caps.beta_a[:4] += 100
    assert "4.0 of 9 classes are active on an image" in signs_of(tried)["class_caps"].verdict


@torch.no_grad()
def test_wrong_classes_that_are_far_off_are_no_sign():
    tried = network()
    tried.class_caps.beta_a[1:] -= 100
    one = signs_of(tried)["class_caps"]
    assert one.saturated >= 0.75
    assert not one.verdict


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"weight_noise": 1.0, "iterations": 3, "primary_types": 1, "conv1_types": 16}, "live on one child"),
        ({"weight_noise": 3.0, "iterations": 4}, "has one parent only"),
    ],
)
def test_routing_that_is_too_sharp_is_a_sign(changes, verdict):
    found = warning_signs(network(variance_floor=1e-9, **changes), images())
    named = [one for one in found if verdict in one.verdict]
    assert named
    assert all("network.variance_floor" in one.remedy for one in named)


def test_numbers_that_are_not_finite_are_a_sign():
    found = warning_signs(network(variance_floor=0.0, iterations=5, weight_identity=0.0, weight_noise=3.0), images())
    assert all("infinite or NaN" in one.verdict and one.remedy for one in found)


def test_the_network_and_the_random_numbers_are_left_as_they_were():
    tried = network()
    before = copy.deepcopy(tried.state_dict())
    torch.manual_seed(4)
    want = torch.rand(2)
    torch.manual_seed(4)
    warning_signs(tried, images())
    assert torch.equal(torch.rand(2), want)
    assert all(torch.equal(value, before[name]) for name, value in tried.state_dict().items())
    assert all(parameter.grad is None for parameter in tried.parameters())


def test_a_cnn_has_no_routing_to_look_into():
    with pytest.raises(TypeError, match="only a capsule network has routing to look into, not a BaselineCNN"):
        warning_signs(build_network(preset("cnn").network, 1), torch.zeros(2, 1, 32, 32))
