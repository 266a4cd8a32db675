"""Several processes train as one does. Those that torchrun itself starts are in cli/test_torchrun.py."""

import json

import pytest
import torch

from emcaps.data.combine import mix
from emcaps.data.splits import load_tested
from emcaps.train import distributed, load_network, train
from emcaps.train.checkpoint import load
from emcaps.train.evaluate import evaluate_split, write_evaluations
from emcaps.train.graph import wants_graph
from train.ranks import by_itself, evaluate_rank, together, train_plainly, train_rank
from train.runs import assert_same_run, numbers, weights

CUDA = torch.device("cuda")


@pytest.fixture
def config(config):
    """Ten steps in which a step's every random number and neighbour counts; 12 images are shared by 1, 2 and 3."""
    return config.override(
        {
            "data.splice": 0.5,
            "train.mixup": 0.4,
            "train.batch_size": 12,
            "train.steps": 10,
            "train.eval_every": 4,
            "train.average": 0.6,
            "network.betas": "half_active",
        }
    )


@pytest.fixture
def alone(tmp_path, config, data_folder):
    train(config, tmp_path / "alone", device="cpu", data_folder=data_folder)
    return tmp_path / "alone"


def assert_close_runs(first, second):
    """The same curve and weights up to rounding, which may turn one answer of 200 where two classes are as good."""
    rows, wanted = numbers(first), numbers(second)
    assert len(rows) == len(wanted)
    for row, want in zip(rows, wanted, strict=True):
        for name in ("test_accuracy", "test_accuracy_of_last_weights"):
            right = [round(200 * each.pop(name, 0.0)) for each in (row, want)]
            assert abs(right[0] - right[1]) <= 1
        assert row == pytest.approx(want, rel=1e-4)
    found, wanted = weights(first), weights(second)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_processes_train_as_one_does(tmp_path, alone, config, data_folder, count):
    together(count, train_rank, config.to_json(), tmp_path / "run", data_folder)
    assert_close_runs(tmp_path / "run", alone)
    if count == 1:  # bits may depend on what a process did before, so both start afresh
        by_itself(train_plainly, config.to_json(), tmp_path / "plain", data_folder)
        assert_same_run(tmp_path / "run", tmp_path / "plain")
    if count == 2:
        together(count, train_rank, config.to_json(), tmp_path / "again", data_folder)
        assert_same_run(tmp_path / "run", tmp_path / "again")
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment.get("processes", 1) == count
    ranks = [torch.load(tmp_path / f"run-rank{number}.pt") for number in range(count)]
    for other in ranks[1:]:
        for name, value in ranks[0].items():
            assert torch.equal(other[name], value), name


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("graph", ["on", "off"])
def test_several_gpus_train_as_one_does(tmp_path, config, data_folder, count, graph):
    """With the sum over the processes in the CUDA graph and without; one process gives the bits of a plain run."""
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs")
    config = config.override({"train.graph": graph})
    train(config, tmp_path / "alone", device="cuda", data_folder=data_folder)
    arguments = (config.to_json(), tmp_path / "run", data_folder, False, None, False, "cuda")
    together(count, train_rank, *arguments)
    assert_close_runs(tmp_path / "run", tmp_path / "alone")
    if count == 1:
        assert_same_run(tmp_path / "run", tmp_path / "alone")


@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_evaluate_as_one_does(tmp_path, alone, data_folder, count):
    """Every image once: the same weights give the same confusion matrix and errors by object."""
    together(count, evaluate_rank, alone / "weights.safetensors", tmp_path, data_folder)
    network, config, step = load_network(alone / "weights.safetensors")
    wanted = evaluate_split(network, load_tested(config.data, data_folder), config, torch.device("cpu"))
    write_evaluations(tmp_path / "wanted.json", wanted, step, 1, by_instance=True)
    for number in range(count):
        assert (tmp_path / f"rank{number}.json").read_text() == (tmp_path / "wanted.json").read_text()
    images = sum(result.images for result in wanted.values())
    assert sum(int((tmp_path / f"rank{number}.txt").read_text()) for number in range(count)) == images


