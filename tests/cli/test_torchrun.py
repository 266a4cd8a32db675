"""`torchrun -m emcaps train`: one process writes and prints, and the run survives signals and lost processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import TINY

from emcaps.config import RunConfig
from emcaps.train import train
from emcaps.train.checkpoint import load
from train.ranks import command_rank, together

LONG = ("train", "tiny", *TINY, "--set", "train.log_every=1", "--set", "train.checkpoint_every=20", "--device", "cpu")


def start(data, folder, count, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", count, "--standalone", "-m", "emcaps"]
    return subprocess.Popen(
        [str(word) for word in (*command, *arguments)],
        cwd=folder,
        env=os.environ | {"EMCAPS_DATA": str(data), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """(exit status, standard output, standard error), without what torchrun itself has to say."""
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.terminate()  # it ends its processes
        raise
    return process.returncode, out, err


def wait_for(path, process):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, "it took more than a minute"
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def own_lines(err):
    return [line[line.index("emcaps") :] for line in err.splitlines() if "emcaps:" in line or "emcaps, pro" in line]


def test_one_process_alone_writes_and_prints(data, tmp_path):
    words = ("train", "tiny", *TINY, "--steps", 2, "--device", "cpu")
    status, out, err = finish(start(data, tmp_path, 2, *words))
    assert status == 0, err
    assert out.count("run: runs/tiny-toys-mono-seed0") == 1
    assert out.count("test accuracy") == 1
    assert os.listdir(tmp_path / "runs") == ["tiny-toys-mono-seed0"]
    words = ("eval", "runs/tiny-toys-mono-seed0", "--device", "cpu", "--folder", data)
    together(2, command_rank, tmp_path, *words)  # as torchrun starts them, without its seconds
    assert (tmp_path / "out0").read_text().count("test accuracy") == 1
    assert not (tmp_path / "out1").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_torchrun_saves(data, tmp_path, number):
    process = start(data, tmp_path, 2, *LONG, "--steps", 100_000, "--run-folder", "run")
    wait_for(tmp_path / "run/metrics.jsonl", process)
    if number == signal.SIGTERM:
        os.kill(pid_of_rank(process.pid, 0), number)  # as SLURM does, which signals every process of a job
    process.send_signal(number)
    status, _, err = finish(process)
    assert status != 0
    assert own_lines(err) == [
        "emcaps: interrupted and saved; resume with: torchrun --nproc-per-node 2 -m emcaps train --resume run "
        "--device cpu"
    ]
    assert load(tmp_path / "run/checkpoint.safetensors").step > 0


def pid_of_rank(torchrun, rank):
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == torchrun and f"RANK={rank}".encode() in (path / "environ").read_bytes().split(b"\0"):
                return int(path.name)
        except OSError:  # it has ended
            continue
    raise AssertionError(f"no process has rank {rank}")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the process in /proc")
def test_a_killed_process_ends_the_run_and_another_number_resumes_it(data, tmp_path):
    process = start(data, tmp_path, 2, *LONG, "--steps", 100_000, "--run-folder", "run")
    wait_for(tmp_path / "run/checkpoint.safetensors", process)
    os.kill(pid_of_rank(process.pid, 1), signal.SIGKILL)
    status, _, err = finish(process)
    assert status != 0
    (line,) = own_lines(err)
    assert line.startswith("emcaps: another process of this run ended or does not answer, so this one stops;")
    assert line.endswith("resume with: torchrun --nproc-per-node 2 -m emcaps train --resume run --device cpu")
    step = load(tmp_path / "run/checkpoint.safetensors").step
    config = RunConfig.from_json((tmp_path / "run/config.json").read_text()).override({"train.steps": step + 1})
    assert train(config, tmp_path / "run", device="cpu", data_folder=data, resume=True).complete


def test_a_batch_that_cannot_be_shared_leaves_no_folder(data, tmp_path):
    words = ("train", "tiny", *TINY, "--batch-size", 7, "--device", "cpu")
    status, _, err = finish(start(data, tmp_path, 2, *words))
    assert status != 0
    (line,) = own_lines(err)
    assert line.startswith("emcaps: train.batch_size must be a multiple of 2, the number of processes")
    assert os.listdir(tmp_path / "runs") == []


def test_other_commands_are_refused(emcaps, monkeypatch):
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    status, _, err = emcaps("info")
    assert status == 1
    assert err == (
        "emcaps, process 1 of 2: torchrun started 2 processes, which can train or eval together, not info: start that "
        "with `emcaps` alone\n"
    )
