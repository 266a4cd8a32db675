import logging
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from emcaps.config import preset
from emcaps.data.combine import find_counterparts
from emcaps.data.tensors import to_tensors
from emcaps.nn import build_network
from emcaps.train import graph, make_optimiser, make_step, train
from emcaps.train.graph import GraphedStep, undo_changes, wants_graph
from emcaps.train.step import TrainingStep, make_sums
from patterns import pattern_examples
from train.runs import assert_same_run

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SMALL = {"train.batch_size": 8, "data.crop": 16}
CASES = {
    "reference": preset("tiny").override({**SMALL, "network.impl": "reference"}),
    "auto": preset("tiny").override(SMALL),
    "auto, 32 pixels, stereo, 3 iterations": preset("tiny").override(
        {"train.batch_size": 16, "data.view": "stereo", "network.iterations": 3}
    ),
    "spliced": preset("tiny").override({**SMALL, "data.splice": 0.5, "data.standardise": "background"}),
    "spliced and mixed, stereo": preset("tiny").override(
        {**SMALL, "data.view": "stereo", "data.splice": 0.5, "train.mixup": 0.5}
    ),
    "mirrored, turned, stretched and bent": preset("tiny").override(
        {**SMALL, "data.mirror": 0.5, "data.turn": 10.0, "data.stretch": 0.2, "data.bend": 1.0}
    ),
    "auto in bfloat16": preset("tiny").override({**SMALL, "train.autocast": "bfloat16"}),
    "with a decoder": preset("tiny").override(
        {**SMALL, "network.decoder": 8, "train.mixup": 0.5, "train.autocast": "bfloat16"}
    ),
    "cross-entropy": preset("tiny").override({**SMALL, "train.loss": "cross_entropy"}),
    "cnn with dropout": preset("cnn").override(SMALL),
    "cnn in bfloat16": preset("cnn").override({**SMALL, "train.autocast": "bfloat16"}),
}


def parts(config, device, wrap=None):
    """What make_step takes, the same at every call."""
    examples = pattern_examples((4, 6), views=3, seed=1)
    images, labels = to_tensors(examples, config.data.view, device)
    counterparts = find_counterparts(examples, config.data.view, device) if config.data.splice else None
    torch.manual_seed(0)
    network = build_network(config.network, config.data.image_channels, config.data.crop)
    network = (wrap(network) if wrap else network).to(device)
    return (
        network,
        make_optimiser(network, config.train),
        images,
        labels,
        config,
        make_sums(images.device),
        counterparts,
    )


def made(config, device="cuda", setting="on", wrap=None):
    """The step that make_step makes, and the TrainingStep in it."""
    step = make_step(*parts(config.override({"train.graph": setting}), device, wrap))
    return step, step.step if isinstance(step, GraphedStep) else step


def state_of(step):
    return [tensor.detach().clone() for tensor in step.state()]


