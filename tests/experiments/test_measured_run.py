"""A run whose routing is measured while it trains, and runs that fail."""

import json

import pytest
import torch

from emcaps.experiments.measured_run import train_and_measure
from emcaps.experiments.records import is_finished, read_records, read_routing, run_folder
from emcaps.train import loop
from emcaps.train.evaluate import NotFiniteScoresError
from experiments.short_rows import ROWS

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROW = ROWS["two"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_routing_is_measured_at_the_start_at_checkpoints_and_at_the_end(tmp_path, data, device):
    config = ROW.override({"network.pose_scale": 0.5, "train.steps": 5})
    train_and_measure(config, tmp_path / "run", device=device, data_folder=data)
    found = read_routing(tmp_path / "run")
    assert [one["step"] for one in found] == [0, 2, 4, 5]
    assert found[0]["pose_gain"] == pytest.approx([0.5] * 3)
    assert found[-1]["pose_gain"] != found[0]["pose_gain"]
    assert is_finished(tmp_path / "run", measured=True)


def test_a_run_whose_loss_is_no_longer_finite_is_recorded_as_failed(tmp_path, data):
    rows = {"two": ROW.override({"train.learning_rate": 1e30, "train.log_every": 1})}
    folder = run_folder(tmp_path, "two", 0)
    train_and_measure(rows["two"], folder, device="cpu", data_folder=data)
    failed = json.loads((folder / "failure.json").read_text())
    assert 1 <= failed["step"] <= 4
    (record,) = read_records(rows, "two", tmp_path, measured=True)
    assert record.failed_by == failed["step"]
    assert record.routing[0]["step"] == 0


def test_a_run_whose_answers_are_not_finite_has_failed_too(tmp_path, data, monkeypatch):
    """The loss of the last batch may still be finite when a test image is answered with NaN."""

    def no_answers(*_, **__):
        raise NotFiniteScoresError

    monkeypatch.setattr(loop, "evaluate_split", no_answers)
    rows = {"two": ROW.override({"train.eval_every": 0})}
    train_and_measure(rows["two"], run_folder(tmp_path, "two", 0), device="cpu", data_folder=data)
    (record,) = read_records(rows, "two", tmp_path, measured=True)
    assert record.failed_by == 4
