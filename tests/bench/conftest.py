import pytest
import torch

from emcaps.bench.cases import BACKWARD, Case
from emcaps.bench.ceilings import Ceilings
from emcaps.bench.implementations import Implementation
from emcaps.bench.rows import OK, Conditions, make_row
from emcaps.bench.timing import Timing
from emcaps.provenance import environment


@pytest.fixture
def conditions():
    device = torch.device("cpu")
    return Conditions(device, False, Ceilings(60.0, 4300.0), environment(device))


@pytest.fixture
def row_of(conditions):
    """A row as if it had been timed; without milliseconds, one that has a status instead."""

    def make(case, name, milliseconds=None, status=OK):
        timing = milliseconds and Timing(milliseconds, 0.9 * milliseconds, 1.5 * milliseconds, 20, 2.5, 1000.0)
        routing = "triton" if name.startswith("fused") else "reference"
        return make_row(case, Implementation(name, routing), status, timing, conditions)

    return make


@pytest.fixture
def smallest():
    """The smallest case there is, for tests that run it."""
    return Case("tiny", 2, 13, 2, 2, BACKWARD)
