"""Schedules of training as pure functions of the step, counted from 0."""

from __future__ import annotations

import math


def spread_margin(step: int, margin_steps: int = 50_000) -> float:
    """Margin of the spread loss: 0.2 + 0.79 sigmoid(min(10, step / 50000 - 4)), about 0.21 at first, 0.99 at last."""
    return 0.2 + 0.79 / (1 + math.exp(-min(10.0, step / margin_steps - 4)))


def learning_rate(step: int, start: float = 3e-3, decay_rate: float = 0.96, decay_steps: int = 2000) -> float:
    """Exponential decay: multiplied by `decay_rate` every `decay_steps` steps, smoothly."""
    return float(start * decay_rate ** (step / decay_steps))
