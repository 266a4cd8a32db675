"""Training on images of one's own: what the config learns from them, exact resume, and what is refused."""

import json

import numpy as np
import pytest
import torch
from runs import assert_same_run

import emcaps
from emcaps.config import RunConfig, preset
from emcaps.data.arrays import parts_of_arrays
from emcaps.train import load_network, train
from emcaps.train.checks import check_fits, fill_in
from emcaps.train.evaluate import errors_by_instance
from own_images import bars

TRAIN, TEST = bars(48, 4, 20, 3), bars(16, 4, 20, 3, seed=1)
DATA = (*TRAIN, *TEST)


def test_what_a_network_must_know_of_its_images_travels_with_its_weights(tmp_path, config):
    result = train(config, tmp_path / "run", data=DATA, device="cpu")
    assert result.complete
    assert result.evaluations["test"].names == ("0", "1", "2", "3")
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    expected = {
        "names": ["0", "1", "2", "3"],
        "channels": 3,
        "size": 20,
        "fit": "crop",
        "crop": 16,
        "dataset": "arrays",
    }
    assert {key: written["data"][key] for key in expected} == expected
    assert written["network"]["classes"] == 4
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["test"]["names"] == ["0", "1", "2", "3"]
    network, loaded, _ = load_network(tmp_path / "run" / "weights.safetensors")
    assert loaded == RunConfig.from_dict(written)
    assert network.predict(TEST[0]).scores.shape == (16, 4)
    crops = emcaps.crops_for(tmp_path / "run", torch.from_numpy(TEST[0]))
    assert torch.equal(network(crops).activation, network.predict(TEST[0]).scores)
    with pytest.raises(ValueError, match=r"must be a uint8 tensor \(B, 3, 20, 20\), not .*: resize them to 20 x 20"):
        emcaps.crops_for(tmp_path / "run", torch.zeros(1, 3, 24, 24, dtype=torch.uint8))


def test_a_resumed_run_gives_the_same_numbers(tmp_path, config):
    train(config, tmp_path / "whole", data=DATA, device="cpu")
    train(config.override({"train.steps": 7}), tmp_path / "parts", data=DATA, device="cpu")
    tensors = tuple(torch.as_tensor(array) for array in DATA)
    train(config, tmp_path / "parts", data=tensors, device="cpu", resume=True)
    wanted, found = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("whole", "parts"))
    assert found == wanted
    first, second = (load_network(tmp_path / name / "weights.safetensors")[0] for name in ("whole", "parts"))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_other_images_are_refused_when_a_run_is_resumed(tmp_path, config):
    train(config.override({"train.steps": 4}), tmp_path / "run", data=DATA, device="cpu")
    other = (255 - TRAIN[0], *DATA[1:])
    with pytest.raises(ValueError, match="was trained on other data than this"):
        train(config, tmp_path / "run", data=other, device="cpu", resume=True)
    with pytest.raises(ValueError, match="given as arrays from Python"):
        train(config.override({"data.dataset": "arrays"}), tmp_path / "run", device="cpu", resume=True)


def test_the_same_images_in_another_order_of_axes_give_the_same_run(tmp_path, config):
    config = config.override({"train.steps": 3})
    train(config, tmp_path / "first", data=DATA, device="cpu")
    last = (TRAIN[0].transpose(0, 2, 3, 1), TRAIN[1], TEST[0].transpose(0, 2, 3, 1), TEST[1])
    train(config, tmp_path / "last", data=last, device="cpu")
    assert_same_run(tmp_path / "first", tmp_path / "last")


def test_three_arrays_are_refused(tmp_path, config):
    with pytest.raises(ValueError, match=r"data must be \(images, labels, test_images, test_labels\), not 3 arrays"):
        train(config, tmp_path / "run", data=DATA[:3], device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("side", "crop"), [(20, 20), (32, 32), (40, 32)])
def test_a_default_crop_shrinks_to_smaller_images(side, crop):
    images, labels = bars(12, side=side)
    parts = parts_of_arrays(images, labels, images, labels)
    config = fill_in(preset("tiny"), parts["train"])
    assert (config.data.crop, config.data.size, config.network.classes) == (crop, side, 3)
    check_fits(config, parts["test"])
    assert fill_in(config, parts["train"]) == config


def test_settings_that_do_not_fit_the_images():
    images, labels = bars(12, side=20)
    examples = parts_of_arrays(images, labels, images, labels)["train"]
    for changes, message in [
        ({"data.crop": 24}, r"data\.crop must be at most 20"),
        ({"network.classes": 7}, r"network\.classes must be 3, .*not 7"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_fits(fill_in(preset("tiny").override(changes), examples), examples)
    config = fill_in(preset("tiny"), examples)
    with pytest.raises(ValueError, match=r"tells 0, 1, 2 apart, and the images show ant, bee, cat"):
        check_fits(config, examples._replace(names=("ant", "bee", "cat")))
    with pytest.raises(ValueError, match=r"reads images of 1 channels, and these have 3"):
        check_fits(config, examples._replace(images=np.repeat(images, 3, 1)))
    small = examples._replace(images=images[..., :12, :12])
    with pytest.raises(ValueError, match=r"data\.crop must be at least 13 for a capsule network"):
        check_fits(fill_in(preset("tiny"), small), small)


def test_a_config_for_other_images_follows_the_new_ones():
    images, labels = bars(12, 3)
    other, other_labels = bars(12, 6)
    config = fill_in(preset("tiny"), parts_of_arrays(images, labels, images, labels)["train"])
    again = fill_in(config, parts_of_arrays(other, other_labels, other, other_labels)["train"])
    assert (again.network.classes, len(again.data.names)) == (6, 6)


def test_errors_are_counted_by_group_where_groups_are_known():
    images, labels = bars(12, 3)
    examples = parts_of_arrays(images, labels, images, labels, names=("ant", "bee", "cat"))["train"]
    given = torch.from_numpy(labels).clone()
    given[0] = 2  # an ant of group 0 is taken for a cat
    assert errors_by_instance(given, examples) == ()
    grouped = errors_by_instance(given, examples._replace(instance=np.arange(12, dtype=np.int32) // 6))
    assert grouped[0] == ("ant", 0, 2, 1, "cat", 1)
    assert [one.wrong for one in grouped[1:]] == [0] * 5
