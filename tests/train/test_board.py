"""What TensorBoard gets at evaluations, and that a run gives the same numbers with it and without."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from emcaps.config import preset
from emcaps.train import train
from train.runs import assert_same_run


def events_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder / "tensorboard")).Reload()


def test_pictures_and_histograms_change_no_number(tmp_path, config, data_folder):
    config = config.override({"train.eval_every": 6})
    for name, wanted in (("with", True), ("without", False)):
        train(config, tmp_path / name, device="cpu", data_folder=data_folder, tensorboard=wanted)
    assert_same_run(tmp_path / "with", tmp_path / "without")
    events = events_of(tmp_path / "with")
    pictures = events.Images("test images")
    assert [event.step for event in pictures] == [6, 12]
    pixels = np.asarray(Image.open(io.BytesIO(pictures[0].encoded_image_string)))
    assert pixels.shape == (8 * 16, (1 + config.network.iterations) * 16, 3)
    kinds = {"activation", "beta_a", "beta_u", "assignment_entropy"}
    expected = {f"{kind}/{layer}" for kind in kinds for layer in ("conv_caps1", "conv_caps2", "class_caps")}
    assert set(events.Tags()["histograms"]) == expected | {"activation/primary_caps"}
    (text,) = events.Tensors("answers/text_summary")[0].tensor_proto.string_val
    assert text.decode().count("\n") == 9
    assert "animal" in text.decode()


def test_a_cnn_has_pictures_alone(tmp_path, data_folder):
    settings = {"data.crop": 16, "train.steps": 1, "train.batch_size": 4, "data.view": "stereo"}
    train(preset("cnn").override(settings), tmp_path / "run", device="cpu", data_folder=data_folder, tensorboard=True)
    events = events_of(tmp_path / "run")
    assert (events.Images("test images")[0].height, events.Images("test images")[0].width) == (8 * 16, 2 * 16)
    assert events.Tags()["histograms"] == []


def test_without_pillow_it_is_refused_before_the_run_starts(tmp_path, config, data_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ValueError, match=r"pip install tensorboard"):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder, tensorboard=True)
    assert not (tmp_path / "run" / "config.json").exists()
