"""Weights and checkpoints on disk: safetensors, so that loading runs no code; written atomically.

weights.safetensors     the network's parameters, with the run's config in the header: enough to evaluate
checkpoint.safetensors  the same plus the optimiser's state, the step and the sums since the last metrics row: enough to
                        resume to bit-identical numbers
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from emcaps.config import RunConfig
from emcaps.files import atomic_write
from emcaps.nn import build_network
from emcaps.nn.classifier import Classifier
from emcaps.routing.availability import choose_implementation, unavailable
from emcaps.train.device import pick_device

NETWORK, OPTIMISER, SUMS = "network.", "optimiser.", "sums."


class Checkpoint(NamedTuple):
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
    config: RunConfig,
    step: int,
) -> None:
    names = _names_in_order(network, optimiser)
    state = {
        f"{names[index]}.{key}": value
        for index, values in optimiser.state_dict()["state"].items()
        for key, value in values.items()
    }
    tensors = _with_prefix(NETWORK, network.state_dict()) | _with_prefix(OPTIMISER, state) | _with_prefix(SUMS, sums)
    _save(path, tensors, config, step)


def restore(
    checkpoint: Checkpoint, network: nn.Module, optimiser: torch.optim.Optimizer, sums: dict[str, Tensor]
) -> None:
    """Put a checkpoint's state into a freshly built network, optimiser and sums."""
    if checkpoint.step and not _without_prefix(OPTIMISER, checkpoint.tensors):
        raise ValueError("the checkpoint holds weights alone, without the optimiser's state: it cannot be resumed")
    network.load_state_dict(_without_prefix(NETWORK, checkpoint.tensors))
    for name, value in _without_prefix(SUMS, checkpoint.tensors).items():
        sums[name].copy_(value)
    index_of = {name: index for index, name in enumerate(_names_in_order(network, optimiser))}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in _without_prefix(OPTIMISER, checkpoint.tensors).items():
        parameter, _, key = name.rpartition(".")
        state.setdefault(index_of[parameter], {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})


def _names_in_order(network: nn.Module, optimiser: torch.optim.Optimizer) -> list[str]:
    """The names of the parameters in the order in which the optimiser numbers them: group after group."""
    name_of = {id(value): name for name, value in network.named_parameters()}
    return [name_of[id(value)] for group in optimiser.param_groups for value in group["params"]]


def load_network(
    path: str | Path, device: torch.device | str = "cpu", impl: str | None = None
) -> tuple[Classifier, RunConfig, int]:
    """The network in a weights file or checkpoint, its config, and the step it was saved at.

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
    network = build_network(config.network, config.data.image_channels, config.data.crop)
    try:
        network.load_state_dict(_without_prefix(NETWORK, checkpoint.tensors))
    except RuntimeError as error:
        raise ValueError(f"{path} does not hold the network that its own config describes: {error}") from error
    network.data = config.data
    return network.to(place), config, checkpoint.step


def load(path: str | Path) -> Checkpoint:
    """Read a weights file or checkpoint; a ValueError says what is wrong with it."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {path}: name a .safetensors file that exists, or a run folder that holds its weights"
        )
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file ({error}): use another copy") from error
    if not header.keys() >= {"config", "step"}:
        raise ValueError(f"{path} was not written by emcaps: its header lacks the config and the step")
    try:
        return Checkpoint(RunConfig.from_json(header["config"]), int(header["step"]), tensors)
    except ValueError as error:
        raise ValueError(
            f"{path} has a header that cannot be read ({error}): use another copy, or the version of emcaps that "
            "wrote it"
        ) from error


def _save(path: Path, tensors: dict[str, Tensor], config: RunConfig, step: int) -> None:
    from safetensors.torch import save

    header = {"config": config.to_json(), "step": str(step)}
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, header)
    with atomic_write(path) as temporary:
        temporary.write_bytes(_with_sorted_header(content))


def _with_sorted_header(content: bytes) -> bytes:
    """A safetensors file with its header's keys sorted: safetensors writes them in random order, so that without this
    equal networks would be saved as different files."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # what follows stays aligned
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def _with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
