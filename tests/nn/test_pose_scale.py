"""Poses that are scaled between layers, and betas that start half of the parents active."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from emcaps.config import NetworkConfig, preset
from emcaps.nn import MatrixCapsNet
from emcaps.routing import RoutingOutput

TINY = dataclasses.replace(preset("tiny").network, iterations=3, variance_floor=1.0)


def network(**changes: object) -> MatrixCapsNet:
    torch.manual_seed(0)
    config: NetworkConfig = dataclasses.replace(TINY, **changes)  # type: ignore[arg-type]
    return MatrixCapsNet(config, image_channels=2)


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 2, 20, 20, generator=torch.Generator().manual_seed(1))


def test_scaled_poses_have_the_root_mean_square_of_the_gain_for_each_image() -> None:
    capsules = RoutingOutput(
        torch.randn(3, 5, 5, 4, 4, 4) * torch.tensor([0.1, 1.0, 30.0]).view(3, 1, 1, 1, 1, 1), torch.rand(3, 5, 5, 4)
    )
    scaled = network(pose_scale=0.5)._scaled(capsules, 1)
    sizes = scaled.pose.square().mean((1, 2, 3, 4, 5)).sqrt()
    torch.testing.assert_close(sizes, torch.full((3,), 0.5), rtol=1e-4, atol=0)
    assert scaled.activation is capsules.activation


def test_the_gains_are_learned() -> None:
    net = network(pose_scale=0.5)
    net(images()).activation.square().sum().backward()
    assert (net.pose_gain.grad != 0).all()


def test_the_class_layer_may_start_with_a_scale_of_its_own() -> None:
    assert network(pose_scale=0.5).pose_gain.tolist() == [0.5, 0.5, 0.5]
    assert network(pose_scale=0.5, class_scale=4.0).pose_gain.tolist() == [0.5, 0.5, 4.0]
    with pytest.raises(
        ValueError, match=r"network.class_scale needs network.pose_scale, .* set both, or neither, not 4"
    ):
        network(class_scale=4.0)


def test_without_a_scale_there_is_no_gain_and_poses_pass_unchanged() -> None:
    net = network()
    capsules = RoutingOutput(torch.randn(1, 5, 5, 4, 4, 4), torch.rand(1, 5, 5, 4))
    assert net._scaled(capsules, 0) is capsules
    assert not hasattr(net, "pose_gain")


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_half_active_centres_every_layer_s_logits(scale: float) -> None:
    net = network(pose_scale=scale, betas="half_active")
    net.start_half_active(images(8))
    for layer, trace in zip(net.routed, net.trace(images(8))[1:], strict=True):
        logit = torch.logit(trace[-1].activation.double())
        assert abs(logit.mean()) < 0.02 + 0.05 * logit.std(), "an active parent is as likely as an inactive one"
        tightness = layer.beta_u.mean() + 0.5 * trace[-1].variance.log().mean()
        assert abs(tightness) < 0.05, "votes of mean tightness cost nothing"


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_the_trace_ends_where_the_network_ends(scale: float) -> None:
    net = network(pose_scale=scale)
    torch.testing.assert_close(net.trace(images()).class_caps[-1].activation, net(images()).activation)
