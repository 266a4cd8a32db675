import dataclasses
import json
import typing
from pathlib import Path

import numpy as np
import pytest

from emcaps.config import PRESETS, DataConfig, LayerConfig, NetworkConfig, RunConfig, TrainConfig, preset


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
        ({"train.lr": 1e-3}, "unknown setting 'train.lr': here it is called train.learning_rate$"),
        ({"train.epochs": 3}, "here it is called train.steps, which counts batches$"),
        ({"lr": 1e-3}, "unknown setting 'lr': here it is called train.learning_rate$"),
        ({"network.lr": 1}, "unknown setting 'network.lr': here it is called train.learning_rate$"),
        ({"data.epochs": 3}, "unknown setting 'data.epochs': here it is called train.steps, which counts batches$"),
        ({"learning_rate": 1}, "unknown setting 'learning_rate': here it is called train.learning_rate$"),
        ({"learnin_rate": 1}, r"unknown setting 'learnin_rate': did you mean 'train.learning_rate'\?$"),
        ({"data.learnin_rate": 1}, r"unknown setting 'data.learnin_rate': did you mean 'train.learning_rate'\?$"),
        ({"colour": 1}, "unknown setting 'colour': `emcaps describe --settings` lists all settings$"),
        ({"data.xyzzy": 1}, "unknown setting 'data.xyzzy': `emcaps describe --settings` lists all settings$"),
        ({"train.steps": "many"}, "train.steps must be a whole number, not 'many'"),
        ({"train.steps": 2.5}, "train.steps must be of type int, not 2.5"),
        ({"train.steps": True}, "train.steps must be of type int, not True"),
        ({"train.learning_rate": "fast"}, "train.learning_rate must be a number, not 'fast'"),
        ({"train.learning_rate": "nan"}, "train.learning_rate must be positive and finite"),
        ({"network.iterations": 0}, "network.iterations must be at least 1, not 0"),
        ({"network.final_lambda": -1.0}, "network.final_lambda must be positive"),
        ({"network.variance_floor": float("inf")}, "network.variance_floor must be zero or more, and finite"),
        ({"network.competition": "type"}, "unknown network.competition 'type': did you mean 'types'"),
        ({"data.view": "sterio"}, "unknown data.view 'sterio': did you mean 'stereo'"),
        ({"data.fold": -1}, "data.fold must be zero or more, not -1"),
        ({"data.crop": 7}, "data.crop must be at least 8, not 7"),
        ({"data.splice": 1.5}, "data.splice must be a share, 0 to 1, not 1.5"),
        ({"data.contrast_low": 2.0}, "contrast_low and data.contrast_high must be positive, finite and in this order"),
        ({"network.classes": 1}, "network.classes must be at least 2, not 1"),
        ({"network.weight_noise": -1}, "network.weight_noise must be zero or more"),
        ({"network.class_scale": 1.0}, "network.class_scale needs network.pose_scale"),
        ({"train.graph": "yes"}, "unknown train.graph 'yes'"),
        ({"train.graph": True}, "unknown train.graph True"),
        ({"train.autocast": "bfloat"}, "unknown train.autocast 'bfloat': did you mean 'bfloat16'"),
        ({"network.kind": "cnn"}, "train.loss must be 'cross_entropy', not 'spread'"),
        ({"network.conv1_types": 0}, "network.conv1_types must be at least 1 without network.layers, not 0"),
        ({"network.layers": 3}, "network.layers must be a list, or a text such as '16:3:2, 16:3:1', not 3"),
        ({"network.layers": "8, x:3"}, "layer 2: a layer must be written types:kernel:stride:padding .* not ' x:3'"),
        ({"network.layers": "8:3:1:1:1"}, "layer 1: a layer must be written types:kernel:stride:padding .*8:3:1:1:1'"),
        ({"network.layers": "8:3:1:3"}, "padding of a capsule layer must be smaller than its kernel, 3, not 3"),
        ({"network.layers": [{"types": 8, "padding": -1}]}, "padding of a capsule layer must be .* at least 0, not -1"),
        ({"network.layers": "8,"}, "layer 2: a layer must be written .* not ''"),
        ({"network.layers": "0"}, "layer 1: types of a capsule layer must be a whole number of at least 1, not 0"),
        ({"network.layers": ["8:0"]}, "layer 1: kernel of a capsule layer must be a whole number of at least 1, not 0"),
        ({"network.layers": [{"types": 8, "stride": 1.5}]}, "stride of a capsule layer must be .*, not 1.5"),
        ({"network.layers": [{"types": True}]}, "types of a capsule layer must be a whole number .*, not True"),
        ({"network.layers": [{"kernel": 3}]}, "layer 1: a layer must say its types, not {'kernel': 3}"),
        ({"network.layers": [{"type": 3}]}, "layer 1: unknown setting of a layer 'type': did you mean 'types'"),
        ({"network.layers": [8]}, "layer 1: a layer must be a LayerConfig, a dict or a text such as '16:3:2', not 8"),
        ({"network.layers": "8", "network.conv2_types": 4}, "so network.conv2_types must be left out, not 4"),
        ({"network.layers": "8", "network.kind": "cnn"}, "describes capsules, which the cnn network has not"),
        ({"network.cnn_hidden": 8}, "network.cnn_hidden describes the cnn network, and this one is made of capsules"),
        ({"network.cnn_pooling": "mean"}, "network.cnn_pooling describes the cnn network, and this one is made of"),
        ({"network.cnn_channels": 0}, "network.cnn_channels must be at least 1, not 0"),
        ({"train.learning_rate": "1e300"}, r"train.learning_rate must be at most 1e\+30, not 1e\+300"),
        ({"train.learning_rate": 10**400}, r"train.learning_rate must be at most 1e\+30, not 1000.*0000$"),
        ({"train.learning_rate": 1e20, "train.beta_rate": 1e20}, "learning_rate times train.beta_rate or .* at most"),
        ({"train.learning_rate": 1e20, "train.beta_a_rate": 1e20}, "learning_rate times train.beta_rate or .* at most"),
        ({"train.average": 1.5}, "train.average must be a share, 0 to 1, not 1.5"),
        ({"network.dropout": -0.1}, "network.dropout must be a share, 0 to 1, not -0.1"),
        (
            {"network.dropout": 0.5, "network.kind": "cnn", "train.loss": "cross_entropy"},
            "network.dropout switches off capsules, and a cnn has none: it must be 0, not 0.5",
        ),
        ({"train.decay_rate": 1.1, "train.decay_steps": 1}, "as train.decay_rate changes it, must stay at most"),
        ({"network.weight_identity": -1e300}, r"network.weight_identity must be at least -1e\+30, not -1e\+300"),
        ({"train.batch_size": 10**9}, "train.batch_size must be at most 1,000,000, not 1000000000"),
        ({"train.batch_size": "1" + 22 * "0"}, "train.batch_size must be at most 1,000,000, not 1000"),
        ({"train.steps": 10**22}, "train.steps must be at most 1,000,000,000,000, not 1000"),
        ({"train.seed": 10**400}, "train.seed must be at most 18,446,744,073,709,551,615, not 1000.*0000$"),
        ({"train.steps": "1" + 5000 * "0"}, "train.steps must be a whole number, not '1000.*000'$"),
        ({"network.conv1_types": 10**22}, "network.conv1_types must be at most 10,000"),
        ({"network.layers": f"1{22 * '0'}"}, "layer 1: types of a capsule layer must be at most 10,000"),
        ({"data.crop": 10**22}, "data.crop must be at most 10,000"),
        (
            {"train.teachers": "../elder"},
            "train.teachers must be a list of texts, .*, not '../elder': name .* --teacher",
        ),
        ({"train.teachers": ["../elder", 3]}, r"train.teachers must be a list of texts, .*, not \('../elder', 3\)"),
        (
            {"data.names": "cat"},
            "data.names must be a list of texts, .* not 'cat': leave it out, since it is filled in",
        ),
    ],
)
def test_override_with_a_bad_value_names_value_and_rule(change, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.").replace(r"\.*", ".*")):
        preset("small").override(change)


def test_a_text_in_place_of_texts_is_not_read_letter_by_letter():
    for build, setting in ((TrainConfig, "teachers"), (DataConfig, "names")):
        with pytest.raises(ValueError, match=rf"{setting} must be a list of texts, in Python a tuple, not 'ab'"):
            build(**{setting: "ab"})


@pytest.mark.parametrize(
    "place", ["", '{"network": ', '{"network": {"kind": ', '{"train": {"steps": ', '{"data": {"names": ']
)
@pytest.mark.parametrize("depth", [900, 100_000])
def test_from_json_that_is_nested_deeply_is_one_short_message(place, depth):
    """Texts that Python can just read, but not print, and texts that it cannot even read."""
    with pytest.raises(ValueError, match=r"must be|must hold|unknown|nested too deeply") as caught:
        RunConfig.from_json(place + depth * "[" + depth * "]" + place.count("{") * "}")
    assert len(str(caught.value)) < 400


def test_from_json_rejects_settings_it_does_not_know():
    with pytest.raises(ValueError, match=r"unknown setting 'network.iteration': did you mean 'network.iterations'"):
        RunConfig.from_json('{"network": {"iteration": 3}}')


@pytest.mark.parametrize("section", [NetworkConfig, DataConfig, TrainConfig])
def test_configs_are_frozen(section):
    with pytest.raises(dataclasses.FrozenInstanceError):
        section().kind = "other"


def test_no_two_settings_share_a_name_beside_their_sections():
    """A name without its section, or with another one, then says which setting is meant."""
    names = [name for section in (NetworkConfig, DataConfig, TrainConfig) for name in typing.get_type_hints(section)]
    assert len(set(names)) == len(names)


CHOICES = [
    (section, name, wanted)
    for section in (NetworkConfig, DataConfig, TrainConfig)
    for name, wanted in typing.get_type_hints(section).items()
    if typing.get_origin(wanted) is typing.Literal
]


@pytest.mark.parametrize(("section", "name", "wanted"), CHOICES)
def test_every_setting_with_choices_takes_these_and_no_other(section, name, wanted):
    kind = {"kind": "cnn"} if name.startswith("cnn_") else {}
    for value in typing.get_args(wanted):
        assert getattr(section(**kind, **{name: value}), name) == value
    with pytest.raises(ValueError, match=f"unknown .*{name} 'nonsense'.*allowed: "):
        section(**{name: "nonsense"})


def test_every_setting_is_a_number_a_text_or_a_choice():
    for section in (NetworkConfig, DataConfig, TrainConfig):
        for name, wanted in typing.get_type_hints(section).items():
            known = (int, float, str, tuple[str, ...], tuple[LayerConfig, ...] | None)
            assert wanted in known or typing.get_origin(wanted) is typing.Literal, name


def test_an_empty_text_is_an_empty_list():
    """So that the command line can leave out what a file of settings lists."""
    taught = RunConfig().override({"train.teachers": ["../elder"]})
    assert taught.override({"train.teachers": ""}) == RunConfig()


def test_old_names_are_read_and_new_ones_written():
    new = preset("tiny").override({"train.margin_schedule": "linear", "train.learning_rate_schedule": "cosine"})
    assert preset("tiny").override({"train.margin": "linear", "train.decay": "cosine"}) == new
    written = json.loads(new.to_json())
    assert not {"margin", "decay"} & written["train"].keys()
    written["train"]["margin"] = written["train"].pop("margin_schedule")
    written["train"]["decay"] = written["train"].pop("learning_rate_schedule")
    assert RunConfig.from_dict(written) == new
    with pytest.raises(ValueError, match=r"train\.margin is an old name of train\.margin_schedule, and both are given"):
        new.override({"train.margin": "linear", "train.margin_schedule": "linear"})
    with pytest.raises(ValueError, match=r"unknown train\.margin_schedule 'liner': did you mean 'linear'"):
        new.override({"train.margin": "liner"})


@pytest.mark.parametrize("path", sorted((Path(__file__).parent.parent / "results").rglob("config.json"))[::20])
def test_recorded_runs_are_read(path):
    """Whatever their settings were called then; every twentieth will do."""
    recorded = json.loads(path.read_text())["train"]
    train = RunConfig.from_json(path.read_text()).train
    assert train.margin_schedule == recorded.get("margin_schedule", recorded.get("margin", "sigmoid"))
    assert train.learning_rate_schedule == recorded.get("learning_rate_schedule", recorded.get("decay", "exponential"))
    assert (train.steps, train.seed) == (recorded["steps"], recorded["seed"])


RECORDED = sorted((Path(__file__).parent.parent / "results").rglob("config.json"))


def test_saved_configs_without_the_setting_input_mean_networks_that_read_images_as_given():
    assert NetworkConfig().input == "auto"
    assert RunConfig(NetworkConfig(classes=7)).network == NetworkConfig(classes=7, input="as_given")
    assert RunConfig().network.input == RunConfig.from_dict({"network": {"classes": 10}}).network.input == "as_given"
    assert RECORDED
    for path in RECORDED:
        config = RunConfig.from_json(path.read_text())
        assert config.network.input == json.loads(path.read_text())["network"].get("input", "as_given"), path
        assert RunConfig.from_json(config.to_json()) == config, path


def test_the_setting_input_is_saved_and_can_be_chosen_for_a_run():
    chosen = preset("small").override({"network.input": "standardised"})
    assert RunConfig.from_json(chosen.to_json()).network.input == "standardised"


def test_without_a_decoder_its_loss_has_no_weight():
    with pytest.raises(ValueError, match=r"train\.reconstruction weights what network\.decoder draws.*0\.1, not 5"):
        RunConfig().override({"train.reconstruction": 5.0})


def test_a_cnn_cannot_be_watched():
    with pytest.raises(ValueError, match=r"train\.watch looks at routing.*must be 0, not 5"):
        preset("cnn").override({"train.watch": 5})


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ("16:5:2, 32 : 3 : 2,8", (LayerConfig(16, 5, 2), LayerConfig(32, 3, 2), LayerConfig(8, 3, 1))),
        (
            ["16:5:2", {"types": 8, "stride": 2, "padding": 1}, "4:3:1:2"],
            (LayerConfig(16, 5, 2), LayerConfig(8, 3, 2, padding=1), LayerConfig(4, padding=2)),
        ),
        (" ", ()),
        ([], ()),
        (None, None),
    ],
)
def test_layers_are_read_from_texts_and_lists_and_survive_json(given, layers):
    config = preset("small").override({"network.layers": given})
    assert config.network.layers == layers
    assert config.network.conv1_types == config.network.conv2_types == (16 if layers is None else 0)
    assert RunConfig.from_json(config.to_json()) == RunConfig.from_dict(dataclasses.asdict(config)) == config
    assert NetworkConfig(layers=given, input="as_given") == config.network
    assert hash(config) == hash(RunConfig.from_json(config.to_json()))


