"""The page on novel viewpoints: smallNORB, and short runs on toys."""

from __future__ import annotations

from functools import partial

from emcaps.documents.recorded import VIEWPOINTS, viewpoints_runs
from emcaps.experiments.viewpoints import markdown_last_step, markdown_matched, rows_on


def last_step(dataset: str, results: str) -> str:
    return markdown_last_step(viewpoints_runs(dataset), rows_on(dataset), f"{results}/{VIEWPOINTS[dataset]}/")


def matched(dataset: str, results: str) -> str:
    return markdown_matched(viewpoints_runs(dataset), rows_on(dataset), f"{results}/{VIEWPOINTS[dataset]}/")


BLOCKS = {f"{dataset}-last-step": partial(last_step, dataset) for dataset in VIEWPOINTS} | {
    f"{dataset}-matched": partial(matched, dataset) for dataset in VIEWPOINTS
}
