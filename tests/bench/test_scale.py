import pytest

from emcaps.bench.cases import BACKWARD, STEP, Case
from emcaps.bench.scale import BETWEEN, INSIDE, expected_step, interpolate, ring_sum_ms, tree_sum_ms

PARAMETERS = 1_000_000


@pytest.fixture
def rows(row_of):
    passes = {1: 0.3, 4: 0.4, 16: 0.6, 64: 1.2, 4096: 50.0}
    steps = {64: 1.3, 4096: 50.5}
    return [
        row_of(Case("small", 16, 32, batch, 2, what), "fused, graph", time)
        for what, times in ((BACKWARD, passes), (STEP, steps))
        for batch, time in times.items()
    ]


def test_one_gpu_is_what_was_measured(rows):
    step = expected_step(rows, "small", 2, PARAMETERS, 1, 64)
    assert step == pytest.approx((1.2, 0.1, 0.0, 0.0))
    assert step.images_per_second(64) == pytest.approx((64_000 / 1.3,) * 2)


def test_the_network_divides_and_the_preparation_does_not(rows):
    few, many = (expected_step(rows, "small", 2, PARAMETERS, gpus, 64) for gpus in (4, 64))
    assert (few.network, many.network) == (0.6, 0.3)
    assert few.preparation == many.preparation == pytest.approx(0.1)
    large = expected_step(rows, "small", 2, PARAMETERS, 128, 128 * 64)
    assert large.network == 1.2
    assert large.preparation == pytest.approx(0.1 + 0.4 * (8192 - 64) / (4096 - 64))


def test_a_ring_passes_on_each_share_twice_but_once():
    in_a_machine = 2 * 7 * (INSIDE.latency_us / 1e3 + 4e6 / 8 / (INSIDE.gb_per_s * 1e6))
    assert ring_sum_ms(8, 4_000_000) == pytest.approx(in_a_machine)
    between = 2 * 15 * (BETWEEN.latency_us / 1e3 + 4e6 / 16 / (BETWEEN.gb_per_s * 1e6))
    assert ring_sum_ms(16, 4_000_000) == pytest.approx(between)
    assert ring_sum_ms(1, 4_000_000) == 0


def test_a_tree_is_as_deep_as_the_logarithm():
    assert tree_sum_ms(1, 4) == 0
    assert tree_sum_ms(1024, 0) == pytest.approx(2 * 10 * BETWEEN.latency_us / 1e3)
    assert tree_sum_ms(1000, 0) == tree_sum_ms(1024, 0)
    assert tree_sum_ms(8, 3_000_000) == pytest.approx(2 * (3 * INSIDE.latency_us / 1e3 + 3 / INSIDE.gb_per_s))


def test_times_between_two_batches_lie_on_a_line():
    times = {4: 1.0, 16: 4.0}
    assert interpolate(times, 16) == 4.0
    assert interpolate(times, 8) == 2.0
    with pytest.raises(ValueError, match="a batch of 17 lies outside of what was measured, 4 to 16 images"):
        interpolate(times, 17)


def test_a_batch_that_does_not_divide_is_refused(rows):
    with pytest.raises(ValueError, match=r"a batch of 64 does not divide equally among 6 GPUs: use a multiple of 6"):
        expected_step(rows, "small", 2, PARAMETERS, 6, 64)
