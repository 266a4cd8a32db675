"""The linear readout of viewpoints: exact where the angles are there, nothing where they are not."""

import numpy as np
import pytest

from emcaps.analysis import readout
from emcaps.analysis.readout import Views, circle, correlations, degrees_apart, fit, fit_ridges


def make_views(seed, count=400, instances=(0, 1, 2, 3), noise=0.01, zero=0.0):
    """Views whose six features are a random mixture of the angles, always the same one, and noise."""
    random = np.random.default_rng(seed)
    azimuth, elevation = random.choice(np.arange(0, 360, 20.0), count), random.choice(np.arange(30, 75, 5.0), count)
    hidden = np.column_stack([circle(azimuth + zero), (elevation - 50) / 20, random.normal(size=count)])
    mixture = np.random.default_rng(99).normal(size=(4, 6))
    features = hidden @ mixture + noise * random.normal(size=(count, 6))
    return Views(features, azimuth, elevation, random.choice(instances, count))


@pytest.mark.parametrize("ridge", [1e-6, 0.1, 10.0])
def test_fit_ridges_is_the_closed_form(ridge):
    random = np.random.default_rng(0)
    features, targets = random.normal(size=(30, 4)), random.normal(size=(30, 2))
    (found,) = fit_ridges(features, targets, (ridge,))
    scaled = (features - features.mean(0)) / features.std(0)
    wanted = np.linalg.solve(scaled.T @ scaled + ridge * 30 * np.eye(4), scaled.T @ (targets - targets.mean(0)))
    np.testing.assert_allclose(found.weight, wanted, rtol=1e-9)
    np.testing.assert_allclose(found(features), scaled @ wanted + targets.mean(0), rtol=1e-9, atol=1e-12)


def test_angles_that_are_in_the_features_are_read_from_new_objects():
    train, test = make_views(0), make_views(1, instances=(7, 8))
    for quantity in ("azimuth", "elevation"):
        assert readout.read_new_objects(train, test, quantity).r2 > 0.99
        assert readout.read_new_objects(train, test, quantity).error < 3
        assert readout.read_same_object(test, quantity).r2 > 0.99
    # The features know the azimuth by its sine and cosine, of which the half turn is no linear function.
    assert readout.read_new_objects(train, test, "azimuth modulo 180").r2 < 0.1


def test_a_half_turn_is_read_where_front_and_back_look_the_same():
    def doubled(views):
        return views._replace(features=np.column_stack([circle(views.azimuth, 180), views.features[:, :1]]))

    train, test = doubled(make_views(0)), doubled(make_views(1, instances=(7, 8)))
    assert readout.read_new_objects(train, test, "azimuth modulo 180").error < 1
    assert readout.read_new_objects(train, test, "azimuth").error > 60


def test_shuffled_angles_are_read_by_nobody():
    train, test = make_views(0), make_views(1, instances=(7, 8))
    for quantity, guess in (("azimuth", 90), ("azimuth modulo 180", 45), ("elevation", 11)):
        for score in (
            readout.read_new_objects(train.shuffled(0), test, quantity),
            readout.read_same_object(test.shuffled(0), quantity),
        ):
            assert -0.2 < score.r2 < 0.05
            assert score.error == pytest.approx(guess, rel=0.2)


def test_an_azimuth_with_another_zero_is_read_within_an_object_alone():
    train, test = make_views(0), make_views(1, instances=(7, 8), zero=180)
    assert readout.read_new_objects(train, test, "azimuth").r2 < -1
    assert readout.read_same_object(test, "azimuth").r2 > 0.99


def test_the_ridge_is_chosen_on_objects_that_are_left_out():
    """A feature that tells the objects apart misleads: with a strong ridge it counts for less."""
    random = np.random.default_rng(0)
    instance = np.repeat(np.arange(4), 10)
    features = random.normal(size=(40, 60))  # more features than images: without a ridge the fit is exact
    targets = features[:, :1] + 3 * random.normal(size=(40, 1))
    weak = fit_ridges(features, targets, readout.RIDGES[:1])[0]
    chosen = fit(features, targets, instance)
    assert np.linalg.norm(chosen.weight) < 0.5 * np.linalg.norm(weak.weight)


def test_one_object_is_not_enough():
    views = make_views(0, instances=(3,))
    with pytest.raises(ValueError, match=r"at least 2 training instances of each class.*not of 1: read more images"):
        readout.read_new_objects(views, views, "elevation")


def test_degrees_apart_goes_the_short_way():
    np.testing.assert_allclose(degrees_apart(np.array([350.0, 0, 90]), np.array([10.0, 180, 80])), [20, 180, 10])
    np.testing.assert_allclose(degrees_apart(np.array([170.0, 0]), np.array([10.0, 180]), 180), [20, 0])


def test_principal_components_keep_the_largest_directions():
    random = np.random.default_rng(0)
    values = random.normal(size=(200, 2)) @ np.diag([10.0, 5.0]) @ random.normal(size=(2, 7))
    values += 1e-3 * random.normal(size=values.shape) + 4
    reduced, other = readout.principal_components(values, values[:50], 2)
    assert reduced.shape == (200, 2)
    np.testing.assert_allclose(other, reduced[:50])
    kept = np.square(reduced).sum() / np.square(values - values.mean(0)).sum()
    assert kept == pytest.approx(1, abs=1e-5)


def test_correlations_by_column_and_none_for_what_never_changes():
    random = np.random.default_rng(0)
    features = np.column_stack([random.normal(size=(50, 2)), np.ones(50)])
    targets = np.column_stack([-features[:, 0], random.normal(size=50)])
    found = correlations(features, targets)
    assert found[0, 0] == pytest.approx(-1)
    assert found[1, 1] == pytest.approx(np.corrcoef(features[:, 1], targets[:, 1])[0, 1])
    assert found[2].tolist() == [0, 0]
