"""A look at the routing every so many steps: figures for metrics.jsonl, and a warning when a run is stuck.

The look is taken between two steps on images that stay the same, without gradients or random numbers. So a run gives
the same bits with it and without, and a captured step is left alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from emcaps.analysis.sharpness import fixed_crops
from emcaps.analysis.warning_signs import LOWER, warning_signs
from emcaps.config import RunConfig
from emcaps.nn import MatrixCapsNet
from emcaps.train.schedules import margin_of
from emcaps.train.step import loss_of

logger = logging.getLogger("emcaps")

IMAGES = 16
"""How many images a look is taken on; few, since a trace computes every vote in memory."""


def make_watch(
    network: nn.Module, images: Tensor, labels: Tensor, config: RunConfig
) -> Callable[[int], dict[str, Any]]:
    """A function that takes the number of steps done and gives a row of metrics; its first sign of trouble is logged.

    A row has, for every routed layer, the figures of `emcaps.analysis.warning_signs`, and `commonest_answer`: the share
    of the images to which the network gives the answer that it gives most often.
    """
    assert isinstance(network, MatrixCapsNet)  # RunConfig refuses to watch a cnn
    crops, targets = (values[:IMAGES] for values in fixed_crops(images, labels, config.data))
    margin = margin_of(config.train, 0)  # one margin for all looks, so that their losses can be compared

    @torch.no_grad()
    def answers() -> tuple[float, float]:
        output = network(crops)
        loss = float(loss_of(output, targets, config.train, margin, None))
        return loss, float(output.activation.argmax(-1).bincount().max()) / len(crops)

    first_loss, _ = answers()
    warned = False

    def look(step: int) -> dict[str, Any]:
        nonlocal warned
        row: dict[str, Any] = {"step": step}
        signs = warning_signs(network, crops)
        for one in signs:
            figures = {"saturated": one.saturated, "lone_parents": one.lone_parents, "entropy": one.entropy}
            row |= {f"{one.layer}_{name}": value for name, value in figures.items() if math.isfinite(value)}
        loss, row["commonest_answer"] = answers()
        classes = signs[-1]
        if not warned and classes.verdict:
            logger.warning("step %d, %s", step, classes)
            warned = True
        elif not warned and row["commonest_answer"] == 1 and loss < first_loss:
            logger.warning("step %d: the loss falls, but all answers are one class. %s.", step, LOWER)
            warned = True
        return row

    return look