def assert_same(got, want):
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    """As the training loop has it."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)


def test_wants_graph_by_setting_and_device():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [wants_graph(setting, cuda) for setting in ("auto", "on", "off")] == [True, True, False]
    assert [wants_graph(setting, cpu) for setting in ("auto", "off")] == [False, False]
    with pytest.raises(ValueError, match=r"train\.graph='on' needs a CUDA device, not 'cpu': use train\.graph='auto'"):
        wants_graph("on", cpu)


def test_make_step_on_a_cpu_makes_the_plain_step_and_sums_of_its_own(config):
    step = make_step(*parts(config, "cpu")[:-2])
    assert isinstance(step, TrainingStep)
    step(0)
    assert float(step.sums["steps"]) == 1


def test_undo_changes_undoes_steps_in_place(config):
    """Before the first step, when Adam has no moments yet, and later; and when a step fails."""
    step, untouched = TrainingStep(*parts(config, "cpu")), TrainingStep(*parts(config, "cpu"))
    for number in range(3):
        with undo_changes(step.state):
            for other in (50, 60):
                step(other)
        places = [tensor.data_ptr() for tensor in step.state()]
        step(number)
        untouched(number)
        assert_same(step.state(), untouched.state())
        assert [tensor.data_ptr() for tensor in step.state()] == places

    def fail():
        step(70)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"), undo_changes(step.state):
        fail()
    assert_same(step.state(), untouched.state())


def test_a_capture_that_fails_is_told_once_and_leaves_the_plain_step(config, monkeypatch, caplog):
    def fail(step):
        try:
            raise RuntimeError("not permitted while capturing\nand more")
        except RuntimeError:
            raise RuntimeError("a consequence") from None

    monkeypatch.setattr(graph, "wants_graph", lambda setting, device: True)
    monkeypatch.setattr(graph, "GraphedStep", fail)
    with caplog.at_level(logging.WARNING, "emcaps"):
        step = make_step(*parts(config, "cpu"))
    assert isinstance(step, TrainingStep)
    [record] = caplog.records
    assert "cannot be captured in a CUDA graph (not permitted while capturing): it runs without" in record.getMessage()
    with pytest.raises(ValueError, match=r"train\.graph='on', but .* \(not permitted .*\): use --set train\.graph=off"):
        make_step(*parts(config.override({"train.graph": "on"}), "cpu"))


def test_a_learning_rate_that_a_graph_would_freeze_is_refused(config):
    with pytest.raises(ValueError, match=r"learning rate must be a tensor .* make the optimiser with make_optimiser"):
        GraphedStep(TrainingStep(*parts(config, "cpu")))


@NEEDS_GPU
@pytest.mark.parametrize("case", CASES)
def test_a_replayed_step_gives_the_same_bits_as_a_plain_one(case):
    graphed, inner = made(CASES[case], setting="on")
    plain, _ = made(CASES[case], setting="off")
    assert isinstance(graphed, GraphedStep)
    assert isinstance(plain, TrainingStep)
    start = state_of(inner)
    for number in range(20):
        graphed(number)
        plain(number)
        if number in (0, 19):
            assert_same(inner.state(), plain.state())
    assert float(inner.sums["steps"]) == 20
    assert not torch.equal(inner.state()[0], start[0])


@NEEDS_GPU
@pytest.mark.parametrize("steps", [0, 3])
def test_making_a_graph_changes_nothing(steps):
    config = CASES["cnn with dropout"].override({"train.graph": "on"})
    arguments = parts(config, "cuda")
    plain = TrainingStep(*arguments)
    for number in range(steps):
        plain(number)
    before = state_of(plain)
    make_step(*arguments)
    after = state_of(plain)
    if steps:
        assert_same(after, before)
    else:  # Adam's moments are new
        weights = len(list(plain.network.parameters()))
        assert_same(after[:weights] + after[-3:], before)
        assert all(not tensor.any() for tensor in after[weights:-3])


@NEEDS_GPU
def test_a_replay_does_not_wait_for_the_device():
    step, _ = made(CASES["auto"])
    step(0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(1, 3):  # within the first epoch: the next one's order comes from the host
            step(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Waits(nn.Module):
    """Reads a number back from the device: always, or only during a capture."""

    def __init__(self, network, only_captured=False):
        super().__init__()
        self.network, self.only_captured = network, only_captured

    def forward(self, images):
        if not self.only_captured or torch.cuda.is_current_stream_capturing():
            images.sum().item()
        return self.network(images)


@NEEDS_GPU
def test_a_step_that_waits_is_not_captured_but_trains(caplog):
    config = CASES["cnn with dropout"]
    with pytest.raises(ValueError, match=r"cannot be captured in a CUDA graph \(called a synchronizing CUDA operation"):
        made(config, setting="on", wrap=Waits)
    with caplog.at_level(logging.WARNING, "emcaps"):
        step, _ = made(config, setting="auto", wrap=Waits)
    assert isinstance(step, TrainingStep)
    assert "runs without one, to the same numbers" in caplog.text
    plain, _ = made(config, setting="off", wrap=Waits)
    for number in range(3):
        step(number)
        plain(number)
    assert_same(step.state(), plain.state())


BREAKS_OFF = """
import functools
import torch
from train.test_graph import CASES, TrainingStep, Waits, assert_same, made
torch.backends.cudnn.deterministic = True
config, wrap = CASES["cnn with dropout"], functools.partial(Waits, only_captured=True)
stream = torch.cuda.current_stream()
step, _ = made(config, setting="auto", wrap=wrap)
assert isinstance(step, TrainingStep)
assert torch.cuda.current_stream() == stream
plain, _ = made(config, setting="off", wrap=wrap)
for number in range(3):
    step(number)
    plain(number)
assert_same(step.state(), plain.state())
print("as if nothing had happened")
"""


@NEEDS_GPU
def test_a_capture_that_breaks_off_is_recovered_from():
    """In a process of its own: if it is not recovered from, no other test of this process could be trusted."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", BREAKS_OFF]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert "as if nothing had happened" in done.stdout, done.stderr
    assert "cannot be captured in a CUDA graph" in done.stderr


@NEEDS_GPU
@pytest.mark.parametrize(("first", "then"), [("on", "off"), ("off", "on"), ("on", "on")])
def test_an_interrupted_run_resumes_to_the_same_bits_with_and_without_a_graph(
    tmp_path, config, data_folder, first, then
):
    def interrupt(progress):
        if progress.step == 7:
            os.kill(os.getpid(), signal.SIGINT)

    def run(folder, setting, **options):
        settings = config.override({"train.graph": setting, "train.eval_every": 6})
        return train(settings, tmp_path / folder, device="cuda", data_folder=data_folder, **options)

    run("whole", "off")
    assert run("run", first, on_progress=interrupt).step == 7
    assert run("run", then, resume=True).complete
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@NEEDS_GPU
@pytest.mark.parametrize(("first", "then"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_run_can_be_gone_on_with_on_another_kind_of_device(tmp_path, config, data_folder, first, then):
    shorter = config.override({"train.steps": 6})
    train(shorter, tmp_path / "run", device=first, data_folder=data_folder)
    assert train(config, tmp_path / "run", device=then, data_folder=data_folder, resume=True).complete
