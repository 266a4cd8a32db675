"""The command line as a user meets it: through its entry point, by what it prints and its exit status."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import typer

from emcaps.cli import app, main
from emcaps.config import PRESETS
from patterns import write_patterns

TINY = [
    "--set",
    "data.crop=16",
    "--set",
    "network.conv1_types=4",
    "--set",
    "network.conv2_types=4",
    "--batch-size",
    "8",
]


@pytest.fixture
def emcaps(capsys, monkeypatch, tmp_path):
    """Run `emcaps ARGUMENTS` in an empty folder; gives (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMCAPS_DATA", str(tmp_path / "data"))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["emcaps", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def data(tmp_path):
    return write_patterns(tmp_path / "data")


def in_a_process(*arguments, **settings):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, **settings)


def test_help_answers_at_once():
    def seconds():
        start = time.perf_counter()
        assert in_a_process("-m", "emcaps", "--help").returncode == 0
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.5


def test_help_does_not_load_torch():
    code = "import sys, emcaps.cli; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert in_a_process("-c", code).returncode == 0


def test_import_needs_torch_and_numpy_alone():
    """Every other third-party package is made impossible to import."""
    code = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"typer", "click", "rich", "safetensors", "matplotlib", "tensorboard", "scipy"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Block())
sys.modules.update(dict.fromkeys(("numba", "pooch")))  # as if they were not installed, for those who ask first
import torch
from emcaps import conv_routing
from emcaps.nn import MatrixCapsNet
from emcaps.config import preset
print(MatrixCapsNet(preset("tiny").network)(torch.zeros(1, 1, 32, 32)).activation.shape)
"""
    done = in_a_process("-c", code)
    assert done.stdout.strip() == "torch.Size([1, 5])", done.stderr


def names_of_commands(command, *names):
    for name, part in getattr(command, "commands", {}).items():
        yield " ".join((*names, name))
        yield from names_of_commands(part, *names, name)


COMMANDS = list(names_of_commands(typer.main.get_command(app)))


def test_the_commands_are_found():
    assert {"train", "data", "data get", "experiment pitfalls", "bench"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(emcaps, command):
    status, out, _ = emcaps(*command.split(), "--help")
    assert status == 0
    assert re.search(r"Examples?:", out)
    assert f"emcaps {command}" in out


def test_runs_on_a_disk_that_is_not_there(emcaps, tmp_path):
    """`runs` is often a link to a larger disk."""
    write_patterns(tmp_path / "data")
    (tmp_path / "runs").symlink_to(tmp_path / "not mounted")
    status, _, error = emcaps("train", "tiny", *TINY, "--steps", "1")
    assert status == 1
    assert "File exists: runs" in error


def test_version(emcaps):
    assert emcaps("--version")[1].startswith("emcaps 0.")


def test_describe_small_prints_table_1(emcaps):
    status, out, _ = emcaps("describe", "small")
    lines = [re.sub(r"\s{2,}", " | ", line.strip()) for line in out.splitlines()]
    assert status == 0
    for line in (
        "input | (?, 32, 32, 1)",
        "↳ relu_conv1 | K=5, S=2, Ch=64 | (?, 16, 16, 64) | 1,664",
        "↳ primary_caps | K=1, S=1, Ch=8 | (?, 16, 16, 8) | 8,840",
        "↳ conv_caps1 | K=3, S=2, O=16 | (?, 7, 7, 16) | 72 | 2.61 | 18,464",
        "↳ conv_caps2 | K=3, S=1, O=16 | (?, 5, 5, 16) | 144 | 1.96 | 36,896",
        "↳ class_caps | flatten, O=5 | (?, 1, 1, 5) | 400 | 80.0 | 1,290",
        "total | 67,154",
    ):
        assert line in lines, out


@pytest.mark.parametrize("name", PRESETS)
def test_describe_every_preset(emcaps, name):
    assert emcaps("describe", name, "--stereo")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "smal"], "emcaps: unknown preset 'smal': did you mean 'small'?"),
        (["train", "smal"], "emcaps: unknown preset 'smal': did you mean 'small'?"),
        (["train"], "emcaps: name a preset (tiny, small, full, cnn), or a run to go on with"),
        (["train", "tiny", "--data", "smallnorp"], "emcaps: unknown dataset 'smallnorp': did you mean 'smallnorb'?"),
        (
            ["train", "tiny", "--set", "train.step=3"],
            "emcaps: unknown setting 'train.step': did you mean 'train.steps'?",
        ),
        (["train", "tiny", "--set", "nonsense"], "emcaps: --set takes NAME=VALUE"),
        (["train", "tiny", "--device", "gpu"], "emcaps: unknown device 'gpu'"),
        (["describe", "tiny", "--size", "-5"], "emcaps: an image has at least 1 pixel"),
        (["describe", "tiny", "--size", "10000000"], "emcaps: there is not enough memory for this"),
        (
            ["train", "tiny", "--device", "meta"],
            "emcaps: the device 'meta' cannot be used here",
        ),
        (
            ["data", "make", "--quick", "--folder", "/dev/null/x"],
            "emcaps: /dev/null/x cannot be written (Not a directory)",
        ),
        (["train", "--resume", "nowhere"], "emcaps: nowhere is not a run folder"),
        (["eval", "nowhere"], "emcaps: there is no file nowhere"),
        (["data", "show", "toy"], "emcaps: unknown dataset 'toy': did you mean 'toys'?"),
        (["data", "show", "smallnorb"], "emcaps data get"),
        (["data", "get", "--from", "nowhere"], "emcaps: nowhere lacks"),
        (["describe", "small", "--size", "8"], "emcaps: images must be (B, 1, H, W) with H and W at least 13"),
    ],
)
def test_mistakes_end_in_one_clear_line(emcaps, arguments, message):
    status, _, err = emcaps(*arguments)
    assert status == 1
    assert message in err
    assert len(err.strip().splitlines()) == 1


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
    status, _, err = emcaps("train", "tiny", "--set", setting)
    assert status == 1
    assert err.startswith(message)
    assert len(err.strip().splitlines()) == 1
    assert os.listdir(tmp_path / "runs") == []


def test_unknown_command_gets_the_nearest(emcaps):
    status, _, err = emcaps("trian")
    assert status == 2
    assert "Did you mean 'train'?" in err


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


def test_train_eval_resume(emcaps, data, tmp_path):
    status, out, _ = emcaps("train", "tiny", "--steps", 3, "--run", "runs/first", *TINY)
    assert status == 0
    assert "run: runs/first" in out
    assert re.search(r"test accuracy [\d.]+ % of 200 images\s+step 3", out)

    status, out, _ = emcaps("eval", "runs/first", "--json", "result.json")
    assert status == 0
    result = json.loads((tmp_path / "result.json").read_text())
    recorded = json.loads((tmp_path / "runs/first/evaluation.json").read_text())
    assert result == recorded
    assert f"test accuracy {100 * recorded['test']['accuracy']:.2f} % of 200 images" in out

    status, out, _ = emcaps("eval", "runs/first", "--by-instance", "--json", "result.json")
    assert status == 0
    toys = json.loads((tmp_path / "result.json").read_text())["test instances"]
    assert sum(toy["images"] for toy in toys) == 200
    assert sum(toy["wrong"] for toy in toys) == round(200 * (1 - recorded["test"]["accuracy"]))
    assert re.search(rf"{toys[0]['category']} +{toys[0]['instance']} +{toys[0]['images']} +{toys[0]['wrong']}", out)

    status, _, err = emcaps("train", "tiny", "--run", "runs/first", *TINY)
    assert status == 1
    assert "holds a run already: go on with it by --resume runs/first" in err
    emcaps("train", "tiny", "--steps", 1, "--run", "a b", *TINY)
    assert "by --resume 'a b'" in emcaps("train", "tiny", "--run", "a b", *TINY)[2]

    assert emcaps("train", "--resume", "runs/first", "--steps", 5)[0] == 0
    assert (
        "only --steps and --set train.graph=... may change" in emcaps("train", "--resume", "runs/first", "--seed", 3)[2]
    )


def test_eval_with_several_crops_and_a_single_file(emcaps, data):
    emcaps("train", "tiny", "--steps", 1, "--run", "r", *TINY)
    assert emcaps("eval", "r/weights.safetensors", "--crops", 13)[0] == 0
    for crops in (5, 0):
        assert (
            f"emcaps: crops must be 1 (the centre) or 13 (shifted along the diagonals), not {crops}"
            in (emcaps("eval", "r", "--crops", crops)[2])
        )


def test_eval_needs_the_test_file_alone(emcaps, data):
    emcaps("train", "tiny", "--steps", 1, "--run", "r", *TINY)
    expected = emcaps("eval", "r")
    (data / "toys48-train.npz").unlink()
    assert expected[0] == 0
    assert emcaps("eval", "r") == expected
    assert "toys48-train.npz is not there" in emcaps("eval", "r", "--split", "validation")[2]


def test_train_names_new_runs_by_what_they_are(emcaps, data, tmp_path):
    for _ in range(2):
        assert emcaps("train", "tiny", "--steps", 1, "--stereo", *TINY)[0] == 0
    assert sorted(os.listdir(tmp_path / "runs")) == ["tiny-toys-stereo-seed0", "tiny-toys-stereo-seed0-2"]


def test_a_run_that_never_began_leaves_no_folder(emcaps, tmp_path):
    status, _, err = emcaps("train", "tiny", "--steps", 1, "--folder", tmp_path / "nothing")
    assert status == 1
    assert "emcaps data make" in err
    assert os.listdir(tmp_path / "runs") == []


def test_evaluating_images_that_may_have_been_trained_on_says_so(emcaps, data, tmp_path):
    emcaps("train", "tiny", "--steps", 1, "--run", "run [one]", *TINY)
    status, out, err = emcaps("eval", "run [one]")
    assert (status, err.count("note:")) == (0, 0)
    assert "run [one], step 1" in out, "brackets are no markup"
    assert (
        "note: run [one] was trained with the split 'standard'" in emcaps("eval", "run [one]", "--split", "azimuth")[2]
    )
    file = tmp_path / "run [one]/environment.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps(found | {"data": {"train": "other", "test": "other"}}))
    assert "note: these are not the images that run [one] was" in emcaps("eval", "run [one]")[2]


def test_a_novel_viewpoint_split_reports_familiar_views_too(emcaps, data):
    status, out, _ = emcaps("train", "tiny", "--steps", 1, "--split", "azimuth", *TINY)
    assert status == 0, out
    assert "test accuracy" in out
    assert "familiar accuracy" in out


def test_ctrl_c_saves_and_says_how_to_go_on(data, tmp_path):
    arguments = [
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
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted and saved; go on with: emcaps train --resume run" in err
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_data_make_show_and_train_on_the_result(emcaps, tmp_path, monkeypatch):
    from emcaps.data import toy_set

    monkeypatch.setattr(toy_set, "QUICK", toy_set.Views((0,), (0, 18), (0,)))
    status, out, _ = emcaps("data", "make", "--quick")
    assert status == 0
    assert out.split() == [str(tmp_path / "data" / f"toys48-{part}.npz") for part in ("train", "test")]

    status, out, _ = emcaps("data", "show", "toys", "--png", "sheet.png")
    assert status == 0
    assert re.search(r"train\s+50\s+5\s+4 6 7 8 9", out)
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert emcaps("train", "tiny", "--steps", 1, *TINY)[0] == 0
    assert "note:" not in emcaps("data", "make", "--quick")[2]
    assert "note: other toys were there before" in emcaps("data", "make", "--quick", "--seed", 1)[2]


def test_toys_in_the_original_format_are_prepared_like_smallnorb(emcaps, tmp_path, monkeypatch):
    """The six files, written by the toys and read by `data get --from`, give the images that `data make` gives."""
    import numpy as np

    from emcaps.data import toy_set

    monkeypatch.setattr(toy_set, "QUICK", toy_set.Views((0,), (0,), (0,)))
    assert emcaps("data", "make", "--quick")[0] == 0
    assert emcaps("data", "make", "--quick", "--originals", "originals")[0] == 0
    assert len(os.listdir(tmp_path / "originals")) == 6
    status, _, err = emcaps("data", "get", "--from", "originals")
    assert status == 1
    assert "is not the published file" in err
    status, _, err = emcaps("data", "get", "--from", "originals", "--unverified")
    assert status == 0, err
    for part in ("train", "test"):
        direct, prepared = (np.load(tmp_path / "data" / f"{name}48-{part}.npz") for name in ("toys", "smallnorb"))
        for name in direct.files:
            assert np.array_equal(direct[name], prepared[name]), name


def test_toys_are_not_written_over_files_that_may_be_smallnorbs_own(emcaps, tmp_path):
    (tmp_path / "originals").mkdir()
    (tmp_path / "originals" / "something").touch()
    assert "originals has files in it" in emcaps("data", "make", "--quick", "--originals", "originals")[2]


def test_a_full_disk_tells_how_to_go_on(emcaps, data, tmp_path, monkeypatch):
    from emcaps.train import run_folder

    def full(*_):
        raise OSError(28, "no space left to write metrics.jsonl")

    monkeypatch.setattr(run_folder, "append_line", full)
    message = "emcaps: no space left to write metrics.jsonl; then go on with: emcaps train --resume"
    status, _, err = emcaps("train", "tiny", "--steps", 3, "--run", "r", *TINY)
    assert (status, err.splitlines()[-1]) == (1, f"{message} r")
    options = ("--device", "cpu", "--tensorboard")
    status, _, err = emcaps("train", "tiny", "--steps", 3, "--run", "s", *TINY, *options)
    assert (status, err.splitlines()[-1]) == (1, f"{message} s {' '.join(options)}")


def test_a_narrow_or_plain_terminal_loses_no_column():
    environment = os.environ | {"COLUMNS": "60", "PYTHONIOENCODING": "ascii"}
    done = in_a_process("-m", "emcaps", "describe", "small", env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"conv_caps1 .* 72\W+2.61\W+18,464", done.stdout)


def test_info(emcaps, data):
    status, out, _ = emcaps("info")
    assert status == 0
    for text in ("torch", "impl reference", "ready", "data toys", "train and test in"):
        assert text in out


def test_debug_shows_the_traceback(emcaps, monkeypatch):
    monkeypatch.setenv("EMCAPS_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown preset"):
        emcaps("describe", "smal")


def test_demo_in_short(emcaps, tmp_path, monkeypatch):
    from emcaps.data.toy_set import Views
    from emcaps.experiments import demo

    monkeypatch.setattr(demo, "VIEWS", Views((0,), (0, 18), (0,)))
    monkeypatch.setattr(demo, "SETTINGS", demo.SETTINGS | {"train.steps": 2})
    for _ in range(2):  # the second time finds everything done
        status, out, err = emcaps("demo")
        assert status == 0, err
        assert re.search(r"capsules, small\s+68,754\s+2\s", out)
        assert re.search(r"CNN baseline\s+4,253,349\s+2\s", out)
        for name in ("toys.png", "routing.png"):
            assert (tmp_path / "demo" / name).read_bytes().startswith(b"\x89PNG")
