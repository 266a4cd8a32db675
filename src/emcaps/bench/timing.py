"""Timing one piece of work: warm-up, repeats, percentiles and memory."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

LEAST, MOST = 10, 100
"""A row is repeated as often as its seconds allow, but at least and at most so often."""
WARM_UP = 3

Work = Callable[[], object]


class Timing(NamedTuple):
    median_ms: float
    p20_ms: float
    p80_ms: float
    repeats: int
    warmup_s: float
    """Building and warming up, compilation included."""
    peak_mib: float | None
    """On a GPU: the most memory that torch's allocator had given out at one moment, network and inputs included.

    It is taken while the work is repeated, after the warm-up; for a captured graph from before the capture, which is
    when its memory is given out. On a CPU with Linux: by how much the process grew while the work was repeated.
    """


def measure(make: Callable[[], Work], device: torch.device, seconds: float, captured: bool = False) -> Timing:
    """Time what `make` builds; `captured` says that building it captures a CUDA graph."""
    started = time.perf_counter()
    if captured:
        _reset_peak(device)
    work = make()
    for _ in range(WARM_UP):
        work()
    synchronise(device)
    warmup = time.perf_counter() - started
    if not captured:
        _reset_peak(device)
    resident = process_memory("VmRSS")
    times = repeat(work, device, seconds)
    if device.type == "cuda":
        peak: float | None = torch.cuda.max_memory_allocated(device) / 2**20
    else:
        highest = process_memory("VmHWM")
        peak = None if resident is None or highest is None else max(0.0, highest - resident)
    p20, median, p80 = percentiles(times)
    return Timing(median, p20, p80, len(times), warmup, peak)


def repeat(work: Work, device: torch.device, seconds: float) -> list[float]:
    """The milliseconds of each repeat; there are as many as fill `seconds`, within LEAST and MOST. The work is warm."""
    if device.type == "cuda":
        (first,) = _on_gpu(work, 1)
        return _on_gpu(work, _repeats(seconds, first))
    (first,) = _on_host(work, 1)
    return _on_host(work, _repeats(seconds, first))


def percentiles(times: Sequence[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile, interpolated linearly."""
    low, middle, high = np.percentile(times, (20, 50, 80))
    return float(low), float(middle), float(high)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _repeats(seconds: float, milliseconds: float) -> int:
    return max(LEAST, min(MOST, int(1000 * seconds / max(milliseconds, 1e-3))))


def _on_host(work: Work, repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - start))
    return times


def _on_gpu(work: Work, repeats: int) -> list[float]:
    """Time by events in the stream: the host runs ahead, so its own time counts only where the GPU waits for it."""
    starts, ends = ([torch.cuda.Event(enable_timing=True) for _ in range(repeats)] for _ in range(2))
    for start, end in zip(starts, ends, strict=True):
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in zip(starts, ends, strict=True)]


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError, AttributeError):  # not Linux with glibc, or not allowed
            ctypes.CDLL(None).malloc_trim(0)  # gives freed memory back to the system first
            Path("/proc/self/clear_refs").write_text("5")


def process_memory(field: str) -> float | None:
    """A line of Linux's account of this process, in MiB: VmRSS is its memory now, VmHWM the most since the reset."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:")), None)
