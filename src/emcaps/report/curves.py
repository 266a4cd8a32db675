"""Accuracy over training: smoothed curves, a line for the mean of the seeds and a band for their range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from emcaps.files import atomic_write
from emcaps.report.figures import new_figure

Curve = Sequence[tuple[float, float]]
"""(x, y) points of one run, by rising x."""
COLOURS, STYLES = 10, ("-", "--", ":")
"""How many colours matplotlib goes through before it repeats them, and the lines of each ten curves."""


def smooth(values: Sequence[float], alpha: float) -> npt.NDArray[np.float64]:
    """Exponentially weighted means: the newest value has weight 1, the one before it 1 - alpha, and so on."""
    if not 0 < alpha <= 1:
        raise ValueError(f"alpha must be above 0 and at most 1, not {alpha}")
    total = weight = 0.0
    means = []
    for value in values:
        total, weight = value + (1 - alpha) * total, 1 + (1 - alpha) * weight
        means.append(total / weight)
    return np.array(means)


def draw_curves(curves: Mapping[str, Sequence[Curve]], path: Path, x_label: str, y_label: str, alpha: float) -> None:
    """One line and band for each entry; the runs of an entry must have been evaluated at the same places."""
    figure = new_figure((7, 4.2))
    axes = figure.subplots()
    for number, (label, runs) in enumerate(curves.items()):
        places = [[x for x, _ in run] for run in runs]
        if not places or any(other != places[0] for other in places):
            raise ValueError(f"the runs of {label!r} were not evaluated at the same places: draw them one by one")
        lines = np.stack([smooth([y for _, y in run], alpha) for run in runs])
        style = STYLES[number // COLOURS % len(STYLES)]  # colours repeat, so the next ten have another line
        (line,) = axes.plot(places[0], lines.mean(0), style, label=f"{label} (n = {len(runs)})")
        axes.fill_between(places[0], lines.min(0), lines.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
