"""`emcaps train`: start a run from a preset or a file of settings, or resume one."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emcaps.cli.shared import (
    NETWORKS,
    PRESET_NAMES,
    BatchSizeOption,
    DatasetOption,
    DeviceOption,
    FolderOption,
    IterationsOption,
    SettingsOption,
    SplitOption,
    StepsOption,
    StereoOption,
    assignments,
    process,
    shortcuts,
    show_evaluations,
)
from emcaps.config import DATASETS, RunConfig, TrainConfig, preset
from emcaps.files import FULL, OTHERWISE, UNWRITABLE, explain_disk_errors, open_regular, parse_json

if TYPE_CHECKING:
    from emcaps.train import Progress

CONFIG_FILE = "config.json"
"""What a run calls the file of its settings; the module of run folders, which needs torch, is not imported for it."""


def train(
    name: Annotated[str | None, typer.Argument(help=f"One of {PRESET_NAMES}.", metavar="PRESET")] = None,
    data: DatasetOption = None,
    split: SplitOption = None,
    stereo: StereoOption = False,
    iterations: IterationsOption = None,
    steps: StepsOption = None,
    batch_size: BatchSizeOption = None,
    seed: Annotated[
        int | None, typer.Option(help=f"Seed of every random choice (default: {TrainConfig.seed}).")
    ] = None,
    teachers: Annotated[
        list[str] | None,
        typer.Option(
            "--teacher",
            metavar="NETWORK",
            help="A trained network that the new one learns from, besides the labels: a run folder, a .safetensors "
            f"file, or one of {NETWORKS}; may be repeated. With --resume: where each of the run's teachers lies now.",
        ),
    ] = None,
    settings: SettingsOption = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="JSON file of settings instead of a PRESET: a run's config.json, or part of one. What it says is then "
            "the default of the other options.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            "--run-folder",
            help="Folder for the run (default: a new one under runs/). torchrun takes --run for an option of its own, "
            "so write --run-folder there.",
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard",
            help="Write TensorBoard logs too: metrics and, at each evaluation, pictures and histograms.",
        ),
    ] = False,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Train a network. Ctrl-C saves; --resume then gives the numbers that an uninterrupted run would have given."""
    changes = shortcuts(data, split, stereo, iterations, steps, batch_size)
    changes |= {} if seed is None else {"train.seed": seed}
    given = assignments(settings or [])
    if twice := sorted(changes.keys() & given.keys()):
        raise ValueError(f"{twice[0]} is set by an option and by --set: leave one of them out")
    changes |= given
    main = process()[0] == 0  # of several processes, the one that writes and prints
    cleaning: AbstractContextManager[None] = nullcontext()
    if resume is not None:
        if teachers:
            changes["train.teachers"] = _seen_from(resume, _found(teachers))
        config, run = _resumed_config(resume, name, config_file, changes, run), resume
    else:
        if teachers:
            changes["train.teachers"] = _found(teachers)
        name, config = _new_config(name, config_file, changes)
        _check_dataset(config, folder, given)
        if config.train.teachers and run is None and process()[1] > 1:
            raise ValueError("where several processes have teachers, all must know the run's folder: add --run-folder")
        if run is None and main:
            run = _new_run_folder(name, config)
            cleaning = _removing_if_empty(run)
        run = run or Path("runs")  # the others write nothing
        config = config.override({"train.teachers": _seen_from(run, config.train.teachers)})

    from emcaps.train import train as train_network

    command = _resume_command(run, folder, device, tensorboard)
    bar = _naming_bar(run, config.train.steps) if main else nullcontext()
    with cleaning, _advising(run, command), bar as on_progress:
        result = train_network(
            config,
            run,
            device=device,
            data_folder=folder,
            resume=resume is not None,
            tensorboard=tensorboard,
            on_progress=on_progress,
        )
    if not result.complete:
        if main:
            print(f"emcaps: interrupted and saved; resume with: {command}", file=sys.stderr)
        raise typer.Exit(130)
    if not main:
        return
    _tell_of_crop(config, run)
    show_evaluations(result.evaluations, f"step {result.step}, {result.seconds:.0f} s")


def _found(teachers: list[str]) -> list[str]:
    """Where these networks are; those that come with the package keep their names.

    A run's folder stays one, and must be complete when the new run starts.
    """
    from emcaps.weights import SHIPPED, find_weights

    found = []
    for name in teachers:
        packaged = name in SHIPPED and not Path(name).exists()
        found.append(name if packaged else os.path.abspath(name if Path(name).is_dir() else find_weights(name)))
    return found


def _seen_from(run: Path, teachers: Sequence[str]) -> list[str]:
    """What `_found` gave as a run's settings have it, so that a folder of runs can be moved as a whole."""
    return [os.path.relpath(name, run) if os.path.isabs(name) else name for name in teachers]


def _check_dataset(config: RunConfig, folder: Path | None, given: Mapping[str, str]) -> None:
    """Raise before a run's folder is made if there is no data set of that name, or settings that it has already."""
    from emcaps.data.prepared import prepared_path
    from emcaps.data.sources import source_path

    source = source_path(config.data.dataset, folder)
    if source is None:
        prepared_path(config.data.dataset, "train", folder)
        if fixed := [name for name in ("data.size", "data.fit", "data.channels") if name in given]:
            raise ValueError(
                f"{fixed[0]} is that of the set {config.data.dataset}, which is prepared: leave it out, or import "
                "your pictures again with other options"
            )
    elif not source.exists():
        raise FileNotFoundError(f"there is no {source}: name a data set, a folder of pictures or an .npz file")


def _tell_of_crop(config: RunConfig, run: Path) -> None:
    """Say when the images were smaller than the crop that the settings asked for."""
    from emcaps.train.run_folder import read_config

    used = read_config(run).data.crop
    if used != config.data.crop:
        print(
            f"note: data.crop is {used}, the side of the images, which are smaller than {config.data.crop}",
            file=sys.stderr,
        )


