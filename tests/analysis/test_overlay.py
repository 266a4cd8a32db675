"""Pictures of routing."""

import numpy as np
import torch

from emcaps.analysis.flow import image_shares
from emcaps.analysis.overlay import routing_overlays, shown_picture
from emcaps.config import NetworkConfig
from emcaps.nn import MatrixCapsNet


def test_the_lightest_place_is_the_one_that_gave_most():
    torch.manual_seed(0)
    network = MatrixCapsNet(NetworkConfig(conv_channels=8, primary_types=2, conv1_types=4, conv2_types=4), 1)
    images = torch.rand(3, 1, 32, 32)
    trace = network.trace(images)
    black = torch.zeros(3, 1, 16, 16, dtype=torch.uint8)  # as large as the grid of primary capsules
    found = routing_overlays(network, trace, black)
    assert found.shape == (3, 2, 16, 16, 3)
    answers = trace.class_caps[-1].activation.argmax(-1)
    for iteration in range(2):
        shares = image_shares(network, trace, answers, iteration).detach().numpy()
        light = found[:, iteration].sum(-1, dtype=int)
        for image in range(3):
            assert light[image].ravel()[shares[image].argmax()] == light[image].max()
            assert light[image].min() < light[image].max()


def test_shown_picture_by_channels():
    image = torch.arange(4 * 2 * 3, dtype=torch.uint8).view(4, 2, 3)
    assert np.array_equal(shown_picture(image[:1]), image[0])
    assert np.array_equal(shown_picture(image[:2]), torch.cat([image[0], image[1]], 1))
    for channels in (3, 4):
        assert np.array_equal(shown_picture(image[:channels]), image[:3].permute(1, 2, 0))
