"""Last step, last ten and best; and when a figure is passed."""

import math

import pytest

from emcaps.experiments.estimates import best, compare, last_mean, markdown_comparisons, markdown_estimates
from emcaps.experiments.published import ESTIMATES
from emcaps.experiments.records import Record


def record(seed, *accuracies):
    curve = tuple((step, accuracy, 0.0) for step, accuracy in enumerate(accuracies, start=1))
    return Record(None, seed, accuracies[-1], 60.0, curve)


def test_the_mean_of_the_last_ten_leaves_out_what_came_before():
    assert last_mean(record(0, 0.0, 99.0, *range(81, 91))) == 85.5
    assert last_mean(record(0, 80.0, 90.0)) == 85.0


def test_the_best_is_the_highest_evaluation_of_a_run():
    assert best(record(0, 80.0, 95.0, 90.0)) == 95.0


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "level"), (0.6, "level"), (0.8, "passed"), (-0.6, "level"), (-0.8, "missed")]
)
def test_two_standard_errors_decide(shift, verdict):
    """The numbers -1, -0.5, 0, 0.5 and 1 have a standard deviation of sqrt(0.625), so a standard error of 0.354."""
    found = compare([98.0 + shift + one for one in (-1, -0.5, 0, 0.5, 1)], 98.0)
    assert found.error == pytest.approx(0.35355, abs=1e-4)
    assert found.difference == pytest.approx(shift)
    assert found.verdict == verdict


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_seeds_decide_nothing(count):
    found = compare([99.0 + 0.01 * number for number in range(count)], 90.0)
    assert found.verdict == "too few seeds"
    assert math.isinf(found.error) == (count == 1)


def test_seeds_that_agree_exactly_pass_by_any_difference():
    assert compare(5 * [95.5], 95.4).verdict == "passed"
    assert compare(5 * [95.4], 95.4).verdict == "level"


def test_comparisons_name_the_row_the_figure_and_the_verdict():
    pairs = {
        "long-mono-it2": "Gritzman, small, mono, 2 iterations",
        "best-mono-it3": "Gritzman, small, mono, 3 iterations",
    }
    found = {"long-mono-it2": [record(0, 95.0), record(1, 95.2)], "best-mono-it3": []}
    lines = markdown_comparisons(found, pairs, "runs/").splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("| [long-mono-it2](runs/long-mono-it2) | 95.10 | 0.10 | 2 | 95.4 [Gritzman](")
    assert lines[-1].endswith("| -0.30 | -3.0 | too few seeds |")
    one = markdown_comparisons({"long-mono-it2": [record(0, 96.0)]}, {"long-mono-it2": pairs["long-mono-it2"]}, "runs/")
    assert one.endswith(
        "| 96.00 | - | 1 | 95.4 [Gritzman](https://arxiv.org/abs/1907.00652) | +0.60 | - | too few seeds |"
    )
    same = {"long-mono-it2": [record(0, 96.0), record(1, 96.0)]}
    assert markdown_comparisons(same, {"long-mono-it2": pairs["long-mono-it2"]}, "runs/").endswith(
        "| - | too few seeds |"
    )


def test_estimates_are_of_the_rows_with_published_schedules():
    found = {"paper-mono-it2": [record(0, 90.0, 92.0, 91.0)], "best-mono-it2": [record(0, 95.0)], "code-mono-it2": []}
    lines = markdown_estimates(found, "runs/").splitlines()
    assert lines[2] == "| [paper-mono-it2](runs/paper-mono-it2) | 1 | 91.00 | 91.00 | 92.00 |"
    assert [line.split("](")[0] for line in lines[3:]] == [f"| [{name}" for name, _, _ in ESTIMATES]
