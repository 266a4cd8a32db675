"""What an experiment lacks is trained: every run once, by one process or several, and nothing is lost."""

import json
import shutil
import signal
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from emcaps.experiments import processes, runner
from emcaps.experiments.records import read_records, run_folder
from emcaps.experiments.runner import Training, claim_folder, lacking_teachers, train_missing
from emcaps.train.run_folder import BusyRunError, only_user
from experiments.locks import is_busy
from experiments.short_rows import ROWS

BOTH = pytest.mark.parametrize("measured", [False, True], ids=["plain", "measured"])


def how(data, *seeds, jobs=1):
    return Training(seeds, jobs, "cpu", data)


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@BOTH
def test_finished_runs_are_not_touched_and_need_no_weights_or_data(tmp_path, data, measured):
    train_missing(ROWS, ["two"], tmp_path / "runs", how(data, 0), measured=measured)
    folder = run_folder(tmp_path / "runs", "two", 0)
    assert (folder / "routing.json").exists() == measured
    for name in ("weights.safetensors", "checkpoint.safetensors"):
        (folder / name).unlink()  # as in a recorded copy
    before = files(folder)
    train_missing(ROWS, ["two"], tmp_path / "runs", how(tmp_path / "no data", 0), measured=measured)
    assert files(folder) == before


def test_a_failed_measured_run_is_not_repeated(tmp_path, data):
    rows = {"two": ROWS["two"].override({"train.learning_rate": 1e30, "train.log_every": 1})}
    train_missing(rows, ["two"], tmp_path, how(data, 0), measured=True)
    before = files(run_folder(tmp_path, "two", 0))
    assert "failure.json" in before
    train_missing(rows, ["two"], tmp_path, how(data, 0), measured=True)
    assert files(run_folder(tmp_path, "two", 0)) == before


@BOTH
def test_an_interrupted_run_is_resumed_to_the_same_numbers(tmp_path, data, monkeypatch, measured):
    def stop_at_step_3(progress):
        if progress.step == 3:
            signal.raise_signal(signal.SIGINT)

    train_missing(ROWS, ["two"], tmp_path / "whole", how(data, 0), measured=measured)
    monkeypatch.setattr(processes, "training_bar", lambda *_: nullcontext(stop_at_step_3))
    with pytest.raises(KeyboardInterrupt):
        train_missing(ROWS, ["two"], tmp_path / "stopped", how(data, 0), measured=measured)
    assert not read_records(ROWS, "two", tmp_path / "stopped", measured=measured)
    monkeypatch.undo()
    train_missing(ROWS, ["two"], tmp_path / "stopped", how(data, 0), measured=measured)
    whole, resumed = (read_records(ROWS, "two", tmp_path / name, measured=measured) for name in ("whole", "stopped"))
    environment = json.loads((resumed[0].folder / "environment.json").read_text())
    assert [one["step"] for one in environment["resumed"]] == [3]
    assert resumed[0].training_curve == whole[0].training_curve
    assert (resumed[0].accuracy, resumed[0].routing) == (whole[0].accuracy, whole[0].routing)


def test_a_run_that_was_stopped_before_it_was_measured_is_measured(tmp_path, data):
    train_missing(ROWS, ["two"], tmp_path, how(data, 0))
    assert not read_records(ROWS, "two", tmp_path, measured=True)
    weights = load_file(run_folder(tmp_path, "two", 0) / "weights.safetensors")
    train_missing(ROWS, ["two"], tmp_path, how(data, 0), measured=True)
    (record,) = read_records(ROWS, "two", tmp_path, measured=True)
    assert [found["step"] for found in record.routing] == [0, 4]
    torch.testing.assert_close(load_file(record.folder / "weights.safetensors"), weights, rtol=0, atol=0)


