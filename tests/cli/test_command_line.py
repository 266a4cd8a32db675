"""The command line as a user meets it: through its entry point, by what it prints and its exit status."""

import os
import re
import signal

import pytest
import typer
from commands import in_a_process

from emcaps import cli, interrupts
from emcaps.cli import app


def test_help_answers_at_once():
    def seconds():
        """Of the processor, not of the clock, which also counts what else the machine does."""
        before = os.times()
        assert in_a_process("-m", "emcaps", "--help").returncode == 0
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

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


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("eval", "NETWORK"),
        ("predict", "NETWORK FILE..."),
        ("explore", "NETWORK IMAGE..."),
        ("export", "NETWORK"),
        ("experiment inside", "NETWORK"),
        ("experiment poses", "NETWORK..."),
        ("experiment attack", "NETWORK..."),
        ("data import", "SOURCE"),
        ("report", "RUN..."),
    ],
)
def test_a_trained_network_has_one_name_in_all_commands(emcaps, command, arguments):
    (usage,) = (line for line in emcaps(*command.split(), "--help")[1].splitlines() if "Usage:" in line)
    without_brackets = usage.partition("[OPTIONS]")[2].translate(str.maketrans("", "", "{}[]"))
    assert without_brackets.split() == arguments.split()


def test_the_networks_that_come_with_the_package_are_named():
    from emcaps.cli.shared import NETWORKS
    from emcaps.weights import SHIPPED

    assert set(NETWORKS.partition(", which")[0].split(", ")) == set(SHIPPED)


def test_version(emcaps):
    assert emcaps("--version")[1].startswith("emcaps 0.")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "smal"], "emcaps: unknown preset 'smal': did you mean 'small'?"),
        (["train", "smal"], "emcaps: unknown preset 'smal': did you mean 'small'?"),
        (["train"], "emcaps: name a preset (tiny, small, full, cnn), a file of settings by --config FILE, or a run"),
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


def test_unknown_command_gets_the_nearest(emcaps):
    status, _, err = emcaps("trian")
    assert status == 2
    assert "Did you mean 'train'?" in err


def test_debug_shows_the_traceback(emcaps, monkeypatch):
    monkeypatch.setenv("EMCAPS_DEBUG", "1")
    with pytest.raises(ValueError, match="unknown preset"):
        emcaps("describe", "smal")


def test_a_narrow_or_plain_terminal_loses_no_column():
    environment = os.environ | {"COLUMNS": "60", "PYTHONIOENCODING": "ascii"}
    done = in_a_process("-m", "emcaps", "describe", "small", env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(r"conv_caps1 .* 72\W+2.61\W+18,464", done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_a_command_is_at_work_ends_in_one_line(emcaps, monkeypatch, number):
    def build(*_):
        os.kill(os.getpid(), number)
        raise AssertionError("the signal was not heard")

    monkeypatch.setattr(interrupts, "_heard_at", -1.0)  # no echo of what a test before this one sent
    monkeypatch.setattr(cli, "app", build)
    assert emcaps("info") == (130, "", "emcaps: interrupted\n")
