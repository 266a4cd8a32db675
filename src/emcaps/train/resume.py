"""What a run resumes from, and the few settings that may differ when it does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

from emcaps.config import SECTIONS, RunConfig
from emcaps.names import shown
from emcaps.train import checkpoint as checkpoints
from emcaps.train import run_folder as folders
from emcaps.train.advice import new_run_command

MAY_CHANGE = ("train.steps", "train.graph", "train.keep_checkpoints", "train.teachers", "data.dataset")
"""Settings that a resumed run may change: how far it goes, how steps are launched, how many checkpoints are kept, and
where its teachers and its data lie, which stay the same ones."""
RULE = (
    f"{', '.join(MAY_CHANGE)} may change: steps not with a cosine learning rate or train.average, teachers and data "
    "only in where they lie"
)


def check_may_resume(folder: Path, config: RunConfig) -> None:
    """Raise ValueError if the run in a folder has settings that cannot become those of `config`."""
    if refused := _refused_changes(folders.read_config(folder), config):
        changes = "; ".join(f"{one.name} is {one.before} and cannot become {one.after}" for one in refused)
        raise ValueError(
            f"a resumed run keeps its settings, but in {folder} {changes}. Only {RULE}. Leave out "
            f"the others, or start a new run with them: {new_run_command(folder)}"
        )


def saved_state(folder: Path, config: RunConfig) -> checkpoints.Checkpoint | None:
    """The checkpoint to resume from; None if the run was stopped before its first one, so that it starts over."""
    check_may_resume(folder, config)
    saved = checkpoints.load_newest(folder / folders.CHECKPOINT)
    if saved is None:
        _check_nothing_is_lost(folder, config)
        return None
    if refused := _refused_changes(saved.config, config):
        changes = "; ".join(f"{one.name} is {one.after}, not {one.before}" for one in refused)
        raise ValueError(
            f"{folders.CONFIG} and {saved.path.name} in {folder} have different settings, so one was changed. In "
            f"{folders.CONFIG} {changes}: set it back"
        )
    if saved.step > config.train.steps:
        raise ValueError(
            f"the run in {folder} is at step {saved.step} already, beyond train.steps {config.train.steps}: name at "
            f"least {saved.step} steps, or start a new run: {new_run_command(folder)} --steps "
            f"{config.train.steps}"
        )
    return saved


class _Change(NamedTuple):
    name: str
    before: str
    after: str


def _refused_changes(before: RunConfig, after: RunConfig) -> list[_Change]:
    """The settings that differ and must not."""
    changes = []
    for section, kind in SECTIONS.items():
        for field in dataclasses.fields(kind):
            old, new = (getattr(getattr(config, section), field.name) for config in (before, after))
            if old != new and not _may_change(f"{section}.{field.name}", before, after):
                changes.append(_Change(f"{section}.{field.name}", shown(old), shown(new)))
    return changes


def _may_change(name: str, before: RunConfig, after: RunConfig) -> bool:
    if name == "train.steps":  # a cosine, and what is averaged, depend on the number of all steps
        return before.train.learning_rate_schedule != "cosine" and not before.train.average
    if name == "train.teachers":  # their weights are compared when they are loaded
        return len(before.train.teachers) == len(after.train.teachers)
    if name == "data.dataset":  # a folder or a file of one's own, whose images are compared when they are loaded
        return Path(before.data.dataset).is_absolute() and Path(after.data.dataset).expanduser().exists()
    return name in MAY_CHANGE


def _check_nothing_is_lost(folder: Path, config: RunConfig) -> None:
    """Refuse to start a run over if it had got further than to its first checkpoint: its results would be lost."""
    found = [name for name in (folders.WEIGHTS, folders.EVALUATION) if (folder / name).exists()]
    last = max((row["step"] for row in folders.read_metrics(folder)), default=0)
    if found or last > config.train.checkpoint_every:
        raise ValueError(
            f"the run in {folder} has got to step {last}, but it has no {folders.CHECKPOINT} to resume from, and to "
            "start over would lose what it found: restore the checkpoint, or start a new run: "
            f"{new_run_command(folder)}"
        )
