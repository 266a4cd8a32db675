"""The routing of a trained network."""

import io
import json

import pytest
from rich.console import Console

from emcaps.config import preset
from emcaps.experiments.measured_run import train_and_measure
from emcaps.experiments.records import read_routing
from emcaps.experiments.routing_table import show_routing
from emcaps.train import train
from experiments.short_rows import ROWS

SHORT = {"data.crop": 16, "data.dataset": "toys", "train.steps": 2, "train.batch_size": 8, "train.eval_every": 0}


def test_a_trained_network_shows_what_was_measured_at_the_end_of_its_run(tmp_path, data):
    train_and_measure(ROWS["two"], tmp_path / "run", device="cpu", data_folder=data)
    console = Console(file=io.StringIO(), width=80)
    show_routing(str(tmp_path / "run"), console, json=tmp_path / "inside.json", device="cpu", data_folder=data)
    text = console.file.getvalue()
    found = json.loads((tmp_path / "inside.json").read_text())
    recorded = read_routing(tmp_path / "run")[-1]
    assert found["step"] == recorded["step"] == 4
    assert found["images"] == 64
    for layer, rows in recorded["layers"].items():
        assert layer in text
        for row, expected in zip(found["layers"][layer], rows, strict=True):
            assert row["effective_children"] == pytest.approx(expected["effective_children"])
            assert row["lone_parents"] == pytest.approx(expected["lone_parents"])
    last = found["layers"]["conv_caps2"][-1]
    assert f"{last['effective_children']:.1f}" in text
    assert f"{last['positions']:.2f}" in text


def test_a_network_without_routing_is_refused(tmp_path, data):
    train(preset("cnn").override(SHORT), tmp_path / "run", device="cpu", data_folder=data)
    with pytest.raises(ValueError, match="is a cnn, which does not route: name a capsule network"):
        show_routing(str(tmp_path / "run"), Console(), json=None, device="cpu", data_folder=data)
