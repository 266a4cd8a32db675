import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import emcaps
from emcaps.config import preset
from emcaps.data.prepared import fingerprint, load_prepared, prepared_path
from emcaps.train import checkpoint, loop, step, train
from emcaps.train.checkpoint import kept_checkpoints, load, load_newest
from emcaps.train.run_folder import only_user, read_config, read_metrics, start_run
from patterns import write_patterns
from train.runs import assert_same_run, numbers, weights

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def fingerprints(folder):
    return {part: fingerprint(load_prepared(prepared_path("toys", part, folder))) for part in ("train", "test")}


@pytest.fixture
def whole_run(tmp_path, config, data_folder):
    train(config, tmp_path / "whole", device="cpu", data_folder=data_folder)
    return tmp_path / "whole"


def test_a_run_leaves_everything_it_found(whole_run):
    assert sorted(os.listdir(whole_run)) == [
        ".lock",
        "checkpoint-1.safetensors",
        "checkpoint.safetensors",
        "config.json",
        "environment.json",
        "evaluation.json",
        "metrics.jsonl",
        "weights.safetensors",
    ]
    rows = read_metrics(whole_run)
    assert [row["step"] for row in rows] == [5, 10, 12, 12]
    assert rows[0].keys() == {"step", "loss", "accuracy", "learning_rate", "margin", "images_per_second", "seconds"}
    assert rows[-1].keys() == {"step", "test_accuracy"}
    evaluation = json.loads((whole_run / "evaluation.json").read_text())
    wrong = sum(one["wrong"] for one in evaluation["test instances"])
    assert wrong == round(evaluation["test"]["images"] * (1 - evaluation["test"]["accuracy"]))


def test_the_same_config_gives_the_same_bits_and_another_seed_does_not(whole_run, tmp_path, config, data_folder):
    train(config, tmp_path / "again", device="cpu", data_folder=data_folder)
    assert_same_run(whole_run, tmp_path / "again")
    train(config.override({"train.seed": 1}), tmp_path / "other", device="cpu", data_folder=data_folder)
    assert numbers(whole_run) != numbers(tmp_path / "other")


@pytest.mark.parametrize("stop_at", [4, 7])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, config, data_folder, stop_at, device):
    def interrupt(progress):
        if progress.step == stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    train(config, tmp_path / "whole", device=device, data_folder=data_folder)
    stopped = train(config, tmp_path / "run", device=device, data_folder=data_folder, on_progress=interrupt)
    assert (stopped.complete, stopped.step) == (False, stop_at)
    finished = train(config, tmp_path / "run", device=device, data_folder=data_folder, resume=True)
    assert finished.complete
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("kind", ["cnn", "decoder"])
def test_a_cnn_with_dropout_and_a_network_with_a_decoder_resume_to_the_same_bits(tmp_path, config, data_folder, kind):
    changes = {"data.crop": 16, "train.steps": 6, "train.batch_size": 8, "train.checkpoint_every": 3}
    other = preset("cnn").override(changes) if kind == "cnn" else config.override(changes | {"network.decoder": 4})
    train(other, tmp_path / "whole", device="cpu", data_folder=data_folder)
    shorter = other.override({"train.steps": 3})
    train(shorter, tmp_path / "run", device="cpu", data_folder=data_folder)
    train(other, tmp_path / "run", device="cpu", data_folder=data_folder, resume=True)
    for name, value in weights(tmp_path / "whole").items():
        if not name.startswith("sums."):
            assert torch.equal(value, weights(tmp_path / "run")[name]), name


SCRIPT = """
import sys
from pathlib import Path
from emcaps.config import RunConfig
from emcaps.train import train
config = RunConfig.from_json(Path(sys.argv[1]).read_text())
train(config, Path(sys.argv[2]), device="cpu", data_folder=Path(sys.argv[3]), resume=sys.argv[4] == "resume")
"""


