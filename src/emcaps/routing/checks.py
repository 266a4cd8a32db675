"""The checks of every routing call. Their ValueErrors name the value, the rule and the remedy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emcaps.config import COMPETITIONS, DATA_SCALINGS, IMPLEMENTATIONS
from emcaps.names import check_name
from emcaps.routing.geometry import as_pair, is_whole, parent_grid
from emcaps.routing.settings import DEFAULT_IMPL, DEFAULTS, RoutingOptions, RoutingSettings

INPUTS = ("pose", "activation", "weight", "beta_u", "beta_a")
MATRICES = ((4, 4), (16, 16))
"""The sizes of a matrix that makes votes: for poses as matrices, and for poses as vectors."""


def check_settings(
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
    stride: int | tuple[int, int],
) -> None:
    _check_tensors(pose, activation, weight, beta_u, beta_a)
    _check_children(pose, activation)
    if weight.dim() != 6 or weight.shape[-2:] not in MATRICES or 0 in weight.shape:
        raise ValueError(f"weight must be (KH, KW, I, O, 4, 4) with no size zero, not {tuple(weight.shape)}")
    _check_parents(pose, weight, beta_u, beta_a, child_axis=2)
    parent_grid((pose.shape[1], pose.shape[2]), (weight.shape[0], weight.shape[1]), as_pair("stride", stride))
    _check_alike(pose, activation, weight, beta_u, beta_a)


def check_class_inputs(pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor) -> None:
    _check_tensors(pose, activation, weight, beta_u, beta_a)
    _check_children(pose, activation)
    if weight.dim() != 4 or weight.shape[-2:] not in MATRICES or 0 in weight.shape:
        raise ValueError(f"weight must be (I, O, 4, 4) with no size zero, not {tuple(weight.shape)}")
    _check_parents(pose, weight, beta_u, beta_a, child_axis=0)
    _check_alike(pose, activation, weight, beta_u, beta_a)


def _check_tensors(*tensors: object) -> None:
    for name, tensor in zip(INPUTS, tensors, strict=True):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a torch tensor, not {type(tensor).__name__}: use torch.as_tensor")


def _check_children(pose: Tensor, activation: Tensor) -> None:
    if pose.dim() != 6 or pose.shape[-2:] != (4, 4) or 0 in pose.shape[1:]:
        raise ValueError(
            f"pose must be (B, H, W, I, 4, 4) with H, W and I at least 1, not {tuple(pose.shape)}: "
            "poses of one image need a batch dimension, pose[None]"
        )
    if activation.shape != pose.shape[:4]:
        raise ValueError(
            f"activation must be (B, H, W, I) = {tuple(pose.shape[:4])} to go with the pose, "
            f"not {tuple(activation.shape)}: one activation for each pose"
        )


def _check_parents(pose: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor, child_axis: int) -> None:
    if weight.shape[child_axis] != pose.shape[3]:
        raise ValueError(
            f"weight must have a matrix for each of the {pose.shape[3]} child types in dimension {child_axis}, "
            f"not {weight.shape[child_axis]}: its shape is {tuple(weight.shape)}"
        )
    parent_types = weight.shape[child_axis + 1]
    for name, beta in (("beta_u", beta_u), ("beta_a", beta_a)):
        if beta.shape != (parent_types,):
            raise ValueError(
                f"{name} must be ({parent_types},), one number for each parent type of the weight, "
                f"not {tuple(beta.shape)}"
            )


def _check_alike(pose: Tensor, activation: Tensor, weight: Tensor, beta_u: Tensor, beta_a: Tensor) -> None:
    tensors = dict(zip(INPUTS, (pose, activation, weight, beta_u, beta_a), strict=True))
    if pose.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"pose must be float32 or float64, not {pose.dtype}: use .float() on the network and its inputs"
        )
    for what in ("dtype", "device"):
        found = {name: getattr(tensor, what) for name, tensor in tensors.items()}
        if len(set(found.values())) > 1:
            listing = ", ".join(f"{name} {value}" for name, value in found.items())
            raise ValueError(f"all inputs must have the same {what}, not {listing}: convert them with .to(...)")