@BOTH
def test_runs_of_other_settings_are_refused_before_anything_is_trained(tmp_path, data, measured):
    train_missing(ROWS, ["two"], tmp_path / "runs", how(data, 1), measured=measured)
    other = ROWS | {"two": ROWS["two"].override({"train.learning_rate": 1.0})}
    with pytest.raises(ValueError, match="other settings than row 'two'"):
        train_missing(other, ["one", "two"], tmp_path / "runs", how(data, 0, 1), measured=measured)
    shutil.copytree(tmp_path / "runs/two/seed1", tmp_path / "runs/two/seed0")
    with pytest.raises(ValueError, match="seed0 has seed 1: a copy would count twice"):
        train_missing(ROWS, ["one", "two"], tmp_path / "runs", how(data, 0, 1), measured=measured)
    assert not (tmp_path / "runs/one").exists()


def test_an_unknown_row_is_named_before_anything_is_trained(tmp_path):
    with pytest.raises(ValueError, match="unknown row 'tow': did you mean 'two'"):
        train_missing(ROWS, ["one", "tow"], tmp_path, Training((0,)))
    assert not list(tmp_path.iterdir())


@BOTH
def test_a_helper_trains_what_the_first_process_would_have_trained(tmp_path, data, monkeypatch, measured):
    train_missing(ROWS, list(ROWS), tmp_path / "alone", how(data, 0, 7), measured=measured)
    monkeypatch.setattr(processes, "_work_here", lambda _work: None)  # here, not in the helper, which starts afresh
    train_missing(ROWS, list(ROWS), tmp_path / "helped", how(data, 0, 7, jobs=2), measured=measured)
    for row in ROWS:
        alone, helped = (read_records(ROWS, row, tmp_path / where, measured=measured) for where in ("alone", "helped"))
        assert [record.seed for record in helped] == [record.seed for record in alone] == [0, 7]
        for one, other in zip(alone, helped, strict=True):
            weights = [load_file(record.folder / "weights.safetensors") for record in (one, other)]
            torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)  # threads may change the last bits


@BOTH
def test_several_processes_at_once_train_every_run_once(tmp_path, data, measured):
    train_missing(ROWS, list(ROWS), tmp_path / "runs", how(data, 0, 1, 2, jobs=3), measured=measured)
    for row in ROWS:
        records = read_records(ROWS, row, tmp_path / "runs", measured=measured)
        assert [record.seed for record in records] == [0, 1, 2]
        for record in records:
            environment = json.loads((record.folder / "environment.json").read_text())
            assert "resumed" not in environment, "no process began what another had begun"


@BOTH
@pytest.mark.parametrize("lock", [claim_folder, run_folder], ids=["an experiment", "emcaps train"])
def test_a_run_that_another_process_is_at_work_on_is_left_to_it(tmp_path, data, capsys, lock, measured):
    busy = lock(tmp_path / "runs", "one", 0)
    with only_user(busy):
        assert is_busy(busy)
        with pytest.raises(BusyRunError), only_user(busy):
            pass
        train_missing(ROWS, list(ROWS), tmp_path / "runs", how(data, 0), measured=measured)
    assert not is_busy(busy)
    assert [len(read_records(ROWS, row, tmp_path / "runs", measured=measured)) for row in ("one", "two")] == [0, 1]
    assert "left to other processes: one, seed 0. Ask again when they are done." in capsys.readouterr().err


TAUGHT = {"pupil": ROWS["one"].override({"train.teachers": ["../../two/seed0"]}), "two": ROWS["two"]}


def test_runs_that_have_teachers_wait_for_them(tmp_path, data, capsys):
    """Though they are named first, and though another process is at work on their teacher."""
    with only_user(claim_folder(tmp_path, "two", 0)):
        train_missing(TAUGHT, list(TAUGHT), tmp_path, how(data, 0, 1))
    assert [len(read_records(TAUGHT, row, tmp_path)) for row in TAUGHT] == [0, 1]
    told = capsys.readouterr().err
    assert "left to other processes: two, seed 0. Ask" in told
    assert f"not trained: pupil, seed 0; pupil, seed 1. Ask again when there is {tmp_path}/two/seed0.\n" in told
    train_missing(TAUGHT, list(TAUGHT), tmp_path, how(data, 0, 1, jobs=2))
    assert [len(read_records(TAUGHT, row, tmp_path)) for row in TAUGHT] == [2, 2]


