"""A matplotlib figure for a file, without a screen; matplotlib is imported when a figure is made."""

from __future__ import annotations

from typing import Any


def check_matplotlib() -> None:
    """Raise ValueError if nothing can be drawn here; called before long work that ends in a picture."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("pictures need matplotlib: pip install matplotlib") from None


def new_figure(size: tuple[float, float]) -> Any:
    """A figure of this width and height, in inches."""
    check_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")
