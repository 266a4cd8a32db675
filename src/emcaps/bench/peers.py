"""Another implementation beside this one: `python -m emcaps.bench.peers FOLDER --out FILE`.

FOLDER holds a clone of PEER, the implementation in PyTorch that others compare themselves with most often. Its network
is imported from there and timed as it is, beside the same layers of this package: single images, forward and backward.
Its routing differs from the definition (docs/pitfalls.md), but computes the same kinds of numbers for every vote.

It asks for a GPU. On a CPU it gets `torch.FloatTensor` where it asks for `torch.cuda.FloatTensor`, for its constants.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
import json
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from emcaps.bench.capture import capture
from emcaps.bench.timing import Work, measure
from emcaps.config import NetworkConfig, preset
from emcaps.files import write_text
from emcaps.nn import MatrixCapsNet
from emcaps.provenance import environment
from emcaps.train.device import start_work

PEER = "https://github.com/yl-1993/Matrix-Capsules-EM-PyTorch"
MODEL = Path("model/capsules.py")
SIZE = 32
NETWORKS = {"cpu": ("small",), "cuda": ("small", "full")}
ITERATIONS = (1, 2, 3)
THEIRS, OURS, REPLAYED = IMPLEMENTATIONS = ("peer", "emcaps", "emcaps, replayed graph")


def compare(folder: Path, device: torch.device, batch: int, seconds: float) -> dict[str, Any]:
    """The time and memory of forward and backward, by network, iterations and implementation, and the conditions."""
    model = load_model(folder)
    rows = []
    for name, iterations in itertools.product(NETWORKS[device.type], ITERATIONS):
        config = preset(name).override({"network.iterations": iterations}).network
        for implementation, make in makers(model, config, device).items():
            timing = measure(functools.partial(make, batch), device, seconds, captured=implementation == REPLAYED)
            rows.append({"network": name, "iterations": iterations, "implementation": implementation})
            rows[-1] |= {key: None if value is None else round(value, 4) for key, value in timing._asdict().items()}
            print(f"{name}, {iterations} iterations, {implementation}: {timing.median_ms:,.1f} ms", flush=True)
    return {"peer": PEER, "batch": batch, "size": SIZE, "rows": rows, "environment": environment(device)}


def load_model(folder: Path) -> ModuleType:
    """The peer's module of layers and network."""
    path = folder / MODEL
    if not path.is_file():
        raise ValueError(f"{folder} lacks {MODEL}: give it a clone of {PEER}")
    spec = importlib.util.spec_from_file_location("peer_capsules", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def makers(model: ModuleType, config: NetworkConfig, device: torch.device) -> dict[str, Callable[[int], Work]]:
    """For each implementation what makes its work from the size of a batch."""

    def theirs(batch: int) -> Work:
        with _tensors_on(device):
            types = (config.conv_channels, config.primary_types, config.conv1_types, config.conv2_types, config.classes)
            network = model.capsules(**dict(zip("ABCDE", types, strict=True)), iters=config.iterations).to(device)
        return forward_backward(network, lambda output: output, batch, device)

    def ours(batch: int) -> Work:
        network = MatrixCapsNet(config, image_channels=1).to(device)
        return forward_backward(network, lambda output: output.activation, batch, device)

    found: dict[str, Callable[[int], Work]] = {THEIRS: theirs, OURS: ours}
    if device.type == "cuda":
        found[REPLAYED] = lambda batch: capture(ours(batch), device).replay
    return found


def forward_backward(network: nn.Module, activation: Callable[[Any], Tensor], batch: int, device: torch.device) -> Work:
    """What is timed: the gradients of the sum of squared class activations."""
    torch.manual_seed(0)
    images = torch.randn(batch, 1, SIZE, SIZE, device=device)
    parameters = list(network.parameters())

    def work() -> object:
        with _tensors_on(device):
            loss = activation(network(images)).square().sum()
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    return work


@contextlib.contextmanager
def _tensors_on(device: torch.device) -> Iterator[None]:
    """On a CPU: torch.cuda.FloatTensor makes tensors there."""
    if device.type == "cpu":
        with unittest.mock.patch("torch.cuda.FloatTensor", torch.FloatTensor):
            yield
    else:
        yield


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m emcaps.bench.peers", description=__doc__)
    parser.add_argument("folder", type=Path, help=f"a clone of {PEER}")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each row, of 10 repeats at least")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    given = parser.parse_args()
    try:
        found = compare(given.folder, start_work(given.device), given.batch, given.seconds)
        write_text(given.out, json.dumps(found, indent=1) + "\n")
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
