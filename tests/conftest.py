"""Settings of all tests. Being here, it also lets them import the helpers beside it, as `routing.compare`."""

import gc
import importlib.util
import os
import signal
from importlib.metadata import version

import pytest
import torch
from hypothesis import settings

# Without a GPU the kernels run in Triton's interpreter. It has to be chosen before Triton is first imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    if importlib.util.find_spec("triton") and version("triton").startswith("3.6."):
        import quick_interpreter

        quick_interpreter.use()

# The same examples on every machine and in every run, and no failure because a shared machine was slow for a moment.
settings.register_profile("emcaps", derandomize=True, deadline=None, database=None)
settings.load_profile("emcaps")

# The tests' tensors are tiny: a second thread would only wait for the first, and spin while it waits. So here, and in
# the processes that tests start, which read this; torch is imported here already.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's background job ignores Ctrl-C, and so would the tests that send it to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    # Each time, since a test may have left another number behind, and all after it would be slow.
    torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    # The interpreter uses numpy as it was, and numpy warns of infinities, which a GPU computes with in silence.
    for kind in ("DeprecationWarning", "RuntimeWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::{kind}:triton.runtime.interpreter")


def pytest_collection_finish() -> None:
    # What is imported by now stays. To look for garbage in it would take the better part of a second each time.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels run: on a GPU, or on the CPU in Triton's interpreter, which is slow."""
    return "cuda" if torch.cuda.is_available() else "cpu"
