"""`emcaps train`: new runs from a preset or a file, resumed runs, and what stops them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import TINY

from emcaps.config import PRESETS, RunConfig
from patterns import write_patterns


def test_the_help_states_the_defaults_and_how_to_learn_from_a_teacher(emcaps):
    out = " ".join(emcaps("train", "--help")[1].replace("│", "").split())
    for text in ("steps (default: 20,000)", "(default: 64)", "(default: 2)", "(default: toys)", "--teacher runs/"):
        assert text in out
    shown = [(one.data, one.train.steps, one.train.batch_size, one.network.iterations) for one in PRESETS.values()]
    assert len(set(shown)) == 1, "the defaults are those of every preset"


def test_runs_on_a_disk_that_is_not_there(emcaps, tmp_path):
    """`runs` is often a link to a larger disk."""
    write_patterns(tmp_path / "data")
    (tmp_path / "runs").symlink_to(tmp_path / "not mounted")
    status, _, error = emcaps("train", "tiny", *TINY, "--steps", "1")
    assert status == 1
    assert "runs must be a folder and is a file, or a link to nothing: remove it" in error


def test_missing_data_names_the_command_that_makes_it(emcaps):
    assert "emcaps data make" in emcaps("train", "tiny")[2]


def test_a_truncated_data_file_is_one_clear_line(emcaps, data):
    path = data / "toys48-train.npz"
    path.write_bytes(path.read_bytes()[:-5000])
    status, _, err = emcaps("train", "tiny")
    assert status == 1
    assert err.startswith("emcaps: ")
    assert "toys48-train.npz" in err
    assert len(err.strip().splitlines()) == 1


def written(path, text):
    path.write_text(text)
    return path.name


def test_teachers_are_found_from_wherever_the_new_run_lies(emcaps, data, tmp_path):
    """Given from where the command is called, by another run's settings, or by the name of a network that ships."""
    assert emcaps("train", "tiny", "--steps", 1, "--run", "elders/one", *TINY)[0] == 0
    status, _, err = emcaps("train", "tiny", "--steps", 1, "--teacher", "elders/one", "--run", "a/b/pupil", *TINY)
    assert status == 0, err
    assert emcaps("train", "--config", "a/b/pupil", "--run", "c/again")[0] == 0
    for run, teacher in (("a/b/pupil", "../../../elders/one"), ("c/again", "../../elders/one")):
        assert json.loads((tmp_path / run / "config.json").read_text())["train"]["teachers"] == [teacher]
    status, _, err = emcaps("train", "tiny", "--teacher", "small-toys", "--run", "strict", *TINY)
    assert status == 1
    settings = "--set data.crop=32 and --set data.standardise=background"
    assert "but small-toys reads crops of 32 pixels a side, not 16; images with data.standardise b" in err
    assert f": use {settings}, or another teacher" in err
    assert "unknown network 'nobody'" in emcaps("train", "tiny", "--teacher", "nobody")[2]
    assert not (tmp_path / "strict").exists()
    assert not (tmp_path / "runs").exists()


def test_a_teacher_of_the_package_is_known_by_its_name(emcaps, data, tmp_path):
    """So that its run can be moved, even to another machine; another run can do without it."""
    like_it = (*TINY, "--set", "data.crop=32", "--set", "data.standardise=background")
    status, _, err = emcaps("train", "tiny", "--steps", 1, "--teacher", "small-toys", "--run", "pupil", *like_it)
    assert status == 0, err
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "pupil").rename(tmp_path / "a/b/pupil")
    status, _, err = emcaps("train", "--resume", "a/b/pupil", "--steps", 2)
    assert status == 0, err
    for run, options, teachers in (("same", (), ["small-toys"]), ("alone", ("--set", "train.teachers="), [])):
        status, _, err = emcaps("train", "--config", "a/b/pupil", "--run", run, *options)
        assert status == 0, err
        assert json.loads((tmp_path / run / "config.json").read_text())["train"]["teachers"] == teachers
    _, _, err = emcaps("train", "tiny", "--set", "train.teachers=small-toys")
    assert "name each of them by --teacher, or none by --set train.teachers=" in err


def test_a_folder_that_is_no_run_is_no_teacher(emcaps, data, tmp_path):
    """It is named as it was given."""
    (tmp_path / "elders").mkdir()
    status, _, err = emcaps("train", "tiny", "--teacher", "elders")
    assert status == 1
    assert "a teacher would be elders/weights.safetensors, which is not there: name the folder of a run that is" in err


