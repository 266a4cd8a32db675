"""Random inputs for routing, its outputs and gradients by name, and the comparison of a layer with the brute force.

Sizes: B batch, H W child grid, I child types, O parent types, KH KW kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from emcaps import RoutingOutput
from routing.brute_force import Step
from routing.compare import assert_close


class Inputs(NamedTuple):
    """The tensors that both kinds of layer take, in order."""

    pose: Tensor  # (B,H,W,I,4,4)
    activation: Tensor  # (B,H,W,I)
    weight: Tensor  # (KH,KW,I,O,4,4), or (I,O,4,4) for the class layer
    beta_u: Tensor  # (O,)
    beta_a: Tensor  # (O,)

    def to(self, dtype: torch.dtype) -> Inputs:
        return Inputs(*(tensor.to(dtype) for tensor in self))


def conv_inputs(
    batch: int = 2,
    grid: tuple[int, int] = (4, 5),
    kernel: tuple[int, int] = (3, 2),
    child_types: int = 2,
    parent_types: int = 3,
    seed: int = 0,
) -> Inputs:
    """Ordinary float64 inputs that float32 represents exactly, so that both precisions get the same problem."""
    return _inputs(batch, grid, kernel, child_types, parent_types, seed)


def class_inputs(
    batch: int = 2, grid: tuple[int, int] = (3, 2), child_types: int = 3, parent_types: int = 4, seed: int = 0
) -> Inputs:
    """Inputs like those of `conv_inputs`, for the class layer."""
    return _inputs(batch, grid, (), child_types, parent_types, seed)


def _inputs(
    batch: int, grid: tuple[int, int], kernel: tuple[int, ...], child_types: int, parent_types: int, seed: int
) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).double()

    return Inputs(
        pose=normal(batch, *grid, child_types, 4, 4),
        activation=torch.rand((batch, *grid, child_types), generator=generator).double(),
        weight=normal(*kernel, child_types, parent_types, 4, 4) / 2,
        beta_u=normal(parent_types),
        beta_a=normal(parent_types),
    )


def gradients(pose: Tensor, activation: Tensor, inputs: Inputs) -> Inputs:
    """The gradients of a fixed random weighting of the outputs, by input; zeros for an input without influence."""
    generator = torch.Generator().manual_seed(99)
    towards = [torch.randn(out.shape, generator=generator).to(out.dtype) for out in (pose, activation)]
    found = torch.autograd.grad((pose, activation), inputs, towards, allow_unused=True)
    return Inputs(*(torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)))


def with_gradients(inputs: Inputs) -> Inputs:
    """Copies that require gradients."""
    return Inputs(*(tensor.detach().clone().requires_grad_() for tensor in inputs))


def outputs_and_gradients(routing: Callable[..., Any], inputs: Inputs, **options: Any) -> dict[str, Tensor]:
    """The two outputs and five gradients of a call of the routing, by name."""
    inputs = with_gradients(inputs)
    output = routing(*inputs, **options)
    found = gradients(output.pose, output.activation, inputs)
    named = {"pose": output.pose.detach(), "activation": output.activation.detach()}
    return named | {f"gradient of {name}": gradient for name, gradient in found._asdict().items()}


def result_of(brute_force: Callable[..., list[Step]], steps: list[Step] | None = None) -> Callable[..., Any]:
    """The brute force as a function that returns the routing's result and appends its iterations to `steps`."""

    def routing(*tensors: Tensor, **options: Any) -> RoutingOutput:
        found = brute_force(*tensors, **options)
        if steps is not None:
            steps.extend(found)
        return RoutingOutput(found[-1].mean, found[-1].activation)

    return routing


def assert_routing_is(
    routing: Callable[..., Any],
    trace: Callable[..., Any],
    brute_force: Callable[..., list[Step]],
    inputs: Inputs,
    tolerances: dict[str, float] | None = None,
    **options: Any,
) -> None:
    """Compare outputs, gradients and every entry of the trace with the brute force, to 1e-10 unless told otherwise."""
    tolerances = tolerances or {}
    got = outputs_and_gradients(routing, inputs, impl="reference", **options)
    steps: list[Step] = []
    wanted = outputs_and_gradients(result_of(brute_force, steps), inputs, **options)
    # Where large terms cancel, a gradient has the rounding error of those terms, which are no larger than the largest
    # gradient. So the scale is at least 1e-4 of that gradient, and the tolerance at least 1e-14 of it. An activation of
    # e^-600 has the rounding error of the 600.
    largest = max(float(want.abs().max()) for name, want in wanted.items() if name.startswith("gradient"))
    least = {"activation": 1e-30} | {name: 1e-4 * largest for name in wanted if name.startswith("gradient")}
    for name, want in wanted.items():
        assert_close(name, got[name], want, tolerances.get(name, 1e-10), least.get(name, 0.0))

    with torch.no_grad():
        entries = list(trace(*inputs, impl="reference", **options))
    assert len(entries) == len(steps)
    for t, (entry, step) in enumerate(zip(entries, steps, strict=True)):
        for name in Step._fields:
            want = getattr(step, name).detach()
            assert_close(f"{name} of iteration {t}", getattr(entry, name), want, 1e-10, least.get(name, 0.0))
