import numpy as np
import pytest

from emcaps.report.curves import draw_curves, smooth


def test_smooth_is_the_weighted_mean_of_all_values_so_far():
    values, alpha = [3.0, 1.0, 4.0, 1.0, 5.0], 0.25
    for last, got in enumerate(smooth(values, alpha)):
        weights = [(1 - alpha) ** (last - place) for place in range(last + 1)]
        assert got == pytest.approx(np.average(values[: last + 1], weights=weights))


def test_smooth_with_alpha_1_changes_nothing_and_0_is_refused():
    assert smooth([3.0, 1.0], 1.0).tolist() == [3.0, 1.0]
    with pytest.raises(ValueError, match="alpha must be above 0"):
        smooth([1.0], 0.0)


def test_curves_at_different_places_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not evaluated at the same places"):
        draw_curves({"a": [[(1, 2.0)], [(2, 2.0)]]}, tmp_path / "a.png", "x", "y", 0.5)
    assert not (tmp_path / "a.png").exists()