def test_a_run_that_was_moved_is_resumed_with_its_teacher(emcaps, data, tmp_path):
    assert emcaps("train", "tiny", "--steps", 1, "--run", "elders/one", *TINY)[0] == 0
    assert emcaps("train", "tiny", "--steps", 1, "--teacher", "elders/one", "--run", "pupil", *TINY)[0] == 0
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "pupil").rename(tmp_path / "a/b/pupil")
    status, _, err = emcaps("train", "--resume", "a/b/pupil", "--steps", 2)
    assert status == 1
    assert "elders/one, which is not there" in err
    assert "by --teacher. If a resumed run's teachers lie elsewhere now, name all of them" in err
    status, _, err = emcaps("train", "--resume", "a/b/pupil", "--steps", 2, "--teacher", "elders/one")
    assert status == 0, err
    found = json.loads((tmp_path / "a/b/pupil/config.json").read_text())["train"]
    assert (found["steps"], found["teachers"]) == (2, ["../../../elders/one"])
    status, _, err = emcaps("train", "--resume", "a/b/pupil", "--steps", 3)  # from where it is now known to lie
    assert status == 0, err


def test_train_from_the_config_of_a_run(emcaps, data, tmp_path):
    """All its settings are taken, whether the file or the folder is named, and options change them."""
    assert emcaps("train", "tiny", "--steps", 1, "--stereo", "--seed", 3, *TINY)[0] == 0
    first = tmp_path / "runs/network-toys-stereo-seed3"
    (tmp_path / "runs/tiny-toys-stereo-seed3").rename(first)
    before = json.loads((first / "config.json").read_text())
    for config in (first / "config.json", first):
        assert emcaps("train", "--config", config, "--run", "again")[0] == 0
        assert json.loads((tmp_path / "again/config.json").read_text()) == before
        shutil.rmtree(tmp_path / "again")
    status, out, err = emcaps("train", "--config", first, "--iterations", 1, "--set", "train.log_every=7")
    assert status == 0, err
    assert "run: runs/network-toys-stereo-seed3-2" in out, "four types of capsules are no preset's"
    after = json.loads((tmp_path / "runs/network-toys-stereo-seed3-2/config.json").read_text())
    assert after["network"] == before["network"] | {"iterations": 1}
    assert after["train"] == before["train"] | {"log_every": 7}
    assert after["data"] == before["data"]


def test_train_from_a_file_of_a_few_settings(emcaps, data, tmp_path):
    """What it leaves out has its default, and the run is named after the preset whose layers it has."""
    few = {"network": {"iterations": 1}, "train": {"batch_size": 2, "steps": 1}, "data": {"crop": 16}}
    path = written(tmp_path / "few.json", json.dumps(few))
    status, out, err = emcaps("train", "--config", path, "--seed", 5)
    assert status == 0, err
    assert "run: runs/small-toys-mono-seed5" in out
    found = json.loads((tmp_path / "runs/small-toys-mono-seed5/config.json").read_text())
    assert RunConfig.from_dict(found) == RunConfig.from_dict(few).override({"train.seed": 5})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"few.json is not JSON \("),
        ("[]", "few.json: a config must be"),
        ('{"trian": {}}', r"few.json: unknown section 'trian': did you mean 'train'\?"),
        ('{"train": {"step": 3}}', r"few.json: unknown setting .*step': did you mean .*steps'\?"),
        ('{"train": {"steps": "many"}}', "few.json: train.steps must be a whole number, not 'many'"),
        pytest.param(100_000 * "[", r"few.json is not JSON \(it is nested too deeply\)", id="nested"),
        ('{"train": {"learning_rate": 1' + 400 * "0" + "}}", "few.json: train.learning_rate must be at most 1e"),
        ('{"train": {"batch_size": 10000000000000000000000}}', "few.json: train.batch_size must be at most 1,000,000,"),
    ],
)
def test_a_wrong_file_of_settings_is_named(emcaps, tmp_path, text, message):
    status, _, err = emcaps("train", "--config", written(tmp_path / "few.json", text))
    assert status == 1
    assert re.search(message, err)
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_a_file_of_settings_stands_alone(emcaps, tmp_path):
    few = written(tmp_path / "few.json", "{}")
    assert "the preset 'tiny' and --config few.json both say what" in emcaps("train", "tiny", "--config", few)[2]
    assert "--config starts a new run" in emcaps("train", "--resume", "runs/first", "--config", few)[2]
    assert "there is no file nowhere.json" in emcaps("train", "--config", "nowhere.json")[2]
    (tmp_path / "folder").mkdir()
    assert "there is no file folder/config.json" in emcaps("train", "--config", "folder")[2]


