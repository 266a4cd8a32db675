import numpy as np
import pytest

from emcaps.report import curves
from emcaps.report.curves import draw_curves, smooth
from emcaps.report.figures import new_figure


def test_smooth_is_the_weighted_mean_of_all_values_so_far():
    values, alpha = [3.0, 1.0, 4.0, 1.0, 5.0], 0.25
    for last, got in enumerate(smooth(values, alpha)):
        weights = [(1 - alpha) ** (last - place) for place in range(last + 1)]
        assert got == pytest.approx(np.average(values[: last + 1], weights=weights))


def test_smooth_with_alpha_1_changes_nothing_and_0_is_refused():
    assert smooth([3.0, 1.0], 1.0).tolist() == [3.0, 1.0]
    with pytest.raises(ValueError, match="alpha must be above 0"):
        smooth([1.0], 0.0)


def test_no_two_of_many_curves_look_alike(tmp_path, monkeypatch):
    drawn = []

    def noting_figure(size):
        drawn.append(new_figure(size))
        return drawn[-1]

    monkeypatch.setattr(curves, "new_figure", noting_figure)
    draw_curves({str(n): [[(1, 2.0), (2, n)]] for n in range(25)}, tmp_path / "a.png", "x", "y", 1.0)
    lines = drawn[0].axes[0].get_lines()
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == 25


def test_curves_at_different_places_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not evaluated at the same places"):
        draw_curves({"a": [[(1, 2.0)], [(2, 2.0)]]}, tmp_path / "a.png", "x", "y", 0.5)
    assert not (tmp_path / "a.png").exists()
