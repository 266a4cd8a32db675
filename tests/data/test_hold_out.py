import numpy as np
import pytest

from emcaps.data.hold_out import FOLDS, check_groups_apart, fold_of, seeded_share

CATEGORY = np.repeat(np.arange(4), [50, 20, 3, 2])


def test_a_share_of_every_class_is_held_out():
    held_out = seeded_share(CATEGORY, None, 0.2, seed=0)
    assert [int(held_out[number == CATEGORY].sum()) for number in range(4)] == [10, 4, 1, 1]
    np.testing.assert_array_equal(held_out, seeded_share(CATEGORY, None, 0.2, seed=0))
    assert (held_out != seeded_share(CATEGORY, None, 0.2, seed=1)).any()


def test_every_class_keeps_something_to_train_on():
    held_out = seeded_share(CATEGORY, None, 0.99, seed=0)
    assert set(CATEGORY[~held_out]) == {0, 1, 2, 3}
    assert not seeded_share(np.arange(3), None, 0.5, seed=0).any()


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_shares_that_are_none(share):
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        seeded_share(CATEGORY, None, share, seed=0)


@pytest.mark.parametrize("seed", range(5))
def test_no_group_is_in_both_parts(seed):
    random = np.random.default_rng(seed)
    group = random.integers(0, 30, 200)
    category = random.integers(0, 3, 200)  # so that groups have images of several classes
    held_out = seeded_share(category, group, 0.3, seed)
    assert held_out.any()
    assert not set(group[held_out]) & set(group[~held_out])
    parts = np.stack([fold_of(category, group, fold) for fold in range(FOLDS)])
    np.testing.assert_array_equal(parts.sum(0), 1)
    for part in parts:
        assert not set(group[part]) & set(group[~part])


def test_a_fold_that_does_not_exist():
    with pytest.raises(ValueError, match=r"data\.fold must be 0 to 9 for a set without viewpoints, not 10"):
        fold_of(CATEGORY, None, 10)


def test_groups_in_both_parts_are_named():
    check_groups_apart(np.array([0, 1]), np.array([2]), ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"1 groups have images in the training and in the test part \('b' is one\)"):
        check_groups_apart(np.array([0, 1]), np.array([1, 2]), ["a", "b", "c"])
