"""The training loop: it runs on any device, can be stopped at any moment, and resumes to the same numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from emcaps.config import ARRAYS, NetworkConfig, RunConfig, TrainConfig
from emcaps.data.arrays import parts_of_arrays
from emcaps.data.combine import find_counterparts
from emcaps.data.prepared import fingerprint
from emcaps.data.splits import Split, load_split, make_split
from emcaps.data.tensors import to_tensors
from emcaps.interrupts import asked_to_stop
from emcaps.routing.availability import choose_implementation
from emcaps.train import checkpoint as checkpoints
from emcaps.train import distributed
from emcaps.train import run_folder as folders
from emcaps.train.advice import new_run_command
from emcaps.train.average import AveragedWeights
from emcaps.train.board import make_look
from emcaps.train.checks import check_fits, check_is_run_config, fill_in
from emcaps.train.device import start_work
from emcaps.train.device_errors import explain_full_memory, explain_lost_device
from emcaps.train.evaluate import Evaluation, evaluate_split, write_evaluations
from emcaps.train.failure import LastGood, all_finite
from emcaps.train.graph import make_step, wants_graph
from emcaps.train.randomness import own_randomness
from emcaps.train.resume import saved_state
from emcaps.train.schedules import learning_rate_of, margin_of
from emcaps.train.start import start_network
from emcaps.train.step import make_optimiser, make_sums
from emcaps.train.teachers import check_same_teachers, load_teachers, teacher_fingerprints
from emcaps.train.tensor_file import is_utf8
from emcaps.train.watch import FIRST_CHECKS, make_check, make_watch


class Progress(NamedTuple):
    """How far a run is."""

    step: int
    steps: int
    row: dict[str, Any]
    """The newest row of metrics.jsonl; empty before the first."""
    evaluated: int = 0
    """How many images of the current evaluation are done; 0 while training."""


class TrainResult(NamedTuple):
    folder: Path
    step: int
    complete: bool
    """False if the run was interrupted; it is saved and can be resumed."""
    evaluations: dict[str, Evaluation]
    seconds: float
    """How long training took, summed over all times that the run was resumed."""


def train(
    config: RunConfig,
    folder: str | Path,
    *,
    data: tuple[Any, Any, Any, Any] | None = None,
    device: str = "auto",
    data_folder: Path | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> TrainResult:
    """Train as `config` says and leave everything in `folder`. An interrupt (Ctrl-C, SIGTERM) saves and returns.

    `data` is (images, labels, test_images, test_labels), uint8 images (N, H, W), (N, C, H, W) or (N, H, W, C) and a
    class for each, as arrays or tensors; without it the images are those that `config.data` names.

    Processes that torchrun started (distributed.py) must all call this. They share each batch, which stays as large as
    `config` says, and only process 0 writes and reports progress.
    """
    check_is_run_config(config)
    folder = Path(folder)
    place = start_work(distributed.device_of(device))
    distributed.join(place)
    distributed.check_batch_size(config.train.batch_size)
    main = distributed.is_main()
    choose_implementation(config.network.impl, place)
    wants_graph(config.train.graph, place)
    writer = _summary_writer(folder) if tensorboard else None
    config, split = _load(config, data, data_folder)
    check_fits(config, split.train)
    images, labels = to_tensors(split.train, config.data.view, place)
    counterparts = find_counterparts(split.train, config.data.view, place) if config.data.splice else None
    teachers = [] if resume else load_teachers(config, folder, images)  # before the folder of a new run is made
    seen = {"train": fingerprint(split.train), "test": fingerprint(split.test)}
    if resume and main:
        folders.read_config(folder)  # before the lock, which would make a missing folder

    with (
        explain_lost_device(folder),  # outermost, since what the others do at the end may fail, too, without the device
        folders.only_user(folder) if main else nullcontext(),
        own_randomness(place),
        torch.enable_grad(),
        _deterministic(),
        asked_to_stop(distributed.echo_seconds()) as interrupted,
        ExitStack() as stack,
    ):
        saved = distributed.from_main(saved_state(folder, config) if resume and main else None)
        first = saved.step if saved else 0
        taught_by = dict[str, str]()
        if first < config.train.steps:  # else there is nothing left to learn, and teachers need not be there
            teachers = teachers or load_teachers(config, folder, images)
            taught_by = teacher_fingerprints(config, folder)
            seen |= taught_by
        if distributed.from_main((config, seen)) != (config, seen):
            raise ValueError(
                f"process {distributed.rank()} has other settings, images or teachers than process 0: start all "
                "processes of a run with the same options and the same data"
            )
        network = start_network(config, images)
        optimiser = make_optimiser(network, config.train)
        sums = make_sums(place)
        average = AveragedWeights(network, config.train)
        if saved is not None:
            checkpoints.restore(saved, network, optimiser, sums, average)
        if main and resume:
            check_same_teachers(config, folder, taught_by)
            folders.continue_run(folder, config, place, seen, first)
            if saved is not None:
                checkpoints.make_newest(saved, folder / folders.CHECKPOINT)
        elif main:
            folders.start_run(folder, config, place, seen)
        distributed.copy_from_main(network)
        # Only now that the folder is known to be this run's: a new writer hides what another one logged after its step.
        wanted = writer if main else None
        board = stack.enter_context(wanted(str(folder / "tensorboard"), purge_step=first + 1)) if wanted else None
        look = make_look(board, network, split.test, config, place) if board is not None else None
        rows_before = folders.read_metrics(folder) if main else []
        seconds_before = max((row.get("seconds", 0.0) for row in rows_before), default=0.0)
        started = time.perf_counter()

        def seconds() -> float:
            return seconds_before + time.perf_counter() - started

        watch = make_watch(network, images, labels, config) if config.train.watch and main else None
        to_check = [number for number in FIRST_CHECKS if first < number <= config.train.steps]
        needs_check = to_check and watch is None and config.network.kind == "capsules" and main
        check = make_check(network, images, labels, config) if needs_check else None
        advance = make_step(network, optimiser, images, labels, config, sums, counterparts, teachers)
        last_good = LastGood(advance, network, first)
        logged_step, logged_at, row = first, seconds(), dict[str, Any]()

        def check_finite(step: int) -> None:
            if not all_finite(sums, network):
                raise NotFiniteError(step, folder, config, last_good.explain(step, folder, config) if main else "")
            last_good.keep(step)

        def save(step: int) -> None:
            check_finite(step)
            if not main:
                return
            path = folder / folders.CHECKPOINT
            if saved is not None and step == saved.step:  # written again, it would push out the one before it
                checkpoints.drop_older(path, config.train.keep_checkpoints)
            else:
                checkpoints.save_checkpoint(path, network, optimiser, sums, average, config, step)

        def log(new_row: dict[str, Any]) -> None:
            if not main:
                return
            folders.append_metrics(folder, new_row)
            for name, value in new_row.items():
                if board is not None and name != "step":
                    board.add_scalar(name, value, new_row["step"])

        def stops(step: int) -> bool:
            """Whether an interrupt has come; several processes must stop after the same step."""
            if distributed.size() == 1:
                return interrupted()
            return step % distributed.AGREE_EVERY.get(place.type, 1) == 0 and distributed.any_of(interrupted())

        step = first
        while step < config.train.steps and not stops(step):
            try:
                advance(step)
            except RuntimeError as error:
                if (explained := explain_full_memory(error, advance, config.train)) is None:
                    raise
                if main and not resume and step == 0:
                    folders.undo_start(folder)  # so that a smaller batch can be tried in the same folder
                raise explained from error
            step += 1
            average.add(step)

            if step % config.train.log_every == 0 or step == config.train.steps:
                check_finite(step)
                row = _metrics_row(sums, config.train, step)
                row["images_per_second"] = (step - logged_step) * config.train.batch_size / (seconds() - logged_at)
                row["seconds"] = round(seconds(), 3)
                logged_at, logged_step = seconds(), step
                log(row)
            if watch is not None and step % config.train.watch == 0:
                log(watch(step))
            if check is not None and step in to_check:
                check(step)
            if config.train.eval_every and step % config.train.eval_every == 0 and step < config.train.steps:
                with average.in_network():
                    log(accuracy_row(step, evaluate_split(network, split.tested, config, place)))
                    if look is not None:
                        look(step)
            if step % config.train.checkpoint_every == 0 and step < config.train.steps:
                save(step)
            if on_progress is not None and main:
                on_progress(Progress(step, config.train.steps, row))

        save(step)
        trained_for = seconds()
        if step < config.train.steps:
            return TrainResult(folder, step, False, {}, trained_for)

        def evaluating(done: int, _total: int) -> None:
            if interrupted() and distributed.size() == 1:  # the others wait for this one's answers
                raise _Interrupted
            if on_progress is not None and main:
                on_progress(Progress(step, config.train.steps, row, done))

        try:
            with average.in_network():
                evaluations = evaluate_split(network, split.tested, config, place, on_progress=evaluating)
            of_last_weights = {}
            if average.on:
                of_last_weights = evaluate_split(network, split.tested, config, place, on_progress=evaluating)
        except _Interrupted:
            return TrainResult(folder, step, False, {}, trained_for)
        if main:
            last_row = accuracy_row(step, evaluations)
            last_row |= {f"{name}_{folders.OF_LAST_WEIGHTS}": found.accuracy for name, found in of_last_weights.items()}
            with average.in_network():
                if last_row not in folders.read_metrics(folder)[-1:]:  # a complete run that is resumed has it already
                    log(last_row)
                    if look is not None:
                        look(step)
                checkpoints.save_weights(folder / folders.WEIGHTS, network, config, step)
            # Last, since a run that has an evaluation counts as complete.
            write_evaluations(folder / folders.EVALUATION, evaluations, step, crops=1, by_instance=True)
        distributed.any_of(False)  # the folder is whole before any process returns
        return TrainResult(folder, step, True, evaluations, trained_for)


def _load(
    config: RunConfig, data: tuple[Any, Any, Any, Any] | None, data_folder: Path | None
) -> tuple[RunConfig, Split]:
    """The images to train and test on, and the config with what it learns from them."""
    if data is None:
        split = load_split(config.data, data_folder)
    else:
        if len(data) != 4:
            raise ValueError(f"data must be (images, labels, test_images, test_labels), not {len(data)} arrays")
        config = config.override({"data.dataset": ARRAYS})
        parts = parts_of_arrays(*data)
        split = make_split(parts["train"], parts["test"], config.data)
    return fill_in(config, split.train, data_folder), split


class _Interrupted(Exception):
    """Ctrl-C or SIGTERM came while the finished network was being evaluated."""


def accuracy_row(step: int, evaluations: dict[str, Evaluation]) -> dict[str, Any]:
    return {"step": step} | {f"{name}_accuracy": result.accuracy for name, result in evaluations.items()}


def _metrics_row(sums: dict[str, Tensor], config: TrainConfig, step: int) -> dict[str, Any]:
    """The means since the last row; resets the sums to zero."""
    steps = float(sums["steps"])
    row: dict[str, Any] = {
        "step": step,
        "loss": float(sums["loss"]) / steps,
        "accuracy": float(sums["right"]) / (steps * config.batch_size),
        "learning_rate": learning_rate_of(config, step - 1),
    }
    if config.loss == "spread":
        row["margin"] = margin_of(config, step - 1)
    for total in sums.values():
        total.zero_()
    return row


class NotFiniteError(ValueError):
    """The loss or the weights became infinite or NaN by `step`."""

    def __init__(self, step: int, folder: Path, config: RunConfig, cause: str = "") -> None:
        floor, least = config.network.variance_floor, NetworkConfig.variance_floor
        too_low = config.network.kind == "capsules" and floor < least
        or_floor = f", or with network.variance_floor at least {least}, not {floor:g}" if too_low else ""
        super().__init__(
            f"the loss or the weights became infinite or NaN by step {step}, so the run in {folder} stops. "
            f"{cause}{' ' if cause else ''}train.learning_rate is {config.train.learning_rate:g}: start a new run "
            f"with a lower one{or_floor}: {new_run_command(folder)} --set train.learning_rate=..."
        )
        self.step = step


@contextmanager
def _deterministic() -> Iterator[None]:
    """Make convolutions use the same algorithm every time, since a resumed run must give the same bits."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def _summary_writer(folder: Path) -> Any:
    if not is_utf8(folder):
        raise ValueError(f"TensorBoard takes folders with UTF-8 names alone, not {str(folder)!a}: leave it out")
    try:
        import PIL  # noqa: F401  (asked now, since it is needed at the first evaluation, for pictures)
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError("TensorBoard is not installed: pip install tensorboard pillow, or leave it out") from None
    return SummaryWriter
