"""What the commands share: options, help pages, the console, the tables of accuracy, and how an interruption ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emcaps.config import DATASETS, PLAIN_DATASETS, PRESETS, SPLITS, DataConfig, NetworkConfig, RunConfig, TrainConfig

if TYPE_CHECKING:
    from emcaps.train.evaluate import Evaluation

PRESET_NAMES = ", ".join(PRESETS)
RESUMES = "what is done is saved, and the same command resumes it"

NETWORKS = "small-stereo, small-mono, small-toys, full-stereo, which come with emcaps"

NetworkArgument = Annotated[
    str, typer.Argument(help=f"A run folder, a .safetensors file, or one of {NETWORKS}.", metavar="NETWORK")
]
NetworksArgument = Annotated[
    list[str], typer.Argument(help=f"Run folders, .safetensors files, or some of {NETWORKS}.", metavar="NETWORK")
]
DatasetOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help=f"{', '.join((*DATASETS, *PLAIN_DATASETS))}, the name of an imported set, a folder of class subfolders "
        f"with pictures, or an .npz file of images and labels (default: {DataConfig.dataset}).",
    ),
]
SplitOption = Annotated[str | None, typer.Option(help=f"One of {', '.join(SPLITS)} (default: {DataConfig.split}).")]
StereoOption = Annotated[
    bool, typer.Option("--stereo", help="Pairs of images instead of single ones, of sets with two cameras.")
]
IterationsOption = Annotated[
    int | None, typer.Option(help=f"Routing iterations (default: {NetworkConfig.iterations}).")
]
StepsOption = Annotated[int | None, typer.Option(help=f"Training steps (default: {TrainConfig.steps:,}).")]
BatchSizeOption = Annotated[int | None, typer.Option(help=f"Images in a step (default: {TrainConfig.batch_size}).")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
FolderOption = Annotated[
    Path | None, typer.Option(help="Folder of the prepared data (default: $EMCAPS_DATA, else the user's cache folder).")
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting, of those that `emcaps describe --settings` lists; may be repeated.",
    ),
]


def process() -> tuple[int, int]:
    """The number of this process and how many there are, as torchrun says; 0 of 1 without it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def shortcuts(
    data: str | None, split: str | None, stereo: bool, iterations: int | None, steps: int | None, batch_size: int | None
) -> dict[str, Any]:
    """The settings that the options of these names change, if they are given."""
    given = {
        "data.dataset": data,
        "data.split": split,
        "data.view": "stereo" if stereo else None,
        "network.iterations": iterations,
        "train.steps": steps,
        "train.batch_size": batch_size,
    }
    return {key: value for key, value in given.items() if value is not None}


def note_unfinished(name: object, step: int, config: RunConfig) -> None:
    """Say that a network is not trained as far as its run was to go."""
    if step < config.train.steps:
        print(f"note: {name} is not trained to its end: step {step:,} of {config.train.steps:,}", file=sys.stderr)


def assignments(settings: list[str]) -> dict[str, str]:
    """What `--set NAME=VALUE` says, by name."""
    changes = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes NAME=VALUE, such as train.learning_rate=1e-3, not {text!r}")
        changes[name.strip()] = value.strip()
    return changes


def examples(*commands: str) -> str:
    """The end of a help page, one command a line."""
    return "\n\n".join(["Examples:", *commands])


@contextmanager
def interruption(advice: str) -> Iterator[None]:
    """Say what Ctrl-C left behind."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"emcaps: interrupted; {advice}", file=sys.stderr)
        raise typer.Exit(130) from None


def wide_console() -> Any:
    """Standard output, wide enough for our tables. Square brackets are shown as they are, not read as markup."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    in_a_file = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = max(160 if in_a_file else 80, console.width)  # tables are made for 80 columns or more
    return console


def show_evaluations(evaluations: Mapping[str, Evaluation], origin: str) -> None:
    """Print a confusion matrix for each part of the data; `origin` says whose it is."""
    from emcaps.report.tables import confusion_table

    for part, result in evaluations.items():
        title = f"{part} accuracy {100 * result.accuracy:.2f} % of {result.images:,} images\n{origin}"
        wide_console().print(confusion_table(result, result.names, title))
