import dataclasses

import pytest

from emcaps.config import PRESETS, DataConfig, NetworkConfig, RunConfig, TrainConfig, preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name):
    config = preset(name)
    assert RunConfig.from_json(config.to_json()) == config


def test_preset_unknown():
    with pytest.raises(ValueError, match="unknown preset 'smal': did you mean 'small'"):
        preset("smal")


def test_presets_have_the_letters_of_the_paper():
    def letters(name):
        network = preset(name).network
        return network.conv_channels, network.primary_types, network.conv1_types, network.conv2_types

    assert letters("small") == (64, 8, 16, 16)
    assert letters("full") == (32, 32, 32, 32)


def test_override_reads_strings_as_the_type_of_the_setting():
    config = preset("small").override(
        {"network.iterations": "3", "train.learning_rate": "1e-3", "train.steps": "20_000", "data.view": "stereo"}
    )
    assert (config.network.iterations, config.train.learning_rate, config.train.steps) == (3, 1e-3, 20_000)
    assert config.data.image_channels == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train.step": 3}, "unknown setting 'train.step': did you mean 'train.steps'"),
        ({"train.steps": "many"}, "train.steps must be a whole number, not 'many'"),
        ({"train.steps": 2.5}, "train.steps must be of type int, not 2.5"),
        ({"train.steps": True}, "train.steps must be of type int, not True"),
        ({"train.learning_rate": "fast"}, "train.learning_rate must be a number, not 'fast'"),
        ({"train.learning_rate": "nan"}, "train.learning_rate must be positive and finite"),
        ({"network.iterations": 0}, "network.iterations must be at least 1, not 0"),
        ({"network.final_lambda": -1.0}, "network.final_lambda must be positive"),
        ({"network.variance_floor": float("inf")}, "network.variance_floor must be zero or more, and finite"),
        ({"network.competition": "type"}, "unknown competition 'type': did you mean 'types'"),
        ({"data.view": "sterio"}, "unknown view 'sterio': did you mean 'stereo'"),
        ({"data.fold": 5}, "data.fold must be 0 to 4"),
        ({"data.crop": 50}, "data.crop must be 8 to 48"),
        ({"data.splice": 1.5}, "data.splice must be a share, 0 to 1, not 1.5"),
        ({"data.contrast_low": 2.0}, "contrast_low and data.contrast_high must be positive, finite and in this order"),
        ({"network.classes": 7}, "network.classes must be 5"),
        ({"data.crop": 12}, "data.crop must be at least 13 for a capsule network"),
        ({"network.weight_noise": -1}, "network.weight_noise must be zero or more"),
        ({"train.graph": "yes"}, "unknown graph 'yes'"),
        ({"train.autocast": "bfloat"}, "unknown autocast 'bfloat': did you mean 'bfloat16'"),
        ({"network.kind": "cnn"}, "train.loss must be 'cross_entropy', not 'spread'"),
    ],
)
def test_override_with_a_bad_value_names_value_and_rule(change, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        preset("small").override(change)


def test_from_json_rejects_settings_it_does_not_know():
    with pytest.raises(ValueError, match="unknown setting in 'network' 'iteration': did you mean 'iterations'"):
        RunConfig.from_json('{"network": {"iteration": 3}}')


@pytest.mark.parametrize("section", [NetworkConfig, DataConfig, TrainConfig])
def test_configs_are_frozen(section):
    with pytest.raises(dataclasses.FrozenInstanceError):
        section().kind = "other"
