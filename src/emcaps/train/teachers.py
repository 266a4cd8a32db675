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

from emcaps.config import RunConfig
from emcaps.data.prepared import class_names
from emcaps.nn.classifier import class_scores, class_shares
from emcaps.nn.losses import TINY
from emcaps.routing import RoutingOutput
from emcaps.train.checkpoint import load_network
from emcaps.train.run_folder import TEACHER, WEIGHTS


def load_teachers(config: RunConfig, folder: Path, device: torch.device) -> list[nn.Module]:
    """The networks that a run in `folder` learns from; a ValueError if one reads other images or has other classes."""
    teachers: list[nn.Module] = []
    for path in _paths(config, folder):
        network, learned, _ = load_network(path, device)
        for what, theirs, ours in (
            ("answers with the classes", class_names(learned.data), class_names(config.data)),
            ("reads images of so many channels:", learned.data.image_channels, config.data.image_channels),
            ("reads crops of so many pixels:", learned.data.crop, config.data.crop),
            ("reads images with data.standardise", learned.data.standardise, config.data.standardise),
        ):
            if theirs != ours:
                raise ValueError(
                    f"a teacher sees what the network is trained on, but {path} {what} {theirs}, not {ours}: use "
                    "another teacher, or the settings of its run"
                )
        teachers.append(network.eval().requires_grad_(False))
    return teachers


def teacher_fingerprints(config: RunConfig, folder: Path) -> dict[str, str]:
    """SHA-256 of each teacher's weights, which tells whether a resumed run has the same teachers."""
    paths = zip(config.train.teachers, _paths(config, folder), strict=True)
    return {TEACHER + name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths}


def _paths(config: RunConfig, folder: Path) -> list[Path]:
    """The weights files of the teachers, which are named from the run's folder."""
    paths = [Path(os.path.normpath(folder / name)) for name in config.train.teachers]  # the folder may not exist yet
    paths = [path / WEIGHTS if path.is_dir() else path for path in paths]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(
                f"train.teachers names {path}, which is not there: a teacher is a weights file, or the folder of a run "
                f"that is complete and has {WEIGHTS}, as a path from the folder of the run that learns"
            )
    return paths


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