def test_train_names_new_runs_by_what_they_are(emcaps, data, tmp_path):
    for _ in range(2):
        assert emcaps("train", "tiny", "--steps", 1, "--stereo", *TINY)[0] == 0
    assert sorted(os.listdir(tmp_path / "runs")) == ["tiny-toys-stereo-seed0", "tiny-toys-stereo-seed0-2"]


@pytest.mark.parametrize("layers", ["4:5:2, 3:2:1, 4:1:1", ""])
def test_a_described_network_is_trained_watched_resumed_evaluated_and_exported(emcaps, data, tmp_path, layers):
    settings = ("--set", f"network.layers={layers}", "--set", "data.crop=16", "--set", "train.watch=1")
    status, _, err = emcaps("train", "tiny", "--steps", 2, "--batch-size", 8, "--run", "run", *settings)
    assert status == 0, err
    described = [[4, 5, 2], [3, 2, 1], [4, 1, 1]] if layers else []
    found = json.loads((tmp_path / "run/config.json").read_text())["network"]
    assert [[layer["types"], layer["kernel"], layer["stride"]] for layer in found["layers"]] == described
    names = {f"conv_caps{number}" for number in range(1, len(described) + 1)} | {"class_caps"}
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert {name.removesuffix("_saturated") for row in rows for name in row if name.endswith("_saturated")} == names
    status, out, err = emcaps("train", "--resume", "run", "--steps", 3)
    assert (status, out.splitlines().count("run: run")) == (0, 1), err
    status, out, err = emcaps("eval", "run", "--json", "result.json")
    assert status == 0, err
    assert json.loads((tmp_path / "result.json").read_text())["step"] == 3
    status, out, err = emcaps("experiment", "inside", "run")
    assert status == 0, err
    assert all(name in out for name in names)
    status, _, err = emcaps("export", "run", "--pt2", "run.pt2")
    assert status == 0, err


def test_a_run_from_a_file_is_named_after_the_preset_with_its_layers(emcaps, data, tmp_path):
    few = {"network": {"layers": ["16:3:2", "16"]}, "train": {"batch_size": 2, "steps": 1}, "data": {"crop": 16}}
    path = written(tmp_path / "few.json", json.dumps(few))
    assert "run: runs/small-toys-mono-seed0" in emcaps("train", "--config", path)[1]
    other = ("--set", "network.layers=16:3:2, 16:2")
    assert "run: runs/network-toys-mono-seed0" in emcaps("train", "--config", path, *other)[1]


def test_a_run_that_never_began_leaves_no_folder(emcaps, tmp_path):
    status, out, err = emcaps("train", "tiny", "--steps", 1, "--folder", tmp_path / "nothing")
    assert (status, out) == (1, "")
    assert "emcaps data make" in err
    assert os.listdir(tmp_path / "runs") == []


def test_a_novel_viewpoint_split_reports_familiar_views_too(emcaps, data):
    status, out, _ = emcaps("train", "tiny", "--steps", 1, "--split", "azimuth", *TINY)
    assert status == 0, out
    assert "test accuracy" in out
    assert "familiar accuracy" in out


@pytest.mark.parametrize(("number", "before"), [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)])
def test_a_signal_saves_and_says_how_to_resume(data, tmp_path, number, before):
    """A shell starts its background jobs with SIGINT ignored; they must still save and stop on SIGTERM."""
    command = [
        "-m",
        "emcaps",
        "train",
        "tiny",
        "--steps",
        "100000",
        "--run",
        "run",
        *TINY,
        "--set",
        "train.log_every=1",
    ]
    environment = os.environ | {"EMCAPS_DATA": str(data)}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, before),
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted and saved; resume with: emcaps train --resume run" in err
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_a_full_disk_tells_how_to_resume(emcaps, data, tmp_path, monkeypatch):
    from emcaps.train import run_folder

    def full(*_):
        raise OSError(28, "no space left to write metrics.jsonl")

    monkeypatch.setattr(run_folder, "append_line", full)
    message = "emcaps: no space left to write metrics.jsonl; then resume with: emcaps train --resume"
    status, _, err = emcaps("train", "tiny", "--steps", 3, "--run", "r", *TINY)
    assert (status, err.splitlines()[-1]) == (1, f"{message} r")
    options = ("--device", "cpu", "--tensorboard")
    status, _, err = emcaps("train", "tiny", "--steps", 3, "--run", "s", *TINY, *options)
    assert (status, err.splitlines()[-1]) == (1, f"{message} s {' '.join(options)}")


