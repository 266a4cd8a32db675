"""The experiment on three iterations: its variants, and a short run."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from emcaps.experiments import iterations
from emcaps.experiments.iterations import variant_config
from emcaps.experiments.measured import train_and_measure
from emcaps.train.run_folder import read_metrics
from patterns import write_patterns

SHORT = {
    "network.conv_channels": 8,
    "network.primary_types": 2,
    "network.conv1_types": 3,
    "network.conv2_types": 3,
    "data.crop": 16,
    "train.steps": 5,
    "train.batch_size": 4,
    "train.log_every": 1,
    "train.checkpoint_every": 2,
}


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    return write_patterns(tmp_path_factory.mktemp("patterns"))


def test_variant_config_is_what_its_name_says():
    assert [variant_config(f"it{n}", 0).network.iterations for n in (1, 2, 3)] == [1, 2, 3]
    plain, soft = variant_config("it3", 2), variant_config("it3-soft", 2)
    assert soft.network.pose_scale == 0.5
    assert soft.network.variance_floor == 1.0
    assert soft.network.betas == "half_active"
    assert soft.train == plain.train
    assert (plain.data.dataset, plain.data.split, plain.train.seed) == ("smallnorb", "validation", 2)
    assert variant_config("it3", 0, "toys").data.dataset == "toys"
    with pytest.raises(ValueError, match="unknown variant 'it3-sofd': did you mean 'it3-soft'"):
        variant_config("it3-sofd", 0)


def test_train_and_measure_measures_every_checkpoint_and_skips_a_complete_run(tmp_path, data_folder):
    config = variant_config("it3-soft", 0, "toys").override(SHORT)
    train_and_measure(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    found = json.loads((tmp_path / "run/routing.json").read_text())
    assert [one["step"] for one in found] == [0, 2, 4, 5]
    assert found[0]["pose_gain"] == pytest.approx([0.5] * 3)
    assert found[-1]["pose_gain"] != found[0]["pose_gain"]

    for name in ("weights.safetensors", "checkpoint.safetensors"):
        (tmp_path / "run" / name).unlink()  # as in a recorded copy
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    train_and_measure(config, tmp_path / "run", device="cpu", data_folder=tmp_path / "no data")
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == before

    with pytest.raises(ValueError, match="has other settings than this experiment: name another folder of runs"):
        train_and_measure(config.override({"train.seed": 1}), tmp_path / "run", data_folder=data_folder)


def test_run_iterations_trains_prints_and_draws(tmp_path, data_folder, monkeypatch):
    monkeypatch.setattr(iterations, "SETTINGS", iterations.SETTINGS | SHORT)
    monkeypatch.setattr(iterations, "SEEDS", (0, 1))
    monkeypatch.setattr(iterations, "VARIANTS", {name: iterations.VARIANTS[name] for name in ("it2", "it3")})
    console = Console(record=True, width=120)
    arguments = (tmp_path / "runs", data_folder, "cpu", "toys", console)
    iterations.run_iterations(*arguments, tmp_path / "images", train_first=True)
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        f"three-iterations-{name}.png" for name in ("learning", "gradients", "routing")
    }
    rows = read_metrics(tmp_path / "runs/it3/seed1")
    iterations.run_iterations(*arguments, None, train_first=False)
    assert read_metrics(tmp_path / "runs/it3/seed1") == rows, "the second time nothing is trained"
    text = console.export_text()
    assert text.count("it3") == 2
    assert text.count("figure:") == 3
