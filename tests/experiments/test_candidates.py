"""Changes to the recipe: what each row trains on, and what counts as a gain."""

import dataclasses
import io

import pytest
from rich.console import Console

from emcaps.config import preset
from emcaps.data.splits import VALIDATIONS
from emcaps.experiments import candidates, table2, viewpoints
from emcaps.experiments.candidates import AVERAGE, CHANGES, FOLDS, RECIPES, ROWS, UNCHANGED, change_settings, row_name
from emcaps.experiments.records import Record
from emcaps.experiments.runner import Training
from experiments.short_rows import ROWS as SHORT_ROWS


def records(*accuracies, first_seed=0):
    return [Record(None, seed, accuracy, 60.0, ()) for seed, accuracy in enumerate(accuracies, start=first_seed)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_candidates_never_open_the_test_set_and_use_every_fold(recipe):
    split = recipe.replace("-small-it2", "-validation") if recipe.endswith("-small-it2") else "validation"
    assert split in VALIDATIONS
    assert {ROWS[row_name(recipe, change, fold)].data.split for change in CHANGES for fold in FOLDS} == {split}
    assert [ROWS[row_name(recipe, UNCHANGED, fold)].data.fold for fold in FOLDS] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_unchanged_candidate_is_the_best_row_but_for_its_length_and_average(recipe):
    tested = table2.ROWS | viewpoints.rows_on("smallnorb")
    tested["best-tiny-stereo-it2"] = dataclasses.replace(tested["best-stereo-it2"], network=preset("tiny").network)
    best = tested[f"best-{recipe}"].override({"train.average": AVERAGE})
    for change in CHANGES:
        settings = change_settings(recipe, change, 3)
        assert (not settings) == (change == UNCHANGED)
        assert ROWS[row_name(recipe, change, 3)] == ROWS[row_name(recipe, UNCHANGED, 3)].override(settings)
    same = {f"train.{key}": getattr(best.train, key) for key in ("steps", "margin_steps", "eval_every", "batch_size")}
    assert ROWS[row_name(recipe, UNCHANGED, 0)].override(same | {"data.split": best.data.split}) == best
    assert all(2 * config.train.margin_steps == config.train.steps for config in ROWS.values())


@pytest.mark.parametrize(("recipe", "steps", "batch"), [("mono-it2", 18_000, 64), ("tiny-stereo-it2", 6000, 16)])
def test_some_changes_depend_on_the_recipe(recipe, steps, batch):
    unchanged, slow, long, taught = (
        ROWS[row_name(recipe, change, 3)].train for change in (UNCHANGED, "slow-decay", "long", "taught")
    )
    assert (unchanged.steps, unchanged.batch_size, slow.decay_steps, long.steps) == (steps, batch, steps, 2 * steps)
    assert taught.teachers == tuple(f"../../{recipe}-unchanged-fold3/seed{seed}" for seed in (0, 1))


def test_a_gain_is_over_the_unchanged_run_of_the_same_fold_and_seed():
    found = {
        row_name("mono-it2", UNCHANGED, 0): records(90.0, 80.0),
        row_name("mono-it2", UNCHANGED, 1): records(50.0),
        row_name("mono-it2", "dropout", 0): records(91.0, 83.0),
        row_name("mono-it2", "dropout", 1): records(70.0, first_seed=1),  # another seed: no pair
        row_name("mono-it2", "mirror", 4): records(99.0),  # nothing to compare with
    }
    assert candidates.gains(found, "mono-it2", "dropout") == [2.0]
    assert candidates.gains(found, "mono-it2", "mirror") == []
    lines = candidates.markdown_candidates(found, "mono-it2", "runs/").splitlines()[2:]
    same, link = "runs/mono-it2-unchanged-fold", "runs/mono-it2-dropout-fold"
    assert lines == [
        f"| unchanged | [85.0]({same}0) | [50.0]({same}1) | - | - | - | - | - | - | 3 |",
        f"| dropout | [87.0]({link}0) | [70.0]({link}1) | - | - | - | - | +2.00 | - | 3 |",
        "| mirror | - | - | - | - | [99.0](runs/mono-it2-mirror-fold4) | - | - | - | 1 |",
    ]


def test_the_standard_error_is_over_folds():
    found = {row_name("mono-it2", UNCHANGED, fold): records(90.0, 80.0) for fold in (0, 1)}
    found |= {row_name("mono-it2", "dropout", fold): records(91.0 + 2 * fold, 81.0 + 2 * fold) for fold in (0, 1)}
    assert candidates.gains(found, "mono-it2", "dropout") == [1.0, 3.0]
    assert "| +2.00 ± 1.00 | - | 4 |" in candidates.markdown_candidates(found, "mono-it2", "runs/")


def test_averaging_gains_over_the_last_weights_of_the_same_run():
    pairs = {0: ((90.0, 89.0), (92.0, 89.0)), 1: ((80.0, 80.5), (80.0, None))}
    found = {
        row_name("mono-it2", UNCHANGED, fold): [
            record._replace(of_last_weights=last)
            for record, (_, last) in zip(records(*(mean for mean, _ in runs)), runs, strict=True)
        ]
        for fold, runs in pairs.items()
    }
    assert candidates.gains_by_averaging(found, "mono-it2", UNCHANGED) == [2.0, -0.5]
    assert "| - | +0.75 ± 1.25 | 4 |" in candidates.markdown_candidates(found, "mono-it2", "runs/")


def test_a_mean_needs_every_fold():
    found = {row_name("mono-it2", UNCHANGED, fold): records(90.0 + fold) for fold in FOLDS}
    assert "| 92.0 | - | - | 5 |" in candidates.markdown_candidates(found, "mono-it2", "runs/")


def test_the_command_trains_the_unchanged_recipe_beside_the_change(tmp_path, data, monkeypatch):
    short = next(iter(SHORT_ROWS.values())).override({"data.split": "validation"})
    rows = {name: short.override({"data.fold": config.data.fold % 2}) for name, config in ROWS.items()}
    monkeypatch.setattr(candidates, "ROWS", rows)
    monkeypatch.setattr(candidates, "FOLDS", range(2))
    console = Console(file=io.StringIO(), width=120)
    how = Training((3,), device="cpu", data_folder=data)
    candidates.run_candidates(tmp_path, console, ["stereo-it2"], ["mirror"], train=how)
    assert sorted(path.parent.name for path in tmp_path.glob("*/seed3")) == [
        f"stereo-it2-{change}-fold{fold}" for change in ("mirror", "unchanged") for fold in (0, 1)
    ]
    assert "mirror" in console.file.getvalue()
    assert "dropout" not in console.file.getvalue()


def test_taught_runs_without_teachers_are_left_out_or_refused_if_asked_for(tmp_path, data, monkeypatch, capsys):
    short = next(iter(SHORT_ROWS.values())).override({"data.split": "validation"})
    rows = {name: short.override({"train.teachers": config.train.teachers}) for name, config in ROWS.items()}
    monkeypatch.setattr(candidates, "ROWS", rows)
    monkeypatch.setattr(candidates, "FOLDS", range(1))
    monkeypatch.setattr(candidates, "CHANGES", {UNCHANGED: {}, "taught": {}})
    console = Console(file=io.StringIO(), width=120)

    def ask(changes, *seeds):
        how = Training(seeds, device="cpu", data_folder=data)
        candidates.run_candidates(tmp_path, console, ["stereo-it2"], changes, train=how)
        return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/seed*"))

    with pytest.raises(
        ValueError, match=r"stereo-it2-taught-fold0 would learn from .*seed1, .*: train seeds 0 and 1, too"
    ):
        ask(["taught"], 0)
    assert not list(tmp_path.iterdir())
    unchanged, taught = (f"stereo-it2-{change}-fold0" for change in (UNCHANGED, "taught"))
    assert ask(None, 0) == [f"{unchanged}/seed0"]
    assert f"left out: {taught} would learn from {tmp_path}/{unchanged}/seed1, of which" in capsys.readouterr().err
    assert "unchanged" in console.file.getvalue()
    assert ask(["taught"], 0, 1) == [f"{name}/seed{seed}" for name in (taught, unchanged) for seed in (0, 1)]


@pytest.mark.parametrize(
    ("names", "message"), [((["stereo"], None), "unknown recipe"), ((None, ["drop"]), "unknown change")]
)
def test_unknown_names_are_refused(tmp_path, names, message):
    with pytest.raises(ValueError, match=message):
        candidates.run_candidates(tmp_path, Console(file=io.StringIO()), *names)
