"""One run by several processes, one a device, that torchrun started: who they are, and what they tell each other.

    torchrun --nproc-per-node 4 -m emcaps train small

Every process draws the same batches with the same augmentation and works on its own share of each. One sum over the
processes then gives all of them the gradient of the whole batch, so their weights stay the same and N processes train
as one does, up to rounding. Process 0, the main one, alone writes and prints.

Where nobody has called `join`, or torchrun did not start this process, there is one process and nothing is sent.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from emcaps import interrupts

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)
"""How long a process waits for the others: longer than the slowest of them takes to load data or compile kernels."""

AGREE_EVERY = {"cuda": 16}
"""Processes ask each other whether to stop after this many steps, elsewhere after each one: steps of a GPU take
milliseconds, and torchrun kills processes that have not ended 30 seconds after its signal."""
ECHO_SECONDS = 5.0
"""How long after a signal torchrun may pass the same one on."""

_met = False


class LostProcessError(ConnectionError):
    """Another process of the run ended, or does not answer."""


def launched() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def echo_seconds() -> float:
    """How long after a signal another one may be its echo."""
    return ECHO_SECONDS if launched() else interrupts.ECHO_SECONDS


def joined() -> bool:
    """Whether `join` has met the others: a program may have processes of its own, which emcaps leaves alone."""
    return _met


def size() -> int:
    """The number of processes that work together."""
    return dist.get_world_size() if joined() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if joined() else 0


def is_main() -> bool:
    """Whether this process writes and prints; known before `join`, too."""
    return rank() == 0 if joined() or not launched() else os.environ["RANK"] == "0"


def device_of(name: str) -> str:
    """The device that this process takes if the user asked for `name`: of several GPUs, the one of its number."""
    if not launched():
        return name
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda:") and here > 1:
        raise ValueError(
            f"the device {name!r} is one GPU, and each of the {here} processes on this machine needs its own: use "
            "'cuda', and choose GPUs with CUDA_VISIBLE_DEVICES"
        )
    gpus = torch.cuda.device_count()
    if name != "cuda" or not gpus:
        return name
    if here > gpus:
        raise ValueError(
            f"torchrun started {here} processes on this machine, and each needs a GPU of its own, but there are "
            f"{gpus}: use --nproc-per-node {gpus}, or --device cpu"
        )
    return f"cuda:{os.environ['LOCAL_RANK']}"


def join(device: torch.device) -> None:
    """Meet the other processes that torchrun started, if it did; they stay together until they end."""
    global _met
    if joined() or not launched():
        return
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if dist.is_nccl_available():
            backend = "cpu:gloo,cuda:nccl"  # what the hosts tell each other does not wait for the GPUs
    if not dist.is_initialized():
        with _others_answer():
            dist.init_process_group(backend, timeout=TIMEOUT, device_id=device if "nccl" in backend else None)
        atexit.register(_leave)
    elif "gloo" not in dist.get_backend_config():
        raise ValueError(
            f"the process group is {dist.get_backend_config()}, and the processes of a run talk by gloo, too: let "
            f"emcaps make the group, or use init_process_group({backend!r})"
        )
    _met = True
    if rank():
        logging.getLogger("emcaps").setLevel(logging.ERROR)  # the main process gives the same warnings


def end_at_once(status: int) -> None:
    """End this process, if it has joined others: an orderly end might wait for them, and they for this one's end."""
    if joined():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def provenance() -> dict[str, int]:
    """What a run's environment says of its processes, if there are several: they train as one up to rounding."""
    return {"processes": size()} if size() > 1 else {}


def check_batch_size(batch_size: int) -> None:
    """Raise unless every process gets an equal share of a batch: the mean of their losses must be the batch's."""
    if batch_size % size():
        below = batch_size // size() * size()
        choices = " or ".join(str(value) for value in (below, below + size()) if value)
        raise ValueError(
            f"train.batch_size must be a multiple of {size()}, the number of processes, which share each batch "
            f"equally, not {batch_size}: use {choices}, or another number of processes"
        )


def share(total: int) -> slice:
    """The part of `total` things that is this process's: shares are contiguous, and differ by one at most."""
    return slice(rank() * total // size(), (rank() + 1) * total // size())


def can_capture() -> bool:
    """Whether a CUDA graph can hold the sum over the processes: NCCL's can be captured, gloo's goes by the host."""
    return not joined() or "nccl" in dist.get_backend_config()


def reduce_step(network: nn.Module, loss: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Average the gradients and the loss over the processes and add up the right answers; gives loss and right.

    One sum of one flat tensor, in place of the DistributedDataParallel wrapper: our gradients are too small for its
    overlap with the backward pass to pay, a graph captures this like any other kernel, with no warm-up of its own, and
    the metrics travel with the gradients.
    """
    if not joined():
        return loss, right
    values = [value for value in network.parameters() if value.grad is not None]
    gradients = [value.grad.reshape(-1) for value in values if value.grad is not None]
    flat = torch.cat([*gradients, loss.reshape(1), right.reshape(1).to(loss.dtype)])
    _sum(flat)
    flat[:-1] /= size()
    parts = flat.split([*map(len, gradients), 1, 1])
    for value, part in zip(values, parts, strict=False):
        value.grad = part.view_as(value)
    return parts[-2].reshape(()), parts[-1].reshape(())


def sum_over_processes(values: Tensor) -> Tensor:
    """The sum of every process's values, which are replaced by it."""
    if joined():
        _sum(values)
    return values


def any_of(flag: bool) -> bool:
    """Whether the flag is set in any process; all of them must ask. It is also a place to wait for each other."""
    if not joined():
        return flag
    found = torch.tensor(int(flag))
    with _others_answer():
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


def from_main(value: T) -> T:
    """The main process's value."""
    if not joined():
        return value
    values = [value]
    with _others_answer():
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values[0]


@torch.no_grad()
def copy_from_main(network: nn.Module) -> None:
    """Give the network the main process's weights. Seeds made them alike, but for rounding on an unlike machine."""
    if joined():
        any_of(False)  # the hosts notice if one of them is gone, where GPUs would wait
        for value in network.state_dict().values():
            dist.broadcast(value, src=0)


def _sum(values: Tensor) -> None:
    if values.is_cuda:  # an error here is one of the capture or of NCCL, which ends a process that waits in vain
        dist.all_reduce(values)
    else:
        with _others_answer():
            dist.all_reduce(values)


@contextmanager
def _others_answer() -> Iterator[None]:
    """Turn what torch says when a process is gone into one clear error."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of this run ended or does not answer, so this one stops; the run's last checkpoint is "
            f"whole, and any number of processes can resume it ({str(error).partition(chr(10))[0]})"
        ) from error


def _leave() -> None:
    if dist.is_initialized():
        gc.collect()  # a graph that holds NCCL's sum must be gone before NCCL is
        dist.destroy_process_group()
