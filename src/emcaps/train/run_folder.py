"""A run's folder: it says what was run, and holds everything that the run found.

config.json             the resolved settings
environment.json        versions, commit, machine and time of start
metrics.jsonl           one row per `log_every` steps, and one per evaluation
checkpoint.safetensors  everything needed to resume
weights.safetensors     the last step's network, when the run is complete
evaluation.json         accuracy and confusion matrix of those weights
.lock                   held by the process that is at work on the run
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from emcaps.config import RunConfig
from emcaps.data.prepared import Examples, fingerprint
from emcaps.files import append_line, read_json, write_json, write_text
from emcaps.provenance import environment
from emcaps.train import distributed

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.jsonl"
CHECKPOINT, WEIGHTS, EVALUATION = "checkpoint.safetensors", "weights.safetensors", "evaluation.json"
LOCK = ".lock"
HAS_LOCKS = fcntl is not None


class TakenRunError(ValueError):
    """There is a run in the folder already."""


class BusyRunError(TakenRunError):
    """Another process is at work on the run."""


@contextmanager
def only_user(folder: Path) -> Iterator[None]:
    """Keep a second process out of a run's folder; the system lets go of the lock even if this one is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyRunError(f"another process is at work on {folder}: wait for it, or stop it") from None
        yield


def start_run(folder: Path, config: RunConfig, device: torch.device, data: Mapping[str, str]) -> None:
    """Write down what a new run is; refuse a folder that holds one. `data` holds the fingerprint of each part."""
    if any((folder / name).exists() for name in (CONFIG, METRICS, CHECKPOINT, WEIGHTS)):
        raise TakenRunError(
            f"{folder} holds a run already: resume it with --resume {shlex.quote(str(folder))}, or name another folder"
        )
    write_json(folder / ENVIRONMENT, environment(device) | distributed.provenance() | {"data": dict(data)})
    write_text(folder / CONFIG, config.to_json() + "\n")  # last, so that a folder with a config is a whole one


def continue_run(folder: Path, config: RunConfig, device: torch.device, data: Mapping[str, str], step: int) -> None:
    """Record that a run resumes from `step`, and drop what it will compute again: metrics, weights, evaluation."""
    found = read_json(folder / ENVIRONMENT) if (folder / ENVIRONMENT).exists() else {}
    if found.get("data", data) != data:
        raise ValueError(
            f"the run in {folder} was trained on other data than this: name the folder of its data with --folder"
        )
    # Read before anything is written: this raises if a line is damaged, and then the run must be left as it was.
    rows = [row for row in read_metrics(folder) if row["step"] <= step]
    found.setdefault("resumed", []).append({"step": step} | environment(device) | distributed.provenance())
    if step < config.train.steps:
        for name in (WEIGHTS, EVALUATION):
            (folder / name).unlink(missing_ok=True)
    write_json(folder / ENVIRONMENT, found)
    write_text(folder / CONFIG, config.to_json() + "\n")
    write_text(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows))


def is_data_of(folder: Path, parts: Mapping[str, Examples]) -> bool:
    """Whether these are the "train" and "test" examples of the run, as far as it wrote that down and they are given."""
    found = read_json(folder / ENVIRONMENT) if (folder / ENVIRONMENT).exists() else {}
    recorded = found.get("data", {})
    return all(fingerprint(parts[name]) == recorded[name] for name in parts if name in recorded)


def read_config(folder: Path) -> RunConfig:
    """The settings of an existing run."""
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no {CONFIG}")
    settings = read_json(folder / CONFIG)
    try:
        return RunConfig.from_dict(settings)
    except ValueError as error:
        raise ValueError(
            f"{folder / CONFIG}: {error}; restore it, or use the version of emcaps that wrote it"
        ) from error


def append_metrics(folder: Path, row: Mapping[str, Any]) -> None:
    """Add a row to the run's metrics."""
    append_line(folder / METRICS, json.dumps(row))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All rows, without a last line that a killed process cut short."""
    rows: list[dict[str, Any]] = []
    path = folder / METRICS
    lines = path.read_bytes().splitlines() if path.exists() else []
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                raise ValueError("no row with a step")
            rows.append(row)
        except ValueError as error:
            if number + 1 < len(lines):
                raise ValueError(f"{path}, line {number + 1} is damaged ({error}): delete that line") from error
    return rows


def read_evaluation(path: Path) -> tuple[float, int]:
    """The accuracy on the test part, 0 to 1, and the step it was found at."""
    found = read_json(path)
    try:
        accuracy, step = float(found["test"]["accuracy"]), int(found["step"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged (no test accuracy and step): restore it from another copy") from error
    if not 0 <= accuracy <= 1:
        raise ValueError(f"{path} is damaged (an accuracy of {accuracy}): restore it from another copy")
    return accuracy, step
