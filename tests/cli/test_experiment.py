"""The options that the commands of `emcaps experiment` share."""

import importlib

import pytest

from emcaps import cli
from emcaps.documents.recorded import ROOT

DEFAULTS = {
    "table2": 3,
    "iterations": 3,
    "pitfalls": 3,
    "ablations": 3,
    "choices": 1,
    "candidates": 2,
    "viewpoints": 5,
}


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


@pytest.mark.parametrize(
    ("options", "row"),
    [
        (["ablations"], "| [it3-vector](../results/ablations-tiny/it3-vector) | 3 | vector |"),
        (["ablations", "--runs", "results/ablations-tiny", "--data", "smallnorb"], "results/ablations-tiny/it5)"),
        (["candidates", "--recipe", "mono-it2"], "](../results/candidates/mono-it2-unchanged-fold0)"),
    ],
)
def test_in_a_checkout_the_recorded_runs_are_shown(monkeypatch, capsys, options, row):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["emcaps", "experiment", *options])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert row in capsys.readouterr().out


def test_ablations_of_own_runs_are_on_toys_unless_other_data_are_named(monkeypatch, tmp_path, capsys):
    from emcaps.experiments import ablations

    given = []
    monkeypatch.setattr(ablations, "run_ablations", lambda runs, _, *rest, **__: given.append((str(runs), *rest[:2])))
    for options in ([], ["--network", "small"], ["--runs", "mine"], ["--runs", "mine", "--data", "smallnorb"]):
        monkeypatch.setattr("sys.argv", ["emcaps", "experiment", "ablations", *options])
        with pytest.raises(SystemExit):
            cli.main()
    assert given == [
        ("results/ablations-tiny", "smallnorb", "tiny"),
        ("results/ablations-small", "smallnorb", "small"),
        ("mine", "toys", "tiny"),
        ("mine", "smallnorb", "tiny"),
    ]
