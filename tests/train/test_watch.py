import logging

import pytest
import torch
from runs import numbers, weights

from emcaps.data.tensors import to_tensors
from emcaps.train import train
from emcaps.train.run_folder import read_metrics
from emcaps.train.start import start_network
from emcaps.train.watch import make_watch
from patterns import pattern_examples

LAYERS = ("conv_caps1", "conv_caps2", "class_caps")


def test_a_watched_run_has_the_figures_in_its_metrics_and_the_same_bits(config, data_folder, tmp_path):
    plain, watched = tmp_path / "plain", tmp_path / "watched"
    train(config, plain, device="cpu", data_folder=data_folder)
    train(config.override({"train.watch": 4}), watched, device="cpu", data_folder=data_folder)
    looks = [row for row in read_metrics(watched) if "commonest_answer" in row]
    assert [row["step"] for row in looks] == [4, 8, 12]
    for row in looks:
        for layer in LAYERS:
            assert all(0 <= row[f"{layer}_{name}"] <= 1 for name in ("saturated", "lone_parents", "entropy"))
    assert numbers(plain) == [row for row in numbers(watched) if "commonest_answer" not in row]
    found = weights(watched)
    assert all(torch.equal(value, found[name]) for name, value in weights(plain).items())


def test_a_watched_run_resumes_to_the_same_rows(config, data_folder, tmp_path):
    config = config.override({"train.watch": 3})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config, whole, device="cpu", data_folder=data_folder)
    train(config.override({"train.steps": 7}), parts, device="cpu", data_folder=data_folder)
    train(config, parts, device="cpu", data_folder=data_folder, resume=True)
    watched = [[row for row in numbers(folder) if "commonest_answer" in row] for folder in (whole, parts)]
    assert watched[0] == watched[1]
    assert len(watched[0]) == 4


def test_a_stuck_run_warns_by_itself_in_its_first_steps(config, data_folder, tmp_path, monkeypatch, caplog):
    """Without train.watch: once, with a remedy, and the run gives the same bits as without a check."""
    monkeypatch.setattr("emcaps.train.loop.FIRST_CHECKS", (5, 9))
    start = start_network

    def saturated(config, images):
        network = start(config, images)
        with torch.no_grad():
            network.class_caps.beta_a[3] += 100
        return network

    config = config.override({"network.betas": "half_active"})

    def warnings_of(folder):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="emcaps"):
            train(config, folder, device="cpu", data_folder=data_folder)
        return [record.getMessage() for record in caplog.records]

    assert warnings_of(tmp_path / "healthy") == []
    monkeypatch.setattr("emcaps.train.loop.start_network", saturated)
    (message,) = warnings_of(tmp_path / "stuck")
    assert message.startswith("step 5: class_caps is saturated, since class 3 is active on every image.")
    monkeypatch.setattr("emcaps.train.loop.FIRST_CHECKS", ())
    assert warnings_of(tmp_path / "unchecked") == []
    assert numbers(tmp_path / "stuck") == numbers(tmp_path / "unchecked")


@pytest.fixture
def started(config):
    config = config.override({"network.betas": "half_active", "data.crop": 28})
    images, labels = to_tensors(pattern_examples((4, 6), views=3, seed=1), config.data.view, "cpu")
    network = start_network(config, images)
    return network, make_watch(network, images, labels, config)


def test_a_saturated_class_is_warned_of_once(started, caplog):
    network, look = started
    with caplog.at_level(logging.WARNING, logger="emcaps"):
        look(1)
        assert not caplog.records
        with torch.no_grad():
            network.class_caps.beta_a[3] += 100
        assert look(2)["commonest_answer"] == 1
        look(3)
    assert [record.getMessage().startswith("step 2: class_caps is saturated") for record in caplog.records] == [True]
    assert "class 3 is active on every image" in caplog.text
    assert "network.final_lambda" in caplog.text


@pytest.mark.parametrize("improved", [True, False])
def test_one_answer_for_all_is_warned_of_if_the_loss_falls(started, caplog, monkeypatch, improved):
    network, look = started
    with torch.no_grad():
        network.class_caps.beta_a.sub_(20)
        network.class_caps.beta_a[3] += 20  # the first by far, but not saturated
    loss = 0.0 if improved else 9.0
    monkeypatch.setattr("emcaps.train.watch.loss_of", lambda *_: torch.tensor(loss))
    with caplog.at_level(logging.WARNING, logger="emcaps"):
        assert look(5)["commonest_answer"] == 1
    assert ("all answers are one class" in caplog.text) == improved
