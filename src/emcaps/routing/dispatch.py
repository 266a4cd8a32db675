"""The public routing functions: check the inputs, pick an implementation, run it.

Dims as in results.py. An explicit `impl` runs that implementation or raises with every reason why it cannot; only
"auto" chooses.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from emcaps.config import IMPLEMENTATIONS
from emcaps.names import check_name
from emcaps.routing import reference
from emcaps.routing.checks import check_class_inputs, check_conv_inputs, check_settings
from emcaps.routing.geometry import Pair, as_pair, mean_data, parent_grid
from emcaps.routing.operators import Inputs, KernelSettings
from emcaps.routing.results import RoutingOptions, RoutingOutput, RoutingSettings, RoutingStep, RoutingTrace

logger = logging.getLogger("emcaps")

HALF = (torch.float16, torch.bfloat16)


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
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    return _route((pose, activation, weight, beta_u, beta_a), as_pair("stride", stride), settings, impl)


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
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    return _route((pose, activation, weight, beta_u, beta_a), None, settings, impl)


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
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    return _trace((pose, activation, weight, beta_u, beta_a), as_pair("stride", stride), settings, impl)


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
    settings = check_settings(iterations, final_lambda, variance_floor, data_scaling, competition)
    return _trace((pose, activation, weight, beta_u, beta_a), None, settings, impl)


def choose_implementation(impl: str, device: torch.device | None = None) -> str:
    """The implementation that runs: `impl` itself if it can (on that device), else a ValueError with the reasons.

    Only "auto" chooses: the fused kernels on the devices that they are made for, else the reference.
    """
    check_name("impl", impl, IMPLEMENTATIONS)
    if impl == "auto":
        fused = {"cuda": "triton", "cpu": "numba"}.get(device.type if device is not None else "cpu", "reference")
        choice = "reference" if unavailable(fused, device) else fused
        if not torch.compiler.is_compiling():
            log_choice(choice)
            if choice == "reference" and fused == "numba":
                hint_at_numba()
        return choice
    reasons = unavailable(impl, device)
    if reasons:
        raise ValueError(f"impl={impl!r} cannot run: {'; '.join(reasons)}: use impl='auto' or 'reference'")
    return impl


def unavailable(impl: str, device: torch.device | None = None) -> list[str]:
    """Every reason why an implementation cannot run (on that device); none for one that can."""
    if impl == "reference":
        return []
    if impl == "numba":
        reasons: list[str] = _lacks_of_numba()
        if device is not None and device.type != "cpu":
            reasons.append(f"its kernels need tensors on a CPU, not on {device}")
        return reasons
    reasons = _lacks_of_triton()
    # Triton's interpreter runs the kernels on a CPU: slowly, for tests.
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device is not None and device.type != "cuda" and not interpreted:
        reasons.append(f"its kernels need tensors on a CUDA device, not on {device}")
    if device is not None and device.type == "cuda":
        reasons += _lacks_of_gpu(device.index)
    return reasons


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _lacks_of_numba() -> list[str]:
    problem = _numba_problem()
    return [] if problem is None else [problem]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _lacks_of_triton() -> list[str]:
    version = _triton_version()
    if version is None:
        return ["the package triton is not installed (it comes with torch for CUDA on Linux)"]
    if tuple(int(part) for part in version.split(".")[:2]) < (3, 6):
        return [f"its kernels need triton 3.6 or newer, not {version} (it comes with torch 2.10)"]
    return []


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _lacks_of_gpu(index: int | None) -> list[str]:
    if torch.version.hip is not None:
        return ["its kernels were made for NVIDIA's GPUs, and this torch is for AMD's"]
    capability = torch.cuda.get_device_capability(index)
    if capability < (7, 0):
        return [f"its kernels need a GPU of compute capability 7.0 or more, not {capability[0]}.{capability[1]}"]
    return []


@functools.cache
def _numba_problem() -> str | None:
    """Found by importing it: one that is installed may not go with the NumPy beside it."""
    if importlib.util.find_spec("numba") is None:
        return "the package numba is not installed: pip install 'emcaps[numba]'"
    try:
        importlib.import_module("numba")
    except ImportError as error:
        return f"the package numba cannot be imported ({error})"
    return None


@functools.cache
def _triton_version() -> str | None:
    """None without Triton. Asked of the module itself: its package goes by more than one name."""
    if importlib.util.find_spec("triton") is None:
        return None
    version: str = importlib.import_module("triton").__version__
    return version


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


@functools.cache
def hint_at_numba() -> None:
    """Say once per process what would make a CPU fast."""
    logger.warning("EM routing is far faster on a CPU with numba: pip install 'emcaps[numba]'")


@functools.cache
def log_choice(impl: str) -> None:
    """Say once per process what "auto" runs."""
    logger.info("impl='auto' runs the %s implementation of EM routing", impl)


def _route(inputs: Inputs, stride: Pair | None, settings: RoutingSettings, impl: str) -> RoutingOutput:
    """No stride means a class layer."""
    device = _device(inputs)
    transformed = _is_transformed(inputs)
    chosen = choose_implementation("reference" if impl == "auto" and transformed else impl, device)
    if chosen != "reference" and transformed:
        raise ValueError(
            f"impl={impl!r} cannot run under vmap, jvp and the like, or with forward-mode derivatives: "
            "only the reference goes through them; use impl='auto' or 'reference'"
        )
    low_precision = _autocast_type(device)
    with torch.autocast(device.type, enabled=False) if low_precision else nullcontext():
        inputs = _checked(inputs, stride, upcast=low_precision is not None)
        if chosen != "reference":
            return _fused(chosen, inputs, stride, settings, low_precision)
        for step in _reference_steps(inputs, stride, settings):
            last = RoutingOutput(step.mean, step.activation)  # one at a time, so that earlier assignments are freed
    return last


def _trace(inputs: Inputs, stride: Pair | None, settings: RoutingSettings, impl: str) -> RoutingTrace:
    check_name("impl", impl, IMPLEMENTATIONS)
    if impl not in ("auto", "reference"):
        raise ValueError(f"impl={impl!r} cannot run a trace: only the reference keeps every iteration; use 'auto'")
    device = _device(inputs)
    low_precision = _autocast_type(device)
    with torch.autocast(device.type, enabled=False) if low_precision else nullcontext():
        inputs = _checked(inputs, stride, upcast=low_precision is not None)
        return RoutingTrace(_reference_steps(inputs, stride, settings))


def _reference_steps(inputs: Inputs, stride: Pair | None, settings: RoutingSettings) -> Iterator[RoutingStep]:
    if stride is None:
        return reference.class_routing_steps(*inputs, settings)
    return reference.conv_routing_steps(*inputs, stride, settings)


def _fused(
    chosen: str,
    inputs: Inputs,
    stride: Pair | None,
    settings: RoutingSettings,
    low_precision: torch.dtype | None,
) -> RoutingOutput:
    if chosen == "triton":
        from emcaps.routing.triton_kernels.operators import fused_routing
    else:
        from emcaps.routing.numba_kernels.operators import fused_routing

    pose, activation, weight, beta_u, beta_a = inputs
    height, width, child_types = activation.shape[1:]
    unit = 1.0
    if settings.data_scaling == "mean":
        grid = (1, 1) if stride is None else parent_grid((height, width), (weight.shape[0], weight.shape[1]), stride)
        unit = mean_data((height, width), child_types, grid, weight.shape[-3])
    # float16 has too little range for poses.
    if chosen == "triton" and low_precision == torch.bfloat16 and pose.dtype == torch.float32:
        pose, weight = pose.bfloat16(), weight.bfloat16()
    kernel_settings = KernelSettings(
        stride=list(stride or (1, 1)),
        by_position=settings.competition == "types",
        iterations=settings.iterations,
        final_lambda=settings.final_lambda,
        variance_floor=settings.variance_floor,
        data_unit=unit,
    )
    outputs = fused_routing((pose, activation, weight, beta_u, beta_a), kernel_settings)
    return RoutingOutput(*outputs)


def _checked(inputs: Inputs, stride: Pair | None, upcast: bool) -> Inputs:
    if upcast and all(isinstance(tensor, Tensor) for tensor in inputs):
        # What autocast left in half precision comes back to float32, in which routing works.
        pose, activation, weight, beta_u, beta_a = (t.float() if t.dtype in HALF else t for t in inputs)
        inputs = pose, activation, weight, beta_u, beta_a
    if stride is None:
        check_class_inputs(*inputs)
    else:
        check_conv_inputs(*inputs, stride)
    return inputs


def _device(inputs: Inputs) -> torch.device:
    return inputs[0].device if isinstance(inputs[0], Tensor) else torch.device("cpu")


def _autocast_type(device: torch.device) -> torch.dtype | None:
    if device.type not in ("cpu", "cuda") or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def _is_transformed(inputs: Inputs) -> bool:
    """Under vmap, jvp and the like, which only plain PyTorch goes through."""
    if torch.compiler.is_compiling():
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return any(isinstance(t, Tensor) and (wrapped(t) or unpack_dual(t).tangent is not None) for t in inputs)
