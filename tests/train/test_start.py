import torch

from emcaps.config import preset
from emcaps.data.tensors import to_tensors
from emcaps.train.start import start_network
from patterns import pattern_examples


def images_for(config):
    return to_tensors(pattern_examples((4, 6), views=3, seed=1), config.data.view, "cpu")[0]


def test_a_seed_gives_the_same_network_every_time_and_another_seed_another(config):
    images = images_for(config)
    first, again = (start_network(config, images).state_dict() for _ in range(2))
    other = start_network(config.override({"train.seed": 1}), images).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


def test_half_active_betas_are_set_and_the_rest_starts_as_it_would_without(config):
    images = images_for(config)
    zero = start_network(config, images)
    half, again = (start_network(config.override({"network.betas": "half_active"}), images) for _ in range(2))
    for layer, same, plain in zip(half.routed, again.routed, zero.routed, strict=True):
        assert not plain.beta_u.any()
        assert layer.beta_u.any()
        assert layer.beta_a.any()
        assert torch.equal(layer.beta_u, same.beta_u)
        assert torch.equal(layer.beta_a, same.beta_a)
        assert torch.equal(layer.weight, plain.weight)


def test_a_cnn_has_no_betas_to_start():
    config = preset("cnn").override({"data.crop": 16, "network.betas": "half_active"})
    start_network(config, images_for(config))


def test_the_callers_random_numbers_are_left_alone(config):
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    start_network(config.override({"network.betas": "half_active"}), images_for(config))
    assert torch.equal(torch.rand(3), want)