def _resumed_config(
    resume: Path, name: str | None, config_file: Path | None, changes: dict[str, Any], run: Path | None
) -> RunConfig:
    from emcaps.train.resume import check_may_resume
    from emcaps.train.run_folder import read_config

    if config_file is not None:
        raise ValueError("--config starts a new run, but a resumed run keeps its settings: leave out one of the two")
    if name is not None or run is not None:
        other = f"the preset {name!r}" if name is not None else f"--run {run}"
        raise ValueError(f"--resume {resume} says which run to train: leave out {other}")
    config = read_config(resume).override(changes)
    check_may_resume(resume, config)
    return config


def _new_config(name: str | None, config_file: Path | None, changes: dict[str, Any]) -> tuple[str, RunConfig]:
    """What a new run is called, and its settings."""
    if name is not None and config_file is not None:
        raise ValueError(
            f"the preset {name!r} and --config {config_file} both say what to train: leave out one of them"
        )
    if name is not None:
        return name, preset(name).override(changes)
    if config_file is not None:
        config = _read_config_file(config_file).override(changes)
        from emcaps.nn.geometry import preset_name

        return preset_name(config.network), config
    raise ValueError(
        f"name a preset ({PRESET_NAMES}), a file of settings by --config FILE, or a run to resume by --resume FOLDER"
    )


def _read_config_file(path: Path) -> RunConfig:
    """The settings in a JSON file, or in a run folder's; what the file leaves out has its default."""
    if path.is_dir():
        path = path / CONFIG_FILE
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}: --config takes the {CONFIG_FILE} of a run, or part of one")
    with open_regular(path) as file:
        content = file.read()
    try:
        settings = parse_json(content)
    except ValueError as error:  # not JSON, or not even text
        raise ValueError(f"{path} is not JSON ({error}): --config takes the {CONFIG_FILE} of a run") from error
    try:
        config = RunConfig.from_dict(settings)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return config.override({"train.teachers": [_from_anywhere(name, path.parent) for name in config.train.teachers]})


def _from_anywhere(teacher: str, folder: Path) -> str:
    """As `_found` gives a teacher that a run in this folder names: the new run may lie elsewhere."""
    from emcaps.weights import SHIPPED

    return teacher if teacher in SHIPPED else os.path.abspath(folder / teacher)


def _new_run_folder(name: str, config: RunConfig) -> Path:
    """Make runs/NAME-DATA-seedN, with the view in the name if the data have two cameras, numbered if it is taken."""
    data = config.data
    shown = (
        f"{data.dataset}-{data.view}"
        if data.dataset in DATASETS
        else Path(data.dataset).resolve().name.removesuffix(".npz")
    )
    base = Path("runs") / f"{name}-{shown}-seed{config.train.seed}"
    source = Path(data.dataset).expanduser()
    if source.is_dir() and base.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"the run's folder {base} would lie among the pictures of {source}: name another with --run")
    with explain_disk_errors(base.parent):
        base.parent.mkdir(exist_ok=True)
    candidate, number = base, 2
    while True:
        try:
            with explain_disk_errors(candidate):
                candidate.mkdir()  # of several processes that start together, only one can make it
            return candidate
        except FileExistsError:
            candidate, number = base.with_name(f"{base.name}-{number}"), number + 1


@contextmanager
def _naming_bar(run: Path, steps: int) -> Iterator[Callable[[Progress], None]]:
    """A bar of steps. Before it appears the run's folder is printed: by then no check can refuse the run any more."""
    from emcaps.report.progress import training_bar

    with training_bar("training", steps) as show:
        named = False

        def on_progress(progress: Progress) -> None:
            nonlocal named
            if not named:
                print(f"run: {run}", flush=True)
                named = True
            show(progress)

        yield on_progress


@contextmanager
def _removing_if_empty(run: Path) -> Iterator[None]:
    """Remove the folder that was made for a run if the run never began."""
    try:
        yield
    finally:
        if not (run / CONFIG_FILE).exists():
            (run / ".lock").unlink(missing_ok=True)
            with suppress(OSError):
                run.rmdir()


@contextmanager
def _advising(run: Path, command: str) -> Iterator[None]:
    """Add the command that resumes the run to errors of the disk, of a lost process and of a lost GPU."""
    from emcaps.train.device_errors import LostDeviceError

    begun = run / CONFIG_FILE
    try:
        yield
    except KeyboardInterrupt:  # the second signal
        advice = f"resume from its last checkpoint with: {command}" if begun.exists() else "the run has not begun"
        print(f"emcaps: stopped at once; {advice}", file=sys.stderr)
        raise typer.Exit(130) from None
    except LostDeviceError as error:
        raise LostDeviceError(f"{error}; resume with: {command}") from error
    except ConnectionError as error:
        raise ConnectionError(f"{error}; resume with: {command}") from error
    except OSError as error:
        if error.errno in (*FULL, *UNWRITABLE) and begun.exists():
            said = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
            said = said.removesuffix(OTHERWISE)  # the run is where it is
            raise OSError(error.errno, f"{said}; then resume with: {command}") from error
        raise


def _resume_command(run: Path, folder: Path | None, device: str, tensorboard: bool) -> str:
    processes = str(process()[1])
    on_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == processes != "1"
    words = ["torchrun", "--nproc-per-node", processes, "-m"] if on_one_machine else []  # else any number resumes it
    words += ["emcaps", "train", "--resume", str(run)]
    words += ["--folder", str(folder)] if folder else []
    words += ["--device", device] if device != "auto" else []
    return shlex.join(words + (["--tensorboard"] if tensorboard else []))
