"""A sweep: its rows, what is trained and skipped, and the table."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from emcaps.config import preset
from emcaps.experiments.records import Record
from emcaps.experiments.runner import Training
from emcaps.experiments.sweep import run_sweep, sweep_rows, sweep_table
from experiments.short_rows import SHORT

BASE = preset("tiny").override(SHORT | {"train.log_every": 1})
GRID = {"train.learning_rate": ["1e-3", "1e30"], "network.iterations": ["1", "2"]}


def shown(table_or_sweep):
    console = Console(file=io.StringIO(), width=140)
    table_or_sweep(console)
    return [line.split() for line in console.file.getvalue().splitlines()]


def test_rows_are_all_combinations_named_by_their_settings():
    rows = sweep_rows(BASE, GRID, "tiny")
    assert list(rows) == [f"learning_rate={rate},iterations={n}" for rate in ("1e-3", "1e30") for n in (1, 2)]
    assert rows["learning_rate=1e30,iterations=2"] == BASE.override(
        {"train.learning_rate": 1e30, "network.iterations": 2}
    )
    assert list(sweep_rows(BASE, {}, "tiny")) == ["tiny"]
    layers = sweep_rows(preset("tiny"), {"network.layers": ["4:3:2, 4", "8"]}, "tiny")
    assert list(layers) == ["layers=4-3-2-4", "layers=8"]


def test_values_that_are_the_same_are_refused():
    with pytest.raises(ValueError, match=r"two values of the grid are the same setting, learning_rate=0\.001"):
        sweep_rows(BASE, {"train.learning_rate": ["1e-3", "0.001"]}, "tiny")
    with pytest.raises(ValueError, match=r"unknown setting 'train\.learning'"):
        sweep_rows(BASE, {"train.learning": ["1"]}, "tiny")


def test_a_sweep_trains_each_run_once_and_records_those_that_diverge(tmp_path, data):
    """In two parts, as two machines would; the second finds what the first has done."""

    def sweep(part, look=False):
        how = Training([0], 1, "cpu", data, part, keep_failures=True)
        return shown(lambda console: run_sweep(BASE, GRID, tmp_path / "runs", console, how, look=look))

    with pytest.raises(ValueError, match="no finished runs of this sweep"):
        sweep((1, 1), look=True)
    sweep((1, 2))
    assert sorted(os.listdir(tmp_path / "runs")) == [f"learning_rate={rate},iterations=1" for rate in ("1e-3", "1e30")]
    lines = sweep((2, 2))
    runs = sorted((tmp_path / "runs").glob("*/seed0"))
    assert len(runs) == 4
    assert [(run / "failure.json").exists() for run in runs] == [False, False, True, True]
    before = [path.stat().st_mtime_ns for run in runs for path in run.iterdir()]
    assert sweep((1, 1)) == sweep((1, 1), look=True) == lines
    assert [path.stat().st_mtime_ns for run in runs for path in run.iterdir()] == before
    assert [line[:2] for line in lines[-5:-1]][2:] == [["1e30", "1"], ["1e30", "2"]]


def test_the_table_is_sorted_and_counts_what_diverged():
    def records(*accuracies):
        return [
            Record(Path("x"), seed, accuracy, 60.0, (), failed_by=3 if accuracy != accuracy else None)
            for seed, accuracy in enumerate(accuracies)
        ]

    found = {"a": records(50.0, 52.0), "b": records(float("nan")), "c": records(70.0, float("nan")), "d": []}
    lines = shown(lambda console: console.print(sweep_table(found, {"x.y": ["a", "b", "c", "d"]})))
    assert [line for line in lines if line and line[0] in "abcd"] == [
        ["c", "70.00", "1", "1", "1.0"],
        ["a", "51.00", "±", "1.41", "2", "1.0"],
        ["b", "-", "0", "1", "1.0"],
    ]


@pytest.mark.parametrize(
    ("setting", "values", "message"),
    [
        ("data.crop", ["16", "64"], r"data\.crop must be at most 48, the side of the images, not 64"),
        ("data.crop", ["16", "8"], r"data\.crop must be at least 13 for a capsule network, .* not 8"),
        ("network.layers", ["8:3:2", "8:40"], "kernel of 40x40 does not fit"),
        ("network.classes", ["5", "7"], r"network\.classes must be 5, .* not 7"),
    ],
)
def test_a_combination_that_does_not_fit_a_known_set_is_told_without_loading_it(tmp_path, setting, values, message):
    with pytest.raises(ValueError, match=message):
        sweep_rows(preset("tiny"), {setting: values}, "tiny", tmp_path / "no data")


def test_a_combination_that_does_not_fit_its_images_is_told_before_anything_is_trained(tmp_path):
    images = np.zeros((8, 20, 20), np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=[0, 1] * 4, test_images=images, test_labels=[0, 1] * 4)
    base = preset("tiny").override({"data.dataset": str(tmp_path / "own.npz")})
    with pytest.raises(ValueError, match=r"data\.crop must be at most 20, the side of the images, not 24"):
        sweep_rows(base, {"data.crop": ["16", "24"]}, "own")
