"""Changes to the best recipes of Table 2 and of new viewpoints, each tried by itself on all five folds of the
training instances.

A run trains on four of the five training instances of each category and is tested on the fifth, as in choices.py; the
test set is never opened. For new viewpoints the fifth is shown at trained viewpoints that are held out, too
(data/splits.py). A change counts by its gain over the unchanged recipe in the same fold with the same seed. A fold has
five objects, one of which may decide, so the gains of its seeds are averaged, and the standard error is that over
folds.

All runs average their weights (train.average), which changes nothing about how they train: the accuracy of a run's
last weights is that of the same run without it.

One recipe is for a CPU, at a minute or two a run: the tiny network, with fewer and smaller steps.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emcaps.config import RunConfig, preset
from emcaps.experiments import table2, viewpoints
from emcaps.experiments.records import Record, finished, runs_link
from emcaps.experiments.runner import Training, lacking_teachers, train_missing
from emcaps.names import check_name, first_of
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.report.tables import plain_table

STEPS = 18_000
QUICK, QUICK_STEPS = "tiny-stereo-it2", 6000
"""The recipe for a CPU."""
AVERAGE = 0.25
FOLDS = range(5)
UNCHANGED = "unchanged"
RECIPES = (
    *("mono-it2", "mono-it3", "stereo-it2", "stereo-it3", "full-stereo-it2"),
    *("azimuth-small-it2", "elevation-small-it2"),
    QUICK,
)
"""The recipes, by the rows "best" of Table 2 and of new viewpoints."""
BEST = table2.ROWS | viewpoints.rows_on("smallnorb", validation=True)
BEST[f"best-{QUICK}"] = dataclasses.replace(BEST["best-stereo-it2"], network=preset("tiny").network).override(
    {"train.batch_size": 16}
)
CHANGES: dict[str, dict[str, Any]] = {
    UNCHANGED: {},
    "slow-decay": {},
    "beta-a-50": {"train.beta_rate": 1.0, "train.beta_a_rate": 50.0},  # about as in the code of Hinton et al.
    "dropout": {"network.dropout": 0.5},
    "decoder": {"network.decoder": 512},  # as large as that of Sabour et al. (2017)
    "near-coordinates": {"network.coordinate_scale": 0.1},  # about as in the code of Hinton et al.
    "no-coordinates": {"network.coordinate_scale": 0.0},
    "warp": {"data.turn": 5.0, "data.zoom": 0.1, "data.slant": 0.1},
    "stretch": {"data.stretch": 0.3},
    "bend": {"data.bend": 2.0},
    "mirror-stretch": {"data.mirror": 0.5, "data.stretch": 0.3},
    "contrast": {"data.contrast_low": 0.5, "data.contrast_high": 1.5},
    "mirror": {"data.mirror": 0.5},
    "wide-shift": {"data.max_shift": 8},
    "narrow-shift": {"data.max_shift": 2},
    "little-mixing": {"train.mixup": 0.25},
    "no-mixing": {"train.mixup": 0.0},
    "long": {},
    "taught": {},  # by the unchanged runs of the same fold
}
"""Where nothing is said of a change, `change_settings` does, since it depends on the recipe."""
TEACHING_SEEDS = (0, 1)
"""The seeds of the unchanged runs that teach."""


def row_name(recipe: str, change: str, fold: int) -> str:
    return f"{recipe}-{change}-fold{fold}"


def _config(recipe: str, change: str, fold: int) -> RunConfig:
    best = BEST[f"best-{recipe}"]
    split = "validation" if best.data.split == "standard" else best.data.split
    held_out = {"data.split": split, "data.fold": fold}
    return best.override(
        _length(_steps(recipe)) | {"train.eval_every": 0, "train.average": AVERAGE} | held_out
    ).override(change_settings(recipe, change, fold))


def change_settings(recipe: str, change: str, fold: int) -> dict[str, Any]:
    """The settings in which a changed run differs from the unchanged one of its fold."""
    if change == "slow-decay":
        return table2.averaged(_steps(recipe))
    if change == "long":
        return _length(2 * _steps(recipe))
    if change == "taught":
        unchanged = row_name(recipe, UNCHANGED, fold)
        return {"train.teachers": [f"../../{unchanged}/seed{seed}" for seed in TEACHING_SEEDS]}
    return CHANGES[change]


def _steps(recipe: str) -> int:
    return QUICK_STEPS if recipe == QUICK else STEPS


def _length(steps: int) -> dict[str, Any]:
    return {"train.steps": steps, "train.margin_steps": steps // 2}


ROWS: dict[str, RunConfig] = {
    row_name(recipe, change, fold): _config(recipe, change, fold)
    for recipe in RECIPES
    for change in CHANGES
    for fold in FOLDS
}


def run_candidates(
    runs: Path,
    console: Console,
    recipes: Sequence[str] | None = None,
    changes: Sequence[str] | None = None,
    *,
    train: Training | None = None,
) -> None:
    """Show what each change gains, after training what is missing if `train` says how.

    Without names all recipes and changes are meant. The unchanged recipe always belongs to them. Where a change that
    is taught lacks its teachers, it is left out, or refused if it was asked for by name.
    """
    for kind, given, known in (("recipe", recipes, RECIPES), ("change", changes, CHANGES)):
        for name in given or ():
            check_name(kind, name, known)
    recipes = recipes or RECIPES
    wanted = dict.fromkeys([UNCHANGED, *(changes or CHANGES)])
    names = [row_name(recipe, change, fold) for recipe in recipes for change in wanted for fold in FOLDS]
    if train is not None:
        lacking = lacking_teachers(ROWS, names, runs, train)
        if lacking:
            problem = _untaught(lacking)
            if changes:
                raise ValueError(problem)
            print(f"left out: {problem}", file=sys.stderr)
        train_missing(ROWS, [name for name in names if name not in lacking], runs, train)
    found = finished(ROWS, names, runs)
    shown = [recipe for recipe in recipes if any(found[name] for name in names if name.startswith(f"{recipe}-"))]
    for recipe in shown:
        console.print(candidate_table(found, recipe))
    print(*(markdown_candidates(found, recipe, runs_link(runs)) for recipe in shown), sep="\n\n")


def _untaught(lacking: Mapping[str, Sequence[Path]]) -> str:
    teachers = list(dict.fromkeys(str(path) for paths in lacking.values() for path in paths))
    seeds = " and ".join(map(str, TEACHING_SEEDS))
    return (
        f"{first_of(list(lacking))} would learn from {first_of(teachers)}, of which there are no weights and which are "
        f"not to be trained: train seeds {seeds}, too, or name a folder with --runs that has their weights"
    )


def gains(found: Mapping[str, Sequence[Record]], recipe: str, change: str) -> list[float]:
    """How many points changed runs gain over unchanged ones of the same seeds, for each fold that has both."""
    means = []
    for fold in FOLDS:
        before = {record.seed: record.accuracy for record in found.get(row_name(recipe, UNCHANGED, fold), ())}
        after = {record.seed: record.accuracy for record in found.get(row_name(recipe, change, fold), ())}
        if shared := before.keys() & after.keys():
            means.append(statistics.fmean(after[seed] - before[seed] for seed in shared))
    return means


def gains_by_averaging(found: Mapping[str, Sequence[Record]], recipe: str, change: str) -> list[float]:
    """How many points the averaged weights of runs gain over their last ones, for each fold."""
    folds = [found.get(row_name(recipe, change, fold), ()) for fold in FOLDS]
    pairs = [[(one.accuracy, one.of_last_weights) for one in runs] for runs in folds]
    each = [[mean - last for mean, last in runs if last is not None] for runs in pairs]
    return [statistics.fmean(gained) for gained in each if gained]


def candidate_table(found: Mapping[str, Sequence[Record]], recipe: str) -> Table:
    table = plain_table(f"{recipe}: % right of the held-out instances, averaged weights, and the gain of each change")
    for column in _columns():
        table.add_column(column, justify="left" if column == "change" else "right")
    for change, cells in _lines(found, recipe, None):
        table.add_row(change, *cells)
    return table


def markdown_candidates(found: Mapping[str, Sequence[Record]], recipe: str, link: str) -> str:
    """The table of a recipe for the page, with links to the runs."""
    rows = [(change, *cells) for change, cells in _lines(found, recipe, link)]
    return markdown_table((recipe, *_columns()[1:]), rows)


def _columns() -> tuple[str, ...]:
    return ("change", *(f"fold {fold}" for fold in FOLDS), "mean", "gain", "gain by averaging", "runs")


def _lines(found: Mapping[str, Sequence[Record]], recipe: str, link: str | None) -> list[tuple[str, list[str]]]:
    """For each change that has runs: its folds, their mean if there are all, its gains and the number of its runs."""
    lines = []
    for change in CHANGES:
        names = [row_name(recipe, change, fold) for fold in FOLDS]
        folds = [[record.accuracy for record in found.get(name, ())] for name in names]
        if any(folds):
            means = [statistics.fmean(accuracies) if accuracies else None for accuracies in folds]
            cells = ["-" if mean is None else f"{mean:.1f}" for mean in means]
            if link is not None:
                cells = [
                    cell if cell == "-" else markdown_link(cell, link + name)
                    for cell, name in zip(cells, names, strict=True)
                ]
            known = [mean for mean in means if mean is not None]
            mean = f"{statistics.fmean(known):.1f}" if len(known) == len(FOLDS) else "-"
            gained = gains(found, recipe, change) if change != UNCHANGED else []
            averaging = _shown(gains_by_averaging(found, recipe, change))
            lines.append((change, [*cells, mean, _shown(gained), averaging, str(sum(map(len, folds)))]))
    return lines


def _shown(gained: Sequence[float]) -> str:
    """The mean gain of all folds and its standard error, as "+0.51 ± 0.20"; a dash without a pair of runs."""
    if not gained:
        return "-"
    error = f" ± {statistics.stdev(gained) / math.sqrt(len(gained)):.2f}" if len(gained) > 1 else ""
    return f"{statistics.fmean(gained):+.2f}{error}"
