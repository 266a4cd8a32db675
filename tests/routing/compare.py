"""Comparison of a tensor with the wanted one. It raises an error with the tensor's name, the error and its place."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_close(name: str, got: Tensor, want: Tensor, tolerance: float, least_scale: float = 0.0) -> None:
    """Raise AssertionError unless max |got - want| <= tolerance * max |want|, with equal shapes and dtypes.

    A value that is not finite fails on either side, even where both sides agree on it. Where `want` is zero everywhere,
    only zeros are close to it. `least_scale` replaces a max |want| that is smaller: it is for sums of large terms that
    cancel, where rounding errors exceed `tolerance` times the small result.
    """
    assert tolerance >= 0, f"a tolerance is zero or more, not {tolerance}"
    if got.shape != want.shape:
        raise AssertionError(f"{name}: shape {tuple(got.shape)}, wanted {tuple(want.shape)}")
    if got.dtype != want.dtype:
        raise AssertionError(f"{name}: {got.dtype}, wanted {want.dtype}")
    for side, tensor in (("got", got), ("wanted", want)):
        strange = int((~tensor.isfinite()).sum())
        if strange:
            raise AssertionError(f"{name}: {strange} of {tensor.numel()} values {side} are not finite")
    if want.numel() == 0:
        return
    difference = (got.detach().double() - want.detach().double()).abs()
    scale = max(float(want.detach().double().abs().max()), least_scale)
    error = float(difference.max())
    if not error <= tolerance * scale:
        worst = tuple(int(k) for k in torch.unravel_index(difference.argmax(), difference.shape))
        raise AssertionError(
            f"{name}: error {error:.3g} at {worst} is above {tolerance:.3g} of the scale {scale:.3g}: "
            f"got {float(got[worst]):.17g}, wanted {float(want[worst]):.17g}"
        )


def relative_error(got: Tensor, want: Tensor) -> float:
    """max |got - want| / max |want|, in float64; 0 where both are zero everywhere or empty."""
    if want.numel() == 0:
        return 0.0
    error = float((got.detach().double() - want.detach().double()).abs().max())
    scale = float(want.detach().double().abs().max())
    if error == 0:
        return 0.0
    return error / scale if scale else float("inf")