def test_a_place_that_becomes_read_only_tells_how_to_resume(emcaps, data, tmp_path, monkeypatch):
    """A run that is at work cannot choose another folder; a new one can."""
    import builtins

    refused = []

    def read_only(path, mode="r", *arguments, **settings):
        if "a" in mode and Path(path).name in refused:
            raise OSError(30, "Read-only file system", str(path))
        return open_file(path, mode, *arguments, **settings)

    open_file = open
    monkeypatch.setattr(builtins, "open", read_only)
    says = "r/{} cannot be written (Read-only file system): allow writing there"
    refused[:] = [".lock"]
    _, _, err = emcaps("train", "tiny", "--steps", 3, "--run", "r", *TINY)
    assert err.splitlines()[-1] == f"emcaps: {says.format('.lock')}, or choose another folder"
    refused[:] = ["metrics.jsonl"]
    resume = "then resume with: emcaps train --resume r"
    _, _, err = emcaps("train", "tiny", "--steps", 3, "--run", "r", *TINY)
    assert err.splitlines()[-1] == f"emcaps: {says.format('metrics.jsonl')}; {resume}"
    refused[:] = [".lock"]
    _, _, err = emcaps("train", "--resume", "r")
    assert err.splitlines()[-1] == f"emcaps: {says.format('.lock')}; {resume}"
    refused[:] = []
    assert emcaps("train", "--resume", "r")[0] == 0


@pytest.mark.parametrize("place", ["", "runs"])
def test_a_new_run_where_nothing_can_be_written_is_told_so(emcaps, data, tmp_path, monkeypatch, place):
    def read_only(path, *_, **__):
        if not path.exists():
            raise OSError(30, "Read-only file system", str(path))

    (tmp_path / place).mkdir(exist_ok=True)
    monkeypatch.setattr(Path, "mkdir", read_only)
    status, _, err = emcaps("train", "tiny", "--steps", 1, *TINY)
    assert status == 1
    assert "cannot be written (Read-only file system): allow writing there, or choose another folder" in err


def _fail_after(monkeypatch, steps, error):
    """Let a training step raise after so many whole ones."""
    from emcaps.train.step import TrainingStep

    work, done = TrainingStep.work, []

    def failing(step):
        if len(done) >= steps:
            raise error
        done.append(step)
        work(step)

    monkeypatch.setattr(TrainingStep, "work", failing)


def test_a_lost_gpu_is_one_line_that_tells_how_to_resume(emcaps, data, tmp_path, monkeypatch):
    _fail_after(monkeypatch, 3, RuntimeError("CUDA error: unspecified launch failure\nand more lines"))
    settings = (*TINY, "--set", "train.checkpoint_every=2")
    status, _, err = emcaps("train", "tiny", "--steps", 5, "--run", "r", *settings)
    assert status == 1
    assert err.splitlines()[-1] == (
        "emcaps: the GPU failed (CUDA error: unspecified launch failure), so what was computed since the last "
        "checkpoint cannot be saved; the run in r is saved up to step 2, and nothing before that is lost; resume with: "
        "emcaps train --resume r"
    )


