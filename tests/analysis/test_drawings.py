"""What a decoder draws: images from the poses of their classes, and one image while a number of its pose changes."""

import numpy as np
import pytest
import torch

from emcaps.analysis.drawings import DARKEST, LIGHTEST, STEPS, make_drawings
from emcaps.config import NetworkConfig
from emcaps.nn import MatrixCapsNet

CONFIG = NetworkConfig(conv_channels=4, primary_types=2, conv1_types=3, conv2_types=2, decoder=6, input="as_given")


@pytest.fixture
def network():
    torch.manual_seed(0)
    return MatrixCapsNet(CONFIG, image_channels=2, image_size=14).eval()


def grey(values):
    return ((values - DARKEST) / (LIGHTEST - DARKEST) * 255).round().clamp(0, 255).to(torch.uint8).numpy()


def test_images_and_variations_are_drawn_from_the_poses_of_their_classes(network):
    crops, labels, spread = torch.randn(3, 2, 14, 14), torch.tensor([1, 3, 4]), torch.rand(3, 16)
    found = make_drawings(network, crops, labels, spread)
    assert found.classes == [1, 3, 4]
    with torch.no_grad():
        drawn = network.decoder(network(crops), labels)
        np.testing.assert_array_equal(found.images, grey(crops[:, 0]))
        np.testing.assert_array_equal(found.drawn, grey(drawn[:, 0]))
        best = int((drawn - crops).square().mean((1, 2, 3)).argmin())
        assert found.varied == found.classes[best]
        for number, step in ((0, 0), (7, 4), (15, 1)):
            capsules = network(crops[best][None])
            row, column = divmod(number, 4)
            capsules.pose[0, found.varied, row, column] += STEPS[step] * spread[best, number]
            expected = grey(network.decoder(capsules, torch.tensor([found.varied]))[0, 0])
            assert np.abs(found.variations[number, step].astype(int) - expected).max() <= 1  # of rounding


def test_the_middle_of_every_strip_is_the_drawn_image(network):
    found = make_drawings(network, torch.randn(2, 2, 14, 14), torch.tensor([0, 2]), torch.rand(2, 16))
    middle = found.variations[:, STEPS.index(0.0)].astype(int)
    drawn = found.drawn[found.classes.index(found.varied)].astype(int)
    assert np.abs(middle - drawn).max() <= 1
