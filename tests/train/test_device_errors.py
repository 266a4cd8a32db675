"""Errors of a GPU. Most are made up here: a step that raises what torch raises. Where there is a GPU, it is lost."""

import subprocess
import sys

import pytest
import torch

from emcaps.train import device_errors, loop, step, train
from emcaps.train.checkpoint import load
from emcaps.train.device_errors import (
    BatchTooLargeError,
    LostDeviceError,
    batch_that_fits,
    is_lost_device,
    is_out_of_memory,
)
from emcaps.train.step import TrainingStep
from train.runs import assert_same_run
from train.test_step import make

OUT_OF_MEMORY = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
LOST = RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later")
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def failing_at(number, error, do=TrainingStep.work):
    """A step's work that raises after so many whole steps."""
    done = 0

    def work(this):
        nonlocal done
        if done == number:
            raise error
        done += 1
        do(this)

    return work


@pytest.mark.parametrize(
    ("error", "lost", "memory"),
    [
        (LOST, True, False),
        (RuntimeError("CUDA error: device-side assert triggered"), True, False),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True, False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True, False),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), True, False),
        (OUT_OF_MEMORY, False, True),
        (RuntimeError("CUDA error: out of memory"), False, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False, True),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False, False),
        (ValueError("CUDA error: not torch's"), False, False),
    ],
)
def test_errors_of_a_gpu_are_told_apart(error, lost, memory):
    assert (is_lost_device(error), is_out_of_memory(error)) == (lost, memory)


def test_a_lost_device_says_what_is_saved_and_the_run_resumes_to_the_same_bits(
    tmp_path, config, data_folder, monkeypatch
):
    train(config, tmp_path / "whole", device="cpu", data_folder=data_folder)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "work", failing_at(7, LOST))
        with pytest.raises(LostDeviceError, match=r"launch failure\).* saved up to step 4, and nothing") as caught:
            train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    assert "\n" not in str(caught.value)
    assert load(tmp_path / "run/checkpoint.safetensors").step == 4
    train(config, tmp_path / "run", device="cpu", data_folder=data_folder, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_device_that_is_lost_before_the_first_checkpoint(tmp_path, config, data_folder, monkeypatch):
    monkeypatch.setattr(TrainingStep, "work", failing_at(2, LOST))
    with pytest.raises(LostDeviceError, match="no checkpoint yet and starts over when it is resumed"):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)


def test_a_device_that_is_lost_while_a_checkpoint_is_read_from_it(tmp_path, config, data_folder, monkeypatch):
    """A kernel's failure is often noticed only then."""
    saved = []

    def save(*arguments):
        if saved:
            raise LOST
        saved.append(arguments[-1])
        return real(*arguments)

    real = loop.checkpoints.save_checkpoint
    monkeypatch.setattr(loop.checkpoints, "save_checkpoint", save)
    with pytest.raises(LostDeviceError, match="saved up to step 4"):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)


def test_another_error_stays_what_it_is(tmp_path, config, data_folder, monkeypatch):
    monkeypatch.setattr(TrainingStep, "work", failing_at(2, RuntimeError("a mistake of ours")))
    with pytest.raises(RuntimeError, match=r"^a mistake of ours$"):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)


class Small:
    """Stands in for the network's memory: more images than these do not fit."""

    def __init__(self, monkeypatch, images):
        real = step.loss_of

        def loss_of(output, target, *others):
            if len(target) > images:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            return real(output, target, *others)

        monkeypatch.setattr(step, "loss_of", loss_of)


@pytest.mark.parametrize(
    ("fits", "message"),
    [
        (5, r"^train\.batch_size 8 does not fit into the memory of the GPU; 4 does: start a run with --batch-size 4,"),
        (1, r"; 1 does: start a run with --batch-size 1,"),
        (0, r"^not even a batch of one image fits"),
    ],
)
def test_a_full_memory_names_the_batch_that_fits(tmp_path, config, data_folder, monkeypatch, fits, message):
    Small(monkeypatch, fits)
    with pytest.raises(BatchTooLargeError, match=message):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    assert not (tmp_path / "run/checkpoint.safetensors").exists()


def test_a_batch_that_fits_can_be_trained_on_in_the_same_folder(tmp_path, config, data_folder, monkeypatch):
    Small(monkeypatch, 5)
    with pytest.raises(BatchTooLargeError):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    smaller = config.override({"train.batch_size": 4})
    assert train(smaller, tmp_path / "run", device="cpu", data_folder=data_folder).complete


