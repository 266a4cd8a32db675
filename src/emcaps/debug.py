"""Checks of the numbers that routing reads and gives; off unless they are asked for.

>>> with emcaps.debug.checks():
...     network(images)

The variable EMCAPS_DEBUG=1 switches them on for a whole process. Every routing call then makes sure that poses, weights
and betas are finite, that activations are 0 to 1, and that its results are so, too. Errors name the tensor, the first
bad place and the layer. This waits for the device at every call. It is left out where numbers cannot be read: in
a graph that is compiled, exported or captured, and under vmap and the like.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

enabled = os.environ.get("EMCAPS_DEBUG", "") not in ("", "0")
"""Whether routing calls are checked now."""
_before = enabled
"""Whether they were before the first `with` block that is open now."""
_wishes: dict[object, bool] = {}
"""What the open blocks ask for, the latest last."""

INPUTS = ("pose", "activation", "weight", "beta_u", "beta_a")


class BadNumberError(ValueError):
    """A tensor of a routing call holds a number that makes no sense there."""


@contextmanager
def checks(on: bool = True) -> Iterator[None]:
    """Switch the checks on, or off, for all routing calls until the end of the `with` block."""
    global enabled, _before
    if not _wishes:
        _before = enabled
    key = object()
    _wishes[key] = enabled = on
    try:
        yield
    finally:
        del _wishes[key]  # not always the latest: blocks of several threads may overlap
        enabled = next(reversed(_wishes.values()), _before)


def check_inputs(tensors: Sequence[Tensor], names: Sequence[str] = INPUTS) -> None:
    """Raise BadNumberError if an input of a routing call is not finite, or an activation is outside 0 to 1."""
    if not _can_be_read(tensors):
        return
    for name, tensor in zip(names, tensors, strict=True):
        if name == "activation":
            _require_share("activation", tensor, "pass it through a sigmoid, and look for NaN in what made it")
        else:
            cause = "what made it" if name in ("pose", "votes") else "the learning rate, which may be too high"
            _require_finite(name, tensor, f"look at {cause}")


def check_output(pose: Tensor, activation: Tensor, variance_floor: float) -> None:
    """Raise BadNumberError if the result of a routing call, whose inputs were good, is not."""
    if not _can_be_read((pose, activation)):
        return
    remedy = f"all inputs are finite, so raise variance_floor, which is {variance_floor}, or scale the poses down"
    _require_finite("the parents' pose", pose, remedy)
    _require_share("the parents' activation", activation, remedy)


def first_bad(tensor: Tensor, good: Tensor | None = None) -> str:
    """ "[2, 0] is nan (3 of 8 values)" for the first value that is not finite, or not `good`; "" if there is none."""
    bad = ~(tensor.isfinite() if good is None else good)
    places = bad.nonzero()
    if len(places) == 0:
        return ""
    place = tuple(places[0].tolist())
    where = f"[{', '.join(map(str, place))}]" if place else ""
    return f"{where} is {tensor[place].item():.6g} ({len(places):,} of {tensor.numel():,} values)"


def _require_finite(name: str, tensor: Tensor, remedy: str) -> None:
    found = first_bad(tensor.detach())
    if found:
        raise BadNumberError(f"{_layer()}{name}{found}, and must be finite: {remedy}")


def _require_share(name: str, tensor: Tensor, remedy: str) -> None:
    values = tensor.detach()
    found = first_bad(values, (values >= 0) & (values <= 1))
    if found:
        raise BadNumberError(f"{_layer()}{name}{found}, and must be 0 to 1: {remedy}")


def _can_be_read(tensors: Sequence[Tensor]) -> bool:
    if torch.compiler.is_compiling():
        return False
    if tensors[0].is_cuda and (torch.cuda.is_current_stream_capturing() or torch.cuda.get_sync_debug_mode()):
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return all(type(one) in (Tensor, nn.Parameter) and not one.is_meta and not is_wrapped(one) for one in tensors)


def _layer() -> str:
    """The name of the layer that is at work, as its network knows it; "" outside of a layer.

    It is found among the callers, so that a layer need not be told its name, and nothing is done while all is well.
    """
    modules: list[nn.Module] = []
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if isinstance(caller, nn.Module):
            modules.append(caller)
    if not modules:
        return ""
    layer, network = modules[0], modules[-1]
    name = next((name for name, module in network.named_modules() if module is layer), "")
    return f"{name or type(layer).__name__}: "
