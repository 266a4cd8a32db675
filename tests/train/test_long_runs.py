"""Late steps of long runs, and memory over many steps; the whole length is for `python -m long_runs`."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from emcaps.train import checkpoint, train
from emcaps.train.checkpoint import load
from emcaps.train.randomness import ExampleOrder
from emcaps.train.schedules import learning_rate_of, margin_of
from emcaps.train.step import TrainingStep
from long_runs import MOST_GROWTH, config_for, growth, look_while_training
from train.runs import assert_same_run, numbers
from train.test_step import make

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LATE, END = 299_990, 300_000
SETTINGS = {
    "train.steps": END,
    "train.log_every": 4,
    "train.checkpoint_every": 5,
    "train.decay_steps": 20_000,
    "train.margin_steps": 40_000,
}


@pytest.fixture
def late_run(tmp_path, config, data_folder):
    """A run that was stopped at step LATE: a short one whose checkpoint was given that step."""
    folder = tmp_path / "late"
    config = config.override(SETTINGS)
    short = config.override({"train.steps": 3})
    train(short, folder, device="cpu", data_folder=data_folder)
    saved = load(folder / "checkpoint.safetensors")
    for name, value in saved.tensors.items():
        if name.endswith(".step"):
            value.fill_(LATE)
        elif name.startswith("sums."):
            value.zero_()
    checkpoint._save(saved.path, saved.tensors, config, LATE)
    for name in ("metrics.jsonl", "weights.safetensors", "evaluation.json"):
        (folder / name).unlink()
    (folder / "config.json").write_text(config.to_json())
    return folder


def test_a_late_step_sees_the_examples_of_a_whole_run():
    """A run that has drawn from every epoch, and one that starts there, draw the same."""
    whole, late = (ExampleOrder(1000, 64, 3, torch.device("cpu")) for _ in range(2))
    for step in range(0, LATE, 15):  # from each of its 19,199 epochs
        whole.batch(step)
    for step in range(LATE, END):
        assert torch.equal(whole.batch(step), late.batch(step))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_late_steps_are_the_same_however_often_the_run_is_resumed(
    late_run, tmp_path, config, data_folder, device, monkeypatch
):
    config = config.override(SETTINGS)
    shutil.copytree(late_run, tmp_path / "twice")
    drawn = []
    prepare = TrainingStep.prepare

    def noted(step, number):
        prepare(step, number)
        drawn.append((number, step.examples.tolist(), float(step.optimiser.param_groups[0]["lr"])))

    monkeypatch.setattr(TrainingStep, "prepare", noted)
    train(config, late_run, device=device, data_folder=data_folder, resume=True)
    whole, drawn[:] = list(drawn), []
    # It is killed after step 299,997, so that it resumes from the checkpoint of step 299,995.
    with monkeypatch.context() as patch:
        patch.setattr("emcaps.train.loop.Progress", _killer(END - 3))
        with pytest.raises(_KilledError):
            train(
                config,
                tmp_path / "twice",
                device=device,
                data_folder=data_folder,
                resume=True,
                on_progress=lambda _: None,
            )
    train(config, tmp_path / "twice", device=device, data_folder=data_folder, resume=True)
    assert_same_run(late_run, tmp_path / "twice")
    assert [number for number, *_ in whole] == list(range(LATE, END))
    assert {number: values for number, *values in drawn} == {number: values for number, *values in whole}
    for number, _, rate in whole:
        assert rate == pytest.approx(learning_rate_of(config.train, number), rel=1e-6)
    rows = {row["step"]: row for row in numbers(late_run) if "loss" in row}
    assert list(rows) == [299_992, 299_996, 300_000]
    for step, row in rows.items():
        assert row["learning_rate"] == learning_rate_of(config.train, step - 1)
        assert row["margin"] == margin_of(config.train, step - 1)
    tensors = load_file(late_run / "checkpoint.safetensors")
    counts = {float(value) for name, value in tensors.items() if name.endswith(".step")}
    assert counts == {float(END)}


class _KilledError(Exception):
    pass


def _killer(at):
    """In place of Progress: raises at a step, as nothing in the loop expects."""

    def progress(step, *_):
        if step == at:
            raise _KilledError

    return progress


def test_adams_counter_is_exact_for_sixteen_million_steps(config):
    """It is a float32; where adding 1 no longer changes it, the correction that it serves has long been 1."""
    step = make(config)
    step(0)
    counter = next(iter(step.optimiser.state.values()))["step"]
    assert counter.dtype == torch.float32
    counter.fill_(2**24 - 2)
    step(1)
    assert float(counter) == 2**24 - 1


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_memory_is_flat(device):
    place = torch.device(device)
    looks = look_while_training(config_for(place, 2000 if device == "cuda" else 400), place)
    assert len(looks) == 20
    for name, most in MOST_GROWTH.items():
        assert growth(looks)[name] <= most, looks
