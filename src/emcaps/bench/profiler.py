"""Time and issue slots by kernel, as NVIDIA's profiler counts them: `emcaps bench --profile`.

The profiler runs this module as a program: it launches the fused kernels of one case, kernel by kernel, a few times.
Clocks and caches are left as they are, so that a kernel takes about what it takes in a run.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from emcaps.bench.cases import FUSED, Case
from emcaps.bench.implementations import implementations
from emcaps.bench.work import build_work
from emcaps.report.tables import plain_table

PROGRAM = "ncu"
TIME, ISSUE = "gpu__time_duration.sum", "smsp__issue_active.avg.pct_of_peak_sustained_active"
WARM_UP, REPEATS = 3, 3
REFUSED = "ERR_NVGPUCTRPERM"
"""What the profiler says where the driver lets only an administrator read the counters."""


class Kernel(NamedTuple):
    name: str
    launches: float
    """For one batch, as are the microseconds."""
    microseconds: float
    issue: float
    """Issue slots used while it ran, in percent; its launches weigh as much as they take."""


def run_profile(cases: Sequence[Case], console: Console, device: torch.device) -> None:
    """Print a table for each case; ValueError says in one line why not."""
    if device.type != "cuda":
        raise ValueError(f"--profile is about the kernels of an NVIDIA GPU, not about {device.type}: use --device cuda")
    implementations((FUSED,), device)  # raises if they cannot run here
    for case in cases:
        console.print(profile_table(case, profile(case, device)))


def profile(case: Case, device: torch.device) -> list[Kernel]:
    """The kernels of one batch, those that take longest first."""
    if shutil.which(PROGRAM) is None:
        raise ValueError(f"nothing was profiled: {PROGRAM} (NVIDIA Nsight Compute) is not on the PATH")
    command = [PROGRAM, "--csv", "--page", "raw", "--print-units", "base", "--metrics", f"{TIME},{ISSUE}"]
    command += ["--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    command += [sys.executable, "-m", __name__, str(device), json.dumps(dataclasses.asdict(case))]
    done = subprocess.run(command, capture_output=True, text=True)
    kernels = read_kernels(done.stdout)
    if not kernels:
        raise ValueError(f"nothing was profiled: {_reason(done.stdout + done.stderr)}")
    return kernels


def read_kernels(output: str) -> list[Kernel]:
    """The kernels of the profiler's table, which has a line for each launch and stands among other lines."""
    table = csv.DictReader(line for line in output.splitlines() if line.startswith('"'))
    found: dict[str, list[tuple[float, float]]] = {}
    for launch in table:
        if not launch.get("ID", "").isdigit():
            continue  # the units
        nanoseconds, issue = (float(launch[metric].replace(",", "")) for metric in (TIME, ISSUE))
        found.setdefault(_short(launch["Kernel Name"]), []).append((nanoseconds, issue))
    kernels = []
    for name, each in found.items():
        total = sum(time for time, _ in each)
        issue = sum(time * share for time, share in each) / total
        kernels.append(Kernel(name, len(each) / REPEATS, total / REPEATS / 1000, issue))
    return sorted(kernels, key=lambda kernel: -kernel.microseconds)


def profile_table(case: Case, kernels: Sequence[Kernel]) -> Table:
    table = plain_table(f"{case}: {case.what}, by kernel")
    table.add_column("kernel", overflow="fold")
    for column in ("launches", "µs", "of the time, %", "issue slots, %"):
        table.add_column(column, justify="right")
    total = sum(kernel.microseconds for kernel in kernels)
    everything = Kernel(
        "all",
        sum(kernel.launches for kernel in kernels),
        total,
        sum(kernel.microseconds * kernel.issue for kernel in kernels) / total,
    )
    for kernel in (*kernels, everything):
        if kernel is everything:
            table.add_section()
        time = (f"{kernel.microseconds:,.1f}", f"{100 * kernel.microseconds / total:.1f}")
        table.add_row(kernel.name, f"{kernel.launches:g}", *time, f"{kernel.issue:.0f}")
    return table


def _short(name: str) -> str:
    """A kernel's name without the types that torch's own are made of."""
    return name.removeprefix("void ").partition("<")[0].partition("(")[0]


def _reason(output: str) -> str:
    if REFUSED in output:
        return f"the driver does not let this user read the GPU's counters ({REFUSED})"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("==ERROR==", "==WARNING=="))]
    return " ".join((told or lines[-1:] or [f"{PROGRAM} said nothing"])[-1].split())[:300]


def main() -> None:
    """What the profiler watches."""
    device = torch.device(sys.argv[1])
    with torch.cuda.device(device):
        (fused,) = [each for each in implementations((FUSED,), device)[0] if each.name == FUSED]
        work = build_work(Case(**json.loads(sys.argv[2])), fused, device)
        for _ in range(WARM_UP):
            work()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        for _ in range(REPEATS):
            work()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
