"""`make gpu-test`: the tests of everything that runs on a GPU, and a record of them in results/gpu-tests/.

It runs from the source alone, with a Python that has torch, pytest and hypothesis:

    make gpu-test PYTHON=python3
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import torch

from emcaps.files import write_text
from emcaps.provenance import commit

ROOT = Path(__file__).resolve().parent.parent
ON_A_GPU = (
    "analysis",
    "bench",
    "data/test_augment.py",
    "data/test_combine.py",
    "data/test_crops.py",
    "data/test_tensors.py",
    "experiments/test_measured_run.py",
    "nn",
    "routing",
    "train",
    "test_debug.py",
    "test_weights.py",
)
"""Folders and files of tests/ whose subject runs on a GPU if there is one."""
PACKAGES = ("torch", "triton", "numba", "numpy", "pytest")
MOST_JOBS = 14
SECONDS = 1800
"""No file takes so long; one that does is ended and has failed."""


class Outcome(NamedTuple):
    file: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    output: str = ""


def files_to_run(root: Path = ROOT) -> list[Path]:
    found = [root / "tests" / name for name in ON_A_GPU]
    return sorted(file for path in found for file in (path.glob("test_*.py") if path.is_dir() else [path]))


def recorded_seconds(path: Path) -> dict[str, int]:
    """How long each file took, by a record; older records have no seconds, and there may be no record."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return {file: int(seconds) for file, seconds in re.findall(r"^(\S+) +\d+ passed.*\((\d+) s\)$", text, re.MULTILINE)}


def longest_first(files: Sequence[Path], seconds: Mapping[str, int], root: Path = ROOT) -> list[Path]:
    """In the order to start them, so that no long file is left for the end, when the other workers have nothing to do.

    Files of unknown seconds come before all others, the largest first: any of them may be the longest.
    """
    return sorted(files, key=lambda file: (seconds.get(_name(file, root), math.inf), file.stat().st_size), reverse=True)


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)


def run_file(file: Path, root: Path = ROOT) -> Outcome:
    """Run one file of tests in a process of its own."""
    name = _name(file, root)
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(file), f"--junitxml={report}"]
        try:
            done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=SECONDS)
            output, status = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired:
            output, status = f"not done after {SECONDS} seconds", 1
        seconds = time.monotonic() - started
        if not report.exists():  # it crashed
            return Outcome(name, 0, 1, 0, seconds, output)
        suite = ElementTree.parse(report).getroot()[0]
    tests, skipped, failed = (int(suite.get(key, 0)) for key in ("tests", "skipped", "failures"))
    failed += int(suite.get("errors", 0))
    failed = failed or int(status != 0)
    return Outcome(name, max(0, tests - skipped - failed), failed, skipped, seconds, output if failed else "")


def record(outcomes: Sequence[Outcome], gpu: str, jobs: int, seconds: float, left: int = 0) -> str:
    """What results/gpu-tests/ holds of one run of all these files, of which `left` are not done."""
    width = max(len(one.file) for one in outcomes)
    passed, failed, skipped = (sum(getattr(one, key) for one in outcomes) for key in ("passed", "failed", "skipped"))
    lines = [
        "The tests of what runs on a GPU, on a machine with one.",
        "",
        f"{gpu}, Python {platform.python_version()}, {_versions()}, commit {commit()}.",
        f"{passed} passed, {failed or 'none'} failed, {skipped or 'none'} skipped, in {seconds:.0f} seconds. Each file "
        f"in a process of its own, {jobs} at a time, by",
        "",
        "    make gpu-test PYTHON=python3",
        "",
        *([f"Unfinished: {left} files more were to run.", ""] if left else []),
    ]
    for one in outcomes:
        rest = "".join(
            f", {count} {what}" for count, what in ((one.failed, "failed"), (one.skipped, "skipped")) if count
        )
        lines.append(f"{one.file:{width}}  {one.passed:5} passed{rest}  ({one.seconds:.0f} s)")
    return "\n".join(lines) + "\n"


def record_name(gpu: str) -> str:
    """The file for a GPU of this product name: "NVIDIA H200" is recorded in h200.txt."""
    words = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return f"{words.removeprefix('nvidia-')}.txt"


def _versions() -> str:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_tests", description=__doc__)
    parser.add_argument("--jobs", type=int, default=max(1, min(MOST_JOBS, (os.cpu_count() or 2) - 2)))
    parser.add_argument("--out", type=Path, default=ROOT / "results/gpu-tests", help="folder of the record")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print(
            "make gpu-test: torch finds no GPU here, and without one these tests would prove nothing: run them on a "
            "machine with a GPU, with a torch for it",
            file=sys.stderr,
        )
        return 1
    gpu, started = torch.cuda.get_device_name(), time.monotonic()
    path, outcomes = given.out / record_name(gpu), []
    files = longest_first(files_to_run(), recorded_seconds(path))
    print(f"{len(files)} files of tests on {gpu}, {given.jobs} at a time", flush=True)
    with ThreadPoolExecutor(given.jobs) as threads:
        for done in as_completed([threads.submit(run_file, file) for file in files]):
            one = done.result()
            print(f"{one.file}: {one.passed} passed, {one.failed} failed, {one.skipped} skipped", flush=True)
            if one.output:
                print(one.output, flush=True)
            outcomes = sorted([*outcomes, one])
            # After every file, so that a run that is cut short leaves what it found.
            left = len(files) - len(outcomes)
            write_text(path, record(outcomes, gpu, given.jobs, time.monotonic() - started, left))
    print(path)
    return int(any(one.failed for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
