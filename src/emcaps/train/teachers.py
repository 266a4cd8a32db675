"""Trained networks that a run learns from, besides the labels (train.teachers).

Teachers see the crops that the network is trained on, mixed as they are. The loss gets the cross-entropy between their
mean answer and the network's own, so that a small network learns what several networks, or large ones, agree on.

Dims: B batch; C channels.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from emcaps.config import DataConfig, RunConfig
from emcaps.data.prepared import SIDE, class_names
from emcaps.data.splits import VALIDATIONS
from emcaps.nn.classifier import class_scores, class_shares
from emcaps.nn.losses import TINY
from emcaps.routing import RoutingOutput
from emcaps.train.checkpoint import load_network
from emcaps.train.randomness import own_randomness
from emcaps.train.run_folder import TEACHER, WEIGHTS


def load_teachers(config: RunConfig, folder: Path, device: torch.device) -> list[nn.Module]:
    """The networks that a run in `folder` learns from; a ValueError if one of them may not teach it.

    The caller's random number generators are left alone.
    """
    teachers: list[nn.Module] = []
    for path in _found(config, folder):
        with own_randomness(device):  # new weights are drawn before those of the file replace them
            network, learned, _ = load_network(path, device)
        _check_may_teach(path, learned.data, config.data)
        teachers.append(network.eval().requires_grad_(False))
    return teachers


def teacher_fingerprints(config: RunConfig, folder: Path) -> dict[str, str]:
    """SHA-256 of each teacher's weights, by its number: a resumed run has the same teachers, wherever they lie."""
    paths = enumerate(_found(config, folder), start=1)
    return {f"{TEACHER}{number}": hashlib.sha256(path.read_bytes()).hexdigest() for number, path in paths}


def missing_teachers(config: RunConfig, folder: Path) -> list[Path]:
    """The weights files of those teachers that are not there, or not yet, since their own runs are not complete."""
    return [path for path in _paths(config, folder) if not path.is_file()]


def _found(config: RunConfig, folder: Path) -> list[Path]:
    """The weights files of the teachers; a FileNotFoundError if one is not there."""
    if missing := missing_teachers(config, folder):
        raise FileNotFoundError(
            f"train.teachers names {missing[0]}, which is not there: a teacher is a weights file, or the folder of a "
            f"run that is complete and has {WEIGHTS}, as a path from the folder of the run that learns; to resume a "
            "run whose teachers lie elsewhere now, name all of them by --teacher, in the same order"
        )
    return _paths(config, folder)


def _paths(config: RunConfig, folder: Path) -> list[Path]:
    """The weights files of the teachers, which are named from the run's folder. They may not be there yet."""
    paths = [Path(os.path.normpath(folder / name)) for name in config.train.teachers]  # the folder may not exist yet
    return [path / WEIGHTS if path.is_dir() else path for path in paths]


def _check_may_teach(path: Path, theirs: DataConfig, ours: DataConfig) -> None:
    """Raise ValueError unless a teacher reads the images of the run, knows their classes and saw none held out."""
    for what, of_teacher, of_run in (
        ("answers with the classes", class_names(theirs), class_names(ours)),
        ("reads images of so many channels:", theirs.image_channels, ours.image_channels),
        ("reads images that were brought to so many pixels a side:", theirs.size or SIDE, ours.size or SIDE),
        ("reads images with data.fit", theirs.fit, ours.fit),
        ("reads crops of so many pixels:", theirs.crop, ours.crop),
        ("reads images with data.standardise", theirs.standardise, ours.standardise),
    ):
        if of_teacher != of_run:
            raise ValueError(
                f"a teacher sees what the network is trained on, but {path} {what} {of_teacher}, not {of_run}: use "
                "another teacher, or the settings of its run"
            )
    if ours.split in VALIDATIONS and _trained_on(theirs) != _trained_on(ours):
        raise ValueError(
            f"teachers must not know what the network is validated on, but {path} was trained on "
            f"{_trained_on(theirs)}, not {_trained_on(ours)}: use a teacher that was trained on the same, "
            "or data.split 'standard'"
        )


def _trained_on(data: DataConfig) -> str:
    return f"{data.dataset}, split {data.split!r}, fold {data.fold}"


@torch.no_grad()
def mean_answer(teachers: Sequence[nn.Module], crops: Tensor) -> Tensor | None:
    """(B, classes): what the teachers say of crops (B, C, H, W), as shares of 1; None if there are no teachers."""
    if not teachers:
        return None
    return torch.stack([class_shares(class_scores(teacher(crops))) for teacher in teachers]).mean(0)


def teaching_loss(output: RoutingOutput | Tensor, answer: Tensor) -> Tensor:
    """The cross-entropy between the teachers' answer and that of class capsules or logits, the mean over examples."""
    if isinstance(output, RoutingOutput):
        shares = (output.activation + TINY).log() - (output.activation.sum(-1, keepdim=True) + TINY).log()
    else:
        shares = output.log_softmax(-1)
    return -(answer * shares).sum(-1).mean()
