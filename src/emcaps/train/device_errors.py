"""What a GPU's errors mean for a run: its memory is full, so which batch fits; or it is lost, so what is saved.

Torch reports both as RuntimeErrors, a lost device often many calls after the one that failed.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from emcaps.config import TrainConfig
from emcaps.data.augment import augment
from emcaps.train import checkpoint as checkpoints
from emcaps.train import distributed
from emcaps.train import run_folder as folders
from emcaps.train.graph import GraphedStep, undo_changes
from emcaps.train.step import Mixed, TrainingStep, training_loss
from emcaps.train.teachers import mean_answer

logger = logging.getLogger("emcaps")

OF_A_LOST_DEVICE = (
    "CUDA error",
    "CUDA driver error",
    "CUBLAS_STATUS",
    "CUFFT_",
    "cuDNN error",
    "CUDNN_STATUS",
    "Triton Error [CUDA]",
    "device-side assert",
    "uncorrectable ECC",
)
"""How torch, its libraries and Triton begin the message of an error after which a process cannot use its GPU again."""


class BatchTooLargeError(ValueError):
    """A training step does not fit into the memory of the GPU."""


class LostDeviceError(ValueError):
    """The GPU failed, and this process cannot use it again."""


def is_lost_device(error: BaseException) -> bool:
    """Whether this error of torch says that the GPU, or a call of it, failed. A full memory is no such error."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    return type(error).__name__ == "AcceleratorError" or any(text in str(error) for text in OF_A_LOST_DEVICE)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of a GPU is full."""
    texts = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(text in str(error) for text in texts)


@contextmanager
def explain_lost_device(folder: Path) -> Iterator[None]:
    """Turn the error of a lost device into one that says what of the run is saved."""
    try:
        yield
    except RuntimeError as error:
        if not is_lost_device(error):
            raise
        raise LostDeviceError(
            f"the GPU failed ({_first_line(error)}), so what was computed since the last checkpoint cannot be saved; "
            f"{_what_is_saved(folder)}"
        ) from error


def _what_is_saved(folder: Path) -> str:
    try:
        saved = checkpoints.load_newest(folder / folders.CHECKPOINT)
    except (ValueError, OSError) as error:
        return f"the checkpoint of the run in {folder} cannot be read ({error})"
    if saved is None:
        return f"the run in {folder} has no checkpoint yet and starts over when it is resumed"
    return f"the run in {folder} is saved up to step {saved.step}, and nothing before that is lost"


def explain_full_memory(
    error: RuntimeError, advance: Callable[[int], None], config: TrainConfig
) -> BatchTooLargeError | None:
    """The error to raise in place of one that a training step raised; None if memory was not the reason.

    Halves of the batch are tried until one fits. The state of the run stays as it was before the step.
    """
    step = advance.step if isinstance(advance, GraphedStep) else advance
    if not is_out_of_memory(error) or not isinstance(step, TrainingStep):
        return None
    traceback.clear_frames(error.__traceback__)  # which hold the tensors of the step that failed
    memory = _memory(step.images.device)
    size = distributed.size()
    if size > 1:  # they would have to try together
        return BatchTooLargeError(
            f"train.batch_size {config.batch_size}, divided among {size} processes, does not fit into the memory of "
            f"the GPU{memory}: start a run with half of it, --batch-size {max(size, config.batch_size // 2)}, or with "
            "more GPUs"
        )
    fits = batch_that_fits(step)
    if not fits:
        return BatchTooLargeError(
            f"not even a batch of one image fits into the memory of the GPU{memory}: use a smaller network or smaller "
            "images, or end other programs that use the GPU"
        )
    return BatchTooLargeError(
        f"train.batch_size {config.batch_size} does not fit into the memory of the GPU{memory}; {fits} does: start a "
        f"run with --batch-size {fits}, or end other programs that use the GPU and resume this one"
    )


def batch_that_fits(step: TrainingStep) -> int:
    """The largest of a half, a quarter and so on of the batch whose forward and backward pass fits; 0 if none does."""
    size = step.config.train.batch_size // 2
    while size:
        if _fits(step, size):
            return size
        size //= 2
    return 0


def _fits(step: TrainingStep, size: int) -> bool:
    """Whether a step on so many images has enough memory; it leaves weights and optimiser as they are."""
    _free_cached_memory()
    config = step.config
    try:
        with undo_changes(lambda: [*step.network.parameters(), *step.network.buffers()]):
            step.optimiser.zero_grad()
            examples = step.examples[:size]
            others = step.images[examples] if step.counterparts is not None else None
            crops = augment(step.images[examples], config.data, step.generator, others)
            labels = step.labels[examples]
            mixed = Mixed(crops.new_ones(size), labels) if config.train.mixup else None
            answer = mean_answer(step.teachers, crops)
            training_loss(step.network, crops, labels, config.train, step.margin, mixed, answer)[1].backward()
            # The optimiser's two moments and what it computes between, of every parameter.
            spare = [torch.empty_like(value) for value in step.network.parameters() for _ in range(3)]
            del spare
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        step.optimiser.zero_grad()
    return True


def _free_cached_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _memory(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    _free_cached_memory()
    free, total = torch.cuda.mem_get_info(device)
    return f" ({free / 2**30:.1f} of {total / 2**30:.1f} GiB are free without it)"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
