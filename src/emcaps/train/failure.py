"""Why a run stopped: its last steps, replayed one by one up to the first that gave a number that is not finite.

By the time a run notices, its weights are NaN everywhere, which says nothing. So the state of the last moment when all
was well is kept, at the cost of a copy of the weights and of the optimiser's moments for every row of metrics.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from emcaps import debug
from emcaps.config import RunConfig
from emcaps.nn import MatrixCapsNet
from emcaps.routing import RoutingOutput
from emcaps.train import checkpoint as checkpoints
from emcaps.train.graph import GraphedStep
from emcaps.train.step import TrainingStep

logger = logging.getLogger("emcaps")

FAILED = "failed.safetensors"
"""The network as it was before the step that failed."""
SECONDS = 120.0
"""No more time than this is spent on replaying steps."""
AT_A_TIME = 8
"""Images that are traced together: a trace computes every vote in memory."""

State = dict[int, Tensor]


def all_finite(sums: dict[str, Tensor], network: nn.Module) -> bool:
    """Whether the sum of the losses and all weights are finite."""
    weights = torch.stack([value.isfinite().all() for value in network.parameters()]).all()
    return math.isfinite(float(sums["loss"])) and bool(weights)


class LastGood:
    """The state of a training step after `number` steps, when its numbers were last known to be finite."""

    def __init__(self, advance: Callable[[int], None], network: nn.Module, number: int) -> None:
        self.advance, self.network = advance, network
        # Several processes that train together cannot replay a step alone.
        alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        step = advance.step if isinstance(advance, GraphedStep) else advance
        self.step = step if alone and isinstance(step, TrainingStep) else None
        self.keep(number)

    def keep(self, number: int) -> None:
        """The numbers are finite after this many steps."""
        self.number = number
        if self.step is not None:
            self.state = _copied(self.step)

    def explain(self, steps: int, folder: Path, config: RunConfig) -> str:
        """What the first bad number was and where the network is kept, in whole sentences; never raises.

        The network is left as it was before the step that failed, and is written to the run's folder like that.
        """
        found, number = "", steps
        try:
            with debug.checks(False):
                number, found = self._find(steps)
        except Exception as error:  # whatever it is, the run must end by its own error
            logger.warning("cannot say which layer failed first: %s", " ".join(str(error).split()))
        try:
            checkpoints.save_weights(folder / FAILED, self.network, config, number)
        except (OSError, ValueError) as error:
            logger.warning("cannot keep the network that failed: %s", error)
            return found
        return f"{found}{' ' if found else ''}The network after step {number} is kept in {FAILED}."

    def _find(self, steps: int) -> tuple[int, str]:
        """The number of steps after which the next one fails, and what fails in it; the network is left there."""
        if self.step is None:
            return steps, ""
        logger.warning(
            "the numbers are not finite any more: the last %d steps are replayed to find the layer", steps - self.number
        )
        failed, started = _copied(self.step), time.monotonic()
        before = self.state
        _restore(self.step, before)
        for number in range(self.number, steps):
            if time.monotonic() - started > SECONDS:
                break
            self.advance(number)
            if not all_finite(self.step.sums, self.network):
                _restore(self.step, before)
                found = _look(self.step, self.network, number)
                _restore(self.step, before)
                return number, f"Step {number + 1} is the first that fails: {found}."
            before = _copied(self.step)
        _restore(self.step, failed)
        return steps, f"No step failed again when they were replayed for up to {SECONDS:.0f} seconds."


def _copied(step: TrainingStep) -> State:
    return {id(tensor): tensor.detach().clone() for tensor in step.state()}


@torch.no_grad()
def _restore(step: TrainingStep, state: State) -> None:
    """Set every tensor back in place; moments that the optimiser had not made yet become zero."""
    for tensor in step.state():
        if id(tensor) in state:
            tensor.copy_(state[id(tensor)])
        else:
            tensor.zero_()


def _look(step: TrainingStep, network: nn.Module, number: int) -> str:
    """The first bad number of a step that is done once more, without a graph."""
    seen: list[tuple[str, Tensor]] = []
    crops: list[Tensor] = []

    def note(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            pairs = output._asdict() if isinstance(output, RoutingOutput) else {"output": output}
            seen.extend((f"{name}: {what}", value.detach()) for what, value in pairs.items())

        return hook

    hooks = [network.register_forward_pre_hook(lambda _module, inputs: crops.append(inputs[0].detach()))]
    hooks += [module.register_forward_hook(note(name)) for name, module in network.named_children()]
    try:
        step.prepare(number)
        step.work()
    finally:
        for hook in hooks:
            hook.remove()
    gradients = {name: value.grad.clone() for name, value in network.named_parameters() if value.grad is not None}
    for what, value in [("the images", crops[0]), *seen]:
        if found := debug.first_bad(value):
            return f"{what}{found}{_iteration(network, crops[0], what)}"
    if not math.isfinite(float(step.sums["loss"])):
        return "every layer's output is finite, and the loss is not"
    for name, value in reversed(gradients.items()):  # the last layer's gradients are computed first
        if found := debug.first_bad(value):
            return f"the loss is finite, and the gradient of {name}{found}"
    return "loss and gradients are finite, and the weights after the optimiser's step are not"


@torch.no_grad()
def _iteration(network: nn.Module, crops: Tensor, what: str) -> str:
    """Which routing iteration of a layer, and which of its quantities, first goes wrong by the definition."""
    layer = what.partition(":")[0]
    if not isinstance(network, MatrixCapsNet) or layer not in network.routed_names:
        return ""
    for batch in crops.split(AT_A_TIME):
        steps = network.trace(batch).routed[network.routed_names.index(layer)]
        for number, values in enumerate(steps, 1):
            for quantity in ("assignment", "mean", "variance", "cost", "activation"):
                if debug.first_bad(getattr(values, quantity)):
                    return f". It began with the {quantity} in routing iteration {number}"
    return ""
