"""The page on novel viewpoints: short runs on toys."""

from __future__ import annotations

from emcaps.documents.recorded import viewpoints_runs
from emcaps.experiments.viewpoints import markdown_last_step, markdown_matched, rows_on

FOLDER = "viewpoints-toys"


def last_step(results: str) -> str:
    return markdown_last_step(viewpoints_runs(), rows_on("toys"), f"{results}/{FOLDER}/")


def matched(results: str) -> str:
    return markdown_matched(viewpoints_runs(), rows_on("toys"), f"{results}/{FOLDER}/")


BLOCKS = {"toys-last-step": last_step, "toys-matched": matched}
