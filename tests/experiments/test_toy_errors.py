"""Errors by toy: read from runs, and how far other toys might change a mean."""

import statistics

import numpy as np
import pytest

from emcaps.experiments.records import Record
from emcaps.experiments.toy_errors import by_toy, error_over_toys, markdown_missed, markdown_over_toys, markdown_paired
from emcaps.files import write_json


def run(folder, wrong, seed=0):
    """A run whose evaluation has these errors, of 50 images each, by category and instance."""
    folder.mkdir(parents=True)
    toys = [
        {"category": category, "instance": instance, "images": 50, "wrong": count, "mostly": "truck", "times": count}
        for (category, instance), count in wrong.items()
    ]
    write_json(folder / "evaluation.json", {"step": 1, "test instances": toys} if toys else {"step": 1})
    return Record(folder, seed, 0.0, 1.0, ())


TOYS = [("animal", 0), ("animal", 1), ("car", 0), ("car", 1)]


def test_errors_are_read_by_toy_from_the_runs_that_have_them(tmp_path):
    first = run(tmp_path / "seed0", dict(zip(TOYS, (0, 10, 5, 5), strict=True)))
    second = run(tmp_path / "seed1", dict(zip(TOYS, (0, 20, 0, 0), strict=True)))
    older = run(tmp_path / "seed2", {})
    found = by_toy([first, second, older])
    assert [toy[:2] for toy in found] == TOYS
    assert found[1].wrong == (20.0, 40.0)
    assert found[1].share == (50.0, 100.0)
    assert found[1].mean == 30.0
    assert by_toy([older]) == []
    lines = markdown_missed([first, second], "toy", 2).splitlines()
    assert lines[2] == "| animal 1 | 30.0 | 20.0 to 40.0 | 75 | truck |"
    assert len(lines) == 4


def test_a_run_without_errors_has_no_shares_of_them(tmp_path):
    (toy,) = by_toy([run(tmp_path / "seed0", {("animal", 0): 0})])
    assert toy.share == (0.0,)


def test_the_error_over_toys_is_the_spread_of_means_over_other_toys():
    """Toys are drawn again and again, five from each of three categories; the formula sees one draw at a time."""
    rng = np.random.default_rng(0)
    means, errors = [], []
    for _ in range(4000):
        drawn = {(name, toy): rng.normal(10 * index, 1 + index) for index, name in enumerate("abc") for toy in range(5)}
        means.append(statistics.fmean(drawn.values()))
        errors.append(error_over_toys(drawn) ** 2)
    assert statistics.fmean(errors) ** 0.5 == pytest.approx(statistics.stdev(means), rel=0.05)


def test_tables_have_both_errors_and_differences_toy_by_toy(tmp_path):
    found = {
        "one": [
            run(tmp_path / "one/seed0", dict(zip(TOYS, (0, 10, 5, 5), strict=True))),
            run(tmp_path / "one/seed1", dict(zip(TOYS, (0, 20, 0, 0), strict=True))),
        ],
        "other": [run(tmp_path / "other/seed0", dict(zip(TOYS, (5, 15, 10, 0), strict=True)))],
    }
    lines = markdown_over_toys(found, ("one", "other"), "runs/").splitlines()
    assert lines[2] == "| [one](runs/one) | 2 | 10.00 | 0.00 | 7.50 |"
    assert lines[3].startswith("| [other](runs/other) | 1 | 15.00 | - | ")
    paired = markdown_paired(found, [("one", "other")], "runs/").splitlines()[2]
    assert paired.startswith("| [one](runs/one) | [other](runs/other) | -5.0 ± ")
    assert paired.endswith(" | 2 of 4 |")
