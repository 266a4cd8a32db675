"""The schedules of training, the learning rate's and the margin's, as pure functions of the step, counted from 0."""

from __future__ import annotations

import math

from emcaps.config import TrainConfig


def learning_rate_of(config: TrainConfig, step: int) -> float:
    """The learning rate of a step, by the schedule that the config names."""
    if config.learning_rate_schedule == "cosine":
        rate = cosine_rate(step, config.learning_rate, config.steps)
    else:
        rate = learning_rate(step, config.learning_rate, config.decay_rate, config.decay_steps)
    return rate * warm_up(step, config.warmup_steps)


def margin_of(config: TrainConfig, step: int) -> float:
    """The margin of the spread loss at a step, by the schedule that the config names."""
    return (linear_margin if config.margin_schedule == "linear" else spread_margin)(step, config.margin_steps)


def spread_margin(step: int, margin_steps: int = 50_000) -> float:
    """Margin of the spread loss: 0.2 + 0.79 sigmoid(min(10, step / 50000 - 4)), about 0.21 at first, 0.99 at last."""
    return 0.2 + 0.79 / (1 + math.exp(-min(10.0, step / margin_steps - 4)))


def linear_margin(step: int, margin_steps: int) -> float:
    """From 0.2 to 0.9 over margin_steps steps, and 0.9 from then on."""
    return 0.2 + 0.7 * min(1.0, step / margin_steps)


def cosine_rate(step: int, start: float, steps: int) -> float:
    """Half a cosine from `start` down to 0 at the last of `steps`."""
    return start * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


def warm_up(step: int, warmup_steps: int) -> float:
    """The share of the learning rate that a step gets: rises to 1 over the first steps."""
    return min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0


def learning_rate(step: int, start: float = 3e-3, decay_rate: float = 0.96, decay_steps: int = 2000) -> float:
    """Exponential decay: multiplied by `decay_rate` every `decay_steps` steps, smoothly."""
    return float(start * decay_rate ** (step / decay_steps))
