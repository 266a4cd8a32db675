"""The page on digits that are changed after training."""

from __future__ import annotations

from functools import partial

from emcaps.documents.recorded import moved_digits_runs
from emcaps.experiments.moved_digits import TRAINED_ON, markdown_moved


def moved(trained_on: str, results: str) -> str:
    """The rows of networks that were trained on these images."""
    found = {row: records for row, records in moved_digits_runs().items() if row.startswith(trained_on)}
    return markdown_moved(found, f"{results}/moved-digits/")


BLOCKS = {name: partial(moved, name) for name in TRAINED_ON}
