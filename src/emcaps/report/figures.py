"""A matplotlib figure for a file, without a screen; matplotlib is imported when one is asked for."""

from __future__ import annotations

from typing import Any


def new_figure(size: tuple[float, float]) -> Any:
    """A figure of this width and height, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("pictures need matplotlib: pip install 'emcaps[plot]'") from None
    return Figure(figsize=size, layout="constrained")
