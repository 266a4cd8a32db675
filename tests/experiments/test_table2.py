"""Table 2 from runs: its rows, its tables and its figure."""

import io

import pytest
from rich.console import Console

from emcaps.config import preset
from emcaps.experiments import runner, table2
from emcaps.experiments.published import FIGURES
from emcaps.experiments.records import Record
from emcaps.experiments.runner import Training
from emcaps.experiments.table2 import PUBLISHED, ROWS, markdown_published, run_table2, task_of
from emcaps.nn.summary import parameters_of
from emcaps.train.schedules import learning_rate_of
from experiments.short_rows import ROWS as SHORT_ROWS


def test_the_rows_are_what_their_names_say():
    for name, config in ROWS.items():
        assert config.data.split == "standard"
        if "cnn" in name:
            view = name.rpartition("-")[2]
            assert (config.network.kind, config.data.view, config.train.learning_rate) == ("cnn", view, 1e-3)
            assert table2.is_full(config) == ("small-cnn" not in name)
        else:
            recipe, *full, view, iterations = name.split("-")
            assert (config.data.view, f"it{config.network.iterations}") == (view, iterations)
            assert (config.network.primary_types, config.network.conv1_types) == ((32, 32) if full else (8, 16))
            assert (config.data.splice > 0) == (recipe in ("best", "long", "averaged", "longest"))


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


def test_every_published_figure_stands_beside_a_row_of_its_view_and_network():
    for one in PUBLISHED:
        figure, task = FIGURES[one.figure], task_of(one.row)
        assert figure.view == task.view
        if "iterations" not in one.remark:
            assert figure.iterations in (None, task.iterations)
        if "network" not in one.remark and figure.who != "www0wwwjs1":  # whose network has other layers
            assert figure.network == ("CNN" if task.kind == "cnn" else "full" if task.full else "small")


def test_a_paper_row_is_the_faithful_row_at_the_papers_own_speed():
    rows = [name for name in ROWS if name.startswith("paper")]
    assert len(rows) == 5
    for name in rows:
        paper, faithful = ROWS[name], ROWS[name.replace("paper", "faithful")]
        assert (paper.network, paper.data) == (faithful.network, faithful.data)
        for setting in ("decay_steps", "margin_steps"):
            assert getattr(paper.train, setting) == table2.SPEED_UP * getattr(faithful.train, setting)


@pytest.mark.parametrize("row", ["mono-it2", "mono-it3", "stereo-it3"])
def test_a_longest_row_is_the_long_row_with_twice_the_steps_and_in_mono_narrower_shifts(row):
    long, longest = ROWS[f"long-{row}"], ROWS[f"longest-{row}"]
    twice = {f"train.{key}": 2 * getattr(long.train, key) for key in ("steps", "margin_steps", "eval_every")}
    assert longest == long.override(twice | ({"data.max_shift": 2} if "mono" in row else {}))


def test_a_code_row_is_the_paper_row_with_the_decay_of_the_code_for_longer():
    rows = [name for name in ROWS if name.startswith("code")]
    assert len(rows) == 4
    for name in rows:
        changes = {"train.decay_steps": 20_000, "train.steps": 280_000}
        assert ROWS[name] == ROWS[name.replace("code", "paper")].override(changes)


def test_the_small_cnn_has_about_the_parameters_of_the_small_network():
    assert parameters_of(ROWS["best-small-cnn-stereo"]) == pytest.approx(68_754, rel=0.01)
    assert parameters_of(ROWS["best-small-cnn-mono"]) == pytest.approx(67_154, rel=0.02)


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("long-")])
def test_a_long_row_is_the_best_row_in_more_steps(name):
    long, best = ROWS[name], ROWS[name.replace("long", "best")]
    length = {f"train.{key}": getattr(long.train, key) for key in ("steps", "margin_steps", "eval_every")}
    assert best.override(length) == long
    times = 4 if "full" in name else 2
    assert long.train.steps == times * best.train.steps
    assert long.train.margin_steps == times * best.train.margin_steps


