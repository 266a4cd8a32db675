"""Table 2 from runs: what is trained, what is read back, what is refused."""

import io
import json
import re
import shutil

import pytest
from rich.console import Console

from emcaps.config import preset
from emcaps.experiments import choices, rows, table2
from emcaps.experiments.rows import Record, mean_and_spread, read_records
from emcaps.experiments.table2 import PUBLISHED, ROWS, SOFT, markdown_table, run_table2
from patterns import write_patterns

SHORT = {
    "data.crop": 16,  # which leaves room for 13 crops
    "network.conv1_types": 4,
    "network.conv2_types": 4,
    "train.steps": 4,
    "train.batch_size": 8,
    "train.eval_every": 2,
    "train.log_every": 2,
}


@pytest.fixture
def short_rows(monkeypatch):
    """The rows, with a network and a run small enough for tests."""
    short = {
        name: preset("tiny").override(SHORT | {"network.iterations": iterations})
        for name, iterations in (("faithful-mono-it1", 1), ("faithful-mono-it2", 2))
    }
    monkeypatch.setattr(table2, "ROWS", short)
    return short


def run(runs, names, data, train=True, figure=None, seeds=(0, 1)):
    console = Console(file=io.StringIO(), width=120)
    run_table2(
        runs,
        list(names),
        seeds,
        console,
        train_first=train,
        device="cpu",
        data_folder=data,
        figure=figure,
    )
    return console.file.getvalue()


def test_the_rows_are_what_their_names_say():
    for name, config in ROWS.items():
        assert config.data.split == "standard"
        if "cnn" in name:
            assert (config.network.kind, config.data.view) == ("cnn", "stereo")
        else:
            recipe, *full, view, iterations = name.split("-")
            assert (config.data.view, f"it{config.network.iterations}") == (view, iterations)
            assert (config.network.primary_types, config.network.conv1_types) == ((32, 32) if full else (8, 16))
            assert (config.data.splice > 0) == (recipe in ("best", "long"))


def test_the_routing_of_the_faithful_rows_is_the_definition_as_published():
    faithful = [name for name in ROWS if name.startswith("faithful")]
    assert len(faithful) == 5
    for name in faithful:
        network = ROWS[name].network
        size = "full" if "full" in name else "small"
        assert network == preset(size).override({"network.iterations": network.iterations}).network
        assert ROWS[name].train.loss == "spread"


def test_the_cnn_sees_the_images_of_the_best_capsules_for_as_long():
    cnn, capsules = ROWS["best-cnn-stereo"], ROWS["best-stereo-it2"]
    assert cnn.data == capsules.data
    assert (cnn.train.steps, cnn.train.mixup, cnn.train.learning_rate_schedule) == (36_000, 0.5, "cosine")
    assert (capsules.train.steps, capsules.train.mixup, capsules.train.learning_rate_schedule) == (
        36_000,
        0.5,
        "cosine",
    )


def test_every_published_row_names_rows_that_exist():
    named = {name for row in PUBLISHED for name in (row.faithful, row.best, row.long) if name}
    assert named <= set(ROWS)


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("long")])
def test_a_long_row_is_the_best_row_in_more_steps(name):
    long, best = ROWS[name], ROWS[name.replace("long", "best")]
    length = {f"train.{key}": getattr(long.train, key) for key in ("steps", "margin_steps", "eval_every")}
    assert best.override(length) == long
    times = 4 if "full" in name else 2
    assert long.train.steps == times * best.train.steps
    assert long.train.margin_steps == times * best.train.margin_steps


def test_training_reading_and_drawing(tmp_path, short_rows, monkeypatch):
    data = write_patterns(tmp_path / "data")
    monkeypatch.setitem(table2.TRAINING_IMAGES, "mono", 100)
    text = run(tmp_path / "runs", short_rows, data, figure=tmp_path / "figure.png")
    assert "faithful-mono-it2" in text
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    records = read_records(short_rows, "faithful-mono-it2", tmp_path / "runs")
    assert [record.seed for record in records] == [0, 1]
    for record in records:
        saved = json.loads((record.folder / "evaluation.json").read_text())
        assert record.accuracy == 100 * saved["test"]["accuracy"]
        assert [step for step, _, _ in record.curve] == [2, 4]
        assert 0 < record.curve[0][2] <= record.curve[1][2] == record.seconds
        assert record.curve[-1][1] == record.accuracy, "the table has the last step, not the best"
        crops = json.loads((record.folder / "evaluation-13-crops.json").read_text())
        assert (crops["crops"], crops["step"]) == (13, 4)
        assert record.many_crops == 100 * crops["test"]["accuracy"]


def test_many_crops_are_shown_if_every_seed_has_them():
    one, other = records(95.0, 96.0)
    both = {"best-mono-it2": [one._replace(many_crops=96.0), other._replace(many_crops=98.0)]}
    assert table2.markdown_rows(both).endswith("| 95.50 ± 0.71 | 97.00 ± 1.41 |")
    assert table2.markdown_rows({"best-mono-it2": [both["best-mono-it2"][0], other]}).endswith("| 95.50 ± 0.71 | - |")


