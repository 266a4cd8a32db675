"""The machine's limits, measured in the same run as the rows: float32 arithmetic and memory bandwidth."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import torch

from emcaps.bench.timing import Work, measure

MATMUL = 1024
COPIED = {"cuda": 2**30, "cpu": 2**26}
"""How many bytes are copied: far more than a cache holds."""


class Ceilings(NamedTuple):
    tflops: float | None
    """Float32 multiply-adds, counted 2 each; None where there is no way to measure them."""
    gb_per_s: float
    """Bytes read plus bytes written by a large copy."""


def measure_ceilings(device: torch.device, seconds: float = 0.2) -> Ceilings:
    arithmetic = _fma(device) if device.type == "cuda" else _matmul(device)
    tflops = None
    if arithmetic is not None:
        work, flops = arithmetic
        tflops = flops / measure(_builder_of(work), device, seconds).median_ms / 1e9
    source = torch.randint(256, (COPIED[device.type],), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying = measure(_builder_of(lambda: target.copy_(source)), device, seconds).median_ms
    return Ceilings(tflops, 2 * COPIED[device.type] / copying / 1e6)


def interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, which is meant for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _fma(device: torch.device) -> tuple[Work, int] | None:
    if interpreted():
        return None
    try:
        from emcaps.bench.fma_kernel import fma_work
    except ImportError:
        return None
    return fma_work(device)


def _matmul(device: torch.device) -> tuple[Work, int]:
    """A CPU's matrix product runs near what its vector units can do."""
    left, right = torch.randn(2, MATMUL, MATMUL, device=device)
    return lambda: left @ right, 2 * MATMUL**3


def _builder_of(work: Work) -> Callable[[], Work]:
    return lambda: work
