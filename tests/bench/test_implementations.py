import pytest
import torch

from emcaps.bench import ceilings, implementations
from emcaps.bench.cases import IMPLEMENTATIONS, NAMES
from emcaps.bench.ceilings import measure_ceilings

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


def on_a_gpu(monkeypatch, wanted, graphed=True):
    """What implementations() gives where a GPU has everything, or everything but emcaps.nn.graphed."""
    monkeypatch.setattr(implementations, "unavailable", lambda impl, device: [])
    monkeypatch.setattr(implementations, "graphed_maker", lambda: object if graphed else None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return implementations.implementations(wanted, GPU)


def test_on_a_gpu_there_are_all(monkeypatch):
    chosen, skipped = on_a_gpu(monkeypatch, IMPLEMENTATIONS)
    assert tuple(each.name for each in chosen) == tuple(
        name for name in NAMES if name not in ("plain", "fused, 1 core")
    )
    by_name = {each.name: each for each in chosen}
    assert {each.routing for name, each in by_name.items() if name not in ("reference", "compiled")} == {"triton"}
    assert [name for name, each in by_name.items() if each.routing == "reference"] == ["reference", "compiled"]
    assert [name for name, each in by_name.items() if each.compiled] == ["compiled", "fused+compile"]
    assert [name for name, each in by_name.items() if each.captured] == ["fused, graph", "bf16, graph"]
    assert [name for name, each in by_name.items() if each.graphed] == ["graphed"]
    assert [name for name, each in by_name.items() if each.autocast] == ["bf16, graph"]
    assert [name for name, each in by_name.items() if each.checked] == ["fused", "fused, graph", "bf16, graph"]
    assert skipped == ["plain is skipped: it is about the memory of a CPU; use --device cpu"]


def test_graphed_is_left_out_of_a_version_without_it(monkeypatch):
    chosen, skipped = on_a_gpu(monkeypatch, ("fused", "graphed"), graphed=False)
    assert [each.name for each in chosen] == ["fused", "fused, graph"]
    assert skipped == ["graphed is skipped: this version has no emcaps.nn.graphed"]


def test_an_implementation_is_named_by_its_form_or_stands_for_all_of_them(monkeypatch):
    chosen, _ = on_a_gpu(monkeypatch, ("reference", "fused", "fused+compile"))
    for names, found in (
        (["fused"], ["fused", "fused, graph"]),
        (["fused, graph"], ["fused, graph"]),
        (["reference", "fused+compile"], ["reference", "fused+compile"]),
    ):
        assert [each.name for each in chosen if each.is_named(names)] == found


def test_bfloat16_is_timed_on_request_only(monkeypatch):
    assert [each.name for each in on_a_gpu(monkeypatch, ())[0]] == ["reference", "compiled", "fused", "fused, graph"]
    assert [each.name for each in on_a_gpu(monkeypatch, ("bf16",))[0]] == ["bf16, graph"]


@pytest.mark.parametrize("name", ["bf16", "graphed", "fused+compile"])
def test_what_is_for_a_gpu_alone_is_skipped_on_a_cpu_with_its_reason(name):
    chosen, skipped = implementations.implementations(("reference", name), CPU)
    assert [each.name for each in chosen] == ["reference"]
    assert skipped == [f"{name} is skipped: it is timed on a GPU alone; use --device cuda"]


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
