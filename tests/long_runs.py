"""Does a long run need more and more memory? It trains, looks at its memory 20 times, and says.

    PYTHONPATH=src:tests python -m long_runs                 # on a GPU: the small network, 100,000 steps, minutes
    PYTHONPATH=src:tests python -m long_runs --steps 5000    # on a CPU: a minute network

`--record` writes what it found into results/robustness/. Exit status 1 if memory grew.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from emcaps.config import RunConfig, preset
from emcaps.train import train
from emcaps.train.loop import Progress
from robustness_record import record

LOOKS = 20
START = 4
"""The first looks do not count: caches fill, and the allocator finds the sizes that it needs."""
MINUTE = {
    "network.conv_channels": 2,
    "network.primary_types": 2,
    "network.conv1_types": 2,
    "network.conv2_types": 2,
    "network.impl": "reference",
    "data.crop": 16,
    "train.batch_size": 4,
}
MOST_GROWTH = {"process": 16 * 2**20, "GPU": 0}
"""Bytes from the first look that counts to the last. A run on a GPU allocates the same at every step."""


class Look(NamedTuple):
    step: int
    process: int
    """Bytes of the process that are in memory."""
    gpu: int
    """Bytes of tensors on the GPU."""


def config_for(device: torch.device, steps: int) -> RunConfig:
    changes: dict[str, Any] = {} if device.type == "cuda" else dict(MINUTE)
    every = max(1, steps // LOOKS)
    changes |= {"train.steps": steps, "train.log_every": min(50, every), "train.checkpoint_every": every}
    return preset("small" if device.type == "cuda" else "tiny").override(changes | {"train.eval_every": every})


def look_while_training(config: RunConfig, device: torch.device) -> list[Look]:
    """Memory after every LOOKS-th part of a run with metrics, checkpoints and evaluations."""
    side = config.data.crop
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (512, 1, side, side), np.uint8)
    labels = np.arange(512) % 5
    looks: list[Look] = []
    every = max(1, config.train.steps // LOOKS)

    def look(progress: Progress) -> None:
        if progress.step % every == 0 and not progress.evaluated:
            gpu = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
            looks.append(Look(progress.step, process_bytes(), gpu))

    with tempfile.TemporaryDirectory() as folder:
        arrays = (images, labels, images[:64], labels[:64])
        train(config, Path(folder) / "run", data=arrays, device=str(device), on_progress=look)
    return looks


def process_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(looks: list[Look]) -> dict[str, int]:
    """Bytes that the process and the GPU's tensors grew by, from the first look that counts to the last."""
    first, last = looks[START], looks[-1]
    return {"process": last.process - first.process, "GPU": last.gpu - first.gpu}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m long_runs", description=__doc__.partition("\n")[0])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=100_000 if device.type == "cuda" else 5000)
    parser.add_argument("--record", action="store_true", help="write the looks into results/robustness/")
    given = parser.parse_args()
    looks = look_while_training(config_for(device, given.steps), device)
    for one in looks:
        print(f"step {one.step:9,}  process {one.process / 2**20:9.1f} MiB  GPU {one.gpu / 2**20:9.1f} MiB")
    grown = growth(looks)
    print(f"from step {looks[START].step:,} on: process {grown['process']:+,} bytes, GPU {grown['GPU']:+,} bytes")
    if given.record:
        found = {"steps": given.steps, "from": looks[START].step, "growth": grown, "looks": looks}
        record(f"memory-{device.type}", found, device)
    return int(any(grown[name] > most for name, most in MOST_GROWTH.items()))


if __name__ == "__main__":
    sys.exit(main())
