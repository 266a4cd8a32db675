"""Weights and checkpoints on disk: safetensors with a digest (tensor_file.py), written atomically.

weights.safetensors     the network's parameters, with the run's config in the header: enough to evaluate
checkpoint.safetensors  the same plus the optimiser's state, the step, the sums since the last metrics row and, with
                        train.average, the mean of the weights: enough to resume to bit-identical numbers
checkpoint-1.safetensors, checkpoint-2.safetensors and so on are the checkpoints before it, newest first.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from emcaps.config import RunConfig
from emcaps.config_rules import MOST_STEPS
from emcaps.nn import build_network
from emcaps.nn.classifier import Classifier
from emcaps.routing.availability import choose_implementation, unavailable
from emcaps.train.advice import new_run_command, resume_command
from emcaps.train.average import AveragedWeights
from emcaps.train.device import pick_device
from emcaps.train.tensor_file import DamagedFileError, read_tensors, write_tensors

logger = logging.getLogger("emcaps")

CHECKPOINT, WEIGHTS = "checkpoint.safetensors", "weights.safetensors"
NETWORK, OPTIMISER, SUMS, AVERAGE = "network.", "optimiser.", "sums.", "average."


class Checkpoint(NamedTuple):
    path: Path
    config: RunConfig
    step: int
    tensors: dict[str, Tensor]


def save_weights(path: Path, network: nn.Module, config: RunConfig, step: int) -> None:
    _save(path, _with_prefix(NETWORK, network.state_dict()), config, step)


def save_checkpoint(
    path: Path,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    sums: dict[str, Tensor],
    average: AveragedWeights,
    config: RunConfig,
    step: int,
) -> None:
    """Write a checkpoint; of those before it `train.keep_checkpoints` says how many are kept."""
    names = _names_in_order(network, optimiser)
    state = {
        f"{names[index]}.{key}": value
        for index, values in optimiser.state_dict()["state"].items()
        for key, value in values.items()
    }
    tensors = _with_prefix(NETWORK, network.state_dict()) | _with_prefix(OPTIMISER, state) | _with_prefix(SUMS, sums)
    tensors |= _with_prefix(AVERAGE, average.state())
    keep = config.train.keep_checkpoints
    _save(path, tensors, config, step, older=[_older(path, number) for number in range(1, keep)])
    drop_older(path, keep)


def drop_older(path: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints."""
    for superfluous in kept_checkpoints(path)[keep:]:
        superfluous.unlink()


def _older(path: Path, number: int | str) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def kept_checkpoints(path: Path) -> list[Path]:
    """The checkpoint at `path` and those before it, newest first, as far as they are there."""
    numbers = [found.stem.removeprefix(f"{path.stem}-") for found in path.parent.glob(_older(path, "*").name)]
    older = [_older(path, number) for number in sorted(int(number) for number in numbers if number.isdecimal())]
    return [found for found in (path, *older) if found.is_file()]


def load_newest(path: Path) -> Checkpoint | None:
    """The newest whole one of the checkpoint at `path` and those before it, with a warning unless it is the first.

    None if there is none at all; a DamagedFileError if all of them are damaged.
    """
    damaged: dict[Path, str] = {}
    for found in kept_checkpoints(path):
        try:
            checkpoint = load(found)
        except DamagedFileError as error:
            damaged[found] = error.wrong
            continue
        if found != path:
            wrong = "; ".join(f"{one} is damaged ({why})" for one, why in damaged.items()) or f"there is no {path}"
            logger.warning(
                "%s. The run resumes from %s, from step %d on",
                wrong,
                found.name,
                checkpoint.step,
            )
        return checkpoint
    if damaged:
        newest, wrong = next(iter(damaged.items()))
        remedy = f"use another copy of one, or train again: {new_run_command(path.parent)}"
        raise DamagedFileError(newest, wrong, f"no other checkpoint of the run is whole, so {remedy}")
    return None


def make_newest(checkpoint: Checkpoint, path: Path) -> None:
    """Put a checkpoint that `load_newest` gave in the place of the damaged ones, which would else outlive it.

    The newest damaged one is set aside as checkpoint-damaged.safetensors, in case there is something to find out.
    """
    kept = kept_checkpoints(path)
    newer = kept[: kept.index(checkpoint.path)]
    for damaged in reversed(newer):
        os.replace(damaged, _older(path, "damaged"))
    os.replace(checkpoint.path, path)