def test_a_batch_that_does_not_fit_is_one_line_that_names_one_that_does(emcaps, data, tmp_path, monkeypatch):
    import torch

    _fail_after(monkeypatch, 0, torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB."))
    status, _, err = emcaps("train", "tiny", "--steps", 5, "--run", "r", *TINY)
    assert status == 1
    assert err.splitlines()[-1].startswith("emcaps: train.batch_size 8 does not fit into the memory of the GPU; 4 does")


def test_a_lost_gpu_outside_of_training_is_one_line(emcaps, data, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nand more")

    monkeypatch.setattr("emcaps.train.checkpoint.load", fail)
    status, _, err = emcaps("eval", "small-mono")
    assert status == 1
    assert err == (
        "emcaps: the GPU failed (CUDA error: uncorrectable ECC error encountered): start the command again, or use "
        "--device cpu\n"
    )


def test_a_second_signal_stops_at_once_and_tells_how_to_resume(emcaps, data, tmp_path, monkeypatch):
    _fail_after(monkeypatch, 3, KeyboardInterrupt())
    settings = (*TINY, "--set", "train.checkpoint_every=2")
    status, _, err = emcaps("train", "tiny", "--steps", 5, "--run", "r", *settings)
    assert status == 130
    assert err.splitlines()[-1] == (
        "emcaps: stopped at once; resume from its last checkpoint with: emcaps train --resume r"
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("network.classes=7", "emcaps: network.classes must be 5"),
        ("data.crop=12", "emcaps: data.crop must be at least 13"),
        ("data.crop=49", "emcaps: data.crop must be at most 48"),
        ("data.fold=5", "emcaps: split 'standard' with data.fold 5 needs at least 6 training instances"),
    ],
)
def test_settings_that_do_not_fit_the_data_end_in_one_clear_line(emcaps, data, tmp_path, setting, message):
    status, out, err = emcaps("train", "tiny", "--set", setting)
    assert (status, out) == (1, ""), "a folder that is removed again is not named"
    assert err.startswith(message)
    assert len(err.strip().splitlines()) == 1
    assert os.listdir(tmp_path / "runs") == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.learning_rate=1e300", "emcaps: train.learning_rate must be at most 1e+30, not 1e+300"),
        ("train.batch_size=1_000_000_000", "emcaps: train.batch_size must be at most 1,000,000, not 1000000000"),
        ("train.batch_size=1" + 22 * "0", "emcaps: train.batch_size must be at most 1,000,000, not 1000"),
        ("train.keep_checkpoints=0", "emcaps: train.keep_checkpoints must be at least 1, not 0"),
    ],
)
def test_absurd_settings_end_in_one_clear_line(emcaps, data, tmp_path, setting, message):
    status, _, err = emcaps("train", "tiny", "--set", setting)
    assert status == 1
    assert err.startswith(message)
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("config.json", 100_000 * "[", r"config\.json is damaged \(it is nested too deeply\)", id="nested"),
        ("config.json", '{"train": {"steps": 1' + 400 * "0" + "}}", r"config\.json: train\.steps must be at most"),
        ("environment.json", '{"resumed": 3}', r"environment\.json is damaged \('resumed' must be a list\)"),
        ("metrics.jsonl", '{"step": 1, "seconds": []}\n', r"metrics\.jsonl, line 1 is damaged \('seconds' must be"),
        ("checkpoint.safetensors", "", r"checkpoint\.safetensors is damaged"),
    ],
)
def test_a_run_with_a_damaged_file_is_refused_in_one_line(emcaps, data, tmp_path, name, content, message):
    assert emcaps("train", "tiny", "--steps", 1, "--run", "run", *TINY)[0] == 0
    (tmp_path / "run" / name).write_text(content)
    status, _, err = emcaps("train", "--resume", "run", "--steps", 2)
    assert status == 1
    (line,) = [line for line in err.splitlines() if line.startswith("emcaps: ")]
    assert re.search(message, line)
    assert "Traceback" not in err


def test_damaged_weights_are_refused_and_made_anew_by_resuming(emcaps, data, tmp_path):
    assert emcaps("train", "tiny", "--steps", 1, "--run", "run", *TINY)[0] == 0
    path = tmp_path / "run" / "weights.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for command in (["eval", "run"], ["export", "run", "--pt2", "run.pt2"], ["predict", "run", "picture.png"]):
        status, _, err = emcaps(*command)
        assert status == 1
        assert "weights.safetensors is damaged" in err
        assert err.endswith("make it again from a checkpoint of its run: emcaps train --resume run\n")
        assert len(err.strip().splitlines()) == 1
    assert emcaps("train", "--resume", "run")[0] == 0
    assert path.read_bytes() == whole


def test_a_run_in_a_folder_whose_name_is_not_utf8_is_resumed_and_evaluated(emcaps, data, tmp_path):
    name = os.fsdecode(b"run\xff")
    try:
        (tmp_path / name).mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    assert emcaps("train", "tiny", "--steps", 1, "--run", name, *TINY)[0] == 0
    status, _, err = emcaps("train", "--resume", name, "--steps", 2)
    assert status == 0, err
    assert emcaps("eval", name)[0] == 0
    status, _, err = emcaps("train", "--resume", name, "--steps", 3, "--tensorboard")
    assert status == 1
    assert "TensorBoard takes folders with UTF-8 names alone, not 'run" in err
