"""The precision of routing: float32 or float64, also under autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)


def device_of(tensor: object) -> torch.device:
    """The device of a tensor; the CPU for anything else, which checks refuse later."""
    return tensor.device if isinstance(tensor, Tensor) else torch.device("cpu")


def autocast_type(device: torch.device) -> torch.dtype | None:
    """The type that autocast asks for on a device; None where it is off."""
    if device.type not in ("cpu", "cuda") or not torch.is_autocast_enabled(device.type):
        return None
    return torch.get_autocast_dtype(device.type)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, enabled=False) if autocast_type(device) else nullcontext()


def upcast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast the layer before may have left its outputs in half precision; routing computes in float32."""
    if autocast_type(device_of(tensors[0])) is None:
        return tensors
    return tuple(one.float() if isinstance(one, Tensor) and one.dtype in HALF else one for one in tensors)
