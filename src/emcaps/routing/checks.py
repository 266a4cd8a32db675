"""The checks of every routing call. Their ValueErrors name the value, the rule and the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from emcaps.config import COMPETITIONS, DATA_SCALINGS, IMPLEMENTATIONS
from emcaps.names import check_name
from emcaps.routing.geometry import Pair, as_pair, is_whole, parent_grid
from emcaps.routing.operators import Inputs, is_plain_call
from emcaps.routing.settings import DEFAULT_IMPL, DEFAULTS, RoutingOptions, RoutingSettings

Shape: TypeAlias = tuple[int, ...]
INPUTS = ("pose", "activation", "weight", "beta_u", "beta_a")
MATRICES = ((4, 4), (16, 16))
"""The sizes of a matrix that makes votes: for poses as matrices, and for poses as vectors."""


def check_settings(
    iterations: int, final_lambda: float, variance_floor: float, data_scaling: str, competition: str
) -> RoutingSettings:
    settings = iterations, final_lambda, variance_floor, data_scaling, competition
    if torch.compiler.is_compiling():  # a compiler traces the check itself, whose numbers may be symbols
        return _checked_settings(*settings)
    try:
        return _remembered_settings(*settings)
    except TypeError:  # a value without a hash
        return _checked_settings(*settings)


def _checked_settings(
    iterations: int, final_lambda: float, variance_floor: float, data_scaling: str, competition: str
) -> RoutingSettings:
    if not is_whole(iterations) or iterations < 1:
        raise ValueError(f"iterations must be a whole number of at least 1, not {iterations!r}: 2 or 3 are usual")
    if not _is_finite_number(final_lambda) or final_lambda <= 0:
        raise ValueError(
            f"final_lambda must be positive and finite, not {final_lambda!r}: {DEFAULTS.final_lambda} is usual"
        )
    if not _is_finite_number(variance_floor) or variance_floor < 0:
        usual = DEFAULTS.variance_floor
        raise ValueError(f"variance_floor must be zero or more, and finite, not {variance_floor!r}: {usual} is usual")
    check_name("data_scaling", data_scaling, DATA_SCALINGS)
    check_name("competition", competition, COMPETITIONS)
    return RoutingSettings(int(iterations), float(final_lambda), float(variance_floor), data_scaling, competition)


# By type too, because True is equal to 1.
_remembered_settings = lru_cache(maxsize=256, typed=True)(_checked_settings)


def check_coordinate_scale(coordinate_scale: float) -> float:
    if not _is_finite_number(coordinate_scale):
        raise ValueError(f"coordinate_scale must be a finite number, not {coordinate_scale!r}: 1 is usual, 0 is off")
    return float(coordinate_scale)


def checked_options(options: RoutingOptions) -> RoutingOptions:
    """Check the options of a layer when the layer is made, not only when it first runs; return them."""
    for name in options:
        check_name("routing option", name, RoutingOptions.__annotations__)
    settings: dict[str, Any] = {**DEFAULTS._asdict(), "impl": DEFAULT_IMPL, **options}
    check_name("impl", settings.pop("impl"), IMPLEMENTATIONS)
    check_settings(**settings)
    return options


def _is_finite_number(value: object) -> bool:
    numbers = (int, float, np.integer, np.floating)
    # A comparison, because torch.compile cannot trace math.isfinite for a number that may change between calls.
    return isinstance(value, numbers) and not isinstance(value, bool) and bool(-math.inf < value < math.inf)


def check_conv_inputs(
    pose: Tensor,
    activation: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    stride: int | Pair,
    padding: int | Pair = 0,
) -> None:
    windows = as_pair("stride", stride), as_pair("padding", padding, least=0)
    _check_inputs((pose, activation, weight, beta_u, beta_a), windows)


def check_class_inputs(pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor) -> None:
    _check_inputs((pose, activation, weight, beta_u, beta_a), None)


def check_set_inputs(inputs: Inputs, mask: Tensor | None) -> None:
    """Check what sets have of their own; the rest is checked as in a class layer."""
    check_tensors(INPUTS, inputs)
    pose, activation = inputs[:2]
    if pose.dim() != 5 or pose.shape[-2:] != (4, 4) or 0 in pose.shape[1:]:
        remedies = {
            4: ": members of one type are pose[:, :, None] and activation[:, :, None]; as one member, the result of a "
            "set or class layer is pose[:, None] and activation[:, None]",
            6: ": the positions of a grid are members by pose.flatten(1, 2) and activation.flatten(1, 2)",
        }
        raise ValueError(
            f"pose must be (B, N, I, 4, 4) with N and I at least 1, not {tuple(pose.shape)}"
            f"{remedies.get(pose.dim(), '')}"
        )
    if activation.shape != pose.shape[:3]:
        raise ValueError(
            f"activation must be (B, N, I) = {tuple(pose.shape[:3])} to go with the pose, not "
            f"{tuple(activation.shape)}: one activation for each pose"
        )
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"mask must be a tensor of bools, not {found}: True for each member that exists")
    if mask.shape not in (pose.shape[:2], pose.shape[:3]):
        raise ValueError(
            f"mask must be (B, N) = {tuple(pose.shape[:2])} or (B, N, I) = {tuple(pose.shape[:3])} to go with the "
            f"pose, not {tuple(mask.shape)}"
        )
    if mask.device != pose.device:
        raise ValueError(f"mask must be on the device of the pose, {pose.device}, not on {mask.device}: use mask.to")


def _check_inputs(inputs: Inputs, windows: tuple[Pair, Pair] | None) -> None:
    """Check all that shapes, types and devices tell. Networks call with the same few of them over and over."""
    check: Callable[..., None] = _remembered_check
    if not is_plain_call(inputs):  # then sizes may be symbols
        check_tensors(INPUTS, inputs)
        check = _check_described
    pose, activation, weight, beta_u, beta_a = inputs
    check(
        windows,
        *(pose.shape, activation.shape, weight.shape, beta_u.shape, beta_a.shape),
        (pose.dtype, activation.dtype, weight.dtype, beta_u.dtype, beta_a.dtype),
        (pose.device, activation.device, weight.device, beta_u.device, beta_a.device),
    )


def _check_described(
    windows: tuple[Pair, Pair] | None,
    pose: Shape,
    activation: Shape,
    weight: Shape,
    beta_u: Shape,
    beta_a: Shape,
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[torch.device, ...],
) -> None:
    """Check the shapes of all inputs, their types and their devices.

    `windows` are the stride and the padding; None means a class layer.
    """
    _check_children(pose, activation)
    form, dims, child_axis = ("(I, O, 4, 4)", 4, 0) if windows is None else ("(KH, KW, I, O, 4, 4)", 6, 2)
    if len(weight) != dims or weight[-2:] not in MATRICES or 0 in weight:
        raise ValueError(f"weight must be {form} with no size zero, not {tuple(weight)}")
    _check_parents(pose, weight, beta_u, beta_a, child_axis)
    if windows is not None:
        parent_grid((pose[1], pose[2]), (weight[0], weight[1]), *windows)
    check_alike(INPUTS, dtypes, devices)


_remembered_check = lru_cache(maxsize=256)(_check_described)


def check_tensors(names: tuple[str, ...], tensors: tuple[object, ...]) -> None:
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a torch tensor, not {type(tensor).__name__}: use torch.as_tensor")


def _check_children(pose: Shape, activation: Shape) -> None:
    if len(pose) != 6 or pose[-2:] != (4, 4) or 0 in pose[1:]:
        raise ValueError(
            f"pose must be (B, H, W, I, 4, 4) with H, W and I at least 1, not {tuple(pose)}: "
            "poses of one image need a batch dimension, pose[None]"
        )
    if activation != pose[:4]:
        raise ValueError(
            f"activation must be (B, H, W, I) = {tuple(pose[:4])} to go with the pose, "
            f"not {tuple(activation)}: one activation for each pose"
        )


def _check_parents(pose: Shape, weight: Shape, beta_u: Shape, beta_a: Shape, child_axis: int) -> None:
    if weight[child_axis] != pose[3]:
        raise ValueError(
            f"weight must have a matrix for each of the {pose[3]} child types in dimension {child_axis}, "
            f"not {weight[child_axis]}: its shape is {tuple(weight)}"
        )
    parent_types = weight[child_axis + 1]
    for name, beta in (("beta_u", beta_u), ("beta_a", beta_a)):
        if beta != (parent_types,):
            raise ValueError(
                f"{name} must be ({parent_types},), one number for each parent type of the weight, not {tuple(beta)}"
            )


def check_alike(names: tuple[str, ...], dtypes: tuple[torch.dtype, ...], devices: tuple[torch.device, ...]) -> None:
    if dtypes[0] not in (torch.float32, torch.float64):
        raise ValueError(
            f"{names[0]} must be float32 or float64, not {dtypes[0]}: use .float() on the network and its inputs"
        )
    for what, found in (("dtype", dtypes), ("device", devices)):
        if len(set(found)) > 1:
            listing = ", ".join(f"{name} {value}" for name, value in zip(names, found, strict=True))
            raise ValueError(f"all inputs must have the same {what}, not {listing}: convert them with .to(...)")
