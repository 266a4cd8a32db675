"""A run's folder: it says what was run, and holds everything that the run found.

config.json             the resolved settings
environment.json        versions, commit, machine and time of start
metrics.jsonl           one row per `log_every` steps, and one per evaluation
checkpoint.safetensors  everything needed to resume; checkpoint-1.safetensors is the one before it, and so on
weights.safetensors     the network when the run is complete: its last weights, or their average (train.average)
evaluation.json         accuracy and confusion matrix of those weights, and errors by object where objects are known
evaluation-13-crops.json, routing.json, viewpoints.json, moved.json and failure.json are written by experiments: the
                        accuracy with 13 crops an image; loss, gradients and sharpness of routing, by step; errors by
                        viewpoint; right answers to changed images; the step by which loss, weights or answers were not
                        finite
.lock                   held by the process that is at work on the run
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from emcaps.config import RunConfig
from emcaps.config_rules import MOST_STEPS
from emcaps.data.prepared import Examples, fingerprint
from emcaps.files import append_line, explain_disk_errors, parse_json, read_json, write_json, write_text
from emcaps.provenance import environment
from emcaps.train import distributed
from emcaps.train.advice import resume_command
from emcaps.train.checkpoint import CHECKPOINT as CHECKPOINT
from emcaps.train.checkpoint import WEIGHTS as WEIGHTS
from emcaps.train.checkpoint import kept_checkpoints

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger("emcaps")

CONFIG, ENVIRONMENT, METRICS = "config.json", "environment.json", "metrics.jsonl"
EVALUATION, MANY_CROPS, VIEWPOINTS = "evaluation.json", "evaluation-13-crops.json", "viewpoints.json"
ROUTING, FAILURE = "routing.json", "failure.json"
LOCK = ".lock"
HAS_LOCKS = fcntl is not None
OF_LAST_WEIGHTS = "accuracy_of_last_weights"
"""The last row of the metrics of a run with train.average has this, too, for each part that is tested: the accuracy
without the average."""


class TakenRunError(ValueError):
    """There is a run in the folder already."""


class BusyRunError(TakenRunError):
    """Another process is at work on the run."""


@contextmanager
def only_user(folder: Path) -> Iterator[None]:
    """Keep a second process out of a run's folder; the system lets go of the lock even if this one is killed."""
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with explain_disk_errors(folder / LOCK):
            file = stack.enter_context(open(folder / LOCK, "a"))
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyRunError(f"another process is at work on {folder}: wait for it, or stop it") from None
        yield


def start_run(folder: Path, config: RunConfig, device: torch.device, data: Mapping[str, str]) -> None:
    """Write down what a new run is; refuse a folder that holds one. `data` holds the fingerprint of each part."""
    found = any((folder / name).exists() for name in (CONFIG, METRICS, CHECKPOINT, WEIGHTS))
    if found or kept_checkpoints(folder / CHECKPOINT):
        raise TakenRunError(
            f"{folder} holds a run already: resume it with {resume_command(folder)}, or name another folder"
        )
    write_json(folder / ENVIRONMENT, environment(device) | distributed.provenance() | {"data": dict(data)})
    write_text(folder / CONFIG, config.to_json() + "\n")  # last, so that a folder with a config is a whole one


def undo_start(folder: Path) -> None:
    """Take back what `start_run` wrote, for a run that could not take its first step."""
    for name in (CONFIG, ENVIRONMENT):
        (folder / name).unlink(missing_ok=True)


def continue_run(folder: Path, config: RunConfig, device: torch.device, data: Mapping[str, str], step: int) -> None:
    """Record that a run resumes from `step`, and drop what it will compute again: metrics, weights, evaluation.

    `data` holds the fingerprint of each part and, if there is anything left to learn, those of the teachers.
    """
    found = read_environment(folder)
    seen = found.get("data", data)
    if any(seen.get(name) != data[name] for name in data):
        raise ValueError(
            f"the run in {folder} was trained on other data than this: put back what was added, changed or removed "
            "since, or name where its data lie, with --folder, or with --data if it is a folder of pictures or a file"
        )
    if "data" not in found and read_config(folder).data.dataset != config.data.dataset:
        raise ValueError(f"the run in {folder} did not record its data, so they cannot be others: leave out --data")
    # Read before anything is written: this raises if a line is damaged, and then the run must be left as it was.
    rows = [row for row in read_metrics(folder) if row["step"] <= step]
    _tell_of_lost_rows(folder, rows, config.train.log_every, step)
    _tell_of_other_threads(folder, found, device)
    for left in folder.glob(".*.part"):  # by a writer that was killed; its lock is ours now
        if left.is_file():
            left.unlink()
    found.setdefault("resumed", []).append({"step": step} | environment(device) | distributed.provenance())
    if step < config.train.steps:
        for name in (WEIGHTS, EVALUATION):
            (folder / name).unlink(missing_ok=True)
    write_json(folder / ENVIRONMENT, found)
    write_text(folder / CONFIG, config.to_json() + "\n")
    write_text(folder / METRICS, "".join(json.dumps(row) + "\n" for row in rows))