def test_a_memory_that_fills_later_keeps_the_run(tmp_path, config, data_folder, monkeypatch):
    monkeypatch.setattr(TrainingStep, "work", failing_at(2, OUT_OF_MEMORY))
    with pytest.raises((BatchTooLargeError, torch.cuda.OutOfMemoryError)):
        train(config, tmp_path / "run", device="cpu", data_folder=data_folder)
    assert (tmp_path / "run/config.json").exists()


@pytest.mark.parametrize("changes", [{}, {"train.mixup": 0.5, "network.decoder": 4}], ids=["plain", "mixed"])
def test_to_try_batches_changes_nothing(config, monkeypatch, changes):
    advance = make(config.override(changes))
    advance(0)
    before = [value.detach().clone() for value in advance.state()]
    Small(monkeypatch, 3)
    tried = []

    def watched(*arguments):
        tried.append((len(arguments[1]), any(isinstance(one, step.Mixed) for one in arguments)))
        return step.training_loss(*arguments)

    monkeypatch.setattr(device_errors, "training_loss", watched)
    assert batch_that_fits(advance) == 2
    assert tried == [(4, bool(changes)), (2, bool(changes))]
    assert all(torch.equal(one, other) for one, other in zip(before, advance.state(), strict=True))
    assert all(value.grad is None for value in advance.network.parameters())


def test_a_batch_is_tried_as_a_step_trains_on_it(config):
    """Only the network runs in bfloat16, not its teachers."""
    advance = make(config.override({"train.autocast": "bfloat16"}))
    advance.teachers, seen = [make(config).network.eval()], []
    for network in (advance.network, *advance.teachers):
        network.relu_conv1.register_forward_hook(lambda _module, _inputs, out: seen.append(out.dtype))
    assert batch_that_fits(advance) == config.train.batch_size // 2
    tried, seen[:] = seen.copy(), []
    advance(0)
    assert tried == seen == [torch.float32, torch.bfloat16]


def test_several_processes_are_told_to_take_half(config, monkeypatch):
    advance = make(config)
    monkeypatch.setattr(device_errors.distributed, "size", lambda: 2)
    told = device_errors.explain_full_memory(OUT_OF_MEMORY, advance, config.train)
    assert "divided among 2 processes" in str(told)
    assert f"--batch-size {config.train.batch_size // 2}" in str(told)


@NEEDS_GPU
def test_a_batch_that_is_too_large_for_this_gpu(tmp_path, config, data_folder):
    """For this process a small part of the memory is all there is; other tests use the rest."""
    large = config.override({"train.batch_size": 65536, "network.conv1_types": 32, "train.graph": "off"})
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2 * 2**30 / torch.cuda.mem_get_info()[1])
    try:
        with pytest.raises(BatchTooLargeError, match=r"65536 does not fit .* --batch-size \d+,") as caught:
            train(large, tmp_path / "run", device="cuda", data_folder=data_folder)
        fits = int(str(caught.value).partition("--batch-size ")[2].partition(",")[0])
        fitting = large.override({"train.batch_size": fits, "train.steps": 2})
        assert train(fitting, tmp_path / "fits", device="cuda", data_folder=data_folder).complete
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


LOSE_THE_DEVICE = """
import sys
from pathlib import Path
import torch
from emcaps.config import RunConfig
from emcaps.train import train
from emcaps.train.loop import Progress

def lose(progress: Progress) -> None:
    if progress.step == 7 and not progress.evaluated:
        torch.zeros(1, device="cuda")[torch.tensor([10**6], device="cuda")]  # a device-side assert

settings, run, data = map(Path, sys.argv[1:])
try:
    train(RunConfig.from_json(settings.read_text()), run, device="cuda", data_folder=data, on_progress=lose)
except ValueError as error:
    print(type(error).__name__, error, flush=True)
"""


@NEEDS_GPU
def test_a_real_lost_device_says_what_is_saved_and_the_run_resumes_to_the_same_bits(tmp_path, config, data_folder):
    """A process that has lost its GPU cannot use it again, so it is another one."""
    (tmp_path / "config.json").write_text(config.to_json())
    command = [sys.executable, "-c", LOSE_THE_DEVICE, tmp_path / "config.json", tmp_path / "lost", data_folder]
    told = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert told.stdout.startswith("LostDeviceError the GPU failed ("), told.stdout + told.stderr
    assert "is saved up to step 4, and nothing before that is lost" in told.stdout
    train(config, tmp_path / "lost", device="cuda", data_folder=data_folder, resume=True)
    train(config, tmp_path / "whole", device="cuda", data_folder=data_folder)
    assert_same_run(tmp_path / "whole", tmp_path / "lost")
