"""The public routing functions: check the inputs, pick an implementation, run it.

Dims as in results.py. An explicit `impl` runs that implementation or raises with every reason why it cannot; only
"auto" chooses.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from emcaps.config import IMPLEMENTATIONS
from emcaps.names import check_name
from emcaps.routing import reference
from emcaps.routing.checks import check_class_inputs, check_conv_inputs, check_settings
from emcaps.routing.geometry import Pair, as_pair
from emcaps.routing.results import RoutingOptions, RoutingOutput, RoutingStep, RoutingTrace

logger = logging.getLogger("emcaps")

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Settings: TypeAlias = tuple[int, float, float, str, str]


def conv_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | Pair = 1,
    iterations: int = 3,
    final_lambda: float = 1.0,
    variance_floor: float = 1e-4,
    data_scaling: str = "mean",
    competition: str = "all",
    impl: str = "auto",
) -> RoutingOutput:
    """Route a grid of child capsules to a grid of parents, each reading a kernel window of children.

    Args:
        pose: (B, H, W, I, 4, 4), the children's pose matrices.
        activation: (B, H, W, I), their activations, 0 to 1.
        weight: (KH, KW, I, O, 4, 4), a matrix for each kernel offset, child type and parent type.
        beta_u: (O,), the cost of describing data, per parent type.
        beta_a: (O,), the gain of activating, per parent type.
        stride: step between windows: a number or (rows, columns). Children that no window covers are ignored.
        iterations: how many M-steps; there is an E-step between each two.
        final_lambda: the inverse temperature that lambda_t = final_lambda (1 - 0.95^(t+1)) rises towards.
        variance_floor: added to every variance, so that a parent of one child stays finite (pitfall 1). Zero brings the
            pitfall back: infinities and NaN are then the right answer.
        data_scaling: "mean" counts a parent's data relative to the layer's mean data; "none" does not (pitfall 2).
        competition: "all": every parent of a child competes for it; "types": only those at the same position, so that
            each position gets the whole child (pitfall 3). The start is the same for both.
        impl: "auto", "reference", "triton" or "numba".

    Returns:
        RoutingOutput: pose (B, OH, OW, O, 4, 4) and activation (B, OH, OW, O).
    """
    steps = _conv_steps(
        (pose, activation, weight, beta_u, beta_a),
        stride,
        (iterations, final_lambda, variance_floor, data_scaling, competition),
        choose_implementation(impl),
    )
    return _last(steps)


def class_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    iterations: int = 3,
    final_lambda: float = 1.0,
    variance_floor: float = 1e-4,
    data_scaling: str = "mean",
    competition: str = "all",
    impl: str = "auto",
) -> RoutingOutput:
    """Route all children of a grid to one parent per class, with matrices shared over positions.

    Each vote gets its child's scaled position added to the right-hand column: (row + 0.5) / H and (column + 0.5) / W.

    Args:
        pose, activation: (B, H, W, I, 4, 4) and (B, H, W, I), the children.
        weight: (I, O, 4, 4), a matrix for each child type and class.
        beta_u, beta_a: (O,).
        The other arguments are those of `conv_routing`; with one parent position "types" and "all" are the same.

    Returns:
        RoutingOutput: pose (B, O, 4, 4) and activation (B, O).
    """
    steps = _class_steps(
        (pose, activation, weight, beta_u, beta_a),
        (iterations, final_lambda, variance_floor, data_scaling, competition),
        choose_implementation(impl),
    )
    return _last(steps)


def conv_routing_trace(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | Pair = 1,
    iterations: int = 3,
    final_lambda: float = 1.0,
    variance_floor: float = 1e-4,
    data_scaling: str = "mean",
    competition: str = "all",
    impl: str = "auto",
) -> RoutingTrace:
    """`conv_routing` with every iteration kept: assignments, means, variances, costs and activations.

    Only the reference keeps them, so `impl` must be "auto" or "reference".
    """
    steps = _conv_steps(
        (pose, activation, weight, beta_u, beta_a),
        stride,
        (iterations, final_lambda, variance_floor, data_scaling, competition),
        _traceable(impl),
    )
    return RoutingTrace(steps)


def class_routing_trace(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    iterations: int = 3,
    final_lambda: float = 1.0,
    variance_floor: float = 1e-4,
    data_scaling: str = "mean",
    competition: str = "all",
    impl: str = "auto",
) -> RoutingTrace:
    """`class_routing` with every iteration kept. `impl` must be "auto" or "reference"."""
    steps = _class_steps(
        (pose, activation, weight, beta_u, beta_a),
        (iterations, final_lambda, variance_floor, data_scaling, competition),
        _traceable(impl),
    )
    return RoutingTrace(steps)


def choose_implementation(impl: str) -> str:
    """The implementation that runs: `impl` itself if it can, else a ValueError with the reasons; "auto" chooses."""
    check_name("impl", impl, IMPLEMENTATIONS)
    if impl == "auto":
        if not torch.compiler.is_compiling():
            log_choice("reference")
        return "reference"
    reasons = unavailable(impl)
    if reasons:
        raise ValueError(f"impl={impl!r} cannot run: {'; '.join(reasons)}: use impl='auto' or 'reference'")
    return impl


def checked_options(options: RoutingOptions) -> RoutingOptions:
    """The options of a layer, checked when the layer is made and not only when it first runs."""
    for name in options:
        check_name("routing option", name, RoutingOptions.__annotations__)
    check_settings(
        options.get("iterations", 3),
        options.get("final_lambda", 1.0),
        options.get("variance_floor", 1e-4),
        options.get("data_scaling", "mean"),
        options.get("competition", "all"),
    )
    check_name("impl", options.get("impl", "auto"), IMPLEMENTATIONS)
    return options


def unavailable(impl: str) -> list[str]:
    """Every reason why an implementation cannot run; none for one that can."""
    return [] if impl == "reference" else [f"this version of emcaps has no {impl} kernels"]


@functools.cache
def log_choice(impl: str) -> None:
    """Say once per process what "auto" runs."""
    logger.info("impl='auto' runs the %s implementation of EM routing", impl)


def _traceable(impl: str) -> str:
    check_name("impl", impl, IMPLEMENTATIONS)
    if impl not in ("auto", "reference"):
        raise ValueError(f"impl={impl!r} cannot run a trace: only the reference keeps every iteration; use 'auto'")
    return "reference"


def _conv_steps(inputs: Inputs, stride: int | Pair, settings: Settings, impl: str) -> Iterator[RoutingStep]:
    checked = check_settings(*settings)
    check_conv_inputs(*inputs, stride)
    assert impl == "reference"
    return reference.conv_routing_steps(*inputs, as_pair("stride", stride), checked)


def _class_steps(inputs: Inputs, settings: Settings, impl: str) -> Iterator[RoutingStep]:
    checked = check_settings(*settings)
    check_class_inputs(*inputs)
    assert impl == "reference"
    return reference.class_routing_steps(*inputs, checked)


def _last(steps: Iterator[RoutingStep]) -> RoutingOutput:
    for step in steps:  # one at a time, so that without gradients each iteration's assignments are freed
        last = RoutingOutput(step.mean, step.activation)
    return last
