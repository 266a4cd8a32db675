"""The check before any timing: does an implementation compute what the definition says?

Class poses, class activations and the gradients of all parameters are compared with a float64 reference network of the
same weights. An implementation may be off by twice what the float32 reference is off by, plus a tiny floor.

Routing amplifies rounding, by a factor that depends on the numbers: of two equally good float32 runs, one may be ten
times nearer to the truth. So weights and images are drawn several times, and on each draw the reference runs several
times, on inputs and weights that differ in their last bit. The worst runs of both are compared.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from emcaps.bench.capture import capture
from emcaps.bench.cases import BACKWARD, CHANNELS, REFERENCE, Case
from emcaps.bench.flops import routed_edges
from emcaps.bench.implementations import Implementation
from emcaps.bench.work import MARGIN, random_inputs
from emcaps.nn import MatrixCapsNet, spread_loss
from emcaps.nn.geometry import POSE

LARGEST_BATCH = 33
"""Kernels treat a whole warp of 32 images and a remainder differently: this batch has both."""
VOTES_AT_ONCE = 2**25
"""How many elements of votes the reference computes at once: it keeps several copies of them, in float64."""
DRAWS, NUDGES = 3, 3
"""How many times weights and images are drawn, and how often the reference runs on each draw after a nudge."""
FLOOR = 1e-6
ROUNDED_LIMIT = 0.3
NOISE = 0.1
"""Added to every parameter, so that the betas and biases, which start at zero, take part."""


class Check(NamedTuple):
    case: Case
    implementation: str
    tensors: int
    """How many tensors were compared. The fields below are about the one nearest to its limit, or furthest beyond."""
    worst: str
    error: float
    reference_error: float
    rounded: bool = False
    """Poses and matrices were rounded to bfloat16, so errors are far larger, and only a gross one is a failure."""

    @property
    def limit(self) -> float:
        return ROUNDED_LIMIT if self.rounded else 2 * self.reference_error + FLOOR

    @property
    def part_of_limit(self) -> float:
        return self.error / self.limit if math.isfinite(self.error) and math.isfinite(self.limit) else math.inf

    @property
    def passed(self) -> bool:
        return self.part_of_limit <= 1


def checked_case(case: Case) -> Case:
    """The case to check: one small batch of a network covers everything that is timed of it."""
    return dataclasses.replace(case, batch=min(case.batch, LARGEST_BATCH), what=BACKWARD)


def check(case: Case, implementations: Sequence[Implementation], device: torch.device) -> list[Check]:
    """Compare each implementation with the definition."""
    errors: dict[str, dict[str, float]] = {}  # of each implementation and tensor, in the worst draw
    for seed in range(DRAWS):
        exact, found = _draw(case, implementations, device, seed)
        for name, values in found:
            worst = errors.setdefault(name, dict.fromkeys(exact, 0.0))
            for tensor, want in exact.items():
                worst[tensor] = max(worst[tensor], relative_error(values[tensor], want))
    checks = []
    for implementation in implementations:
        every = [
            Check(
                case,
                implementation.name,
                len(errors[REFERENCE]),
                tensor,
                error,
                errors[REFERENCE][tensor],
                implementation.autocast,
            )
            for tensor, error in errors[implementation.name].items()
        ]
        checks.append(max(every, key=lambda each: each.part_of_limit))
    return checks


def results(network: MatrixCapsNet, images: Tensor, labels: Tensor, at_once: int) -> dict[str, Tensor]:
    """The outputs, and the gradients of a loss that depends on all of them, computed `at_once` images at a time."""
    names, parameters = zip(*network.named_parameters(), strict=True)
    outputs, gradients = [], [torch.zeros_like(parameter) for parameter in parameters]
    for part, target in zip(images.split(at_once), labels.split(at_once), strict=True):
        output = network(part)
        loss = spread_loss(output.activation, target, MARGIN) + output.pose.square().mean()
        for total, gradient in zip(
            gradients, torch.autograd.grad(loss * (len(part) / len(images)), parameters), strict=True
        ):
            total += gradient
        outputs.append((output.pose.detach(), output.activation.detach()))
    pose, activation = (torch.cat(values) for values in zip(*outputs, strict=True))
    named = {f"gradient of {name}": gradient for name, gradient in zip(names, gradients, strict=True)}
    return {"pose": pose, "activation": activation} | named


def relative_error(got: Tensor, want: Tensor) -> float:
    """|got - want| / |want|, both over the whole tensor; infinite if anything in it is not finite."""
    got, want = got.double(), want.double()
    error = float((got - want).norm() / want.norm())
    return error if math.isfinite(error) else math.inf


def _draw(
    case: Case, implementations: Sequence[Implementation], device: torch.device, seed: int
) -> tuple[dict[str, Tensor], list[tuple[str, dict[str, Tensor]]]]:
    """The exact results, and those of each run of the float32 reference and of each implementation."""
    reference = _random_network(case, seed).to(device)
    images, labels = random_inputs(case.batch, case.size, reference.config.classes, device, seed)
    at_once = max(1, VOTES_AT_ONCE // (POSE * routed_edges(reference.config, case.size)))
    exact = results(copy.deepcopy(reference).double(), images.double(), labels, at_once)
    found = [(REFERENCE, results(reference, images, labels, at_once))]
    for _ in range(NUDGES):
        nudged = copy.deepcopy(reference)
        with torch.no_grad():
            for parameter in nudged.parameters():
                parameter.copy_(_nudged(parameter))
        found.append((REFERENCE, results(nudged, _nudged(images), labels, at_once)))
    for implementation in implementations:
        network = MatrixCapsNet(case.config(implementation.routing), CHANNELS).to(device)
        network.load_state_dict(reference.state_dict())
        run = _captured_results if implementation.captured else results
        with torch.autocast(device.type, torch.bfloat16, enabled=implementation.autocast):
            found.append((implementation.name, run(network, images, labels, case.batch)))
    return exact, found


def _captured_results(network: MatrixCapsNet, images: Tensor, labels: Tensor, at_once: int) -> dict[str, Tensor]:
    """The results of a CUDA graph that was captured on other images: its replay must compute everything anew."""
    buffer = images.flip(-1) + 1
    captured = capture(lambda: results(network, buffer, labels, at_once), images.device)
    buffer.copy_(images)
    captured.replay()
    return {name: value.clone() for name, value in captured.result.items()}


def _nudged(values: Tensor) -> Tensor:
    """Each number moved by up to one unit in its last place."""
    return values * (1 + torch.finfo(values.dtype).eps * (2 * torch.rand_like(values) - 1))


def _random_network(case: Case, seed: int) -> MatrixCapsNet:
    torch.manual_seed(seed)
    network = MatrixCapsNet(case.config(), CHANNELS)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(NOISE * torch.randn_like(parameter))
    return network
