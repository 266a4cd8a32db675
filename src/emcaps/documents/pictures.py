"""The pictures in docs/images of recorded runs and of the tutorials. The demo draws toys.png and routing.png."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

from emcaps.bench.plots import draw_rows
from emcaps.documents import routing_tutorial, speed
from emcaps.documents.recorded import (
    PITFALLS,
    VIEWPOINTS,
    attack_record,
    bench_rows,
    cost_points,
    iterations_runs,
    moved_digits_runs,
    pitfalls_runs,
    poses_of,
    table2_records,
    viewpoints_runs,
)
from emcaps.experiments import cost, iterations, moved_digits, pitfalls, poses, table2, viewpoints
from emcaps.experiments.attack_tables import draw_attack
from emcaps.files import atomic_write

FOLDER = "docs/images"
VISIBLE = 1 / 16
"""Pixels whose channels, 0 to 1, differ by more than this are not the same."""
DIFFERENT = 1e-5
"""Pictures are not the same if more than this share of the pixels differ: ten of a million. A point that moves changes
some sixty; another version of matplotlib rounds differently, which shows in hardly any."""


def draw_all(folder: Path) -> list[Path]:
    """Draw every picture into the folder, and give their paths."""
    table2.draw_figure6(table2_records(), folder / "figure6.png")
    cost.draw_cost(list(cost_points().values()), folder / "cost.png")
    compared = [row for row in bench_rows("h200") if row.implementation in speed.COLUMNS]
    draw_rows(compared, folder / "bench.png")
    for network in PITFALLS:
        pitfalls.draw_figures(pitfalls_runs(network), folder, network)
    iterations.draw_figures(iterations_runs(), folder)
    for dataset in VIEWPOINTS:
        viewpoints.draw_figures(viewpoints_runs(dataset), folder)
    moved_digits.draw_moved(moved_digits_runs(), folder / "moved-digits.png")
    poses.draw_figures([poses_of(dataset)[0] for dataset in ("smallnorb", "toys")], folder)
    draw_attack(attack_record(), folder / "attack.png")
    routing_tutorial.draw_pictures(folder)
    return sorted(folder.glob("*.png"))


def remake_pictures(root: Path, *, write: bool) -> list[str]:
    """Draw all pictures of a checkout again; gives those that change, or would if they were written."""
    changed = []
    with tempfile.TemporaryDirectory() as folder:
        for drawn in draw_all(Path(folder)):
            path = root / FOLDER / drawn.name
            if not (path.exists() and look_alike(path, drawn)):
                changed.append(f"{FOLDER}/{drawn.name}")
                if write:
                    with atomic_write(path) as temporary:
                        shutil.copyfile(drawn, temporary)
    return changed


def look_alike(one: Path, other: Path) -> bool:
    """Whether two pictures are of the same size and hardly a pixel differs."""
    from matplotlib.image import imread

    left, right = imread(one), imread(other)
    if left.shape != right.shape:
        return False
    differing = (np.abs(left - right) > VISIBLE).any(axis=-1)
    return float(differing.mean()) <= DIFFERENT
