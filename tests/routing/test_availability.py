"""Which implementations can run where, which one "auto" takes, and what it says about that."""

import logging
import sys

import pytest
import torch

from emcaps import class_routing, conv_routing
from emcaps.routing import availability
from emcaps.routing.availability import choose_implementation, unavailable
from routing.cases import class_inputs, conv_inputs

CONV = conv_inputs(grid=(5, 4), kernel=(3, 2), child_types=2, parent_types=3)
CLASS = class_inputs(grid=(3, 2), child_types=2, parent_types=3)
LAYERS = pytest.mark.parametrize(
    ("routing", "inputs"), [pytest.param(conv_routing, CONV, id="conv"), pytest.param(class_routing, CLASS, id="class")]
)


@pytest.fixture
def hopper(monkeypatch):
    """A GPU that does not exist, but appears to have all that the kernels need."""
    monkeypatch.setattr("torch.version.hip", None)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda index: (9, 0))
    availability._capability.cache_clear()
    yield torch.device("cuda", 1)
    availability._capability.cache_clear()


@pytest.mark.parametrize("interpreter", ["0", "1"])
def test_auto_chooses_by_the_device(hopper, interpreter, monkeypatch):
    """Triton's interpreter can run the kernels on a CPU, but "auto" never chooses it."""
    monkeypatch.setenv("TRITON_INTERPRET", interpreter)
    assert choose_implementation("auto", torch.device("cpu")) == "numba"
    assert choose_implementation("auto", torch.device("meta")) == "reference"
    assert choose_implementation("auto", hopper) == "triton"
    assert choose_implementation("triton", hopper) == "triton"


@pytest.mark.parametrize(
    ("what", "value", "reason"),
    [
        ("emcaps.routing.availability._triton_version", lambda: None, "the package triton is not installed"),
        ("emcaps.routing.availability._triton_version", lambda: "3.5.1", "need triton 3.6 or newer, not 3.5.1"),
        ("torch.cuda.get_device_capability", lambda index: (6, 1), "compute capability 7.0 or more, not 6.1"),
        ("torch.version.hip", "7.0", "this torch is for AMD's"),
    ],
    ids=["no triton", "an old triton", "an old GPU", "a GPU of AMD's"],
)
def test_auto_takes_the_reference_where_something_is_missing(hopper, what, value, reason, monkeypatch):
    monkeypatch.setattr(what, value)
    assert choose_implementation("auto", hopper) == "reference"
    with pytest.raises(ValueError, match=f"impl='triton' cannot run: .*{reason}.*: use impl='auto' or 'reference'"):
        choose_implementation("triton", hopper)


def test_every_reason_is_given(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("emcaps.routing.availability._triton_version", lambda: None)
    package, place = unavailable("triton", torch.device("cpu"))
    assert "the package triton is not installed" in package
    assert "CUDA device, not on cpu" in place
    with pytest.raises(ValueError, match=r"the package triton is not installed.*CUDA device"):
        conv_routing(*CONV, impl="triton")


def test_the_reference_is_available_everywhere():
    assert all(unavailable("reference", torch.device(kind)) == [] for kind in ("cpu", "cuda", "meta"))


@pytest.fixture
def without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    kept = (availability._numba_import_problem, availability.suggest_numba, availability.log_choice)
    for found_once in kept:
        found_once.cache_clear()
    yield
    for found_once in kept:
        found_once.cache_clear()


def test_a_numba_that_cannot_be_imported_is_left_out_with_its_reason(monkeypatch):
    pytest.importorskip("numba")

    def refuse(name):
        raise ImportError(f"{name} needs another NumPy")

    availability._numba_import_problem.cache_clear()
    monkeypatch.setattr(availability.importlib, "import_module", refuse)
    assert choose_implementation("auto", torch.device("cpu")) == "reference"
    with pytest.raises(ValueError, match=r"cannot be imported \(numba needs another NumPy\)"):
        choose_implementation("numba", torch.device("cpu"))
    availability._numba_import_problem.cache_clear()


@pytest.mark.usefixtures("without_numba")
def test_without_numba_the_reference_runs_and_hints_once(caplog):
    with caplog.at_level(logging.WARNING, "emcaps"):
        for _ in range(2):
            got = conv_routing(*CONV, iterations=2)
    assert torch.equal(got.pose, conv_routing(*CONV, iterations=2, impl="reference").pose)
    assert [record.message for record in caplog.records] == [
        "EM routing is far faster on a CPU with numba: pip install numba"
    ]
    with pytest.raises(ValueError, match=r"impl='numba' cannot run: the package numba is not installed: pip install"):
        conv_routing(*CONV, impl="numba")


@pytest.fixture
def choices(caplog):
    """What is logged about "auto", as if nothing had been chosen before; compiled kernels have their own message."""
    caplog.set_level(logging.DEBUG, logger="emcaps")
    availability.log_choice.cache_clear()
    yield lambda: [r.getMessage() for r in caplog.records if "impl='auto'" in r.getMessage()]
    availability.log_choice.cache_clear()


@LAYERS
def test_auto_logs_its_choice_once(choices, routing, inputs):
    routing(*inputs)
    first = choices()
    assert len(first) == 1
    assert any(name in first[0] for name in ("reference", "triton", "numba"))
    routing(*inputs)
    routing(*inputs._replace(pose=inputs.pose[:1], activation=inputs.activation[:1]))
    assert choices() == first


@LAYERS
def test_an_explicit_choice_is_not_logged(choices, routing, inputs):
    routing(*inputs, impl="reference")
    assert choices() == []
