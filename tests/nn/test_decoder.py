"""The decoder draws from the pose of the chosen class alone and learns with the network; no answer depends on it."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from emcaps import RoutingOutput
from emcaps.config import NetworkConfig, RunConfig, TrainConfig, preset
from emcaps.nn import MatrixCapsNet, build_network
from emcaps.nn.decoder import Decoder, decoder_parameters
from emcaps.nn.geometry import parameter_count
from emcaps.nn.network import remove_decoder
from emcaps.nn.summary import count_parameters, summarise
from emcaps.train.step import Mixed, loss_of, make_optimiser, train_step, training_loss

CONFIG = NetworkConfig(conv_channels=4, primary_types=2, conv1_types=3, conv2_types=2, decoder=6, input="as_given")


def test_an_image_depends_on_the_chosen_class_alone():
    torch.manual_seed(0)
    decoder = Decoder(classes=3, units=6, channels=2, side=5)
    pose, chosen = torch.randn(4, 3, 4, 4), torch.tensor([0, 2, 1, 2])
    images = decoder(RoutingOutput(pose, torch.rand(4, 3)), chosen)
    assert images.shape == (4, 2, 5, 5)
    others = torch.randn_like(pose)
    others[torch.arange(4), chosen] = pose[torch.arange(4), chosen]
    assert torch.equal(decoder(RoutingOutput(others, torch.zeros(4, 3)), chosen), images)
    # The same numbers as the pose of another class are another image.
    shifted = decoder(RoutingOutput(pose.roll(1, 1), torch.rand(4, 3)), (chosen + 1) % 3)
    assert not torch.allclose(shifted, images, atol=1e-3)


@pytest.mark.parametrize(
    ("pose", "chosen", "message"),
    [
        ((4, 3, 4, 4), [1], r"chosen must be the number of a class for each of the 4 poses, not \(1,\): .* to \(4,\)"),
        ((4, 3, 4, 4), [[0], [2], [1], [2]], r"for each of the 4 poses, not \(4, 1\)"),
        ((1, 5, 4, 4), [1], r"draws from poses \(batch, 3, 4, 4\), not \(1, 5, 4, 4\): give it the class capsules"),
        ((4, 3, 4, 4), [0, 2, 1, 7], r"chosen must be 0 to 2, the numbers of 3 classes"),
        ((4, 3, 16), [0, 2, 1, 2], r"draws from poses \(batch, 3, 4, 4\), not \(4, 3, 16\)"),
    ],
)
def test_what_would_be_drawn_from_nothing_or_from_other_capsules_is_refused(pose, chosen, message):
    decoder = Decoder(classes=3, units=6, channels=2, side=5)
    with pytest.raises(ValueError, match=message):
        decoder(RoutingOutput(torch.randn(pose), torch.rand(pose[:2])), torch.tensor(chosen))


def test_a_network_whose_decoder_was_removed_says_so_in_its_config():
    config = RunConfig(CONFIG, train=TrainConfig(reconstruction=0.5))
    network = build_network(config.network, 1, 20)
    left = remove_decoder(network, config)
    assert network.decoder is None
    assert network.config == left.network == dataclasses.replace(config.network, decoder=0)
    assert left.train == TrainConfig()


def test_answers_and_the_start_of_all_other_weights_are_those_without_a_decoder():
    images = torch.randn(2, 1, 20, 20)
    outputs = []
    for units in (0, 6):
        torch.manual_seed(0)
        outputs.append(build_network(dataclasses.replace(CONFIG, decoder=units), 1, 20)(images))
    assert all(map(torch.equal, *outputs))


def test_parameters_are_counted_without_the_decoder_and_described_with_it():
    network = build_network(CONFIG, 2, 20)
    drawn = decoder_parameters(5, 6, 2, 20)
    assert count_parameters(network.decoder) == drawn
    assert count_parameters(network) == parameter_count(CONFIG, 2) + drawn
    rows = summarise(CONFIG, 2, 20)
    assert (rows[-1].layer, rows[-1].output_shape, rows[-1].parameters) == ("decoder", (20, 20, 2), drawn)
    assert sum(row.parameters for row in rows if row.counted) == parameter_count(CONFIG, 2)


def test_a_decoder_that_memory_cannot_hold_is_refused(monkeypatch):
    monkeypatch.setattr("emcaps.nn.network.half_of_memory", lambda: 2**20)
    build_network(dataclasses.replace(CONFIG, decoder=0), 1, 20)
    with pytest.raises(ValueError, match=r"would have [\d,]+ parameters, more than .* types, classes or units"):
        build_network(dataclasses.replace(CONFIG, decoder=400), 1, 20)


def test_the_loss_is_that_of_the_answers_plus_the_weighted_error_of_the_right_class():
    torch.manual_seed(0)
    network = build_network(CONFIG, 1, 20)
    settings = TrainConfig(reconstruction=0.5)
    crops, labels = torch.randn(6, 1, 20, 20), torch.arange(6) % 5
    output = network(crops)
    expected = loss_of(output, labels, settings, 0.2) + 0.5 * F.mse_loss(network.decoder(output, labels), crops)
    before = [value.clone() for value in network.parameters()]
    loss, _ = train_step(network, make_optimiser(network, settings), crops, labels, settings, 0.2)
    torch.testing.assert_close(loss, expected)
    for (name, value), old in zip(network.named_parameters(), before, strict=True):
        assert not torch.equal(value, old), name


def test_the_classes_that_a_crop_is_mixed_from_draw_it_by_their_shares():
    torch.manual_seed(0)
    network = build_network(CONFIG, 1, 20)
    settings = TrainConfig(reconstruction=0.5)
    crops, labels, own = torch.randn(6, 1, 20, 20), torch.arange(6) % 5, torch.linspace(0.5, 1, 6)
    mixed = Mixed(own, labels.roll(1))
    output, loss = training_loss(network, crops, labels, settings, 0.2, mixed)
    expected = loss_of(output, labels, settings, 0.2, own) + loss_of(output, mixed.neighbours, settings, 0.2, 1 - own)
    for example in range(6):
        one = RoutingOutput(*(part[example : example + 1] for part in output))
        for number, share in ((labels[example], own[example]), (mixed.neighbours[example], 1 - own[example])):
            drawn = network.decoder(one, number[None])
            expected = expected + 0.5 * share * F.mse_loss(drawn, crops[example : example + 1]) / 6
    torch.testing.assert_close(loss, expected)


def test_training_learns_to_draw_images():
    """Two classes of two images each: only a pose that tells them apart lets the decoder draw both."""
    torch.manual_seed(0)
    network = build_network(dataclasses.replace(CONFIG, classes=2, decoder=32), 1, 14)
    settings = TrainConfig(learning_rate=1e-2, reconstruction=1.0)
    optimiser = make_optimiser(network, settings)
    crops, labels = torch.randn(4, 1, 14, 14), torch.tensor([0, 0, 1, 1])
    for _ in range(150):
        train_step(network, optimiser, crops, labels, settings, 0.2)
    drawn = network.decoder(network(crops), labels)
    by_class = torch.stack([crops[labels == label].mean(0) for label in labels])
    assert F.mse_loss(drawn, crops) < 0.2 * F.mse_loss(by_class, crops)


def test_a_network_without_one_has_none_and_a_cnn_may_not_ask_for_one():
    assert MatrixCapsNet(dataclasses.replace(CONFIG, decoder=0)).decoder is None
    with pytest.raises(ValueError, match=r"network\.decoder draws images from the poses of capsules.*must be 0, not 8"):
        preset("cnn").override({"network.decoder": 8})
