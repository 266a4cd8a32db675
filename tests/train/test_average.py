"""Averaged weights: what counts, what a run evaluates and saves, and that training itself does not notice."""

import json

import pytest
import torch
from torch import nn

from emcaps.config import TrainConfig
from emcaps.data.splits import load_tested
from emcaps.nn import build_network
from emcaps.train import loop, train
from emcaps.train.average import AveragedWeights
from emcaps.train.checkpoint import load, load_network, restore
from emcaps.train.evaluate import evaluate_split
from emcaps.train.run_folder import read_metrics
from emcaps.train.step import make_optimiser, make_sums
from train.runs import weights


def averaged(share, steps=10):
    """A network of one weight, which is n after n steps, and its mean."""
    network = nn.Linear(1, 1, bias=False)
    average = AveragedWeights(network, TrainConfig(steps=steps, average=share))
    for step in range(1, steps + 1):
        network.weight.data.fill_(step)
        average.add(step)
    return network, average


@pytest.mark.parametrize(
    ("share", "mean"), [(0.0, 10.0), (0.01, 10.0), (0.1, 10.0), (0.25, 9.5), (0.5, 8.0), (1.0, 5.5)]
)
def test_the_mean_is_over_the_last_steps(share, mean):
    network, average = averaged(share)
    with average.in_network():
        assert float(network.weight.detach()) == pytest.approx(mean, rel=1e-6)
    assert float(network.weight.detach()) == 10


def test_the_networks_own_weights_come_back_even_after_an_error():
    network, average = averaged(0.5)
    seen = []

    def fail():
        with average.in_network():
            seen.append(float(network.weight.detach()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [8]
    assert float(network.weight.detach()) == 10


def test_before_the_first_step_that_counts_there_is_no_mean():
    network = nn.Linear(1, 1)
    average = AveragedWeights(network, TrainConfig(steps=10, average=0.5))
    network.weight.data.fill_(7)
    average.add(5)
    assert (average.state(), average.expected(5)) == ({}, {})
    with average.in_network():
        assert float(network.weight.detach()) == 7
    average.add(6)
    assert average.state().keys() == average.expected(6).keys() == {"weight", "bias"}


def test_a_run_trains_as_without_and_ends_with_the_mean(tmp_path, config, data_folder):
    """The means are those of the weights in the checkpoints of a run that saves after every step."""
    config = config.override({"train.checkpoint_every": 1, "train.keep_checkpoints": 12, "train.eval_every": 4})
    train(config, tmp_path / "plain", device="cpu", data_folder=data_folder)
    train(config.override({"train.average": 0.5}), tmp_path / "mean", device="cpu", data_folder=data_folder)
    plain, mean = weights(tmp_path / "plain"), weights(tmp_path / "mean")
    assert {name for name in mean if name.startswith("average.")} == mean.keys() - plain.keys()
    for name, value in plain.items():
        assert torch.equal(mean[name], value), name

    older = [tmp_path / "plain" / f"checkpoint{end}.safetensors" for end in ("", "-1", "-2", "-3", "-4", "-5")]
    last_half = [load(path).tensors for path in older]
    saved = load(tmp_path / "mean" / "weights.safetensors").tensors
    for name, value in saved.items():
        want = torch.stack([tensors[name] for tensors in last_half]).double().mean(0)
        torch.testing.assert_close(value.double(), want, rtol=1e-5, atol=1e-7)
        assert torch.equal(mean[name.replace("network.", "average.")], value)
    assert not torch.equal(saved["network.class_caps.weight"], plain["network.class_caps.weight"])

    loaded = load_network(tmp_path / "mean" / "checkpoint.safetensors")[0].state_dict()
    assert all(torch.equal(loaded[name.removeprefix("network.")], value) for name, value in saved.items())


def test_a_run_evaluates_the_mean_once_there_is_one(tmp_path, config, data_folder, monkeypatch):
    seen = []

    def evaluate(network, *arguments, **options):
        seen.append(network.class_caps.weight.detach().clone())
        return evaluate_split(network, *arguments, **options)

    evaluate_split = loop.evaluate_split
    monkeypatch.setattr(loop, "evaluate_split", evaluate)
    each = []  # the weights after every step

    class Noting(AveragedWeights):
        def add(self, step):
            each.append(self.trained["class_caps.weight"].clone())
            super().add(step)

    monkeypatch.setattr(loop, "AveragedWeights", Noting)
    config = config.override({"train.average": 0.5, "train.eval_every": 5})  # at 5, 10 and the end, 12
    train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    last = load(tmp_path / "run" / "weights.safetensors").tensors["network.class_caps.weight"]
    assert len(seen) == 4
    assert torch.equal(seen[0], each[4])  # nothing is averaged yet
    torch.testing.assert_close(seen[1], torch.stack(each[6:10]).mean(0))
    assert torch.equal(seen[2], last)
    assert not torch.equal(seen[2], each[-1])
    assert torch.equal(seen[3], each[-1])
    assert torch.equal(weights(tmp_path / "run")["network.class_caps.weight"], each[-1])
    tested = [row for row in read_metrics(tmp_path / "run") if "test_accuracy" in row]
    assert [row["step"] for row in tested] == [5, 10, 12]
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["average"] == 0.5


def test_the_last_row_has_the_accuracy_of_the_last_weights_too(tmp_path, config, data_folder):
    train(config, tmp_path / "plain", device="cpu", data_folder=data_folder)
    train(config.override({"train.average": 1.0}), tmp_path / "mean", device="cpu", data_folder=data_folder)
    *_, plain = read_metrics(tmp_path / "plain")
    *before, last = read_metrics(tmp_path / "mean")
    assert last["test_accuracy_of_last_weights"] == plain["test_accuracy"]
    assert all("test_accuracy_of_last_weights" not in row for row in [*before, plain])
    saved, _, step = load_network(tmp_path / "mean" / "weights.safetensors")
    assert last["step"] == step
    found = evaluate_split(saved, load_tested(config.data, data_folder), config, torch.device("cpu"))
    assert last["test_accuracy"] == found["test"].accuracy


def test_a_checkpoint_without_its_mean_is_refused(tmp_path, config, data_folder):
    config = config.override({"train.average": 0.5})
    train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    checkpoint = load(tmp_path / "run" / "checkpoint.safetensors")
    without = {name: value for name, value in checkpoint.tensors.items() if name != "average.class_caps.weight"}
    network = build_network(config.network, 1, config.data.crop)
    optimiser, sums = make_optimiser(network, config.train), make_sums(torch.device("cpu"))
    average = AveragedWeights(network, config.train)
    with pytest.raises(ValueError, match=r"not a whole checkpoint of its run: average.class_caps.weight is missing"):
        restore(checkpoint._replace(tensors=without), network, optimiser, sums, average)
    restore(checkpoint, network, optimiser, sums, average)
    assert average.counted == 6
