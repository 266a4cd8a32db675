import numpy as np
import pytest
import torch

import emcaps
from emcaps.config import DataConfig, preset
from emcaps.nn import build_network
from emcaps.train.evaluate import evaluate
from own_images import bars


@pytest.mark.parametrize("name", ["tiny", "cnn"])
def test_predict_gives_the_answers_of_an_evaluation(name):
    images, labels = bars(70, 3, 24, 3)
    data = DataConfig(names=("ant", "bee", "cat"), channels=3, size=24, crop=20)
    network = build_network(preset(name).override({"network.classes": 3}).network, 3, 20)
    network.data = data
    found = network.train().predict(images)
    assert network.training
    assert found.scores.shape == (70, 3)
    right = [answer == found.names[label] for answer, label in zip(found.answers, labels, strict=True)]
    expected = evaluate(network, torch.from_numpy(images), torch.from_numpy(labels), crop=20, classes=3)
    assert expected.accuracy == np.mean(right)
    for same in (torch.from_numpy(images), images.transpose(0, 2, 3, 1)):
        assert torch.equal(network.predict(same).scores, found.scores)
    backwards = images[:, ::-1]  # a view with a negative stride, of which torch makes no tensor
    assert torch.equal(network.predict(backwards).scores, network.predict(backwards.copy()).scores)
    assert network.predict(bars(4, 3, 50, 3)[0]).scores.shape == (4, 3)  # resized


def test_predict_of_a_network_that_comes_with_the_package():
    found = emcaps.load("small-mono").predict(np.zeros((2, 48, 48), np.uint8))
    assert found.names == ("animal", "human", "airplane", "truck", "car")
    assert len(found.answers) == 2


def test_predict_refuses():
    network = build_network(preset("tiny").network, 1)
    with pytest.raises(ValueError, match="this network was not trained by emcaps"):
        network.predict(np.zeros((2, 48, 48), np.uint8))
    network.data = DataConfig()
    with pytest.raises(ValueError, match=r"reads images of 1 channels, not 3: give grey images one channel"):
        network.predict(np.zeros((2, 3, 48, 48), np.uint8))
    with pytest.raises(ValueError, match=r"images must be uint8 .*, not float64"):
        network.predict(np.zeros((2, 48, 48)))
    for parameter in network.parameters():
        parameter.data.fill_(float("nan"))
    with pytest.raises(ValueError, match="infinite or NaN scores"):
        network.predict(np.ones((2, 48, 48), np.uint8))
    with pytest.raises(ValueError, match="there are no images to classify"):
        network.predict(np.zeros((0, 48, 48), np.uint8))


def test_predict_of_a_network_in_float64():
    network = emcaps.load("small-mono")
    images = np.random.default_rng(0).integers(0, 256, (2, 48, 48), np.uint8)
    scores = network.predict(images).scores
    found = network.double().predict(images).scores
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), scores, rtol=1e-3, atol=1e-4)