def test_many_crops_of_another_step_do_not_count(tmp_path, short_rows):
    data = write_patterns(tmp_path / "data")
    run(tmp_path / "runs", short_rows, data, seeds=(0,))
    file = tmp_path / "runs/faithful-mono-it2/seed0/evaluation-13-crops.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"step": 2}))
    (record,) = read_records(short_rows, "faithful-mono-it2", tmp_path / "runs")
    assert record.many_crops is None


def test_finished_runs_are_not_trained_again(tmp_path, short_rows, monkeypatch):
    data = write_patterns(tmp_path / "data")
    first = run(tmp_path / "runs", short_rows, data, seeds=(0,))
    monkeypatch.setattr(rows, "train", None)
    assert run(tmp_path / "runs", short_rows, data, seeds=(0,)) == first


def test_runs_of_other_settings_are_refused(tmp_path, short_rows):
    data = write_patterns(tmp_path / "data")
    run(tmp_path / "runs", short_rows, data, seeds=(0,))
    short_rows["faithful-mono-it2"] = short_rows["faithful-mono-it2"].override({"train.learning_rate": 1.0})
    with pytest.raises(ValueError, match="other settings than row 'faithful-mono-it2'"):
        read_records(short_rows, "faithful-mono-it2", tmp_path / "runs")


def test_without_runs_the_message_says_how_to_get_them(tmp_path):
    with pytest.raises(ValueError, match=r"no finished runs of best-mono-it2 in .* with --train"):
        run(tmp_path, ["best-mono-it2"], None, train=False)
    with pytest.raises(ValueError, match=rf"{len(ROWS) - 3} more in"):
        run(tmp_path, list(ROWS), None, train=False)
    with pytest.raises(ValueError, match=r"there is no folder .*nothing: name that of the runs with --runs"):
        run(tmp_path / "nothing", ROWS, None, train=False)


def test_a_run_that_was_copied_or_cut_is_not_counted(tmp_path, short_rows):
    data = write_patterns(tmp_path / "data")
    run(tmp_path / "runs", short_rows, data, seeds=(0,))
    row = tmp_path / "runs/faithful-mono-it2"
    shutil.copytree(row / "seed0", row / "seed7")
    with pytest.raises(ValueError, match="seed7 has seed 0: a copy would count twice"):
        read_records(short_rows, "faithful-mono-it2", tmp_path / "runs")
    shutil.rmtree(row / "seed7")
    metrics = row / "seed0/metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:1]))
    with pytest.raises(ValueError, match=r"seed0 is not whole: its metrics\.jsonl .* lacks step 4"):
        read_records(short_rows, "faithful-mono-it2", tmp_path / "runs")


def test_an_unknown_row_is_named_before_anything_is_trained(tmp_path):
    with pytest.raises(ValueError, match="best-mono-it2"):
        run(tmp_path, ["best-mono-it22"], None)


def records(*accuracies):
    return [Record(None, seed, accuracy, 60.0, ()) for seed, accuracy in enumerate(accuracies)]


def test_steps_to_an_accuracy_are_those_of_the_first_evaluation_that_reached_it():
    record = Record(None, 0, 93.0, 9.0, ((10, 90.0, 3.0), (20, 95.0, 6.0), (30, 93.0, 9.0)))
    assert [record.steps_to(goal) for goal in (80.0, 91.0, 95.0, 95.1)] == [10, 20, 20, None]


def test_the_table_has_the_steps_that_all_seeds_needed_or_how_many_got_there():
    quick, slow = (Record(None, seed, 98.0, 9.0, ((1000 * (seed + 1), 96.0, 3.0),)) for seed in (0, 1))
    best = slow._replace(curve=(*slow.curve, (3000, 98.0, 9.0)))
    for both, cells in (([quick, slow], "2,000 | -"), ([quick, best], "2,000 | 1 of 2")):
        assert f"| 53 | {cells} | 98.00" in table2.markdown_rows({"best-mono-it2": both})


def test_mean_and_spread():
    assert mean_and_spread([]) == "-"
    assert mean_and_spread(records(95.0)) == "95.00"
    assert mean_and_spread(records(95.0, 96.0, 97.0)) == "96.00 ± 1.00"


def test_markdown_table_has_every_published_row_and_links_to_runs():
    text = markdown_table({"best-mono-it2": records(95.0, 96.0, 97.0)})
    assert (
        "| Gritzman, mono, 2 iterations | 95.4 | - | [96.00 ± 1.00](results/table2/best-mono-it2) (n = 3) | - |" in text
    )
    assert len(text.splitlines()) == 2 + len(PUBLISHED)


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
    assert "| it1 | [70.0](../results/choices/mono-it1-fold0) | - | - | - |" in choices.markdown_table(found, "mono")
