"""The training step as a CUDA graph: its hundreds of kernels are recorded once and launched as one, without gaps.

`make_step` is what the loop and the benchmark call:

    optimiser = make_optimiser(network, config.train)
    advance = make_step(network, optimiser, images, labels, config)    # config.train.graph: "auto", "on" or "off"
    for number in range(steps):
        advance(number)                                                # returns before the device is done

On the same device it gives the same bits with a graph and without: both run the same `TrainingStep.work`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from emcaps import debug
from emcaps.config import RunConfig
from emcaps.data.combine import Counterparts
from emcaps.nn.cuda_graph import first_reason, forbid_waiting, renew
from emcaps.train import distributed
from emcaps.train.randomness import default_cuda_generator
from emcaps.train.step import TrainingStep, make_sums

logger = logging.getLogger("emcaps")

WARM_UPS = 3
"""Steps before the capture, in which kernels are compiled, libraries set up and the optimiser's state made."""


def make_step(
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    config: RunConfig,
    sums: dict[str, Tensor] | None = None,
    counterparts: Counterparts | None = None,
    teachers: Sequence[nn.Module] = (),
) -> TrainingStep | GraphedStep:
    """A callable that takes a step's number and does that step, as a CUDA graph if `config.train.graph` says so.

    Nothing is trained yet: warm-up and capture leave network, optimiser and sums as they were. Every step adds to
    `sums`, which are made here if none are given; data.splice needs `counterparts`. A graph keeps the settings of
    torch.backends under which it was captured.
    """
    if sums is None:
        sums = make_sums(images.device)
    step = TrainingStep(network, optimiser, images, labels, config, sums, counterparts, teachers)
    if not wants_graph(config.train.graph, images.device):
        return step
    try:
        return GraphedStep(step)
    except RuntimeError as error:
        if config.train.graph == "on":
            raise ValueError(
                f"train.graph='on', but the training step cannot be captured in a CUDA graph ({first_reason(error)}): "
                "use --set train.graph=off, which gives the same numbers, or auto"
            ) from error
        if distributed.size() > 1:  # whose captures may have failed at different points, or not at all
            raise ValueError(
                f"the training step cannot be captured in a CUDA graph ({first_reason(error)}), and "
                f"{distributed.size()} processes must all do without: use --set train.graph=off"
            ) from error
        logger.warning(
            "the training step cannot be captured in a CUDA graph (%s): it runs without one, to the same numbers but "
            "more slowly; --set train.graph=off silences this",
            first_reason(error),
        )
        return step


def wants_graph(setting: str, device: torch.device) -> bool:
    """Whether train.graph asks for a graph on this device."""
    if setting == "on" and device.type != "cuda":
        raise ValueError(
            f"train.graph='on' needs a CUDA device, not {device.type!r}: use train.graph='auto', or train on a GPU"
        )
    if setting == "on" and not distributed.can_capture():
        raise ValueError(
            "train.graph='on' needs NCCL, which can be captured in a graph, and these processes use gloo: use "
            "train.graph='auto', or one process"
        )
    return setting != "off" and device.type == "cuda" and distributed.can_capture()


class GraphedStep:
    """A training step whose work is captured once and replayed at every call."""

    def __init__(self, step: TrainingStep) -> None:
        if not all(isinstance(group["lr"], Tensor) for group in step.optimiser.param_groups):
            raise ValueError(
                "the optimiser's learning rate must be a tensor on the device, or every replay would use the same one: "
                "make the optimiser with make_optimiser"
            )
        self.step = step
        self.graph = _capture(step)

    def __call__(self, number: int) -> None:
        self.step.prepare(number)
        self.graph.replay()


def _capture(step: TrainingStep) -> torch.cuda.CUDAGraph:
    """A graph of the step's work. Even if the capture fails, the step is left as if this had not been called."""
    with torch.cuda.device(step.images.device):
        caller, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(caller)
        try:
            with torch.cuda.stream(stream):
                # Warm-ups are undone, and no step that was asked for: the run itself says which of its steps fails.
                with undo_changes(step.state), debug.checks(False):
                    for _ in range(WARM_UPS - 1):
                        step.work()
                    with forbid_waiting():  # here, since a capture that fails is far harder to recover from
                        step.work()
                step.optimiser.zero_grad()  # so that the graph's gradients live in the graph's memory
                graph = torch.cuda.CUDAGraph()
                graph.register_generator_state(step.generator)
                # NCCL has a thread that watches its work: what that thread asks of the device is no error of ours.
                mode = "thread_local" if distributed.joined() else "global"
                with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
                    step.work()
        except BaseException:
            for generator in (step.generator, default_cuda_generator(step.images.device)):
                renew(generator)
            raise
        finally:
            caller.wait_stream(stream)
    return graph


@contextmanager
def undo_changes(state: Callable[[], list[Tensor]]) -> Iterator[None]:
    """At the end, restore the tensors of `state` in place; those that are new by then, Adam's moments, become zero."""
    before = {id(tensor): tensor.detach().clone() for tensor in state()}
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor in state():
                if id(tensor) in before:
                    tensor.copy_(before[id(tensor)])
                else:
                    tensor.zero_()