def test_processes_that_do_not_add_up_their_gradients_would_be_found(tmp_path, alone, config, data_folder):
    together(2, train_rank, config.to_json(), tmp_path / "run", data_folder, False, None, True)
    with pytest.raises(AssertionError):
        assert_close_runs(tmp_path / "run", alone)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_an_interrupt_of_one_process_stops_all_and_any_number_resumes(
    tmp_path, alone, config, data_folder, before, after
):
    together(before, train_rank, config.to_json(), tmp_path / "run", data_folder, False, 6)
    assert load(tmp_path / "run" / "checkpoint.safetensors").step == 7
    assert not (tmp_path / "run" / "evaluation.json").exists()
    together(after, train_rank, config.to_json(), tmp_path / "run", data_folder, True)
    assert_close_runs(tmp_path / "run", alone)


def as_one_of(monkeypatch, rank, size):
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "size", lambda: size)


@pytest.mark.parametrize("total", [0, 1, 2, 7, 12])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shares_have_neither_overlap_nor_gap(monkeypatch, total, size):
    found = []
    for rank in range(size):
        as_one_of(monkeypatch, rank, size)
        found.append(list(range(total))[distributed.share(total)])
    assert [one for part in found for one in part] == list(range(total))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_a_batch_that_cannot_be_shared_equally_is_refused(monkeypatch):
    as_one_of(monkeypatch, 0, 3)
    distributed.check_batch_size(12)
    with pytest.raises(
        ValueError, match=r"batch_size must be a multiple of 3, .* not 8: use 6 or 9, or another number"
    ):
        distributed.check_batch_size(8)
    with pytest.raises(ValueError, match="not 2: use 3, or another number of processes"):
        distributed.check_batch_size(2)


def test_without_torchrun_nothing_is_shared(monkeypatch):
    loss, right = torch.tensor(2.0), torch.tensor(3)
    assert not distributed.launched()
    assert (distributed.rank(), distributed.size(), distributed.is_main()) == (0, 1, True)
    assert distributed.reduce_step(torch.nn.Linear(1, 1), loss, right) == (loss, right)
    assert distributed.from_main("x") == "x"
    assert [distributed.any_of(flag) for flag in (True, False)] == [True, False]
    assert [distributed.device_of(name) for name in ("auto", "cuda:7")] == ["auto", "cuda:7"]


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    for name, value in (("TORCHELASTIC_RUN_ID", "x"), ("RANK", "3"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert not distributed.is_main()
    assert distributed.device_of("cpu") == "cpu"
    for gpus in (0, 1, 2):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpus=gpus: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        if gpus == 1:
            with pytest.raises(
                ValueError, match=r"2 processes .* a GPU of its own, but there are 1: use --nproc-per-n"
            ):
                distributed.device_of("auto")
        else:
            assert distributed.device_of("auto") == ("cuda:1" if gpus else "cpu")
    with pytest.raises(ValueError, match="'cuda:0' is one GPU, and each of the 2 processes on this machine needs its"):
        distributed.device_of("cuda:0")


def test_a_graph_holds_no_sum_that_goes_by_the_host(monkeypatch):
    assert wants_graph("auto", CUDA)
    monkeypatch.setattr(distributed, "can_capture", lambda: False)
    assert not wants_graph("auto", CUDA)
    with pytest.raises(ValueError, match=r"train\.graph='on' needs NCCL"):
        wants_graph("on", CUDA)


def test_the_neighbours_of_a_share_are_those_of_the_whole_batch():
    """Mixing each share by itself would give other crops: what makes the comparison above a test of that."""
    crops = torch.rand(4, 1, 2, 2)
    whole, _ = mix(crops, 1.0, torch.Generator().manual_seed(0))
    part, _ = mix(crops[:2], 1.0, torch.Generator().manual_seed(0))
    assert not torch.equal(whole[:2], part)
