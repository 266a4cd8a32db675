"""Launches compiled kernels with as little work in Python as possible.

A network's own loop launches dozens of kernels a step, and what Python does for each takes longer than many of them. So
a pass is described once, as a list of steps. Each call then adds a few addresses and calls the compiled launchers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime import driver

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_compiled: dict[tuple[Any, ...], Any] = {}
_NOTHING_TO_DO = nullcontext()


class Part(NamedTuple):
    """What a kernel's pointer points to: the tensor of that name, or its numbers of type `dtype` from a byte on."""

    name: str
    offset: int = 0
    """In bytes."""
    dtype: torch.dtype | None = None
    """None for the tensor's own."""


class Step(NamedTuple):
    """One launch. The kernel takes pointers, of which None is a constant, then numbers, then constants."""

    kernel: Any
    grid: tuple[int, int, int]
    parts: tuple[Part | None, ...]
    numbers: tuple[float, ...]
    constants: tuple[Any, ...]
    warps: int = 4
    most_registers: int | None = None
    layout: tuple[Any, ...] = ()
    """What else the compiled form depends on."""


class Launches:
    """Launches the kernels of a pass in order, on the current stream of a device, which has to be the current one.

    Triton finds the compiled form of a kernel by inspecting every argument at every launch, which takes longer than
    many kernels. Here it is found once, by the types of the tensors, by which of them a kernel gets, and by the
    constants and `layout`. So parts have to start at multiples of 16 bytes, unless the kernel's
    `do_not_specialize_on_alignment` names them or `layout` tells them apart, and integers must not be specialised.
    """

    def __init__(self, steps: Sequence[Step], names: Sequence[str], device: int, *types: torch.dtype) -> None:
        """`names` are those of the tensors that each call gets, and `types` tell apart what these may hold."""
        self.steps, self.names = steps, list(names)
        self.device, self.types = device, types
        self._prepared: list[_Prepared] = []

    def __call__(self, *tensors: Tensor, numbers: tuple[float, ...] = ()) -> None:
        """`numbers` come before those of each step."""
        if not self._prepared and not self._prepare():
            self._launch_by_triton(tensors, numbers)
            return
        stream = driver.active.get_current_stream(self.device)
        bases = [tensor.data_ptr() for tensor in tensors]
        for launch, grid, before, pointers, after in self._prepared:
            addresses = [at and bases[at[0]] + at[1] for at in pointers]
            launch(*grid, stream, *before, *addresses, *numbers, *after)

    def _prepare(self) -> bool:
        """Look up the compiled kernels, and return whether there is one for each step."""
        if INTERPRETED:
            return False
        compiled = [_compiled.get(key) for key in self._keys()]
        if None in compiled:
            return False
        self._prepared = [self._prepared_step(*pair) for pair in zip(self.steps, compiled, strict=True)]
        return True

    def _prepared_step(self, step: Step, compiled: Any) -> _Prepared:
        launch, before = launcher(compiled)
        places = tuple(part and (self.names.index(part.name), part.offset) for part in step.parts)
        return _Prepared(launch, step.grid, before, places, (*step.numbers, *step.constants))

    def _launch_by_triton(self, tensors: Sequence[Tensor], numbers: tuple[float, ...]) -> None:
        """Let Triton compile the kernels, or find them on disk; or interpret them."""
        memory = dict(zip(self.names, tensors, strict=True))
        for step, key in zip(self.steps, self._keys(), strict=True):
            options = {"num_warps": step.warps} | ({} if INTERPRETED else {"maxnreg": step.most_registers})
            pointers = [None if part is None else view(memory[part.name], part) for part in step.parts]
            arguments = *pointers, *numbers, *step.numbers, *step.constants
            _compiled[key] = step.kernel[step.grid](*arguments, **options)

    def _keys(self) -> Iterator[tuple[Any, ...]]:
        for step in self.steps:
            given = tuple([part is not None for part in step.parts])  # None is compiled in
            form = step.warps, step.most_registers, step.constants, step.layout
            yield step.kernel.fn, self.device, self.types, given, *form


class _Prepared(NamedTuple):
    """A step as it is launched: what stays the same from call to call."""

    launch: Any
    grid: tuple[int, int, int]
    before: tuple[Any, ...]
    """Arguments between the stream and the kernel's own."""
    pointers: tuple[tuple[int, int] | None, ...]
    """For each the number of a tensor, and bytes from its start; None for no tensor."""
    after: tuple[Any, ...]
    """The numbers and constants."""


def launcher(compiled: Any) -> tuple[Any, tuple[Any, ...]]:
    """What launches a compiled kernel, and what it takes between the stream and the kernel's own arguments.

    It is the function in C below Triton's launcher, where that is as we know it and has nothing to do but call that
    function: for a kernel that needs no scratch memory. Elsewhere it is Triton's launcher itself.
    """
    run = compiled.run
    hooks = None, None, None
    try:
        from triton.backends.nvidia.driver import _BASE_ARGS_FORMAT

        scratch = run.global_scratch_size, run.profile_scratch_size
        known = _BASE_ARGS_FORMAT == "iiiKKppOOOOOO" and isinstance(run.launch, BuiltinFunctionType)
        if known and not any(scratch):
            options = run.launch_cooperative_grid, run.launch_pdl
            return run.launch, (compiled.function, *options, None, None, compiled.packed_metadata, *hooks)
    except (ImportError, AttributeError):
        pass
    return run, (compiled.function, compiled.packed_metadata, *hooks)


def on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Makes the tensor's device the current one. It usually is, and to see this takes less time than to change it."""
    if tensor.is_cuda and torch.cuda.current_device() != tensor.get_device():
        return torch.cuda.device_of(tensor)
    return _NOTHING_TO_DO


def view(tensor: Tensor, part: Part) -> Tensor:
    """The part of the tensor, for Triton to inspect."""
    if not part.offset and part.dtype is None:
        return tensor
    return tensor.view(-1).view(torch.uint8)[part.offset :].view(part.dtype or tensor.dtype)
