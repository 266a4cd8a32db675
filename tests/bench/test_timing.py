import pytest
import torch

from emcaps.bench import timing
from emcaps.bench.timing import LEAST, MOST, measure, percentiles, repeat

CPU = torch.device("cpu")


def test_percentiles_lie_between_neighbours():
    assert percentiles([5.0, 1.0, 3.0, 2.0, 4.0, 6.0]) == (2.0, 3.5, 5.0)
    assert percentiles([7.0]) == (7.0, 7.0, 7.0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the work moves."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


@pytest.mark.parametrize(("each", "repeats"), [(10.0, LEAST), (0.02, 25), (1e-6, MOST)])
def test_repeat_fills_its_seconds_within_bounds(clock, each, repeats):
    def work():
        clock.now += each

    times = repeat(work, CPU, seconds=0.501)
    assert len(times) == repeats
    assert times == pytest.approx([1000 * each] * repeats)


def test_measure_keeps_building_and_warming_up_out_of_the_times(clock):
    calls = []

    def make():
        clock.now += 100

        def work():
            calls.append(None)
            clock.now += 50 if len(calls) == 1 else 0.01  # the first call compiles

        return work

    result = measure(make, CPU, seconds=0.1)
    assert result.median_ms == result.p20_ms == pytest.approx(10)
    assert result.repeats == 10
    assert result.warmup_s == pytest.approx(150.02)
    assert result.peak_mib is None or result.peak_mib >= 0  # Linux tells, others do not
