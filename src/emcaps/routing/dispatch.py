"""The public routing functions: they check the inputs, choose an implementation and run it.

Dims as in results.py. An explicit `impl` runs that implementation or raises a ValueError with every reason why it
cannot; only "auto" chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from emcaps import debug
from emcaps.config import IMPLEMENTATIONS
from emcaps.names import check_name
from emcaps.routing import reference
from emcaps.routing.availability import choose_implementation
from emcaps.routing.checks import (
    check_class_inputs,
    check_conv_inputs,
    check_coordinate_scale,
    check_set_inputs,
    check_settings,
)
from emcaps.routing.geometry import Pair, as_pair, mean_data, parent_grid
from emcaps.routing.layer_shape import WITHOUT_COORDINATES
from emcaps.routing.operators import OWN_MEAN_DATA, Inputs, KernelSettings, is_plain_call, is_transformed
from emcaps.routing.precision import autocast_type, device_of, upcast, without_autocast
from emcaps.routing.results import RoutingOutput, RoutingStep, RoutingTrace
from emcaps.routing.settings import DEFAULT_IMPL, DEFAULTS, RoutingSettings
from emcaps.routing.windows import with_border


class Layer(NamedTuple):
    """How a layer reads its children, beyond what the shapes of its tensors tell."""

    stride: Pair | None = None
    """None for a class layer."""
    padding: Pair = (0, 0)
    coordinate_scale: float = 1.0
    """In a class layer."""


def conv_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | Pair = 1,
    iterations: int = DEFAULTS.iterations,
    final_lambda: float = DEFAULTS.final_lambda,
    variance_floor: float = DEFAULTS.variance_floor,
    data_scaling: str = DEFAULTS.data_scaling,
    competition: str = DEFAULTS.competition,
    impl: str = DEFAULT_IMPL,
    padding: int | Pair = 0,
) -> RoutingOutput:
    """Route a grid of child capsules to a grid of parents, each reading a kernel window of children.

    Args:
        pose: (B, H, W, I, 4, 4), the children's pose matrices.
        activation: (B, H, W, I), their activations, 0 to 1.
        weight: (KH, KW, I, O, 4, 4), a matrix for each kernel offset, child type and parent type. With (KH, KW, I, O,
            16, 16) the pose is a vector of 16 numbers, row by row; only the reference routes those.
        beta_u: (O,), the cost of describing data, for each parent type.
        beta_a: (O,), the gain of being active, for each parent type.
        stride: step between windows: a number or (rows, columns). Children that no window covers are ignored.
        iterations: the number of M-steps; an E-step follows each of them but the last.
        final_lambda: the inverse temperature that lambda_t = final_lambda (1 - 0.95^(t+1)) rises towards.
        variance_floor: added to every variance, so that a parent of one child stays finite (pitfall 1). Zero brings the
            pitfall back: infinities and NaN are then the correct result.
        data_scaling: "mean" divides a parent's data by the layer's mean data; "none" does not (pitfall 2).
        competition: with "all", every parent of a child competes for it; with "types", only the parents at the same
            position do, so that each position gets the whole child (pitfall 3). Both start from the same assignments.
        impl: "auto", "reference", "triton" or "numba".
        padding: how far windows may reach beyond the grid on each side: a number or (rows, columns), less than the
            kernel. It adds no children: a parent at the border reads fewer.

    Returns:
        RoutingOutput: pose (B, OH, OW, O, 4, 4) and activation (B, OH, OW, O).
    """
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    layer = Layer(as_pair("stride", stride), as_pair("padding", padding, least=0))
    return _route((pose, activation, weight, beta_u, beta_a), layer, settings, impl)


def class_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    iterations: int = DEFAULTS.iterations,
    final_lambda: float = DEFAULTS.final_lambda,
    variance_floor: float = DEFAULTS.variance_floor,
    data_scaling: str = DEFAULTS.data_scaling,
    competition: str = DEFAULTS.competition,
    impl: str = DEFAULT_IMPL,
    coordinate_scale: float = 1.0,
) -> RoutingOutput:
    """Route all children of a grid to one parent per class, with matrices shared over positions.

    The child's scaled position is added to the right-hand column of its votes: (row + 0.5) / H and (column + 0.5) / W,
    times `coordinate_scale`.

    Args:
        pose: (B, H, W, I, 4, 4), the children's pose matrices.
        activation: (B, H, W, I), their activations, 0 to 1.
        weight: (I, O, 4, 4), a matrix for each child type and class, or (I, O, 16, 16) for poses as vectors.
        beta_u: (O,), the cost of describing data, for each class.
        beta_a: (O,), the gain of being active, for each class.
        iterations: the number of M-steps, as in `conv_routing`, which describes the next three settings, too.
        final_lambda: the inverse temperature that lambda_t rises towards.
        variance_floor: added to every variance (pitfall 1).
        data_scaling: "mean" or "none" (pitfall 2).
        competition: "all" or "types": the same here, where parents have one position.
        impl: "auto", "reference", "triton" or "numba".
        coordinate_scale: what the position is multiplied by; 0 leaves it out. Other values than 1 and 0 are for the
            reference alone, which "auto" then takes.

    Returns:
        RoutingOutput: pose (B, O, 4, 4) and activation (B, O).
    """
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    layer = Layer(coordinate_scale=check_coordinate_scale(coordinate_scale))
    return _route((pose, activation, weight, beta_u, beta_a), layer, settings, impl)


def conv_routing_trace(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    stride: int | Pair = 1,
    iterations: int = DEFAULTS.iterations,
    final_lambda: float = DEFAULTS.final_lambda,
    variance_floor: float = DEFAULTS.variance_floor,
    data_scaling: str = DEFAULTS.data_scaling,
    competition: str = DEFAULTS.competition,
    impl: str = DEFAULT_IMPL,
    padding: int | Pair = 0,
) -> RoutingTrace:
    """`conv_routing` with every iteration kept: assignments, means, variances, costs and activations.

    Assignments to children that do not exist, since padding lets windows reach beyond the grid, are 0. Only the
    reference keeps iterations, so `impl` must be "auto" or "reference".
    """
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    layer = Layer(as_pair("stride", stride), as_pair("padding", padding, least=0))
    return _trace((pose, activation, weight, beta_u, beta_a), layer, settings, impl)


def class_routing_trace(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    iterations: int = DEFAULTS.iterations,
    final_lambda: float = DEFAULTS.final_lambda,
    variance_floor: float = DEFAULTS.variance_floor,
    data_scaling: str = DEFAULTS.data_scaling,
    competition: str = DEFAULTS.competition,
    impl: str = DEFAULT_IMPL,
    coordinate_scale: float = 1.0,
) -> RoutingTrace:
    """`class_routing` with every iteration kept. `impl` must be "auto" or "reference"."""
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    layer = Layer(coordinate_scale=check_coordinate_scale(coordinate_scale))
    return _trace((pose, activation, weight, beta_u, beta_a), layer, settings, impl)


def set_routing(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    mask: Tensor | None = None,
    iterations: int = DEFAULTS.iterations,
    final_lambda: float = DEFAULTS.final_lambda,
    variance_floor: float = DEFAULTS.variance_floor,
    data_scaling: str = DEFAULTS.data_scaling,
    competition: str = DEFAULTS.competition,
    impl: str = DEFAULT_IMPL,
) -> RoutingOutput:
    """Route a set of children to one parent per type: the members of a set have no order and no position.

    Sets of different sizes share a batch: fill them up to the same N, and let `mask` say which members exist. What the
    others hold makes no difference, not even NaN, and the mean data is counted for each set by itself.

    With a mask and data_scaling "mean" only the reference routes, which stores the votes.

    Args:
        pose: (B, N, I, 4, 4), the poses of N members with I types of capsules each.
        activation: (B, N, I), their activations, 0 to 1.
        weight: (I, O, 4, 4), a matrix for each child type and parent type, which all members share, or (I, O, 16, 16)
            for poses as vectors. For matrices of their own, let N be 1 and each child be a type.
        beta_u: (O,), the cost of describing data, for each parent type.
        beta_a: (O,), the gain of being active, for each parent type.
        mask: (B, N), or (B, N, I) where a member may lack some types: True for what exists. None means all.
        iterations: the number of M-steps, as in `conv_routing`, which describes the next three settings, too.
        final_lambda: the inverse temperature that lambda_t rises towards.
        variance_floor: added to every variance (pitfall 1).
        data_scaling: "mean" or "none" (pitfall 2).
        competition: "all" or "types": the same here, where parents have no position.
        impl: "auto", "reference", "triton" or "numba".

    Returns:
        RoutingOutput: pose (B, O, 4, 4) and activation (B, O). Parents of an empty set have pose 0 and activation
        logistic(lambda_t beta_a).
    """
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    inputs, exists = _as_class_layer((pose, activation, weight, beta_u, beta_a), mask)
    members = _members(exists, settings)
    return _route(inputs, Layer(coordinate_scale=0.0), settings, impl, members)


def set_routing_trace(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    *,
    mask: Tensor | None = None,
    iterations: int = DEFAULTS.iterations,
    final_lambda: float = DEFAULTS.final_lambda,
    variance_floor: float = DEFAULTS.variance_floor,
    data_scaling: str = DEFAULTS.data_scaling,
    competition: str = DEFAULTS.competition,
    impl: str = DEFAULT_IMPL,
) -> RoutingTrace:
    """`set_routing` with every iteration kept; assignments are (B, N, I, O), and 0 for what the mask leaves out.

    `impl` must be "auto" or "reference".
    """
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    inputs, exists = _as_class_layer((pose, activation, weight, beta_u, beta_a), mask)
    trace = _trace(inputs, Layer(coordinate_scale=0.0), settings, impl, _members(exists, settings))
    for_members = (step._replace(assignment=step.assignment[:, :, 0]) for step in trace)
    if exists is None:
        return RoutingTrace(for_members)
    return RoutingTrace(step._replace(assignment=step.assignment * exists[..., None]) for step in for_members)


def _as_class_layer(inputs: Inputs, mask: Tensor | None) -> tuple[Inputs, Tensor | None]:
    """A set as the children of a class layer, on a grid of N rows and one column.

    With a mask also which children exist, (B, N, I). The others become children whose pose and activation are 0: they
    weigh nothing, in a parent and in any gradient.
    """
    check_set_inputs(inputs, mask)
    pose, activation, weight, beta_u, beta_a = inputs
    exists = None
    if mask is not None:
        exists = (mask if mask.dim() == 3 else mask[..., None]).expand(activation.shape)
        pose, activation = pose.masked_fill(~exists[..., None, None], 0.0), activation.masked_fill(~exists, 0.0)
    if debug.enabled:  # here, where places have the indices that the caller knows
        debug.check_inputs((pose, activation, weight, beta_u, beta_a))
    return (pose[:, :, None], activation[:, :, None], weight, beta_u, beta_a), exists


def _members(exists: Tensor | None, settings: RoutingSettings) -> Tensor | None:
    """The number of children in each set, (B,), where the sets of a batch may differ in their mean data."""
    return None if exists is None or settings.data_scaling == "none" else exists.sum((1, 2))


def _route(
    inputs: Inputs, layer: Layer, settings: RoutingSettings, impl: str, members: Tensor | None = None
) -> RoutingOutput:
    """Run one routing by the chosen implementation. `members` (B,) counts the children that exist, if not all do."""
    device = device_of(inputs[0])
    beyond_kernels = _beyond_kernels(inputs, layer.coordinate_scale, members)
    chosen = choose_implementation("reference" if impl == "auto" and beyond_kernels else impl, device)
    if chosen != "reference" and beyond_kernels:
        raise ValueError(f"impl={impl!r} cannot {beyond_kernels}; use impl='auto' or 'reference'")
    low_precision = autocast_type(device)
    inputs = _checked(inputs, layer)
    with without_autocast(device):
        output: RoutingOutput
        compiling = layer.stride is not None and device.type == "cpu" and torch.compiler.is_dynamo_compiling()
        if chosen != "reference":
            output = _fused(chosen, inputs, layer, settings, low_precision)
        elif compiling and (impl == "auto" or _is_for_inductor()):
            output = _reference_outside_the_graph(inputs, layer, settings, members)
        else:
            output = _reference(inputs, layer, settings, members)
    if debug.enabled:
        debug.check_output(*output, settings.variance_floor)
    return output


def _reference(inputs: Inputs, layer: Layer, settings: RoutingSettings, members: Tensor | None) -> RoutingOutput:
    for step in _reference_steps(inputs, layer, settings, members):
        last = RoutingOutput(step.mean, step.activation)  # keeps no earlier step, so that its memory is freed
    return last


# Inductor, torch's own compiler, turns F.fold and the gradient of Tensor.unfold on a CPU into code that writes outside
# its memory and ends the process (pytorch/pytorch#191837). A convolutional layer of the reference needs both. So there
# it runs as it is, between two compiled graphs; an explicit impl="reference" is still compiled for other backends.
_reference_outside_the_graph = torch.compiler.disable(_reference)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_for_inductor() -> bool:
    """Whether the graph that is being traced will be compiled by Inductor; True where that cannot be told."""
    try:  # torch has no public name for this
        from torch._dynamo.symbolic_convert import InstructionTranslator

        compiler = InstructionTranslator.current_tx().output.compiler_fn
    except (ImportError, AttributeError):
        return True
    return getattr(compiler, "__name__", None) == "inductor"


def _trace(
    inputs: Inputs, layer: Layer, settings: RoutingSettings, impl: str, members: Tensor | None = None
) -> RoutingTrace:
    check_name("impl", impl, IMPLEMENTATIONS)
    if impl not in ("auto", "reference"):
        raise ValueError(f"impl={impl!r} cannot run a trace: only the reference keeps every iteration; use 'auto'")
    inputs = _checked(inputs, layer)
    with without_autocast(inputs[0].device):
        return RoutingTrace(_reference_steps(inputs, layer, settings, members))


def _reference_steps(
    inputs: Inputs, layer: Layer, settings: RoutingSettings, members: Tensor | None
) -> Iterator[RoutingStep]:
    if layer.stride is None:
        return reference.class_routing_steps(*inputs, settings, layer.coordinate_scale, members)
    return reference.conv_routing_steps(*inputs, layer.stride, layer.padding, settings)


def _fused(
    chosen: str, inputs: Inputs, layer: Layer, settings: RoutingSettings, low_precision: torch.dtype | None
) -> RoutingOutput:
    if chosen == "triton":
        from emcaps.routing.triton_kernels.operators import fused_routing
    else:
        from emcaps.routing.numba_kernels.operators import fused_routing

    pose, activation, weight, beta_u, beta_a = inputs
    without_coordinates = layer.stride is None and layer.coordinate_scale == 0
    one_window = without_coordinates and chosen == "triton"
    if one_window:
        # Then a class layer is a convolutional one with one window, the whole grid, whose positions share matrices.
        weight, layer = weight.expand(*activation.shape[1:3], *weight.shape), Layer(stride=(1, 1))
    if is_plain_call(inputs):
        kernel_settings = _remembered_settings(activation.shape, weight.shape, layer, settings)
    else:  # sizes may be symbols
        finds_unit = chosen == "numba" and not any(layer.padding)
        kernel_settings = _kernel_settings(activation.shape, weight.shape, layer, settings, finds_unit)
    if without_coordinates and not one_window:
        kernel_settings = kernel_settings._replace(stride=WITHOUT_COORDINATES)
    if any(layer.padding):
        pose, activation = with_border(pose, activation, layer.padding)
    # Only bfloat16, because float16 has too little range for poses.
    if chosen == "triton" and low_precision == torch.bfloat16 and pose.dtype == torch.float32:
        pose, weight = pose.bfloat16(), weight.bfloat16()
    outputs = fused_routing((pose, activation, weight, beta_u, beta_a), kernel_settings)
    return RoutingOutput(*(output[:, 0, 0] for output in outputs) if one_window else outputs)


def _kernel_settings(
    activation: tuple[int, ...],
    weight: tuple[int, ...],
    layer: Layer,
    settings: RoutingSettings,
    operators_find_unit: bool = False,
) -> KernelSettings:
    """The settings as kernels take them, for inputs of these shapes, before they get a border."""
    _, height, width, child_types = activation
    unit = 1.0
    if settings.data_scaling == "mean" and operators_find_unit:
        unit = OWN_MEAN_DATA
    elif settings.data_scaling == "mean":
        grid = (1, 1)
        if layer.stride is not None:
            grid = parent_grid((height, width), (weight[0], weight[1]), layer.stride, layer.padding)
        unit = mean_data((height, width), child_types, grid, weight[-3])
    return KernelSettings(
        stride=layer.stride or (1, 1),
        by_position=settings.competition == "types",
        iterations=settings.iterations,
        final_lambda=settings.final_lambda,
        variance_floor=settings.variance_floor,
        data_unit=unit,
    )


_remembered_settings = lru_cache(maxsize=256)(_kernel_settings)


def _checked(inputs: Inputs, layer: Layer) -> Inputs:
    pose, activation, weight, beta_u, beta_a = upcast(*inputs)
    inputs = pose, activation, weight, beta_u, beta_a
    if layer.stride is None:
        check_class_inputs(*inputs)
    else:
        check_conv_inputs(*inputs, layer.stride, layer.padding)
    if debug.enabled:
        debug.check_inputs(inputs)
    return inputs


def _beyond_kernels(inputs: Inputs, coordinate_scale: float, members: Tensor | None) -> str:
    """What only the reference can do with these inputs; empty if the kernels can do it all."""
    if is_transformed(inputs):
        return (
            "run under vmap, jvp and the like, or with forward-mode derivatives: only the reference goes through them"
        )
    if coordinate_scale not in (0, 1):
        return f"scale coordinates by {coordinate_scale}: the kernels add them as they are (1) or leave them out (0)"
    if members is not None:
        return "count the mean data of each set by itself: the kernels know one for the whole batch"
    if isinstance(inputs[2], Tensor) and inputs[2].dim() >= 4 and inputs[2].shape[-1] == 16:
        return "route poses as vectors: the kernels multiply by 4x4 matrices alone, not by 16x16"
    return ""
