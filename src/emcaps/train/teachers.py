"""Trained networks that a run learns from, besides the labels (train.teachers).

Teachers see the crops that the network is trained on, mixed as they are. The loss gets the cross-entropy between their
mean answer and the network's own, so that a small network learns what several networks, or large ones, agree on.

Dims: B batch; C channels.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from emcaps.config import DataConfig, RunConfig
from emcaps.data.crops import evaluation_crops
from emcaps.data.prepared import SIDE, class_names
from emcaps.names import first_of
from emcaps.nn.classifier import class_scores, class_shares
from emcaps.nn.losses import TINY
from emcaps.routing import RoutingOutput
from emcaps.train.advice import new_run_command, resume_command
from emcaps.train.checkpoint import load_network
from emcaps.train.randomness import ExampleOrder, own_randomness
from emcaps.train.run_folder import CONFIG, WEIGHTS, read_environment
from emcaps.train.tensor_file import SHIPPED_FOLDER, is_shipped

TEACHER = "teacher "
"""What the fingerprint of a teacher's weights is filed under, before the teacher's number."""
ASKED = 16
"""How many images a teacher must have an answer to before it teaches."""


def load_teachers(config: RunConfig, folder: Path, images: Tensor) -> list[nn.Module]:
    """The networks that a run in `folder` learns from; a ValueError if one of them may not teach it.

    They are on the device of the training images uint8 (N, C, H, W), and must have answers to a few of them. The
    caller's random number generators are left alone.
    """
    teachers: list[nn.Module] = []
    for path in _found(config, folder):
        with own_randomness(images.device):  # new weights are drawn before those of the file replace them
            network, learned, _ = load_network(path, images.device)
        _check_may_teach(_name(path), learned.data, config.data)
        teachers.append(network.eval().requires_grad_(False))
        if not _answers(teachers[-1], images, config).isfinite().all():
            raise ValueError(f"the teacher {_name(path)} answers NaN to images of the run: use another teacher")
    return teachers


def _answers(teacher: nn.Module, images: Tensor, config: RunConfig) -> Tensor:
    """(ASKED, classes): what one teacher says of centre crops of a few images."""
    chosen = ExampleOrder(len(images), ASKED, config.train.seed, images.device).batch(0)
    crops = evaluation_crops(images[chosen], config.data.crop, standardised=config.data.standardise)[:, 0]
    answer = mean_answer([teacher], crops)
    assert answer is not None
    return answer


def teacher_fingerprints(config: RunConfig, folder: Path) -> dict[str, str]:
    """SHA-256 of each teacher's weights, by its number: a resumed run has the same teachers, wherever they lie."""
    paths = enumerate(_found(config, folder), start=1)
    return {f"{TEACHER}{number}": hashlib.sha256(path.read_bytes()).hexdigest() for number, path in paths}


def check_same_teachers(config: RunConfig, folder: Path, seen: Mapping[str, str]) -> None:
    """Raise ValueError if a run had other teachers than `seen`, their fingerprints; a complete run needs none."""
    recorded = read_environment(folder).get("data", seen)
    for (teacher, fingerprint), path in zip(seen.items(), _paths(config, folder), strict=False):
        if recorded.get(teacher) != fingerprint:
            raise ValueError(
                f"the run in {folder} had another {teacher}: its weights were not those of {_name(path)}. Restore "
                "them, or name all teachers where they lie now by --teacher, in the same order, or start a new run: "
                f"{new_run_command(folder)}"
            )


def missing_teachers(config: RunConfig, folder: Path) -> list[Path]:
    """The weights files of those teachers that are not there, or not yet, since their own runs are not complete."""
    return [path for path in _paths(config, folder) if not path.is_file()]


def _found(config: RunConfig, folder: Path) -> list[Path]:
    """The weights files of the teachers; a FileNotFoundError if one is not there."""
    if missing := missing_teachers(config, folder):
        run = missing[0].parent
        if missing[0].name == WEIGHTS and (run / CONFIG).is_file():
            raise FileNotFoundError(
                f"a teacher must be trained to its end, and the run in {run} is not: finish it with "
                f"{resume_command(run)}"
            )
        raise FileNotFoundError(
            f"a teacher would be {missing[0]}, which is not there: name the folder of a run that is complete, a "
            "weights file, or a network that comes with the package, by --teacher. If a resumed run's teachers lie "
            "elsewhere now, name all of them, in the same order"
        )
    return _paths(config, folder)


def _paths(config: RunConfig, folder: Path) -> list[Path]:
    """The weights files of the teachers, as seen from where the command is called. They may not be there yet."""
    return [_path(name, folder) for name in config.train.teachers]


def _path(teacher: str, folder: Path) -> Path:
    """Where a teacher of the run in a folder lies: one of the package is named alone, others from the run's folder."""
    shipped = SHIPPED_FOLDER / f"{teacher}.safetensors"
    if is_shipped(shipped) and shipped.is_file():
        return shipped
    path = Path(os.path.normpath(folder / teacher))  # the folder may not exist yet
    return path / WEIGHTS if path.is_dir() else path


def _name(path: Path) -> str:
    """What a user calls a teacher."""
    return path.stem if is_shipped(path) else str(path)


def _check_may_teach(name: str, theirs: DataConfig, ours: DataConfig) -> None:
    """Raise ValueError unless a teacher reads the images of the run, knows their classes and saw none held out."""
    rule = f"a teacher sees what the network is trained on, but {name}"
    if class_names(theirs) != class_names(ours):
        raise ValueError(
            f"{rule} tells {first_of(class_names(theirs))} apart, and the images show {first_of(class_names(ours))}: "
            "use another teacher"
        )
    channels = "channel" if theirs.image_channels == 1 else "channels"
    side = theirs.size or SIDE, ours.size or SIDE
    differences, remedies = [], []
    for of_teacher, of_run, what, remedy in (
        (theirs.image_channels, ours.image_channels, f"images of {{}} {channels}, not {{}}", _view(theirs, ours)),
        (*side, "images of {} pixels a side, not {}", "images imported with --size {}"),
        (theirs.fit, ours.fit, "images with data.fit {}, not {}", "images imported with --fit {}"),
        (theirs.crop, ours.crop, "crops of {} pixels a side, not {}", "--set data.crop={}"),
        (theirs.standardise, ours.standardise, "images with data.standardise {}, not {}", "--set data.standardise={}"),
    ):
        if of_teacher != of_run:
            differences.append(what.format(of_teacher, of_run))
            remedies.append(remedy.format(of_teacher))
    if differences:
        raise ValueError(f"{rule} reads {'; '.join(differences)}: use {' and '.join(remedies)}, or another teacher")
    if ours.split != "standard" and _trained_on(theirs) != _trained_on(ours):
        raise ValueError(
            f"teachers must not know what the network is tested on, but {name} was trained on "
            f"{_trained_on(theirs)}, not {_trained_on(ours)}: use a teacher that was trained on the same, "
            "or data.split 'standard'"
        )


def _view(theirs: DataConfig, ours: DataConfig) -> str:
    """What gives a run as many channels as its teacher reads."""
    if theirs.channels or ours.channels:  # as the images have them
        return "images of {} channels"
    return "--stereo" if theirs.view == "stereo" else "--set data.view=mono"


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
