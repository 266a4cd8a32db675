"""Rows trained by several processes: every run once, nothing lost."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from emcaps.config import preset
from emcaps.experiments import processes, rows
from emcaps.experiments.rows import read_records, run_folder, train_missing
from emcaps.train.run_folder import TakenRunError, is_busy, only_user
from patterns import write_patterns

SHORT = {
    "data.crop": 16,
    "network.conv1_types": 4,
    "network.conv2_types": 4,
    "train.steps": 6,
    "train.batch_size": 8,
    "train.log_every": 2,
}
ROWS = {
    name: preset("tiny").override(SHORT | {"network.iterations": iterations})
    for name, iterations in (("one", 1), ("two", 2))
}


def test_a_helper_trains_what_the_first_process_would_have_trained(tmp_path, monkeypatch):
    data = write_patterns(tmp_path / "data")
    how = {"device": "cpu", "data_folder": data}
    train_missing(ROWS, list(ROWS), (0, 1), tmp_path / "alone", **how)
    monkeypatch.setattr(processes, "_work_here", lambda _work: None)  # here, not in the helper, which starts afresh
    train_missing(ROWS, list(ROWS), (0, 1), tmp_path / "helped", jobs=2, **how)
    for row in ROWS:
        alone, helped = (read_records(ROWS, row, tmp_path / where) for where in ("alone", "helped"))
        assert [record.seed for record in helped] == [record.seed for record in alone] == [0, 1]
        for one, other in zip(alone, helped, strict=True):
            weights = [load_file(record.folder / "weights.safetensors") for record in (one, other)]
            torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)  # threads may change the last bits


def test_several_processes_at_once_train_every_run_once(tmp_path):
    data = write_patterns(tmp_path / "data")
    train_missing(ROWS, list(ROWS), (0, 1, 2), tmp_path / "runs", jobs=3, device="cpu", data_folder=data)
    for row in ROWS:
        records = read_records(ROWS, row, tmp_path / "runs")
        assert [record.seed for record in records] == [0, 1, 2]
        for record in records:
            environment = json.loads((record.folder / "environment.json").read_text())
            assert "resumed" not in environment, "no process began what another had begun"


@pytest.mark.parametrize("seen", [True, False], ids=["seen to be busy", "begun a moment ago"])
def test_a_run_that_another_process_is_at_work_on_is_left_to_it(tmp_path, monkeypatch, capsys, seen):
    data = write_patterns(tmp_path / "data")
    busy = run_folder(tmp_path / "runs", "one", 0)
    assert not is_busy(busy)
    with only_user(busy):
        assert is_busy(busy)
        with pytest.raises(TakenRunError), only_user(busy):
            pass
        if not seen:
            monkeypatch.setattr(rows, "is_busy", lambda _folder: False)
        train_missing(ROWS, list(ROWS), (0,), tmp_path / "runs", device="cpu", data_folder=data)
    assert not is_busy(busy)
    assert [len(read_records(ROWS, row, tmp_path / "runs")) for row in ("one", "two")] == [0, 1]
    assert "left to other processes: one, seed 0. Ask again when they are done." in capsys.readouterr().err


def test_a_run_that_another_process_has_finished_meanwhile_is_left_alone(tmp_path, monkeypatch):
    data = write_patterns(tmp_path / "data")
    how = {"device": "cpu", "data_folder": data}
    train_missing(ROWS, ["one"], (0,), tmp_path / "runs", **how)
    folder = run_folder(tmp_path / "runs", "one", 0)
    before = (folder / "environment.json").read_bytes()
    finished, asked = rows._is_finished, []

    def at_first_not(*run):
        asked.append(run)
        return len(asked) > 1 and finished(*run)

    monkeypatch.setattr(rows, "_is_finished", at_first_not)
    monkeypatch.setattr(rows, "CONFIG", "not-yet.json")
    train_missing(ROWS, ["one"], (0,), tmp_path / "runs", **how)
    assert (folder / "environment.json").read_bytes() == before


@pytest.mark.parametrize("experiment", ["table2", "choices"])
def test_the_command_line_hands_the_number_of_jobs_on(tmp_path, monkeypatch, experiment):
    from emcaps import cli

    given = {}
    module = importlib.import_module(f"emcaps.experiments.{experiment}")
    monkeypatch.setattr(module, "train_missing", lambda *_, **settings: given.update(settings))
    monkeypatch.setattr(module, "finished", lambda *_: {})
    monkeypatch.setattr(module, "_row_table" if experiment == "table2" else "variant_table", lambda *_: "")
    monkeypatch.setattr(module, "markdown_table", lambda *_: "")
    command = ["emcaps", "experiment", experiment, "--train", "--jobs", "8", "--runs", str(tmp_path)]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert given["jobs"] == 8


def test_without_locks_one_process_is_all(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "HAS_LOCKS", False)
    with pytest.raises(ValueError, match=r"several jobs need file locks, .* --jobs 1"):
        train_missing(ROWS, ["one"], (0,), tmp_path, jobs=2)


def test_a_helper_that_fails_is_told_of(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(processes, "_work_here", lambda _work: None)  # here, not in the helper, which starts afresh
    with pytest.raises(ValueError, match="1 of 2 processes ended early, exit code 1: see above, or try with --jobs 1"):
        train_missing(ROWS, ["one"], (0,), tmp_path / "runs", jobs=2, device="cpu", data_folder=tmp_path / "nowhere")
    told = capfd.readouterr().err
    assert "\nerror: " in told
    assert "nowhere" in told
    assert "Traceback" not in told


SCRIPT = """
import sys
from pathlib import Path
from emcaps.experiments import processes, rows
from emcaps.config import RunConfig
if __name__ == "__main__":
    long = {"long": RunConfig.from_json(Path(sys.argv[1]).read_text())}
    if sys.argv[4] == "idle":
        processes._work_here = lambda _work: None
    try:
        runs, data = map(Path, sys.argv[2:4])
        rows.train_missing(long, ["long"], (0, 1), runs, jobs=2, device="cpu", data_folder=data)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "first", "saved"),
    [
        (signal.SIGINT, "training", 2),
        (signal.SIGTERM, "training", 2),
        (signal.SIGKILL, "training", 1),
        (signal.SIGINT, "idle", 1),
    ],
)
def test_stopping_the_first_process_saves_the_runs_of_all(tmp_path, number, first, saved):
    """If it is killed outright it cannot save its own, but the helper notices, saves and stops.

    If it is idle, because no run is left to begin, it waits for the helper, which began with seed 1, and stops it too.
    """
    data = write_patterns(tmp_path / "data")
    config = ROWS["one"].override({"train.steps": 100_000, "train.checkpoint_every": 100_000})
    (tmp_path / "config.json").write_text(config.to_json())
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", tmp_path / "config.json", tmp_path / "runs", data, first],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    folders = [run_folder(tmp_path / "runs", "long", seed) for seed in ((0, 1) if first == "training" else (1,))]
    try:
        wait_until(lambda: all((folder / "metrics.jsonl").exists() for folder in folders))
        os.killpg(process.pid, number)  # as a terminal does: to the group, which the helper is not of
        process.wait(60)
        wait_until(lambda: not any(is_busy(folder) for folder in folders))
    finally:
        process.kill()
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert sum((folder / "checkpoint.safetensors").exists() for folder in folders) == saved


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
