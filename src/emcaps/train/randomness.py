"""Every random choice of a run as a function of (seed, what it is for, step or epoch).

Nothing depends on how the run got to a step, so a resumed run draws what an uninterrupted one would have drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def seed_for(seed: int, purpose: str, number: int = 0) -> int:
    """A 63-bit seed; different purposes and numbers give unrelated ones."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def own_randomness(device: torch.device) -> Iterator[None]:
    """Leave the caller's random number generators, of the CPU and of this device, as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def seed_default_generator(seed: int, device: torch.device) -> None:
    """Seed the generator that dropout uses. On CUDA only this device's: torch.manual_seed would seed all of them."""
    if device.type == "cuda":
        default_cuda_generator(device).manual_seed(seed)
    else:
        torch.manual_seed(seed)


def default_cuda_generator(device: torch.device) -> torch.Generator:
    index = torch.cuda.current_device() if device.index is None else device.index
    generator: torch.Generator = torch.cuda.default_generators[index]
    return generator


class ExampleOrder:
    """Which examples each step sees: every epoch is a fresh permutation, and batches run on from one into the next."""

    def __init__(self, examples: int, batch_size: int, seed: int, device: torch.device) -> None:
        self.examples, self.batch_size, self.seed, self.device = examples, batch_size, seed, device
        self._epoch, self._permutation = -1, torch.empty(0, dtype=torch.int64)

    def batch(self, step: int) -> Tensor:
        """(batch_size,) example numbers of a step."""
        start, parts, missing = step * self.batch_size, [], self.batch_size
        while missing:
            epoch, offset = divmod(start, self.examples)
            part = self._order_of(epoch)[offset : offset + missing]
            parts.append(part)
            start, missing = start + len(part), missing - len(part)
        return torch.cat(parts)

    def _order_of(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(seed_for(self.seed, "order", epoch))
            self._epoch = epoch
            self._permutation = torch.randperm(self.examples, generator=generator).to(self.device)
        return self._permutation
