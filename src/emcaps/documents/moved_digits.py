"""The page on digits that are changed after training."""

from __future__ import annotations

from emcaps.documents.recorded import moved_digits_runs
from emcaps.experiments.moved_digits import markdown_moved


def moved(results: str) -> str:
    return markdown_moved(moved_digits_runs(), f"{results}/moved-digits/")


BLOCKS = {"moved": moved}