def test_a_killed_run_resumes_to_the_same_bits(tmp_path, config, data_folder):
    """Killed outright (SIGKILL), so nothing is saved at the end: the last checkpoint is what there is."""
    config = config.override({"train.steps": 60, "train.checkpoint_every": 10, "train.log_every": 15})
    (tmp_path / "config.json").write_text(config.to_json())

    def start(folder, how):
        command = [sys.executable, "-c", SCRIPT, tmp_path / "config.json", folder, data_folder, how]
        return subprocess.Popen([str(part) for part in command])

    process = start(tmp_path / "run", "new")
    checkpoint, deadline = tmp_path / "run" / "checkpoint.safetensors", time.monotonic() + 600
    while not checkpoint.exists():
        assert time.monotonic() < deadline, "no checkpoint came"
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    killed_at = load_newest(checkpoint).step  # it may have been killed between two renames
    assert killed_at < 60

    assert start(tmp_path / "run", "resume").wait() == 0
    assert start(tmp_path / "whole", "new").wait() == 0
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_checkpoint_resumes_from_the_one_before_to_the_same_bits(
    whole_run, tmp_path, config, data_folder, damage, caplog
):
    shutil.copytree(whole_run, tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 4]) if damage == "flipped" else content[:1000])
    if damage == "missing":  # as if killed between two renames
        path.unlink()
    seen = []
    train(
        config,
        tmp_path / "run",
        device="cpu",
        data_folder=data_folder,
        resume=True,
        on_progress=lambda progress: seen.append(progress.step),
    )
    assert seen[0] == 9
    (warning,) = [record.getMessage() for record in caplog.records]
    assert str(path) in warning
    assert "resumes from checkpoint-1.safetensors, from step 8 on" in warning
    assert_same_run(whole_run, tmp_path / "run")
    older = load(tmp_path / "run" / "checkpoint-1.safetensors")
    assert older.step == 8, "the whole one was kept, not the damaged one"
    emcaps.load(tmp_path / "run")


def test_a_run_with_no_whole_checkpoint_is_left_as_it_is(whole_run, config, data_folder):
    for path in whole_run.glob("checkpoint*"):
        path.write_bytes(path.read_bytes()[:-1])
    before = {path.name: path.read_bytes() for path in whole_run.iterdir()}
    with pytest.raises(
        ValueError, match=r"checkpoint\.safetensors is damaged .*train again: emcaps train --config .*whole$"
    ):
        train(config, whole_run, device="cpu", data_folder=data_folder, resume=True)
    assert {path.name: path.read_bytes() for path in whole_run.iterdir()} == before


