"""`emcaps sweep`: train every combination of some settings, with several seeds, and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emcaps.cli.experiment import JobsOption, SeedOption
from emcaps.cli.shared import (
    PRESET_NAMES,
    RESUMES,
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
    interruption,
    shortcuts,
    wide_console,
)
from emcaps.config import preset


def sweep(
    name: Annotated[str, typer.Argument(help=f"One of {PRESET_NAMES}.", metavar="PRESET")],
    runs: Annotated[Path, typer.Option(help="Folder of the runs; those that are finished there are kept.")],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B",
            help="Train with each of these values; may be repeated, for all combinations. If there is a semicolon, it "
            "separates the values instead of the commas.",
        ),
    ] = None,
    data: DatasetOption = None,
    split: SplitOption = None,
    stereo: StereoOption = False,
    iterations: IterationsOption = None,
    steps: StepsOption = None,
    batch_size: BatchSizeOption = None,
    settings: SettingsOption = None,
    seed: SeedOption = None,
    seeds: Annotated[
        int | None, typer.Option(help="Train with this many seeds, from 0 on (default: 1).", min=1)
    ] = None,
    jobs: JobsOption = 1,
    part: Annotated[
        str, typer.Option(metavar="I/N", help="Train only part I of N, for machines that do not share locks.")
    ] = "1/1",
    look: Annotated[bool, typer.Option("--look", help="Train nothing: show what is finished.")] = False,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Train all combinations of settings, and show which is best. Ctrl-C saves; the same command resumes.

    Several processes, on one machine or on several with a shared folder, may run the same command: they divide the runs
    among them.
    """
    if seed and seeds is not None:
        raise ValueError(f"--seed names seeds and --seeds {seeds} counts them from 0: give only one of the two")
    if not grid and not look and len(set(seed or range(seeds or 1))) == 1:
        raise ValueError(
            "a sweep compares several runs: add --grid, such as --grid train.learning_rate=1e-3,3e-3, or --seeds 3; "
            "`emcaps train` trains a single one"
        )
    changes = shortcuts(data, split, stereo, iterations, steps, batch_size) | assignments(settings or [])
    base, values = preset(name).override(changes), read_grid(grid or [])
    part_of = read_part(part)

    from emcaps.experiments.runner import Training
    from emcaps.experiments.sweep import run_sweep

    chosen = tuple(dict.fromkeys(seed)) if seed else range(seeds or 1)
    how = Training(chosen, jobs, device, folder, part_of, keep_failures=True)
    with interruption(RESUMES):
        run_sweep(base, values, runs, wide_console(), how, name=name, look=look)


def read_grid(texts: list[str]) -> dict[str, list[str]]:
    """The values of each setting of `--grid NAME=A,B`."""
    grid: dict[str, list[str]] = {}
    for text in texts:
        setting, equals, values = text.partition("=")
        each = [value.strip() for value in values.split(";" if ";" in values else ",")]
        if not equals or not all(each):
            raise ValueError(f"--grid takes NAME=A,B, such as train.learning_rate=1e-3,3e-3, not {text!r}")
        if setting.strip() in grid:
            raise ValueError(f"--grid names {setting.strip()} twice: list all its values in one")
        if setting.strip() == "train.seed":
            raise ValueError("--grid varies settings, and train.seed is not one to compare: use --seed or --seeds")
        grid[setting.strip()] = each
    return grid


def read_part(text: str) -> tuple[int, int]:
    """(I, N) of `--part I/N`."""
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--part takes I/N, from 1/N to N/N, such as 2/8, not {text!r}")
    return int(number), int(count)