def _tell_of_lost_rows(folder: Path, rows: list[dict[str, Any]], log_every: int, step: int) -> None:
    """Warn if the metrics lack rows from before `step`, which a resumed run does not make again."""
    found = {row["step"] for row in rows if "loss" in row and row["step"] % log_every == 0}
    expected = step // log_every
    if len(found) < expected:
        first = next(one for one in itertools.count(log_every, log_every) if one not in found)
        logger.warning(
            "%s lacks %d of the %d rows up to step %d, the first that of step %d: they are lost, unless you stop "
            "the run and restore the file from another copy. Training is not affected",
            folder / METRICS,
            expected - len(found),
            expected,
            step,
            first,
        )


def _tell_of_other_threads(folder: Path, found: Mapping[str, Any], device: torch.device) -> None:
    """Warn if a run on a CPU resumes with another number of threads than it was started with."""
    before, now = found.get("threads"), torch.get_num_threads()
    on_cpus = device.type == "cpu" and str(found.get("device", "")).startswith("cpu")
    if on_cpus and before is not None and before != now:
        logger.warning(
            "the run in %s was started with %d threads and resumes with %d, so its last bits may differ from those of "
            "an uninterrupted run: set OMP_NUM_THREADS=%d to avoid that",
            folder,
            before,
            now,
            before,
        )


def read_environment(folder: Path) -> dict[str, Any]:
    """What the run wrote down of its machine and data; empty if that file is not there."""
    path = folder / ENVIRONMENT
    found = read_json(path) if path.exists() else {}
    for key, kind, rule in (("data", dict, "a table"), ("resumed", list, "a list"), ("threads", int, "a whole number")):
        if not isinstance(found.get(key, kind()), kind):
            raise ValueError(f"{path} is damaged ({key!r} must be {rule}): restore it from another copy, or delete it")
    return found


def is_data_of(folder: Path, parts: Mapping[str, Examples]) -> bool:
    """Whether these are the "train" and "test" examples of the run, as far as it wrote that down and they are given."""
    recorded = read_environment(folder).get("data", {})
    return all(fingerprint(parts[name]) == recorded[name] for name in parts if name in recorded)


def read_config(folder: Path) -> RunConfig:
    """The settings of an existing run."""
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} is not a run folder: it has no {CONFIG}; name a folder that emcaps train made, or restore that "
            "file"
        )
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
    path = folder / METRICS
    *lines, cut = path.read_bytes().split(b"\n") if path.exists() else [b""]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(read_row(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is damaged ({error}): delete that line") from error
    with suppress(ValueError):
        rows.append(read_row(cut))  # it may lack no more than the end of the line
    return rows


def read_row(line: bytes) -> dict[str, Any]:
    """One line of the metrics; a ValueError if it is no row of numbers with a step."""
    row = parse_json(line)
    if not isinstance(row, dict) or type(row.get("step")) is not int or not 0 <= row["step"] <= MOST_STEPS:
        raise ValueError("no row with a step")
    for name, value in row.items():
        if type(value) is not float and not (type(value) is int and abs(value) <= MOST_STEPS):
            raise ValueError(f"{name!r} must be a number")
    return row


def read_evaluation(path: Path) -> tuple[float, int]:
    """The accuracy on the test part, 0 to 1, and the step it was found at."""
    found = read_json(path)
    try:
        accuracy, step = float(found["test"]["accuracy"]), int(found["step"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{path} is damaged (no test accuracy and step): restore it from another copy") from error
    if not 0 <= accuracy <= 1:
        raise ValueError(f"{path} is damaged (an accuracy of {accuracy}): restore it from another copy")
    return accuracy, step


def read_routing(folder: Path) -> tuple[dict[str, Any], ...]:
    """The measurements of routing that the run has so far, by step."""
    path = folder / ROUTING
    if not path.exists():
        return ()
    try:
        found: tuple[dict[str, Any], ...] = tuple(parse_json(path.read_bytes()))
        if not all(isinstance(one["step"], int) for one in found):
            raise ValueError("a measurement without a step")
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}): restore it from another copy") from error
    return found
