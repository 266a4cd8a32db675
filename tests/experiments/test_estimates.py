"""Last step, last ten and best; and when a figure is passed."""

import math

import pytest

from emcaps.experiments.estimates import best, compare, last_mean, markdown_comparisons, markdown_estimates
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
    ("accuracies", "verdict"),
    [((98.0, 98.2), "level"), ((98.2, 98.3), "passed"), ((97.0, 97.1), "missed"), ((99.9,), "one seed")],
)
def test_two_standard_errors_decide(accuracies, verdict):
    found = compare(accuracies, 98.0)
    assert found.verdict == verdict
    if len(accuracies) == 2:
        assert found.error == pytest.approx(abs(accuracies[1] - accuracies[0]) / 2)  # by hand, for two numbers
    else:
        assert found.error == math.inf
    assert found.difference == pytest.approx(sum(accuracies) / len(accuracies) - 98.0)


def test_seeds_that_agree_exactly_pass_by_any_difference():
    assert compare([95.5, 95.5], 95.4).verdict == "passed"
    assert compare([95.4, 95.4], 95.4).verdict == "level"


def test_comparisons_name_the_row_the_figure_and_the_verdict():
    pairs = {
        "long-mono-it2": "Gritzman, small, mono, 2 iterations",
        "best-mono-it3": "Gritzman, small, mono, 3 iterations",
    }
    found = {"long-mono-it2": [record(0, 95.0), record(1, 95.2)], "best-mono-it3": []}
    lines = markdown_comparisons(found, pairs, "runs/").splitlines()
    assert len(lines) == 3
    assert lines[-1].startswith("| [long-mono-it2](runs/long-mono-it2) | 95.10 | 0.10 | 2 | 95.4 [Gritzman](")
    assert lines[-1].endswith("| -0.30 | -3.0 | missed |")
    one = markdown_comparisons({"long-mono-it2": [record(0, 96.0)]}, {"long-mono-it2": pairs["long-mono-it2"]}, "runs/")
    assert one.endswith("| 96.00 | - | 1 | 95.4 [Gritzman](https://arxiv.org/abs/1907.00652) | +0.60 | - | one seed |")
    same = {"long-mono-it2": [record(0, 96.0), record(1, 96.0)]}
    assert markdown_comparisons(same, {"long-mono-it2": pairs["long-mono-it2"]}, "runs/").endswith("| - | passed |")


def test_estimates_are_of_the_rows_on_the_papers_clock():
    found = {"paper-mono-it2": [record(0, 90.0, 92.0, 91.0)], "best-mono-it2": [record(0, 95.0)], "code-mono-it2": []}
    lines = markdown_estimates(found, "runs/").splitlines()
    assert lines[2:] == ["| [paper-mono-it2](runs/paper-mono-it2) | 1 | 91.00 | 91.00 | 92.00 |"]
