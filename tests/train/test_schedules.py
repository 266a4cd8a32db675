import math

import pytest

from emcaps.routing import routing_lambda
from emcaps.train import learning_rate, spread_margin
from emcaps.train.schedules import cosine_rate, linear_margin, warm_up


@pytest.mark.parametrize(("step", "margin"), [(0, 0.214), (200_000, 0.595), (400_000, 0.976)])
def test_spread_margin_at_the_papers_steps(step, margin):
    assert spread_margin(step) == pytest.approx(margin, abs=5e-4)


def test_spread_margin_stops_rising_at_10():
    assert spread_margin(700_000) == spread_margin(10**9) == pytest.approx(0.2 + 0.79 / (1 + math.exp(-10)))


def test_spread_margin_time_scale():
    assert spread_margin(400, margin_steps=100) == spread_margin(200_000)


def test_learning_rate_decays_smoothly():
    assert learning_rate(0) == 3e-3
    assert learning_rate(2000) == pytest.approx(3e-3 * 0.96)
    assert learning_rate(1000) == pytest.approx(3e-3 * math.sqrt(0.96))
    assert learning_rate(20_000, start=1.0, decay_rate=0.5, decay_steps=10_000) == pytest.approx(0.25)


def test_routing_lambda_of_the_paper():
    got = [routing_lambda(iteration, 0.01) for iteration in range(3)]
    assert got == pytest.approx([5.0e-4, 9.75e-4, 1.42625e-3])


def test_linear_margin_rises_and_stays():
    assert [linear_margin(step, 100) for step in (0, 50, 100, 900)] == pytest.approx([0.2, 0.55, 0.9, 0.9])


def test_cosine_rate_ends_at_zero():
    assert [cosine_rate(step, 2.0, 100) for step in (0, 50, 100)] == pytest.approx([2.0, 1.0, 0.0])
    assert cosine_rate(25, 2.0, 100) == pytest.approx(1 + math.sqrt(0.5))


def test_warm_up_reaches_the_whole_rate_at_its_last_step():
    assert [warm_up(step, 4) for step in (0, 1, 3, 9)] == [0.25, 0.5, 1.0, 1.0]
    assert warm_up(0, 0) == 1.0
