"""How the recipe was chosen: what each variant changes, and the tables."""

import io
import re

import pytest
from rich.console import Console

from emcaps.experiments import choices
from emcaps.experiments.records import Record
from emcaps.experiments.table2 import ROWS, SOFT


def records(*accuracies):
    return [Record(None, seed, accuracy, 60.0, ()) for seed, accuracy in enumerate(accuracies)]


def test_choices_never_open_the_test_set():
    for name, config in choices.ROWS.items():
        fold = int(name.rsplit("-fold", 1)[1])
        assert (config.data.split, config.data.fold) == ("validation", fold)


@pytest.mark.parametrize(
    ("variant", "base", "changes"),
    [
        ("beta-30", "crop", {"train.beta_rate": 30.0}),
        ("it3", "crop", {"network.iterations": 3}),
        ("it3-soft-beta-10", "it3-beta-10", SOFT),
        ("it3-class-4-beta-10", "it3-soft-beta-10", {"network.class_scale": 4.0}),
        ("beta-30-long", "beta-30", {"train.steps": 18_000, "train.margin_steps": 9000}),
        ("crop-splice", "beta-30", {"data.splice": 0.5}),
        ("it3-crop-splice", "it3-soft-beta-10", {"data.splice": 0.5}),
        ("mono-background", "background", {"data.view": "mono"}),
        ("mono-splice", "mono-background", {"data.splice": 0.5}),
        ("mono-it1", "mono-it1-whole", {"data.splice": 0.5}),
    ],
)
def test_a_choice_changes_what_its_name_says(variant, base, changes):
    assert choices.ROWS[f"{variant}-fold1"] == choices.ROWS[f"{base}-fold1"].override(changes)


@pytest.mark.parametrize(
    ("row", "choice"),
    [
        ("best-mono-it1", "mono-it1"),
        ("best-mono-it2", "mono-splice"),
        ("best-mono-it3", "mono-it3-soft"),
        ("best-stereo-it2", "crop-splice"),
        ("best-stereo-it3", "it3-crop-splice"),
    ],
)
def test_the_best_rows_are_the_recipe_that_was_chosen(row, choice):
    """But for the length, the place of the training images, and what is written down while training."""
    chosen, best = choices.ROWS[f"{choice}-fold0"], ROWS[row]
    same = ("train.steps", "train.margin_steps", "train.eval_every", "train.log_every", "data.split")
    settings = {name: getattr(getattr(best, name.split(".")[0]), name.split(".")[1]) for name in same}
    assert chosen.override(settings) == best
    assert 2 * best.train.margin_steps == best.train.steps, "the margin rises in the first half, as it did"


def test_the_table_of_choices_shows_what_was_run():
    nothing = {name: [] for name in choices.ROWS}
    found = nothing | {
        "crop-fold0": records(90.0),
        "crop-fold1": records(91.0),
        "beta-10-fold0": records(80.0),
        "mono-it1-fold0": records(70.0),
    }
    console = Console(file=io.StringIO(), width=120)
    console.print(choices.variant_table(found, "stereo"))
    text = console.file.getvalue()
    assert re.search(r"crop +90.0 +91.0 +90.5", text)
    assert re.search(r"beta-10 +80.0 +- +- ", text), "no mean over some of the folds"
    assert "beta-30" not in text
    assert "| it1 | [70.0](runs/mono-it1-fold0) | - | - | - |" in choices.markdown_choices(found, "mono", "runs/")
