"""The mean of the weights over the last steps of a run (train.average), which is what the run evaluates and saves.

The mean is kept beside the weights and changes nothing about training. It is a part of the checkpoint, so that a run
that is resumed ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from emcaps.config import TrainConfig


class AveragedWeights:
    """The running mean of a network's weights from the first averaged step on; before it, the weights themselves."""

    def __init__(self, network: nn.Module, config: TrainConfig) -> None:
        self.on = config.average > 0
        self.trained = {name: value.detach() for name, value in network.named_parameters()}
        """The network's own tensors, which training changes."""
        self.skipped = config.steps - max(1, round(config.average * config.steps))
        """How many steps come before the first whose weights count."""
        self.counted = 0
        """How many steps the mean is over; 0 until the first of them."""
        self._mean = {name: value.clone() for name, value in self.trained.items()} if self.on else {}

    def add(self, step: int) -> None:
        """Count the weights after this many steps, if the step is among the last ones."""
        if not self.on or step <= self.skipped:
            return
        self.counted = step - self.skipped
        torch._foreach_lerp_(list(self._mean.values()), list(self.trained.values()), 1 / self.counted)

    def state(self) -> dict[str, Tensor]:
        """The mean by the names of the parameters; empty while nothing is counted."""
        return self._mean if self.counted else {}

    def expected(self, step: int) -> dict[str, Tensor]:
        """Tensors of the names, shapes and dtypes that `state` has after this many steps."""
        return self._mean if self.on and step > self.skipped else {}

    def restore(self, state: Mapping[str, Tensor], step: int) -> None:
        """Put back what `state` gave after this many steps."""
        for name, value in state.items():
            self._mean[name].copy_(value)
        self.counted = max(0, step - self.skipped) if state else 0

    @contextmanager
    def in_network(self) -> Iterator[None]:
        """Until the end of the `with` block the network has the mean for its weights."""
        kept = {name: value.clone() for name, value in self.trained.items()} if self.counted else {}
        try:
            for name in kept:
                self.trained[name].copy_(self._mean[name])
            yield
        finally:
            for name, value in kept.items():
                self.trained[name].copy_(value)