def test_a_run_that_is_refused_keeps_its_damaged_checkpoint(whole_run, tmp_path, config):
    other = write_patterns(tmp_path / "other", views=3)
    (whole_run / "checkpoint.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="was trained on other data"):
        train(config, whole_run, device="cpu", data_folder=other, resume=True)
    assert (whole_run / "checkpoint.safetensors").read_bytes() == b"damaged"
    assert load(whole_run / "checkpoint-1.safetensors").step == 8


def test_a_run_that_is_resumed_where_it_stands_keeps_the_checkpoint_before(whole_run, config, data_folder):
    """To save the same step again would push it out."""
    path = whole_run / "checkpoint.safetensors"
    assert [load(found).step for found in kept_checkpoints(path)] == [12, 8]
    train(config, whole_run, device="cpu", data_folder=data_folder, resume=True)
    assert [load(found).step for found in kept_checkpoints(path)] == [12, 8]


def test_resume_may_keep_another_number_of_checkpoints(whole_run, config, data_folder):
    longer = config.override({"train.steps": 20, "train.keep_checkpoints": 3})
    train(longer, whole_run, device="cpu", data_folder=data_folder, resume=True)
    assert [load(path).step for path in kept_checkpoints(whole_run / "checkpoint.safetensors")] == [20, 16, 12]
    train(
        config.override({"train.steps": 20, "train.keep_checkpoints": 1}),
        whole_run,
        device="cpu",
        data_folder=data_folder,
        resume=True,
    )
    assert [load(path).step for path in kept_checkpoints(whole_run / "checkpoint.safetensors")] == [20]


def test_resume_of_a_run_stopped_before_its_first_checkpoint_starts_over(whole_run, tmp_path, config, data_folder):
    start_run(tmp_path / "run", config, torch.device("cpu"), fingerprints(data_folder))
    train(config, tmp_path / "run", device="cpu", data_folder=data_folder, resume=True)
    assert_same_run(whole_run, tmp_path / "run")


@pytest.mark.parametrize("found", ["evaluation.json", "weights.safetensors", "metrics.jsonl"])
def test_a_run_that_has_lost_its_checkpoint_is_not_started_over(whole_run, config, data_folder, found):
    """Recorded runs have none, and what they found would be lost."""
    names = {"checkpoint.safetensors", "checkpoint-1.safetensors", "evaluation.json", "weights.safetensors"}
    for name in {*names, "metrics.jsonl"} - {found}:
        (whole_run / name).unlink()
    before = {path.name: path.read_bytes() for path in whole_run.iterdir()}
    with pytest.raises(ValueError, match=r"no checkpoint\.safetensors to resume from, and to start over would lose"):
        train(config, whole_run, device="cpu", data_folder=data_folder, resume=True)
    assert {path.name: path.read_bytes() for path in whole_run.iterdir()} == before


def test_resume_of_nothing_or_with_other_settings(whole_run, tmp_path, config, data_folder):
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config\.json; name a folder that"):
        train(config, tmp_path / "nothing", device="cpu", data_folder=data_folder, resume=True)
    other = config.override({"train.batch_size": 9, "train.loss": "margin", "train.steps": 13})
    with pytest.raises(
        ValueError,
        match=r"its settings, but in .*whole train\.batch_size is 8 and cannot become 9; train\.loss is 'spread' and "
        r"cannot become 'margin'\. Only train\.steps, .* start a new run .* --config .*whole$",
    ):
        train(other, whole_run, device="cpu", data_folder=data_folder, resume=True)
    shorter = config.override({"train.steps": 5})
    with pytest.raises(
        ValueError, match=r"at step 12 already, beyond train\.steps 5: name at least 12 steps, or .* --steps 5"
    ):
        train(shorter, whole_run, device="cpu", data_folder=data_folder, resume=True)


def test_two_processes_cannot_work_on_one_run(whole_run, config, data_folder):
    with only_user(whole_run), pytest.raises(ValueError, match="another process is at work on"):
        train(config, whole_run, device="cpu", data_folder=data_folder, resume=True)
    assert train(config, whole_run, device="cpu", data_folder=data_folder, resume=True).complete


def test_resume_after_settings_were_changed_by_hand(whole_run, config, data_folder):
    other = config.override({"train.learning_rate": 0.5})
    (whole_run / "config.json").write_text(other.to_json())
    with pytest.raises(ValueError, match=r"In config\.json train\.learning_rate is 0\.5, not 0\.003: set it back"):
        train(other, whole_run, device="cpu", data_folder=data_folder, resume=True)


def test_a_run_from_before_a_setting_existed_resumes_to_the_same_bits(whole_run, tmp_path, config, data_folder):
    shorter = config.override({"train.steps": 8})
    train(shorter, tmp_path / "run", device="cpu", data_folder=data_folder)
    forget_settings(tmp_path / "run", "graph", "autocast", "keep_checkpoints")
    train(config, tmp_path / "run", device="cpu", data_folder=data_folder, resume=True)
    for name, value in weights(whole_run).items():
        if not name.startswith("sums."):  # the shorter run logged at its end
            assert torch.equal(value, weights(tmp_path / "run")[name]), name


def forget_settings(folder, *names):
    """Leave out settings of train from both places that hold a run's config."""

    def older(text):
        sections = json.loads(text)
        for name in names:
            del sections["train"][name]
        return json.dumps(sections)

    (folder / "config.json").write_text(older((folder / "config.json").read_text()))
    path = folder / "checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        header = file.metadata()
    del header["sha256"]  # which is younger than the settings
    save_file(load_file(path), path, header | {"config": older(header["config"])})


def test_resume_with_another_way_to_launch_its_steps(whole_run, config, data_folder):
    """Where there is no GPU, "off" and "auto" are the same."""
    other = config.override({"train.graph": "off"})
    assert train(other, whole_run, device="cpu", data_folder=data_folder, resume=True).complete
    assert read_config(whole_run) == other


def test_a_graph_where_there_is_no_gpu_leaves_no_folder(tmp_path, config, data_folder):
    with pytest.raises(ValueError, match=r"train\.graph='on' needs a CUDA device, not 'cpu': use train\.graph='auto'"):
        train(config.override({"train.graph": "on"}), tmp_path / "run", device="cpu", data_folder=data_folder)
    assert not (tmp_path / "run").exists()


def test_resume_from_weights_alone_is_refused(whole_run, config, data_folder):
    shutil.copy(whole_run / "weights.safetensors", whole_run / "checkpoint.safetensors")
    before = (whole_run / "environment.json").read_text()
    with pytest.raises(ValueError, match="holds weights alone, without the optimiser's state"):
        train(config.override({"train.steps": 20}), whole_run, device="cpu", data_folder=data_folder, resume=True)
    assert (whole_run / "environment.json").read_text() == before


def test_resume_without_an_environment_file(whole_run, config, data_folder):
    (whole_run / "environment.json").unlink()
    assert train(config, whole_run, device="cpu", data_folder=data_folder, resume=True).complete


def test_a_new_run_is_refused_where_any_file_of_a_run_is(whole_run, config, data_folder):
    (whole_run / "config.json").unlink()
    with pytest.raises(ValueError, match="holds a run already"):
        train(config, whole_run, device="cpu", data_folder=data_folder)


@pytest.mark.parametrize(("average", "at"), [(0.0, 1), (0.5, 1), (0.5, 2)])
def test_an_interrupt_during_the_last_evaluation_is_heeded(tmp_path, config, data_folder, average, at):
    """With train.average there are two: of the average and of the last weights."""
    config = config.override({"train.average": average})
    seen = [0]  # images evaluated, by call; they fall where another evaluation begins

    def interrupt(progress):
        if progress.evaluated:
            seen.append(progress.evaluated)
            if sum(now <= last or not last for last, now in itertools.pairwise(seen)) == at:
                os.kill(os.getpid(), signal.SIGTERM)

    stopped = train(config, tmp_path / "run", device="cpu", data_folder=data_folder, on_progress=interrupt)
    assert (stopped.complete, stopped.step) == (False, 12)
    assert train(config, tmp_path / "run", device="cpu", data_folder=data_folder, resume=True).complete


def test_an_implementation_that_cannot_run_leaves_no_folder(tmp_path, config, data_folder, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")  # which could run it, at a snail's pace
    with pytest.raises(ValueError, match="impl='triton' cannot run"):
        train(config.override({"network.impl": "triton"}), tmp_path / "run", device="cpu", data_folder=data_folder)
    assert not (tmp_path / "run").exists()


def test_resume_on_other_data_is_refused(whole_run, tmp_path, config):
    other = write_patterns(tmp_path / "other", views=3)
    with pytest.raises(ValueError, match="was trained on other data than this: put back what was added"):
        train(config, whole_run, device="cpu", data_folder=other, resume=True)


def test_an_extended_run_does_not_keep_its_old_weights(whole_run, config, data_folder):
    def interrupt(progress):
        os.kill(os.getpid(), signal.SIGTERM)

    longer = config.override({"train.steps": 20})
    train(longer, whole_run, device="cpu", data_folder=data_folder, resume=True, on_progress=interrupt)
    assert not (whole_run / "weights.safetensors").exists()
    assert not (whole_run / "evaluation.json").exists()
    assert load(whole_run / "checkpoint.safetensors").step == 13


def test_a_complete_run_can_be_resumed_for_nothing_or_for_more_steps(whole_run, tmp_path, config, data_folder):
    before = numbers(whole_run)
    again = train(config, whole_run, device="cpu", data_folder=data_folder, resume=True)
    assert numbers(whole_run) == before
    assert again.seconds == pytest.approx(read_metrics(whole_run)[-2]["seconds"], abs=1)

    longer = config.override({"train.steps": 20})
    train(longer, whole_run, device="cpu", data_folder=data_folder, resume=True)
    train(longer, tmp_path / "longer", device="cpu", data_folder=data_folder)
    assert read_config(whole_run) == longer
    assert [row["step"] for row in read_metrics(whole_run)] == [5, 10, 12, 12, 15, 20, 20]
    for name, value in weights(tmp_path / "longer").items():
        assert torch.equal(value, weights(whole_run)[name]), name


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tmp_path, config, data_folder, monkeypatch):
    real, calls = step.loss_of, []

    def broken(*arguments):
        calls.append(arguments)
        return real(*arguments) * (float("nan") if len(calls) > 6 else 1.0)

    monkeypatch.setattr(step, "loss_of", broken)
    with pytest.raises(ValueError, match="the loss or the weights became infinite or NaN by step 8, so the run in"):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    assert load(tmp_path / "run" / "checkpoint.safetensors").step == 4


def test_weights_that_are_not_finite_are_never_saved(tmp_path, config, data_folder, monkeypatch):
    real = loop.make_step

    def broken(network, *arguments):
        advance = real(network, *arguments)

        def breaking(number):
            advance(number)
            if number == 7:
                next(iter(network.parameters())).data.fill_(float("inf"))

        return breaking

    monkeypatch.setattr(loop, "make_step", broken)
    with pytest.raises(ValueError, match="the loss or the weights became infinite or NaN by step 8"):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    assert load(tmp_path / "run" / "checkpoint.safetensors").step == 4


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, config, data_folder, monkeypatch):
    from pathlib import Path

    write_bytes, full = Path.write_bytes, []

    def filling(self, content):
        if "checkpoint" in self.name and full:
            write_bytes(self, content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        full.append(1) if "checkpoint" in self.name else None
        return write_bytes(self, content)

    monkeypatch.setattr(Path, "write_bytes", filling)
    with pytest.raises(OSError, match=r"no space left to write .*checkpoint\.safetensors; what was there before is"):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    monkeypatch.undo()
    assert load(tmp_path / "run" / "checkpoint.safetensors").step == 4
    assert train(config, tmp_path / "run", device="cpu", data_folder=data_folder, resume=True).complete


def test_training_leaves_the_callers_random_numbers_alone(tmp_path, config, data_folder):
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    train(config.override({"train.steps": 1}), tmp_path / "run", device="cpu", data_folder=data_folder)
    assert torch.equal(torch.rand(3), want)


@pytest.mark.parametrize(
    ("iterations", "view", "rate", "steps", "accuracy"),
    [
        (1, "mono", 1e-2, 150, 0.9),
        (2, "mono", 1e-2, 100, 0.9),
        (2, "stereo", 1e-2, 100, 0.9),
        (3, "stereo", 3e-3, 250, 0.4),  # three iterations learn more slowly
    ],
)
def test_training_learns(tmp_path, config, data_folder, iterations, view, rate, steps, accuracy):
    """The bars of the pattern set are learned well beyond chance, one in five, on unseen instances."""
    config = config.override(
        {
            "network.conv_channels": 16,
            "network.primary_types": 4,
            "network.iterations": iterations,
            "data.crop": 20,
            "data.brightness": 0.1,
            "data.contrast_low": 0.9,
            "data.contrast_high": 1.1,
            "data.view": view,
            "train.batch_size": 16,
            "train.learning_rate": rate,
            "train.steps": steps,
            "train.log_every": 25,
        }
    )
    result = train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    losses = [row["loss"] for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]
    assert result.evaluations["test"].accuracy > accuracy


@pytest.mark.parametrize("loss", ["margin", "cross_entropy"])
def test_training_with_the_other_losses(tmp_path, config, data_folder, loss):
    config = config.override({"train.steps": 60, "train.batch_size": 16, "train.loss": loss, "train.log_every": 20})
    train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    losses = [row["loss"] for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert losses[-1] < losses[0]


def test_evaluations_while_training(tmp_path, config, data_folder):
    train(config.override({"train.eval_every": 6}), tmp_path / "run", device="cpu", data_folder=data_folder)
    assert [row["step"] for row in read_metrics(tmp_path / "run") if "test_accuracy" in row] == [6, 12]


def test_tensorboard_on_request(tmp_path, config, data_folder):
    """The killed part of a run is hidden when the run is resumed, so that no step shows twice."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def kill(progress):
        if progress.step == 7:
            raise RuntimeError("killed")

    config = config.override({"train.log_every": 2})
    with pytest.raises(RuntimeError, match="killed"):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder, tensorboard=True, on_progress=kill)
    train(config, tmp_path / "run", device="cpu", data_folder=data_folder, tensorboard=True, resume=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [2, 4, 6, 8, 10, 12]


def test_a_refused_run_leaves_the_logs_of_the_one_that_is_there(tmp_path, config, data_folder):
    train(config, tmp_path / "run", device="cpu", data_folder=data_folder, tensorboard=True)
    before = sorted((tmp_path / "run" / "tensorboard").iterdir())
    with pytest.raises(ValueError, match="holds a run already"):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder, tensorboard=True)
    assert sorted((tmp_path / "run" / "tensorboard").iterdir()) == before


def test_a_run_whose_weights_could_not_be_written_is_not_complete(tmp_path, config, data_folder, monkeypatch):
    """Otherwise nobody would resume it, and its weights would never be written."""
    with monkeypatch.context() as full:
        full.setattr(checkpoint, "save_weights", fail_for_want_of_space)
        with pytest.raises(OSError, match="full"):
            train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    assert not (tmp_path / "run" / "evaluation.json").exists()
    assert train(config, tmp_path / "run", device="cpu", data_folder=data_folder, resume=True).complete
    assert (tmp_path / "run" / "weights.safetensors").exists()
    assert (tmp_path / "run" / "evaluation.json").exists()


def fail_for_want_of_space(*_):
    raise OSError(errno.ENOSPC, "full")


RECIPE = {
    "train.learning_rate_schedule": "cosine",
    "train.warmup_steps": 3,
    "train.margin_schedule": "linear",
    "train.margin_steps": 6,
    "train.beta_rate": 10.0,
    "train.beta_a_rate": 3.0,
    "train.average": 0.6,
    "train.mixup": 0.5,
    "data.max_shift": 4,
    "data.splice": 0.5,
    "data.mirror": 0.5,
    "data.turn": 10.0,
    "data.zoom": 0.1,
    "data.slant": 0.1,
    "data.stretch": 0.1,
    "data.bend": 1.0,
    "data.pad": 2,
    "network.pose_scale": 0.5,
    "network.variance_floor": 1.0,
    "network.betas": "half_active",
    "network.dropout": 0.3,
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
@pytest.mark.parametrize("standardise", ["crop", "background"])
def test_a_run_with_every_setting_of_the_best_recipe_resumes_to_the_same_bits(
    tmp_path, config, data_folder, device, standardise
):
    def interrupt(progress):
        if progress.step == 7:
            os.kill(os.getpid(), signal.SIGINT)

    config = config.override(RECIPE | {"data.standardise": standardise})
    train(config, tmp_path / "whole", device=device, data_folder=data_folder)
    train(config, tmp_path / "run", device=device, data_folder=data_folder, on_progress=interrupt)
    train(config, tmp_path / "run", device=device, data_folder=data_folder, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("setting", [{"train.learning_rate_schedule": "cosine"}, {"train.average": 0.5}])
def test_what_depends_on_the_number_of_steps_keeps_it(tmp_path, config, data_folder, setting):
    config = config.override(setting)
    train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    with pytest.raises(ValueError, match=r"not with a cosine learning rate or train\.average"):
        train(
            config.override({"train.steps": 20}), tmp_path / "run", device="cpu", data_folder=data_folder, resume=True
        )


def test_training_learns_where_the_caller_wants_no_gradients(tmp_path, config, data_folder):
    with torch.no_grad():
        assert train(config, tmp_path / "run", device="cpu", data_folder=data_folder).complete
        assert not torch.is_grad_enabled()