@pytest.mark.parametrize("name", [name for name in ROWS if name.startswith("averaged")])
def test_an_averaged_row_is_the_long_row_with_another_decay_and_averaged_weights(name):
    averaged, long = ROWS[name], ROWS[name.replace("averaged", "long")]
    same = {f"train.{key}": getattr(long.train, key) for key in ("learning_rate_schedule", "decay_rate", "decay_steps")}
    assert averaged.override(same | {"train.average": 0.0}) == long
    assert averaged.train.average == 0.5
    end = learning_rate_of(averaged.train, averaged.train.steps)
    assert end == pytest.approx(averaged.train.learning_rate / 5)


def test_a_short_table_trains_shows_and_draws_and_trains_nothing_twice(tmp_path, data, monkeypatch):
    short = {f"faithful-mono-it{count}": config for count, config in enumerate(SHORT_ROWS.values(), start=1)}
    monkeypatch.setattr(table2, "ROWS", short)
    monkeypatch.setitem(table2.TRAINING_IMAGES, "mono", 100)
    shown = []
    for figure in (tmp_path / "figure.png", None):
        console = Console(file=io.StringIO(), width=120)
        how = Training((0, 7), device="cpu", data_folder=data)
        run_table2(tmp_path / "runs", console, list(short), train=how, figure=figure)
        shown.append(console.file.getvalue().split("test accuracy over training")[0].rstrip())
        monkeypatch.setattr(runner, "train", None)
    assert shown[0] == shown[1]
    assert "faithful-mono-it2" in shown[0]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    for seed in (0, 7):
        assert (tmp_path / f"runs/faithful-mono-it1/seed{seed}/evaluation-13-crops.json").exists()


def test_many_crops_are_shown_if_every_seed_has_them():
    one, other = records(95.0, 96.0)
    both = {"best-mono-it2": [one._replace(many_crops=96.0), other._replace(many_crops=98.0)]}
    assert table2.markdown_rows(both, "runs/").endswith("| 95.50 ± 0.71 | 97.00 ± 1.41 |")
    assert table2.markdown_rows({"best-mono-it2": [both["best-mono-it2"][0], other]}, "runs/").endswith(
        "| 95.50 ± 0.71 | - |"
    )


def records(*accuracies):
    return [Record(None, seed, accuracy, 60.0, ()) for seed, accuracy in enumerate(accuracies)]


def test_the_table_has_the_steps_that_all_seeds_needed_or_how_many_got_there():
    quick, slow = (Record(None, seed, 98.0, 9.0, ((1000 * (seed + 1), 96.0, 3.0),)) for seed in (0, 1))
    best = slow._replace(curve=(*slow.curve, (3000, 98.0, 9.0)))
    for both, cells in (([quick, slow], "2,000 | -"), ([quick, best], "2,000 | 1 of 2")):
        assert f"| 53 | {cells} | 98.00" in table2.markdown_rows({"best-mono-it2": both}, "runs/")


def test_markdown_published_has_a_line_a_task_with_links_to_runs_and_every_published_figure():
    found = {row: records(95.0, 96.0, 97.0) for row in ROWS if row.startswith("best")}
    lines = markdown_published(found, "runs/").splitlines()
    ours = "[96.00 ± 1.00](runs/best-mono-it2) (n = 3)"
    assert f"| small, mono, 2 iterations | {ours} | 95.4 [Gritzman](" in "\n".join(lines)
    assert len(lines) == 2 + len(found)
    assert sum(line.count(";") + ("- |" not in line[-4:]) for line in lines[2:]) == len(PUBLISHED)


def test_markdown_published_leaves_out_tasks_and_recipes_without_a_run():
    lines = markdown_published({"best-mono-it2": records(95.0), "code-mono-it1": records(90.0)}, "runs/").splitlines()
    assert len(lines) == 4
    assert lines[0] == "| network | code, % | best, % | published, % |"
    assert lines[2].startswith(
        "| small, mono, 1 iteration | [90.00](runs/code-mono-it1) (n = 1) | - | 86.2 [Gritzman]("
    )
