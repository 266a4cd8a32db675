"""Looks at the routing while a run trains: a warning if it is stuck, and figures for metrics.jsonl on request.

A look is taken between two steps on images that stay the same, without gradients or random numbers. So a run gives the
same bits with it and without, and a captured step is left alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from emcaps.analysis.sharpness import fixed_crops
from emcaps.analysis.warning_signs import LOWER, stuck_layers, warning_signs
from emcaps.config import RunConfig
from emcaps.nn import MatrixCapsNet
from emcaps.routing import RoutingOutput
from emcaps.train.schedules import margin_of
from emcaps.train.step import loss_of

logger = logging.getLogger("emcaps")

FIRST_CHECKS = (200, 1000)
"""After these steps every run of a capsule network is checked: a run that is stuck then stays so."""
IMAGES = 16
"""How many images a look is taken on; few, since a trace computes every vote in memory."""


def make_check(network: nn.Module, images: Tensor, labels: Tensor, config: RunConfig) -> Callable[[int], float]:
    """A function that takes the number of steps done and logs, once, what keeps the network from learning.

    It gives the share of the images that get the commonest answer.
    """
    assert isinstance(network, MatrixCapsNet)  # a cnn does not route
    crops, targets = fixed_crops(images, labels, config.data)
    margin = margin_of(config.train, 0)  # one margin for all checks, so that their losses can be compared

    def loss_and_commonest(activation: Tensor) -> tuple[float, float]:
        loss = loss_of(RoutingOutput(activation, activation), targets, config.train, margin)
        return float(loss), float(activation.argmax(-1).bincount().max()) / len(crops)

    first_loss, _ = loss_and_commonest(stuck_layers(network, crops)[1])
    warned = False

    def check(step: int) -> float:
        nonlocal warned
        wrong, activation = stuck_layers(network, crops)
        loss, commonest = loss_and_commonest(activation)
        if not wrong and commonest == 1 and loss < first_loss:
            wrong = [f"the loss falls, but all answers are one class. {LOWER}"]
        if wrong and not warned:
            logger.warning("step %d: %s.", step, wrong[0])
            warned = True
        return commonest

    return check


def make_watch(
    network: nn.Module, images: Tensor, labels: Tensor, config: RunConfig
) -> Callable[[int], dict[str, Any]]:
    """A function that takes the number of steps done and gives a row of metrics, and checks as `make_check` does.

    A row has, for every routed layer, the figures of `emcaps.analysis.warning_signs`, and `commonest_answer`: the share
    of the images to which the network gives the answer that it gives most often.
    """
    assert isinstance(network, MatrixCapsNet)  # RunConfig refuses to watch a cnn
    crops = fixed_crops(images, labels, config.data)[0][:IMAGES]
    check = make_check(network, images, labels, config)

    def look(step: int) -> dict[str, Any]:
        row: dict[str, Any] = {"step": step}
        for one in warning_signs(network, crops):
            figures = {"saturated": one.saturated, "lone_parents": one.lone_parents, "entropy": one.entropy}
            row |= {f"{one.layer}_{name}": value for name, value in figures.items() if math.isfinite(value)}
        return row | {"commonest_answer": check(step)}

    return look