def test_a_part_without_the_teacher_leaves_its_pupils_until_another_part_has_trained_it(tmp_path, data, capsys):
    pupils, teacher = (how(data, 0)._replace(part=part) for part in ((1, 2), (2, 2)))
    train_missing(TAUGHT, list(TAUGHT), tmp_path, pupils)
    assert "not trained: pupil, seed 0. Ask again" in capsys.readouterr().err
    train_missing(TAUGHT, list(TAUGHT), tmp_path, teacher)
    train_missing(TAUGHT, list(TAUGHT), tmp_path, pupils)
    assert [len(read_records(TAUGHT, row, tmp_path)) for row in TAUGHT] == [1, 1]


@pytest.mark.parametrize("why", ["recorded", "failed"])
def test_a_finished_run_without_weights_teaches_nobody(tmp_path, data, capsys, why):
    rows = TAUGHT
    if why == "failed":
        rows = TAUGHT | {"two": TAUGHT["two"].override({"train.learning_rate": 1e30, "train.log_every": 1})}
    keeping = how(data, 0)._replace(keep_failures=True)
    train_missing(rows, ["two"], tmp_path, keeping)
    if why == "recorded":
        (tmp_path / "two/seed0/weights.safetensors").unlink()
    assert lacking_teachers(rows, list(rows), tmp_path, keeping) == {
        "pupil": [tmp_path / "two/seed0/weights.safetensors"]
    }
    train_missing(rows, list(rows), tmp_path, keeping)
    assert not (tmp_path / "pupil/seed0").exists()
    told = capsys.readouterr().err
    assert f"not trained: pupil, seed 0. Ask again when there is {tmp_path}/two/seed0/weights.safetensors." in told


def test_teachers_are_lacking_that_are_neither_there_nor_to_be_trained(tmp_path, data):
    lacking = {"pupil": [tmp_path / "two/seed0"]}
    assert lacking_teachers(TAUGHT, list(TAUGHT), tmp_path, how(data, 0, 3)) == {}
    assert lacking_teachers(TAUGHT, list(TAUGHT), tmp_path, how(data, 3)) == lacking
    assert lacking_teachers(TAUGHT, ["pupil"], tmp_path, how(data, 0)) == lacking
    train_missing(TAUGHT, ["two"], tmp_path, how(data, 0))
    assert lacking_teachers(TAUGHT, ["pupil"], tmp_path, how(data, 3)) == {}


def test_a_run_that_is_trained_and_being_measured_is_left_alone(tmp_path, data, capsys):
    train_missing(ROWS, ["one"], tmp_path, how(data, 0))
    before = files(run_folder(tmp_path, "one", 0))
    with only_user(claim_folder(tmp_path, "one", 0)):
        train_missing(ROWS, ["one"], tmp_path, how(data, 0), measured=True)
    assert files(run_folder(tmp_path, "one", 0)) == before
    assert "left to other processes: one, seed 0." in capsys.readouterr().err


def test_a_run_that_another_process_has_finished_meanwhile_is_left_alone(tmp_path, data, monkeypatch):
    train_missing(ROWS, ["one"], tmp_path, how(data, 0))
    before = files(run_folder(tmp_path, "one", 0))
    is_finished, asked = runner.is_finished, []

    def at_first_not(folder, **kind):
        asked.append(folder)
        return len(asked) > 1 and is_finished(folder, **kind)

    monkeypatch.setattr(runner, "is_finished", at_first_not)
    train_missing(ROWS, ["one"], tmp_path, how(data, 0))
    assert files(run_folder(tmp_path, "one", 0)) == before
    assert len(asked) > 1
