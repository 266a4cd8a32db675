"""A Triton kernel that does nothing but multiply-adds in registers: the most float32 arithmetic that a GPU gives.

Imported only where a GPU is about to run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

PROGRAMS, BLOCK, STEPS = 16_384, 256, 128
CHAINS, UNROLLED = 8, 8


@triton.jit  # type: ignore[untyped-decorator]
def fma_kernel(result, steps, BLOCK: tl.constexpr, UNROLLED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight chains an element, each independent of the others, so that none has to wait for its own last result."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = (offsets % 97).to(tl.float32) * 1e-2
    y = 1.0 - x
    a, b, c, d = x, x + 1, x + 2, x + 3
    e, f, g, h = x + 4, x + 5, x + 6, x + 7
    for _ in range(steps):
        for _ in tl.static_range(UNROLLED):
            a = tl.fma(a, x, y)
            b = tl.fma(b, x, y)
            c = tl.fma(c, x, y)
            d = tl.fma(d, x, y)
            e = tl.fma(e, x, y)
            f = tl.fma(f, x, y)
            g = tl.fma(g, x, y)
            h = tl.fma(h, x, y)
    tl.store(result + offsets, a + b + c + d + e + f + g + h)


def fma_work(device: torch.device) -> tuple[Callable[[], Any], int]:
    """The work, and how many floating-point operations it does."""
    result = torch.empty(PROGRAMS * BLOCK, device=device)
    flops = 2 * PROGRAMS * BLOCK * STEPS * UNROLLED * CHAINS
    return lambda: fma_kernel[(PROGRAMS,)](result, STEPS, BLOCK=BLOCK, UNROLLED=UNROLLED, num_warps=4), flops
