"""The options that the commands of `emcaps experiment` share."""

import importlib

import pytest

from emcaps import cli

DEFAULTS = {"table2": 3, "iterations": 3, "pitfalls": 3, "ablations": 3, "choices": 1, "viewpoints": 5}


@pytest.fixture
def run(monkeypatch):
    """Call a command, and give how its experiment would train; None if it would not, or if the command failed."""

    def call(command, *options):
        given = {}
        module = importlib.import_module(f"emcaps.experiments.{command}")
        monkeypatch.setattr(module, f"run_{command}", lambda *_, **keywords: given.update(keywords))
        monkeypatch.setattr("sys.argv", ["emcaps", "experiment", command, *options])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return None if stop.value.code else given["train"]

    return call


@pytest.mark.parametrize("command", DEFAULTS)
def test_seeds_are_named_or_counted_and_jobs_handed_on(run, command, capsys, tmp_path):
    assert run(command) is None, "nothing is trained unless that is asked for"
    assert list(run(command, "--train").seeds) == list(range(DEFAULTS[command]))
    assert list(run(command, "--train", "--seeds", "5").seeds) == [0, 1, 2, 3, 4]
    assert list(run(command, "--train", "--seed", "101", "--seed", "7", "--seed", "101").seeds) == [101, 7]
    how = run(command, "--train", "--jobs", "8", "--device", "cpu", "--folder", str(tmp_path))
    assert (how.jobs, how.device, how.data_folder) == (8, "cpu", tmp_path)
    capsys.readouterr()
    assert run(command, "--train", "--seed", "7", "--seeds", "3") is None
    assert "--seed names seeds and --seeds 3 counts them from 0: give only one" in capsys.readouterr().err


@pytest.mark.parametrize("command", [*DEFAULTS, "cost"])
def test_outside_a_checkout_every_command_says_so_in_one_line(monkeypatch, capsys, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["emcaps", "experiment", command])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no folder results/" in line
    assert "--runs" in line
    assert "--train" in line
    assert "checkout of emcaps" in line
