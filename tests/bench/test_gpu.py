"""What only a GPU can show. Skipped where there is none."""

import dataclasses

import pytest
import torch

from emcaps.bench.capture import capture
from emcaps.bench.ceilings import measure_ceilings
from emcaps.bench.implementations import implementations
from emcaps.bench.run import time_row

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda")


def test_ceilings_of_a_gpu_are_plausible():
    found = measure_ceilings(GPU)
    assert 1 < found.tflops < 1000
    assert 100 < found.gb_per_s < 100_000


def test_a_captured_graph_computes_from_what_is_there_at_the_replay():
    values = torch.zeros(1000, device=GPU)
    captured = capture(lambda: (values * 2).sum(), GPU)
    values += 1
    captured.replay()
    assert float(captured.result) == 2000


@pytest.mark.parametrize("what", ["forward", "forward+backward", "training step"])
def test_every_implementation_gives_a_row(smallest, conditions, what):
    case = dataclasses.replace(smallest, what=what)
    for implementation in implementations(("fused", "reference"), GPU)[0]:
        row = time_row(case, implementation, conditions._replace(device=GPU), seconds=0.01)
        assert row.status == "ok", row
        assert row.peak_mib > 0


def test_what_wraps_the_fused_layers_gives_a_row(smallest, conditions):
    for implementation in implementations(("fused", "graphed", "fused+compile"), GPU)[0]:
        row = time_row(smallest, implementation, conditions._replace(device=GPU), seconds=0.01)
        assert row.status == "ok", row
