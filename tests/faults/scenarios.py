"""What is disturbed: commands that write, each with the folder it starts from and the command that mends it.

A scenario's result is what its command leaves when nothing disturbs it. After a fault and the mending command, the
same must be there, bit for bit.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from emcaps.train.checkpoint import load
from faults.commands import Ended, finish, start
from faults.injected import KILL, Fault

RUN, DATA, SET = "run", "data", "mine"
SETTINGS = (
    "network.impl=reference",
    "network.conv_channels=2",
    "network.primary_types=2",
    "network.conv1_types=2",
    "network.conv2_types=2",
    "data.crop=16",
    "train.log_every=5",
    "train.checkpoint_every=4",
    "train.eval_every=6",
    "train.watch=7",
)
STEPS = 12
TIMES = ("images_per_second", "seconds")


class Scenario(NamedTuple):
    name: str
    template: Path
    """The folder that every case of it starts from a copy of."""
    command: Callable[[Path], list[str]]
    """The arguments of `emcaps` for a copy of the template."""
    mend: Callable[[Path], list[str]]
    result: dict[str, Any]
    whole: Ended
    """How the undisturbed command ended."""
    old: dict[str, Any]
    """The result of the template: what a data set held before."""
    rows: list[dict[str, Any]]
    """All rows of metrics that are right: its own, and those of a run that was trained in one go, which an extended
    run gives if it has to start again from before its first end."""


def result_of(folder: Path) -> dict[str, Any]:
    """What must be the same bit for bit: every file's bytes, but for times and for what says where a run was resumed.

    Of the older checkpoints only the digest is checked: a run that was stopped saved at other steps.
    """
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.name == "metrics.jsonl":
            found[name] = rows(path)
        elif re.fullmatch(r"checkpoint-\d+\.safetensors", path.name):
            found[name] = _is_whole(path)
        elif path.name not in ("environment.json", "checkpoint-damaged.safetensors"):
            found[name] = path.read_bytes()
        else:
            found[name] = ""
    return found


def _is_whole(path: Path) -> bool:
    try:
        load(path)
    except ValueError:
        return False
    return True


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics, without times and without a last line that was cut."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def make_scenarios(folder: Path, slow: bool = True) -> list[Scenario]:
    """Run every command once, undisturbed; with `slow` also the one that starts processes of its own."""
    templates = folder / "templates"
    fresh = templates / "fresh"
    (fresh / DATA).mkdir(parents=True)
    for name, seed in (("old", 1), ("new", 2)):
        images = np.random.default_rng(seed).integers(0, 256, (40, 1, 20, 20), np.uint8)
        np.savez(fresh / f"{name}.npz", images=images, labels=np.arange(40) % 3)

    def run_once(work: Path, arguments: list[str], fault: Fault | None = None) -> Ended:
        return finish(start(arguments, work, fault))

    def started_from(template: Path, name: str) -> Path:
        shutil.copytree(template, templates / name)
        return templates / name

    _must_end(run_once(fresh, _import(fresh, "old")), 0)
    probe = started_from(fresh, "probe")
    seen = _must_end(run_once(probe, _train(probe)), 0).seen
    half = started_from(fresh, "half")
    _must_end(run_once(half, _train(half), Fault(KILL, seen.first_saved + 8)), -9)
    damaged = started_from(fresh, "damaged")
    _must_end(run_once(damaged, _train(damaged), Fault(KILL, seen.touches - 1)), -9)
    with (damaged / RUN / "checkpoint.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 4]))
    short = started_from(fresh, "short")
    _must_end(run_once(short, _train(short, steps=8)), 0)

    commands: dict[str, tuple[Path, Callable[[Path], list[str]]]] = {
        "train": (fresh, _train),
        "resume": (half, _resume),
        "fall back": (damaged, _resume),
        "extend": (short, lambda work: [*_resume(work), "--steps", str(STEPS)]),
        "import": (fresh, lambda work: _import(work, "new")),
    }
    if slow:
        toys = started_from(fresh, "toys")
        _must_end(run_once(toys, _make(toys, seed=1)), 0)
        commands["make"] = toys, _make
    found, good_rows = [], list[dict[str, Any]]()
    for name, (template, command) in commands.items():
        work = started_from(template, f"whole {name}")
        whole = _must_end(run_once(work, command(work)), 0)
        mend = _train_or_resume if name == "train" else command
        result = result_of(work)
        good_rows += result.get(f"{RUN}/metrics.jsonl", [])
        found.append(Scenario(name, template, command, mend, result, whole, result_of(template), good_rows))
    for other in found[1:3]:  # a whole run, and one that was resumed
        for name in ("checkpoint", "weights"):
            assert other.result[f"{RUN}/{name}.safetensors"] == found[0].result[f"{RUN}/{name}.safetensors"]
    return found


def _must_end(ended: Ended, status: int) -> Ended:
    if ended.status != status:
        raise RuntimeError(f"an undisturbed command ended with {ended.status}, not {status}:\n{ended.said}")
    return ended


def _train(work: Path, steps: int = STEPS) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    sizes = ["--steps", str(steps), "--batch-size", "4", "--device", "cpu"]
    return ["train", "tiny", "--data", SET, "--run", str(work / RUN), "--folder", str(work / DATA), *sizes, *settings]


def _resume(work: Path) -> list[str]:
    return ["train", "--resume", str(work / RUN), "--folder", str(work / DATA), "--device", "cpu"]


def _train_or_resume(work: Path) -> list[str]:
    """A run that has its settings is resumed; before that it has not begun, and the same command begins it."""
    return _resume(work) if (work / RUN / "config.json").exists() else _train(work)


def _make(work: Path, seed: int = 0) -> list[str]:
    return ["data", "make", "--quick", "--seed", str(seed), "--folder", str(work / DATA)]


def _import(work: Path, name: str) -> list[str]:
    return ["data", "import", str(work / f"{name}.npz"), "--name", SET, "--replace", "--folder", str(work / DATA)]
