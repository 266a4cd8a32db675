"""Throughput of training by the number of processes: `python -m emcaps.bench.processes --out FILE`.

The small network is trained for a few steps with the same batch, plainly and by torchrun: on a CPU with gloo, or with
`--device cuda` on one GPU with NCCL. Rounds go through all ways in turn, so that a busy machine is busy for each, and
the best figure of each way counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from emcaps.files import write_text
from emcaps.provenance import environment
from emcaps.train.run_folder import read_metrics

BATCH = 64
STEPS = {"cpu": 40, "cuda": 6000}
LOG_EVERY = {"cpu": 10, "cuda": 1000}


class Way(NamedTuple):
    """How a run is started: by torchrun with so many processes (0: without torchrun), with so many threads in each."""

    processes: int
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        if not self.processes:
            return f"without torchrun, {threads}"
        return f"torchrun, {self.processes} process{'es' * (self.processes > 1)} of {threads}"

    def command(self, folder: Path, run: Path, device: str) -> list[str]:
        starter = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        options = f"--stereo --device {device} --steps {STEPS[device]} --batch-size {BATCH}"
        options += f" --set train.log_every={LOG_EVERY[device]}"
        where = ["--folder", str(folder), "--run-folder", str(run)]
        started = [sys.executable, *(starter if self.processes else [])]
        return [*started, "-m", "emcaps", "train", "small", *options.split(), *where]


WAYS = {"cpu": (Way(0, 1), Way(0, 2), Way(1, 1), Way(2, 1)), "cuda": (Way(0, 1), Way(1, 1))}
"""What is compared on each kind of device; a GPU takes one process."""


def measure(rounds: int, device: str = "cpu") -> dict[str, Any]:
    """The images a second of every way in every round, and what they may depend on."""
    found: dict[Way, list[float]] = {way: [] for way in WAYS[device]}
    with tempfile.TemporaryDirectory(prefix="emcaps-processes-") as name:
        folder = Path(name)
        _run([sys.executable, "-m", "emcaps", "data", "make", "--quick", "--folder", str(folder / "data")], 1)
        for number in range(rounds):
            for way in found:
                run = folder / f"{number}-{way.processes}-{way.threads}"
                _run(way.command(folder / "data", run, device), way.threads)
                rows = [row for row in read_metrics(run) if "images_per_second" in row]
                found[way].append(round(max(float(row["images_per_second"]) for row in rows), 1))
                print(f"round {number + 1}: {way}: {found[way][-1]:,.0f} images/s", flush=True)
    ways = [{"processes": way.processes, "threads": way.threads, "images_per_second": found[way]} for way in found]
    about = environment(torch.device(device)) | {"load": round(os.getloadavg()[2], 1)}
    return {"network": "small, stereo", "batch": BATCH, "steps": STEPS[device], "ways": ways, "environment": about}


def _run(command: list[str], threads: int) -> None:
    try:
        subprocess.run(
            command, env=os.environ | {"OMP_NUM_THREADS": str(threads)}, check=True, capture_output=True, text=True
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(f"{' '.join(command)} failed: {last}") from error


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m emcaps.bench.processes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=tuple(WAYS), default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    given = parser.parse_args()
    try:
        write_text(given.out, json.dumps(measure(given.rounds, given.device), indent=1) + "\n")
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
