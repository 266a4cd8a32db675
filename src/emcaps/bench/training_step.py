"""One training step as the benchmark times it: the step of `emcaps train`, on images that are on the device."""

from __future__ import annotations

import itertools

from torch import Tensor

from emcaps.bench.cases import VIEW
from emcaps.bench.timing import Work
from emcaps.config import DataConfig, RunConfig, TrainConfig
from emcaps.nn import MatrixCapsNet
from emcaps.train import make_optimiser, make_step


def training_step(
    network: MatrixCapsNet,
    images: Tensor,
    labels: Tensor,
    batch: int,
    size: int,
    *,
    captured: bool = False,
    autocast: bool = False,
) -> Work:
    """A function that does the next step: choose a batch, augment, forward, backward, Adam.

    images uint8 (N, C, H, W) and labels (N,) are the whole training set. With `captured` the step is a CUDA graph.
    """
    settings = TrainConfig(
        batch_size=batch, graph="on" if captured else "off", autocast="bfloat16" if autocast else "off"
    )
    config = RunConfig(network.config, DataConfig(view=VIEW, crop=size), settings)
    step = make_step(network, make_optimiser(network, settings), images, labels, config)
    numbers = itertools.count()
    return lambda: step(next(numbers))
