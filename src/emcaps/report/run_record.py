"""What the files of a run folder say, as far as they are whole: a run may be in training, interrupted or damaged.

Nothing here fails on a file that is missing or broken, but for the settings, without which there is nothing to tell.
What could not be read is told in `notes`, a sentence each.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from emcaps.config import RunConfig
from emcaps.data.prepared import class_names
from emcaps.files import read_json
from emcaps.names import first_of
from emcaps.train.checkpoint import kept_checkpoints, load
from emcaps.train.evaluate import Evaluation
from emcaps.train.run_folder import (
    CHECKPOINT,
    CONFIG,
    EVALUATION,
    FAILURE,
    MANY_CROPS,
    METRICS,
    ROUTING,
    WEIGHTS,
    read_config,
    read_environment,
    read_evaluation,
    read_routing,
    read_row,
)


class RunRecord(NamedTuple):
    folder: Path
    name: str
    """What the page calls it."""
    config: RunConfig
    environment: dict[str, Any]
    rows: list[dict[str, Any]]
    """The rows of the metrics that can be read, by rising step."""
    evaluations: dict[str, Evaluation]
    """What evaluation.json holds, by the part that was tested; empty if the run is not complete."""
    many_crops: float | None
    """The accuracy with 13 crops an image, 0 to 1, if that was evaluated."""
    routing: tuple[dict[str, Any], ...]
    """The measurements of routing.json, by step."""
    notes: list[str]

    @property
    def step(self) -> int:
        """The last step that the metrics tell of."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def seconds(self) -> float:
        """How long training took, or has taken so far."""
        return max((float(row["seconds"]) for row in self.rows if "seconds" in row), default=0.0)

    @property
    def accuracy(self) -> tuple[float, int] | None:
        """The last accuracy on the test part, 0 to 1, and its step."""
        if "test" in self.evaluations:
            return self.evaluations["test"].accuracy, self.config.train.steps
        found = [(float(row["test_accuracy"]), row["step"]) for row in self.rows if "test_accuracy" in row]
        return found[-1] if found else None

    @property
    def weights(self) -> list[Path]:
        """The files that may hold the network, the best first: the weights, then the checkpoints."""
        return [path for path in (self.folder / WEIGHTS, *kept_checkpoints(self.folder / CHECKPOINT)) if path.is_file()]


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """The records of the folders, each once, with names that differ."""
    unique = list({folder.resolve(): folder for folder in folders}.values())
    return [read_run(folder, name) for folder, name in zip(unique, short_names(unique), strict=True)]


def short_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the folders' paths, as many as tell them apart: "seed0", or "it2/seed0" and "it3/seed0"."""
    parts = [folder.resolve().parts[1:] or ("/",) for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("two folders are the same")


def read_run(folder: Path, name: str = "") -> RunRecord:
    notes: list[str] = []
    config = _config(folder, notes)
    rows = _rows(folder, notes)
    evaluations = _evaluations(folder, config, notes)
    record = RunRecord(
        folder,
        name or folder.resolve().name,
        config,
        _environment(folder, notes),
        rows,
        evaluations,
        _many_crops(folder, config, notes),
        _routing(folder, notes),
        notes,
    )
    _tell_how_far(record)
    return record


def _config(folder: Path, notes: list[str]) -> RunConfig:
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no run folder {folder}: name a folder that `emcaps train` made")
    try:
        return read_config(folder)
    except (ValueError, FileNotFoundError) as error:
        for path in (folder / WEIGHTS, *kept_checkpoints(folder / CHECKPOINT)):
            try:
                config = load(path).config
            except (ValueError, OSError):
                continue
            notes.append(f"{CONFIG} cannot be read; the settings are those of {path.name}. {_sentence(error)}")
            return config
        raise


def _rows(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    path = folder / METRICS
    if not path.is_file():
        notes.append(f"There is no {METRICS} yet, so there are no curves.")
        return []
    lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    rows, damaged = [], []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(read_row(line))
        except ValueError:
            damaged.append(str(number))
    if damaged and lines != [b""]:
        lost = f"{'lines' if len(damaged) > 1 else 'line'} {first_of(damaged)}"
        notes.append(f"{METRICS} is damaged or cut short: it was read without {lost} of {len(lines)}.")
    return sorted(rows, key=lambda row: int(row["step"]))


def _evaluations(folder: Path, config: RunConfig, notes: list[str]) -> dict[str, Evaluation]:
    path = folder / EVALUATION
    if not path.is_file():
        return {}
    found = {}
    try:
        read_evaluation(path)
        for part, content in read_json(path).items():
            if isinstance(content, dict):
                found[part] = _evaluation(content, config)
    except (ValueError, KeyError, TypeError, OverflowError, OSError) as error:
        notes.append(f"{EVALUATION} cannot be read. {_sentence(error)}")
        return {}
    return found


def _evaluation(content: dict[str, Any], config: RunConfig) -> Evaluation:
    confusion = [[int(count) for count in row] for row in content["confusion"]]
    classes = len(confusion)
    if not classes or any(len(row) != classes or min(row) < 0 for row in confusion):
        raise ValueError(f"{EVALUATION} is damaged (the confusion matrix is not square): restore it from another copy")
    names = tuple(map(str, content.get("names", class_names(config.data))))
    if len(names) != classes:
        names = tuple(f"class {number}" for number in range(classes))
    return Evaluation(float(content["accuracy"]), int(content["images"]), confusion, names=names)


def _many_crops(folder: Path, config: RunConfig, notes: list[str]) -> float | None:
    path = folder / MANY_CROPS
    if not path.is_file():
        return None
    try:
        accuracy, step = read_evaluation(path)
    except (ValueError, OSError) as error:
        notes.append(_sentence(error))
        return None
    return accuracy if step == config.train.steps else None


def _environment(folder: Path, notes: list[str]) -> dict[str, Any]:
    try:
        found = read_environment(folder)
    except (ValueError, OSError) as error:
        notes.append(_sentence(error))
        return {}
    if not found:
        notes.append("There is no environment.json, so it is not known where the run was trained.")
    return found


def _routing(folder: Path, notes: list[str]) -> tuple[dict[str, Any], ...]:
    try:
        found = read_routing(folder)
        return tuple(one for one in found if isinstance(one.get("layers"), dict))
    except (ValueError, OSError) as error:
        notes.append(f"{ROUTING} cannot be read. {_sentence(error)}")
        return ()


def _tell_how_far(record: RunRecord) -> None:
    """Note whether the run is complete, in training, stopped or failed."""
    if (record.folder / FAILURE).is_file():
        record.notes.append("The run failed: its loss, weights or answers became infinite or NaN.")
    elif not record.evaluations:
        resume = f"emcaps train --resume {shlex.quote(str(record.folder))}"
        record.notes.append(
            f"The run is not complete: it is at step {record.step:,} of {record.config.train.steps:,}. Either it is "
            f"still in training, or it was stopped and can be resumed: {resume}"
        )
    if not record.weights:
        record.notes.append("The folder holds no weights, so nothing can be told of single images and of the routing.")


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
