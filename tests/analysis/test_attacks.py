"""Attacks: exact on a linear model, inside their ball and the range of grey levels, and through all of routing."""

import itertools

import pytest
import torch

from emcaps.analysis.attacks import bim, fgsm, gradient_of, into_range, logit_margin, pgd
from emcaps.config import NetworkConfig
from emcaps.nn import MatrixCapsNet
from emcaps.nn.losses import spread_loss


def radius_of(images, size):
    return torch.full((len(images), 1, 1, 1), float(size), dtype=images.dtype)


def linear_loss(weight, target):
    """What raises the margin of the best wrong class of a linear classifier; linear itself with two classes."""
    return lambda images: -logit_margin(images.flatten(1) @ weight.T, target).sum()


@pytest.mark.parametrize("attack", ["fgsm", "bim", "pgd"])
def test_attacks_on_a_linear_classifier_find_the_worst_image_of_the_ball(attack):
    torch.manual_seed(0)
    weight = torch.randn(2, 4, dtype=torch.float64)
    images = 100 + 50 * torch.rand(3, 1, 2, 2, dtype=torch.float64)
    target = torch.tensor([0, 1, 0])
    radius, loss = radius_of(images, 8), linear_loss(weight, target)
    start = torch.zeros_like(images)
    attacked = {
        "fgsm": lambda: fgsm(gradient_of(loss, images), images, radius),
        "bim": lambda: bim(loss, images, radius, steps=4),
        "pgd": lambda: pgd(loss, images, radius, 4, start),
    }[attack]()
    for number in range(3):
        own, other = weight[target[number]], weight[1 - target[number]]
        clean = (images[number].flatten() @ (own - other)).item()
        found = (attacked[number].flatten() @ (own - other)).item()
        assert found == pytest.approx(clean - 8 * (own - other).abs().sum().item(), rel=1e-12)
        corners = [
            ((images[number].flatten() + 8 * torch.tensor(signs).double()) @ (own - other)).item()
            for signs in itertools.product((-1, 1), repeat=4)
        ]
        assert found == pytest.approx(min(corners), rel=1e-12)


@pytest.mark.parametrize("steps", [1, 7])
def test_attacked_images_stay_in_the_ball_and_have_grey_levels_that_exist(steps):
    torch.manual_seed(1)
    images = torch.randint(256, (4, 2, 5, 5)).float()
    images[0, 0], images[0, 1] = 0, 255
    loss = linear_loss(torch.randn(3, 50), torch.tensor([0, 1, 2, 0]))
    radius = torch.tensor([3.0, 0.5, 20.0, 300.0]).reshape(4, 1, 1, 1)
    start = 2 * torch.rand(images.shape) - 1
    for attacked in (
        fgsm(gradient_of(loss, images), images, radius),
        bim(loss, images, radius, steps),
        pgd(loss, images, radius, steps, start),
    ):
        assert ((attacked - images).abs() <= radius * (1 + 1e-5)).all()
        assert attacked.min() >= 0
        assert attacked.max() <= 255
        assert (attacked - images).abs().amax((1, 2, 3)).min() > 0.4  # and each image was changed


def test_no_gradient_means_no_attack():
    images = torch.full((1, 1, 2, 2), 9.0)
    radius = radius_of(images, 5)
    assert torch.equal(fgsm(torch.zeros_like(images), images, radius), images)
    assert torch.equal(bim(lambda x: (0 * x).sum(), images, radius, 3), images)
    assert torch.equal(into_range(images + 9, images, radius), images + 5)


def test_an_iterated_attack_is_at_least_as_strong_as_one_step():
    torch.manual_seed(2)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    images, target = 255 * torch.rand(40, 1, 4, 4), torch.randint(3, (40,))

    def loss(x):
        return -logit_margin(network(x / 100), target).sum()

    radius = radius_of(images, 25)
    start = 2 * torch.rand(images.shape) - 1
    once = loss(fgsm(gradient_of(loss, images), images, radius)).item()
    assert loss(images).item() < once < loss(bim(loss, images, radius, 10)).item()
    assert once < loss(pgd(loss, images, radius, 40, start)).item()


def test_a_gradient_that_is_not_finite_is_refused():
    images = torch.zeros(1, 1, 2, 2)
    with pytest.raises(ValueError, match="gradient of the loss is infinite or NaN"):
        gradient_of(lambda x: x.sqrt().sum(), images)


def test_the_logit_margin_is_the_lead_over_the_best_other_class():
    logits = torch.tensor([[1.0, 5.0, 3.0], [7.0, 2.0, 4.0]])
    assert logit_margin(logits, torch.tensor([1, 2])).tolist() == [2.0, -3.0]


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_the_gradient_of_an_image_comes_through_every_iteration(iterations):
    """Against finite differences, and the same from both implementations of the routing."""
    found, target = {}, torch.tensor([1, 4])
    for impl in ("reference", "numba"):
        torch.manual_seed(3)
        config = NetworkConfig(
            conv_channels=4,
            primary_types=2,
            conv1_types=3,
            conv2_types=3,
            iterations=iterations,
            input="as_given",
            impl=impl,
        )
        network = MatrixCapsNet(config).double()
        images = torch.randn(2, 1, 14, 14, dtype=torch.float64)
        losses = {
            "logit": lambda x, network=network: -logit_margin(network.class_logits(x), target).sum(),
            "spread": lambda x, network=network: 2 * spread_loss(network(x).activation, target, 0.9),
        }
        for name, loss in losses.items():
            gradient = gradient_of(loss, images)
            direction = torch.randn_like(images)
            step = 1e-6 * direction
            slope = ((loss(images + step) - loss(images - step)) / 2e-6).item()
            assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-5, abs=1e-9)
            found[impl, name] = gradient
    for name in ("logit", "spread"):
        torch.testing.assert_close(found["reference", name], found["numba", name], rtol=1e-7, atol=1e-12)
