import re

import pytest
import torch

from emcaps import debug
from emcaps.nn import ClassCaps
from emcaps.train import NotFiniteError, failure, load_network, step, train
from emcaps.train.checkpoint import load


def stopped(config, folder, data_folder):
    with pytest.raises(NotFiniteError) as caught:
        train(config, folder, device="cpu", data_folder=data_folder)
    return str(caught.value)


def test_the_first_layer_and_iteration_that_fail_are_named(tmp_path, config, data_folder):
    """After a step that makes the weights huge, the next one overflows."""
    config = config.override({"train.learning_rate": 1e10, "train.checkpoint_every": 1})
    message = stopped(config, tmp_path / "run", data_folder)
    assert re.fullmatch(
        r"the loss or the weights became infinite or NaN by step 2, so the run in .*run stops\. "
        r"Step 2 is the first that fails: conv_caps1: .* values\)\. It began with the \w+ in routing iteration 1\. "
        r"The network after step 1 is kept in failed\.safetensors\. "
        r"train\.learning_rate is 1e\+10: start a new run with a lower one: "
        r"emcaps train --config .*run --set train\.learning_rate=\.\.\.",
        message,
    )
    kept, saved = (load(tmp_path / "run" / f"{name}.safetensors") for name in ("failed", "checkpoint"))
    assert kept.step == saved.step == 1
    for name, value in kept.tensors.items():
        assert torch.equal(value, saved.tensors[name]), name
    network, _, _ = load_network(tmp_path / "run" / "failed.safetensors")
    assert all(value.isfinite().all() for value in network.parameters())


def test_a_low_variance_floor_is_named_as_a_likely_reason(tmp_path, config):
    said = str(NotFiniteError(7, tmp_path, config.override({"network.variance_floor": 1e-8})))
    assert "learning_rate is 0.003: start a new run with a lower one, or with network.variance_floor at least " in said
    assert "0.0001, not 1e-08: emcaps train --config " in said


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("checked", [False, True])
def test_a_captured_step_is_replayed_and_is_left_alone_by_the_checks(tmp_path, config, data_folder, checked):
    config = config.override({"train.graph": "on"})
    with debug.checks(checked):
        train(config, tmp_path / "good", device="cuda", data_folder=data_folder)
        with pytest.raises(NotFiniteError, match="Step 2 is the first that fails: conv_caps1: "):
            train(
                config.override({"train.learning_rate": 1e10}), tmp_path / "bad", device="cuda", data_folder=data_folder
            )


def test_the_step_is_found_among_those_since_the_last_row(tmp_path, config, data_folder, monkeypatch):
    """The numbers are looked at after steps 4, 5 and 8; step 7 fails, by its gradient alone."""
    real = step.TrainingStep.prepare

    def broken(self, number):
        real(self, number)
        self.network.conv_caps1.beta_u.requires_grad_(True)
        self.failing = number == 6

    def work(self):
        hook = None
        if self.failing:
            hook = self.network.conv_caps1.beta_u.register_hook(lambda gradient: gradient * float("nan"))
        real_work(self)
        if hook is not None:
            hook.remove()

    real_work = step.TrainingStep.work
    monkeypatch.setattr(step.TrainingStep, "prepare", broken)
    monkeypatch.setattr(step.TrainingStep, "work", work)
    message = stopped(config, tmp_path / "run", data_folder)
    assert "NaN by step 8" in message
    assert (
        "Step 7 is the first that fails: the loss is finite, and the gradient of conv_caps1.beta_u[0] is nan (4"
        in message
    )
    assert load(tmp_path / "run" / "failed.safetensors").step == 6
    assert load(tmp_path / "run" / "checkpoint.safetensors").step == 4


def test_a_loss_that_is_not_finite_is_told_from_the_layers(tmp_path, config, data_folder, monkeypatch):
    real = step.loss_of
    monkeypatch.setattr(step, "loss_of", lambda *arguments: real(*arguments) * float("inf"))
    message = stopped(config, tmp_path / "run", data_folder)
    assert "Step 1 is the first that fails: every layer's output is finite, and the loss is not" in message


def test_a_failure_that_does_not_come_back_is_said_so(tmp_path, config, data_folder, monkeypatch):
    real, calls = ClassCaps.forward, []

    def broken(self, children):
        calls.append(None)
        output = real(self, children)
        return output._replace(activation=output.activation * (float("nan") if len(calls) == 3 else 1.0))

    monkeypatch.setattr(ClassCaps, "forward", broken)
    message = stopped(config, tmp_path / "run", data_folder)
    assert "No step failed again when they were replayed" in message
    assert "after step 4 is kept" in message
    assert not all(value.isfinite().all() for value in load(tmp_path / "run" / "failed.safetensors").tensors.values())


def test_an_error_on_the_way_leaves_the_run_its_own_error(tmp_path, config, data_folder, monkeypatch, caplog):
    monkeypatch.setattr(failure, "_look", lambda *_: 1 / 0)
    config = config.override({"train.learning_rate": 1e25})
    message = stopped(config, tmp_path / "run", data_folder)
    assert "became infinite or NaN by step 4" in message
    assert "cannot say which layer failed first: division by zero" in caplog.text
