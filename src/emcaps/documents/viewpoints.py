"""The page on novel viewpoints: smallNORB, and short runs on toys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from emcaps.documents.recorded import VIEWPOINTS, viewpoints_runs
from emcaps.experiments.toy_errors import markdown_paired
from emcaps.experiments.viewpoints import markdown_last_step, markdown_matched, rows_on


def last_step(dataset: str, results: str) -> str:
    return markdown_last_step(viewpoints_runs(dataset), rows_on(dataset), f"{results}/{VIEWPOINTS[dataset]}/")


def matched(dataset: str, results: str) -> str:
    return markdown_matched(viewpoints_runs(dataset), rows_on(dataset), f"{results}/{VIEWPOINTS[dataset]}/")


def by_toy(results: str) -> str:
    """Capsules less each CNN on novel viewpoints, toy by toy."""
    pairs = [
        (f"best-{split}-small-it2", f"best-{split}-{cnn}")
        for split in ("azimuth", "elevation")
        for cnn in ("cnn", "small-cnn")
    ]
    return markdown_paired(viewpoints_runs("smallnorb"), pairs, f"{results}/{VIEWPOINTS['smallnorb']}/")


BLOCKS: dict[str, Callable[[str], str]] = {"by-toy": by_toy}
BLOCKS |= {f"{dataset}-last-step": partial(last_step, dataset) for dataset in VIEWPOINTS} | {
    f"{dataset}-matched": partial(matched, dataset) for dataset in VIEWPOINTS
}
