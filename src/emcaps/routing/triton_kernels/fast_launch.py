"""Launches compiled kernels with as little work in Python as possible.

A network's own loop launches dozens of kernels a step, and what Python does for each takes longer than many of them. So
kernels get addresses, which cost less than tensors, and their compiled form is found by a short key.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from triton.runtime import driver

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_compiled: dict[tuple[Any, ...], Any] = {}


class Part:
    """The numbers of a tensor from `offset` on."""

    __slots__ = ("address", "offset", "tensor")

    def __init__(self, tensor: Tensor, offset: int = 0) -> None:
        self.tensor, self.offset = tensor, offset
        self.address = tensor.data_ptr() + offset * tensor.element_size()

    def view(self) -> Tensor:
        return self.tensor.view(-1)[self.offset :] if self.offset else self.tensor


class Launch:
    """Launches kernels, on the current stream, whose compiled form depends only on types, constants and `layout`.

    Triton finds the compiled form by inspecting every argument at every launch, which takes longer than many kernels.
    Here it is found by those three alone. So parts have to start at multiples of 16 bytes, unless the kernel's
    `do_not_specialize_on_alignment` names them or `layout` tells them apart, and integers must not be specialised.
    """

    def __init__(self, device: int, *types: Any) -> None:
        """`types` tell apart what `parts` may hold."""
        if not INTERPRETED:
            self.form = device, *types
            self.stream = driver.active.get_current_stream(device)

    def __call__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        parts: Sequence[Part | None],
        numbers: Sequence[float],
        constants: tuple[Any, ...],
        warps: int = 4,
        most_registers: int | None = None,
        layout: tuple[Any, ...] = (),
    ) -> None:
        """The kernel takes pointers, of which None is a constant, then numbers, then constants."""
        if INTERPRETED:
            kernel[grid](*map(_view, parts), *numbers, *constants, num_warps=warps)
            return
        key = kernel.fn, self.form, warps, constants, layout
        compiled = _compiled.get(key)
        if compiled is None:
            options = {"num_warps": warps, "maxnreg": most_registers}
            _compiled[key] = kernel[grid](*map(_view, parts), *numbers, *constants, **options)
            return
        addresses = [part and part.address for part in parts]
        function, metadata = compiled.function, compiled.packed_metadata
        compiled.run(*grid, self.stream, function, metadata, None, None, None, *addresses, *numbers, *constants)


def _view(part: Part | None) -> Tensor | None:
    return None if part is None else part.view()
