"""The comparison fails when it should: each kind of wrong answer raises an error that names it."""

import math

import pytest
import torch

from routing.compare import assert_close, relative_error

WANT = torch.tensor([[1.0, -4.0], [0.0, 2.0]], dtype=torch.float64)


def test_equal_passes():
    assert_close("pose", WANT.clone(), WANT, 0.0)


def test_error_is_relative_to_the_largest_wanted_value():
    got = WANT.clone()
    got[1, 0] = 0.4
    assert_close("pose", got, WANT, 0.11)
    with pytest.raises(AssertionError, match=r"pose: error 0\.4 at \(1, 0\) is above 0\.09 of the scale 4"):
        assert_close("pose", got, WANT, 0.09)


def test_scale_does_not_come_from_the_answer():
    with pytest.raises(AssertionError, match="error"):
        assert_close("pose", WANT + 1e6, WANT, 0.5)


def test_one_wrong_value_among_many_raises():
    want = torch.ones(1000, dtype=torch.float64)
    got = want.clone()
    got[637] += 1e-9
    with pytest.raises(AssertionError, match="637"):
        assert_close("activation", got, want, 1e-10)


def test_small_values_with_the_wrong_sign_raise():
    want = torch.full((3,), 1e-30, dtype=torch.float64)
    with pytest.raises(AssertionError, match="gradient"):
        assert_close("gradient", -want, want, 1e-3)


def test_zero_is_close_only_to_zero():
    zero = torch.zeros(3, dtype=torch.float64)
    assert_close("gradient", zero.clone(), zero, 1e-3)
    with pytest.raises(AssertionError, match="gradient"):
        assert_close("gradient", zero + 1e-300, zero, 1e-3)
    with pytest.raises(AssertionError, match="gradient"):
        assert_close("gradient", zero, zero + 1e-300, 1e-3)


def test_least_scale_takes_the_place_of_a_smaller_one_only():
    want = torch.full((3,), 1e-6, dtype=torch.float64)
    assert_close("gradient", want + 1e-12, want, 1e-10, least_scale=0.1)
    with pytest.raises(AssertionError, match=r"1e-10 of the scale 0\.1"):
        assert_close("gradient", want + 1e-10, want, 1e-10, least_scale=0.1)
    with pytest.raises(AssertionError, match="1e-10 of the scale 1e-06"):
        assert_close("gradient", want + 1e-12, want, 1e-10, least_scale=1e-9)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_raise_on_either_and_on_both_sides(value):
    strange = WANT.clone()
    strange[0, 1] = value
    with pytest.raises(AssertionError, match="cost: 1 of 4 values got are not finite"):
        assert_close("cost", strange, WANT, math.inf)
    with pytest.raises(AssertionError, match="cost: 1 of 4 values wanted are not finite"):
        assert_close("cost", WANT, strange, math.inf)
    with pytest.raises(AssertionError, match="not finite"):
        assert_close("cost", strange, strange, math.inf)


@pytest.mark.parametrize("shape", [(4,), (2, 2, 1), (1, 2), (2,), (1,)])
def test_shapes_that_would_broadcast_raise(shape):
    with pytest.raises(AssertionError, match="mean: shape"):
        assert_close("mean", torch.ones(shape, dtype=torch.float64), torch.ones(2, 2, dtype=torch.float64), 1.0)


def test_other_dtype_raises():
    with pytest.raises(AssertionError, match=r"mean: torch\.float32, wanted torch\.float64"):
        assert_close("mean", WANT.float(), WANT, 1.0)


def test_empty_tensors_are_compared_by_shape():
    assert_close("pose", torch.empty(0, 4), torch.empty(0, 4), 0.0)
    with pytest.raises(AssertionError, match="shape"):
        assert_close("pose", torch.empty(0, 4), torch.empty(0, 3), 0.0)


def test_float32_is_compared_in_float64():
    want = torch.tensor([16777216.0])
    with pytest.raises(AssertionError, match="error 2 "):
        assert_close("pose", want + 2, want, 1e-8)


def test_relative_error():
    assert relative_error(WANT, WANT) == 0
    assert relative_error(WANT + 1, WANT) == 0.25
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_error(torch.ones(2), torch.zeros(2)) == math.inf
    assert relative_error(torch.empty(0), torch.empty(0)) == 0
