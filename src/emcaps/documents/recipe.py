"""The page on how the recipe was chosen: what each variant gets of the held-out instances."""

from __future__ import annotations

from functools import partial

from emcaps.documents.recorded import choices_records
from emcaps.experiments.choices import VARIANTS, markdown_choices


def choices_table(view: str, results: str) -> str:
    return markdown_choices(choices_records(), view, f"{results}/choices/")


BLOCKS = {f"choices-{view}": partial(choices_table, view) for view in VARIANTS}
