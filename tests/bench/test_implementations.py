import pytest
import torch

from emcaps.bench import ceilings, implementations
from emcaps.bench.cases import IMPLEMENTATIONS
from emcaps.bench.ceilings import measure_ceilings
from emcaps.bench.implementations import NAMES

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_on_a_cpu_the_rest_is_skipped_with_its_reasons(monkeypatch):
    monkeypatch.setattr(implementations, "unavailable", lambda impl, device: [f"no {impl} on {device}"])
    chosen, skipped = implementations.implementations((), CPU)
    assert [each.name for each in chosen] == ["reference"]
    assert skipped == [
        "compiled is skipped: torch.compile crashes on this network on a CPU; use a GPU",
        "fused (numba) is skipped: no numba on cpu",
    ]


def test_on_a_cpu_with_several_cores_one_thread_is_timed_too(monkeypatch):
    monkeypatch.setattr(implementations, "unavailable", lambda impl, device: [])
    for cores, names in ((1, ["fused"]), (2, ["fused, 1 core", "fused"])):
        monkeypatch.setattr("torch.get_num_threads", lambda cores=cores: cores)
        chosen, _ = implementations.implementations(("fused",), CPU)
        assert [each.name for each in chosen] == names
        assert [each.threads for each in chosen] == ([1, None] if cores > 1 else [None])


def test_on_a_gpu_there_are_all(monkeypatch):
    monkeypatch.setattr(implementations, "unavailable", lambda impl, device: [])
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    chosen, skipped = implementations.implementations(IMPLEMENTATIONS, GPU)
    assert tuple(each.name for each in chosen) == tuple(
        name for name in NAMES if name not in ("plain", "fused, 1 core")
    )
    assert [each.routing for each in chosen] == ["reference", "reference", "triton", "triton", "triton"]
    assert [each.captured for each in chosen] == [False, False, False, True, True]
    assert [each.autocast for each in chosen] == [False, False, False, False, True]
    assert skipped == ["plain is skipped: it is about the memory of a CPU; use --device cpu"]


def test_bfloat16_is_timed_on_request_only(monkeypatch):
    monkeypatch.setattr(implementations, "unavailable", lambda impl, device: [])
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not any(each.autocast for each in implementations.implementations((), GPU)[0])
    assert [each.name for each in implementations.implementations(("bf16",), GPU)[0]] == ["bf16, graph"]


def test_bfloat16_on_a_cpu_is_skipped_with_its_reason():
    chosen, skipped = implementations.implementations(("reference", "bf16"), CPU)
    assert [each.name for each in chosen] == ["reference"]
    assert skipped == ["bf16 is skipped: it is timed on a GPU alone; use --device cuda"]


def test_the_interpreter_is_not_timed(monkeypatch):
    monkeypatch.setattr(implementations, "unavailable", lambda impl, device: [])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET=1" in implementations.implementations((), GPU)[1][0]
    assert ceilings._fma(GPU) is None


def test_nothing_left_to_time_is_an_error():
    with pytest.raises(ValueError, match="nothing to time here: compiled is skipped"):
        implementations.implementations(("compiled",), CPU)
    with pytest.raises(ValueError, match="unknown implementation 'fuse': did you mean 'fused'"):
        implementations.implementations(("fuse",), CPU)


def test_ceilings_of_a_cpu_are_plausible():
    found = measure_ceilings(CPU, seconds=0.01)
    assert 1e-3 < found.tflops < 100
    assert 0.5 < found.gb_per_s < 10_000
