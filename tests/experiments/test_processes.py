"""Several processes at one experiment: how they start, fail and stop."""

import os
import signal
import subprocess
import sys
import time

import pytest

from emcaps.experiments import processes
from emcaps.experiments.records import run_folder
from emcaps.experiments.runner import Training, train_missing
from experiments.locks import is_busy
from experiments.short_rows import ROWS


def test_without_locks_one_process_is_all(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "HAS_LOCKS", False)
    with pytest.raises(ValueError, match=r"several jobs need file locks, .* --jobs 1"):
        train_missing(ROWS, ["one"], tmp_path, Training((0,), jobs=2))


def test_a_helper_that_fails_is_reported(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(processes, "_work_here", lambda _work: None)  # here, not in the helper, which starts afresh
    with pytest.raises(ValueError, match="1 of 2 processes ended early, exit code 1: see above, or try with --jobs 1"):
        train_missing(ROWS, ["one"], tmp_path / "runs", Training((0,), 2, "cpu", tmp_path / "nowhere"))
    told = capfd.readouterr().err
    assert "\nerror: " in told
    assert "nowhere" in told
    assert "Traceback" not in told


SCRIPT = """
import signal
import sys
from pathlib import Path
from emcaps.config import RunConfig
from emcaps.experiments import processes
from emcaps.experiments.runner import Training, train_missing
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    long = {"long": RunConfig.from_json(Path(sys.argv[1]).read_text())}
    if sys.argv[4] == "idle":
        processes._work_here = lambda _work: None
    try:
        runs, data = map(Path, sys.argv[2:4])
        train_missing(long, ["long"], runs, Training((0, 1), 2, "cpu", data), measured=sys.argv[5] == "True")
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "first", "saved", "measured"),
    [
        (signal.SIGINT, "training", 2, True),
        (signal.SIGTERM, "training", 2, False),
        (signal.SIGKILL, "training", 1, True),
        (signal.SIGTERM, "idle", 1, False),
    ],
)
def test_stopping_the_first_process_saves_the_runs_of_all(tmp_path, data, number, first, saved, measured):
    """If it is killed outright it cannot save its own, but the helper notices, saves and stops. SIGTERM comes twice, as
    `timeout` sends it.

    If it is idle, because no run is left to begin, it waits for the helper, which began with seed 1, and stops it too.
    """
    config = ROWS["one"].override({"train.steps": 100_000, "train.checkpoint_every": 100_000, "train.eval_every": 0})
    (tmp_path / "config.json").write_text(config.to_json())
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = [tmp_path / "config.json", tmp_path / "runs", data, first, str(measured)]
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", *arguments], stderr=subprocess.DEVNULL, start_new_session=True
    )
    folders = [run_folder(tmp_path / "runs", "long", seed) for seed in ((0, 1) if first == "training" else (1,))]
    try:
        wait_until(lambda: all((folder / "metrics.jsonl").exists() for folder in folders))
        os.killpg(process.pid, number)  # as a terminal does: to the group, which the helper is not of
        if number == signal.SIGTERM:
            time.sleep(0.02)
            os.killpg(process.pid, number)
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
