"""The page on how the recipe was chosen: what each variant, and each later change, gets of the held-out instances."""

from __future__ import annotations

from functools import partial

from emcaps.documents.recorded import candidates_records, choices_records
from emcaps.experiments.candidates import markdown_candidates
from emcaps.experiments.choices import VARIANTS, markdown_choices

WITH_CANDIDATES = ("mono-it2", "stereo-it3", "tiny-stereo-it2")
"""The recipes whose changes have recorded runs."""


def choices_table(view: str, results: str) -> str:
    return markdown_choices(choices_records(), view, f"{results}/choices/")


def candidates_table(recipe: str, results: str) -> str:
    return markdown_candidates(candidates_records(), recipe, f"{results}/candidates/")


BLOCKS = {f"choices-{view}": partial(choices_table, view) for view in VARIANTS} | {
    f"candidates-{recipe}": partial(candidates_table, recipe) for recipe in WITH_CANDIDATES
}
