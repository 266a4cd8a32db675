"""The vectors of the CPU kernels against numpy, one operation at a time."""

import operator

import numpy as np
import pytest

pytest.importorskip("numba")
import numba

from emcaps.routing.numba_kernels import vectors
from emcaps.routing.numba_kernels.columns import column
from emcaps.routing.numba_kernels.vectors import LANES, load, store

KINDS = pytest.mark.parametrize("kind", [np.float32, np.float64])


def through_vectors(function, *arrays):
    """Apply `function` to the vectors at the start of the arrays."""
    function = numba.njit(function)

    @numba.njit
    def one(a, result):
        store(result, 0, function(load(a, 0)))

    @numba.njit
    def two(a, b, result):
        store(result, 0, function(load(a, 0), load(b, 0)))

    result = np.full(LANES, np.nan, arrays[0].dtype)
    (one if len(arrays) == 1 else two)(*arrays, result)
    return result


def numbers(kind, seed=0):
    return np.random.default_rng(seed).standard_normal(LANES).astype(kind)


@KINDS
@pytest.mark.parametrize("function", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_arithmetic(function, kind):
    a, b = numbers(kind), numbers(kind, 1)
    np.testing.assert_array_equal(through_vectors(lambda x, y: function(x, y), a, b), function(a, b))


@KINDS
def test_a_number_stands_for_a_vector_of_it(kind):
    a = numbers(kind)
    np.testing.assert_array_equal(through_vectors(lambda x: 2 - x * 0.5, a), 2 - a * kind(0.5))


@KINDS
def test_load_and_store_move_lanes_and_nothing_else(kind):
    source, target = np.arange(3 * LANES, dtype=kind), np.full(3 * LANES, -1, kind)

    @numba.njit
    def move(source, target):
        store(target, LANES - 1, load(source, 5))

    move(source, target)
    np.testing.assert_array_equal(target[LANES - 1 : 2 * LANES - 1], source[5 : 5 + LANES])
    assert (np.delete(target, range(LANES - 1, 2 * LANES - 1)) == -1).all()


@KINDS
@pytest.mark.parametrize("count", [0, 1, LANES - 1, LANES])
def test_first_lanes(count, kind):
    a = numbers(kind)
    got = through_vectors(lambda x: vectors.first_lanes(x, count, -7), a)
    np.testing.assert_array_equal(got, np.where(np.arange(LANES) < count, a, kind(-7)))


@KINDS
def test_larger(kind):
    a, b = numbers(kind), numbers(kind, 1)
    np.testing.assert_array_equal(through_vectors(lambda x, y: vectors.larger(x, y), a, b), np.maximum(a, b))


@KINDS
def test_sum_and_largest_of_lanes(kind):
    whole = np.arange(1, LANES + 1, dtype=kind)  # sums of whole numbers are exact in any order
    assert (through_vectors(lambda x: x * 0 + vectors.sum_of_lanes(x), whole) == whole.sum()).all()
    for place in range(LANES):
        a = numbers(kind)
        a[place] = 9
        assert (through_vectors(lambda x: x * 0 + vectors.largest_lane(x), a) == 9).all()


@KINDS
def test_sums_of_vectors_are_in_the_order_of_the_vectors(kind):
    a = np.arange(LANES * LANES, dtype=kind).reshape(LANES, LANES) ** 2

    @numba.njit
    def sums(a, result):
        rows = (*column(a, 0), *column(a, 64), *column(a, 128), *column(a, 192))
        store(result, 0, vectors.sums_of_vectors(rows))

    result = np.empty(LANES, kind)
    sums(a.reshape(-1), result)
    np.testing.assert_array_equal(result, a.sum(1))


@KINDS
def test_exp_is_exact_to_two_units_and_nan_stays(kind):
    lowest = -87 if kind is np.float32 else -708
    points = np.concatenate([np.linspace(lowest, 0, 4096 - 32), -np.logspace(-12, 0, 32)]).astype(kind)
    got = np.concatenate([through_exp(points[start : start + LANES]) for start in range(0, len(points), LANES)])
    want = np.exp(points.astype(np.longdouble))
    inside = points > lowest
    error = np.abs(got - want)[inside] / np.spacing(want[inside].astype(kind))
    assert error.max() <= 2
    special = np.zeros(LANES, kind)
    special[:4] = (0, -np.inf, np.nan, lowest - 1)
    assert [*map(str, through_exp(special)[:4])] == ["1.0", "0.0", "nan", "0.0"]


@numba.njit
def _exp(a, result):
    store(result, 0, vectors.exp_of_nonpositive(load(a, 0)))


def through_exp(points):
    result = np.empty(LANES, points.dtype)
    _exp(np.ascontiguousarray(points), result)
    return result
