"""Losses on class activations, as pure functions. activation (B, classes) in 0 to 1; target (B,) class numbers."""

from __future__ import annotations

from torch import Tensor

MARGIN_PRESENT, MARGIN_ABSENT, ABSENT_WEIGHT = 0.9, 0.1, 0.5


def spread_loss(activation: Tensor, target: Tensor, margin: float | Tensor, weight: Tensor | None = None) -> Tensor:
    """Every wrong class should stay `margin` below the right one: squared shortfalls, summed, mean over the batch.

    The margin may be a tensor of no dims, so that it can change between replays of a CUDA graph. In all losses a
    weight (B,) multiplies each example's part of the mean.
    """
    right = activation.gather(1, target[:, None])
    shortfall = (margin - (right - activation)).clamp(min=0).square()
    return _mean(shortfall.scatter(1, target[:, None], 0.0).sum(1), weight)


def margin_loss(activation: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sabour et al. (2017): the right class above 0.9, wrong ones below 0.1, which count half."""
    right = activation.gather(1, target[:, None])
    present = (MARGIN_PRESENT - right).clamp(min=0).square()[:, 0]
    absent = (activation - MARGIN_ABSENT).clamp(min=0).square().scatter(1, target[:, None], 0.0)
    return _mean(present + ABSENT_WEIGHT * absent.sum(1), weight)


def cross_entropy_loss(activation: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Minus the logarithm of the right class's share of all activation."""
    tiny = 1e-12  # an activation that underflowed to 0 still has a finite logarithm
    right = activation.gather(1, target[:, None])[:, 0]
    return _mean((activation.sum(1) + tiny).log() - (right + tiny).log(), weight)


def _mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    return losses.mean() if weight is None else (losses * weight).mean()
