"""Error against cost: where the numbers come from."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from emcaps.bench.rows import read_rows
from emcaps.experiments import cost
from emcaps.experiments.published import FIGURES
from emcaps.experiments.records import Record
from emcaps.experiments.table2 import ROWS

ROOT = Path(__file__).parent.parent.parent
SPEEDS = read_rows(ROOT / "results/bench/h200.csv")


def records(*accuracies):
    return [Record(None, seed, accuracy, 60.0, ()) for seed, accuracy in enumerate(accuracies)]


def test_minutes_are_steps_times_the_measured_training_step():
    (row,) = [
        row
        for row in SPEEDS
        if (row.network, row.iterations, row.batch, row.what, row.implementation)
        == ("small", 2, 64, "training step", "fused, graph")
    ]
    point = cost.our_points({"best-stereo-it2": records(97.0, 98.0)}, SPEEDS)["best-stereo-it2"]
    assert (point.error, point.parameters) == (2.5, 68_754)
    assert point.minutes == pytest.approx(ROWS["best-stereo-it2"].train.steps * row.median_ms / 60_000)
    assert point.how == "97.50 ± 0.71 % right, n = 2"


def test_full_and_small_networks_have_their_own_times():
    found = dict.fromkeys(("faithful-stereo-it3", "faithful-full-stereo-it3"), records(90.0))
    small, full = cost.our_points(found, SPEEDS).values()
    assert (small.parameters, full.parameters) == (68_754, 317_194)
    assert 3 < full.minutes / small.minutes < 5


def test_forward_and_backward_stand_for_a_step_that_was_not_timed():
    without_steps = [row for row in SPEEDS if row.what != "training step"]
    (row,) = [
        row
        for row in without_steps
        if (row.network, row.iterations, row.batch, row.size, row.what, row.implementation)
        == ("full", 2, 64, 32, "forward+backward", "fused, graph")
    ]
    point = cost.our_points({"best-full-stereo-it2": records(97.0)}, without_steps)["best-full-stereo-it2"]
    assert point.minutes == pytest.approx(24_000 * row.median_ms / 60_000)


def test_the_cnn_is_as_quick_as_the_quickest_stretch_that_was_logged(tmp_path):
    speeds = {"cnn-stereo": (3200, 6400), "best-cnn-stereo": (1600, 6000)}
    for name, found in speeds.items():
        (tmp_path / name).mkdir()
        lines = [{"step": 200, "images_per_second": one} for one in found] + [{"step": 400, "test_accuracy": 0.9}]
        (tmp_path / name / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    rows = {name: [records(94.0)[0]._replace(folder=tmp_path / name)] for name in speeds}
    ours = cost.our_points(rows, SPEEDS)
    assert ours["cnn-stereo"].minutes == pytest.approx(9000 * 64 / 6400 / 60)
    assert ours["best-cnn-stereo"].minutes == pytest.approx(36_000 * 64 / 6400 / 60)

    # What a CPU took says nothing about minutes on a GPU.
    for name in speeds:
        (tmp_path / name / "environment.json").write_text('{"device": "cpu, 2 cores"}')
    assert cost.our_points(rows, SPEEDS)["cnn-stereo"].minutes is None


def test_a_step_that_was_not_timed_and_a_row_without_runs_are_left_open():
    ours = cost.our_points({"best-stereo-it2": records(94.0, 95.0), "best-mono-it2": []}, [])
    assert list(ours) == ["best-stereo-it2"]
    assert "| [best-stereo-it2](runs/best-stereo-it2) | 5.5 | 68,754 | - |" in cost.markdown_cost(ours, "runs/")


def test_every_published_figure_is_a_point_and_each_run_counts_once():
    shown = {point.who for point in cost.PUBLISHED}
    assert set(FIGURES) - shown == {"Officium, full, stereo, 3 iterations"}, "the best moment of a run whose end counts"


def test_the_command_prints_and_draws(tmp_path):
    console = Console(file=io.StringIO(), width=120)
    cost.run_cost(ROOT / "results/table2", ROOT / "results/bench/h200.csv", console, tmp_path / "cost.png")
    assert "best-stereo-it3" in console.file.getvalue()
    assert "Heinsen" in console.file.getvalue()
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