def restore(
    checkpoint: Checkpoint,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    sums: dict[str, Tensor],
    average: AveragedWeights,
) -> None:
    """Put a checkpoint's state into a freshly built network, optimiser, sums and mean of the weights."""
    parts = {part: _without_prefix(part, checkpoint.tensors) for part in (NETWORK, OPTIMISER, SUMS, AVERAGE)}
    if checkpoint.step and not parts[OPTIMISER]:
        raise ValueError(
            f"{checkpoint.path} holds weights alone, without the optimiser's state: it cannot be resumed; restore the "
            "checkpoint from another copy"
        )
    try:  # all of it before anything changes
        _check_same(NETWORK, parts[NETWORK], network.state_dict())
        _check_same(OPTIMISER, parts[OPTIMISER], _adam_state(network) if checkpoint.step else {})
        _check_same(SUMS, parts[SUMS], sums)
        _check_same(AVERAGE, parts[AVERAGE], average.expected(checkpoint.step))
    except ValueError as error:
        raise ValueError(
            f"{checkpoint.path} is not a whole checkpoint of its run: {error}; use another copy, or remove it to "
            "resume from the checkpoint before it, if there is one"
        ) from error
    network.load_state_dict(parts[NETWORK])
    for name, value in parts[SUMS].items():
        sums[name].copy_(value)
    average.restore(parts[AVERAGE], checkpoint.step)
    index_of = {name: index for index, name in enumerate(_names_in_order(network, optimiser))}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in parts[OPTIMISER].items():
        parameter, _, key = name.rpartition(".")
        state.setdefault(index_of[parameter], {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _adam_state(network: nn.Module) -> dict[str, Tensor]:
    """What Adam keeps of each parameter after a step, by name: tensors of the right shapes and dtypes."""
    moments = {
        f"{name}.{key}": value.detach()
        for name, value in network.named_parameters()
        for key in ("exp_avg", "exp_avg_sq")
    }
    return moments | {f"{name}.step": torch.zeros(()) for name, _ in network.named_parameters()}


def _check_same(prefix: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless these are tensors of the same names, shapes and dtypes."""
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise ValueError(f"{prefix}{name} is missing")
        if name not in wanted:
            raise ValueError(f"{prefix}{name} does not belong there")
        one, other = ((values[name].dtype, tuple(values[name].shape)) for values in (found, wanted))
        if one != other:
            raise ValueError(f"{prefix}{name} must be {other[0]} {other[1]}, not {one[0]} {one[1]}")


def _names_in_order(network: nn.Module, optimiser: torch.optim.Optimizer) -> list[str]:
    """The names of the parameters in the order in which the optimiser numbers them: group after group."""
    name_of = {id(value): name for name, value in network.named_parameters()}
    return [name_of[id(value)] for group in optimiser.param_groups for value in group["params"]]


def load_network(
    path: str | Path, device: torch.device | str = "cpu", impl: str | None = None
) -> tuple[Classifier, RunConfig, int]:
    """The network in a weights file or checkpoint, its config, and the step it was saved at.

    Of a checkpoint that holds a mean of the weights it has the mean, as the finished run will.

    `impl` chooses the implementation of its routing and must be able to run on the device. None keeps the config's own
    if it can run there, else takes "auto".
    """
    checkpoint = load(path)
    config = checkpoint.config
    place = pick_device(str(device))
    if impl is not None:
        choose_implementation(impl, place)
        config = config.override({"network.impl": impl})
    elif config.network.impl != "auto" and unavailable(config.network.impl, place):
        # A network may be used where the implementation that trained it cannot run.
        config = config.override({"network.impl": "auto"})
    tensors = _without_prefix(NETWORK, checkpoint.tensors) | _without_prefix(AVERAGE, checkpoint.tensors)
    try:
        with torch.device("meta"):  # no memory for a huge network that a damaged config describes
            described = build_network(config.network, config.data.image_channels, config.data.crop).float()
        _check_same(NETWORK, tensors, described.state_dict())
    except ValueError as error:
        raise ValueError(
            f"{path} does not hold the network that its own config describes ({error}): use another copy"
        ) from error
    network = build_network(config.network, config.data.image_channels, config.data.crop).float()
    network.load_state_dict(tensors)
    network.data = config.data
    return network.to(place), config, checkpoint.step


def load(path: str | Path) -> Checkpoint:
    """Read a weights file or checkpoint; a ValueError says what is wrong with it, DamagedFileError if it changed."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}: name a .safetensors file that exists, or a run folder that holds its weights"
        )
    try:
        tensors, texts = read_tensors(path, frozenset({"config", "step"}))
    except DamagedFileError as error:
        others = [one for one in kept_checkpoints(path.with_name(CHECKPOINT)) if one != path]
        if path.name in (CHECKPOINT, WEIGHTS) and others:
            remedy = f"make it again from a checkpoint of its run: {resume_command(path.parent)}"
            raise DamagedFileError(path, error.wrong, remedy) from error
        raise
    try:
        config, step = RunConfig.from_json(texts["config"]), _read_step(texts["step"])
        if strange := [name for name in tensors if not name.startswith((NETWORK, OPTIMISER, SUMS, AVERAGE))]:
            raise ValueError(f"it describes {strange[0]!r}, which is neither weights nor the optimiser's state")
    except ValueError as error:
        raise ValueError(
            f"{path} has a header that cannot be read ({error}): use another copy, or the version of emcaps that "
            "wrote it"
        ) from error
    return Checkpoint(path, config, step, tensors)


def _read_step(text: str) -> int:
    if re.fullmatch("[0-9]{1,20}", text) and int(text) <= MOST_STEPS:
        return int(text)
    raise ValueError(f"the step must be a whole number from 0 to {MOST_STEPS:,}, not {text[:50]!r}")


def _save(path: Path, tensors: dict[str, Tensor], config: RunConfig, step: int, older: Sequence[Path] = ()) -> None:
    write_tensors(path, tensors, {"config": config.to_json(), "step": str(step)}, older)


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
