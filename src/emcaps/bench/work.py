"""The function that is timed, made from a case and an implementation, with random inputs.

Dims: B batch; C channels; H, W image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from emcaps.bench.capture import capture
from emcaps.bench.cases import CHANNELS, FORWARD, STEP, Case
from emcaps.bench.implementations import Implementation, graphed_maker
from emcaps.bench.timing import Work
from emcaps.bench.training_step import training_step
from emcaps.nn import MatrixCapsNet, spread_loss
from emcaps.routing import RoutingOutput
from emcaps.train.schedules import spread_margin

MARGIN = spread_margin(0)
Run = Callable[[Tensor], RoutingOutput]
"""A network, or what runs it."""
BORDER = 16
"""How many pixels training cuts off along each axis, as from 48x48 images to 32x32 crops."""


def build_work(case: Case, implementation: Implementation, device: torch.device) -> Work:
    """The function that a row of the benchmark repeats."""
    torch.manual_seed(0)
    network = MatrixCapsNet(case.config(implementation.routing), CHANNELS).to(device)
    if implementation.compiled:
        torch.compiler.reset()  # otherwise each further shape counts towards a limit
        network.compile(fullgraph=True, dynamic=False, mode=implementation.mode)
    if case.what == STEP:
        if implementation.graphed:
            raise ValueError(f"{implementation.name} is not timed as a {STEP}: name another --what")
        images, labels = resident_images(case, device)
        return training_step(
            network,
            images,
            labels,
            case.batch,
            case.size,
            captured=implementation.captured,
            autocast=implementation.autocast,
        )
    images, labels = random_inputs(case.batch, case.size, network.config.classes, device)
    if case.what == FORWARD:
        network.eval()
    parameters = list(network.parameters())
    run: Run = network
    if implementation.graphed:
        make = graphed_maker()
        assert make is not None, "implementations() leaves it out"
        run = make(network, images)
    if case.what == FORWARD:
        work: Work = forward(run, images, implementation.autocast)
    else:
        work = forward_backward(run, parameters, images, labels, implementation.autocast)
    return capture(work, device).replay if implementation.captured else work


def forward(run: Run, images: Tensor, autocast: bool = False) -> Work:
    def work() -> object:
        with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16, enabled=autocast):
            return run(images)

    return work


def forward_backward(
    run: Run, parameters: Sequence[Tensor], images: Tensor, labels: Tensor, autocast: bool = False
) -> Callable[[], tuple[Tensor, ...]]:
    def work() -> tuple[Tensor, ...]:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=autocast):
            loss = spread_loss(run(images).activation, labels, MARGIN)
        return torch.autograd.grad(loss, parameters)

    return work


def random_inputs(batch: int, size: int, classes: int, device: torch.device, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Standardised images (B, C, H, W) and labels (B,)."""
    generator = torch.Generator(device).manual_seed(seed)
    images = torch.randn(batch, CHANNELS, size, size, generator=generator, device=device)
    return images, torch.randint(classes, (batch,), generator=generator, device=device)


def resident_images(case: Case, device: torch.device) -> tuple[Tensor, Tensor]:
    """A training set on the device, so large that a new epoch, whose order must be drawn, begins only now and then."""
    count, side = max(4096, 8 * case.batch), case.size + BORDER
    generator = torch.Generator(device).manual_seed(0)
    shape = (count, CHANNELS, side, side)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator, device=device)
    return images, torch.randint(case.config().classes, (count,), generator=generator, device=device)