def test_layers_in_json_are_a_list_of_numbers_by_name():
    config = preset("small").override({"network.layers": "16:3:2, 8:3:1:1"})
    written = json.loads(config.to_json())["network"]["layers"]
    assert written == [
        {"types": 16, "kernel": 3, "stride": 2, "padding": 0},
        {"types": 8, "kernel": 3, "stride": 1, "padding": 1},
    ]


def test_layers_that_were_written_without_padding_have_none():
    assert NetworkConfig(layers=[{"types": 16, "kernel": 3, "stride": 2}]).layers == (LayerConfig(16, 3, 2, padding=0),)


def test_a_described_network_goes_back_to_the_papers_layers_with_their_types():
    described = preset("small").override({"network.layers": "16:3:2, 8"})
    with pytest.raises(ValueError, match=r"so network\.conv1_types must be left out, not 4"):
        described.override({"network.conv1_types": 4})
    with pytest.raises(ValueError, match=r"network\.conv1_types must be at least 1 without network\.layers, not 0"):
        described.override({"network.layers": None})
    types = {"network.conv1_types": 16, "network.conv2_types": 16}
    assert described.override({"network.layers": None} | types) == preset("small")


def test_a_learning_rate_may_grow_within_bounds():
    preset("small").override({"train.decay_rate": 2.0})
    preset("small").override(
        {"train.decay_rate": 1.1, "train.decay_steps": 1, "train.learning_rate_schedule": "cosine"}
    )
    preset("small").override({"train.decay_rate": 1e-30, "train.decay_steps": 1, "train.beta_rate": 1e-30})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 2.5}, r"network\.classes must be a whole number, not 2\.5"),
        ({"conv_channels": 8.0}, r"network\.conv_channels must be a whole number, not 8\.0"),
        ({"iterations": "3"}, r"network\.iterations must be a whole number, not '3'"),
        ({"iterations": True}, r"network\.iterations must be a whole number, not True"),
        ({"final_lambda": "1"}, r"network\.final_lambda must be a number, not '1'"),
    ],
)
def test_a_setting_of_another_type_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        NetworkConfig(**settings)
    NetworkConfig(classes=np.int64(3), final_lambda=1)
