"""The commands that show something: a network, this machine, and the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emcaps.cli.shared import (
    PRESET_NAMES,
    RESUMES,
    DeviceOption,
    SettingsOption,
    assignments,
    interruption,
    wide_console,
)
from emcaps.config import DATASETS, IMPLEMENTATIONS, PLAIN_DATASETS, RunConfig, preset


def describe(
    name: Annotated[str | None, typer.Argument(help=f"One of {PRESET_NAMES}.", metavar="PRESET")] = None,
    stereo: Annotated[bool, typer.Option("--stereo", help="Two input channels instead of one.")] = False,
    channels: Annotated[int | None, typer.Option(help="Input channels, such as 3 for colour.", min=1, max=4)] = None,
    classes: Annotated[int | None, typer.Option(help="Classes to tell apart.")] = None,
    size: Annotated[int, typer.Option(help="Side of the input image.")] = 32,
    settings: SettingsOption = None,
    list_settings: Annotated[
        bool,
        typer.Option("--settings", help="Instead, list all settings, with their defaults or those of the preset."),
    ] = False,
) -> None:
    """Print a network layer by layer: shapes, parameters, and how much data EM routing assigns."""
    if name is None and not list_settings:
        raise ValueError(f"name a preset ({PRESET_NAMES}) to describe, or list all settings by --settings")
    if stereo and channels is not None:
        raise ValueError(f"--stereo means 2 channels and --channels says {channels}: give only one of the two")
    changes = {} if classes is None else {"network.classes": classes}
    config = (RunConfig() if name is None else preset(name)).override(changes | assignments(settings or []))
    if list_settings:
        from emcaps.report.settings import settings_of
        from emcaps.report.tables import settings_table

        wide_console().print(
            settings_table(settings_of(config), f"Settings of {name}" if name else "Settings and their defaults")
        )
        return
    from emcaps.nn.summary import summarise
    from emcaps.report.tables import layer_table

    kind = f"{channels} channels" if channels is not None else "stereo" if stereo else "mono"
    rows = summarise(config.network, channels or (2 if stereo else 1), size)
    wide_console().print(layer_table(rows, f"{name}, {kind}"))


def info() -> None:
    """Print versions, devices, implementations of the routing and the data that is ready."""
    import torch

    from emcaps.data.prepared import data_folder, imported_names, prepared_path
    from emcaps.provenance import environment
    from emcaps.report.tables import pairs_table
    from emcaps.routing.availability import has_asynchronous_copies, unavailable
    from emcaps.train.device import pick_device

    values: dict[str, object] = environment(pick_device())
    values.pop("started")
    values["GPUs"] = torch.cuda.device_count()
    for impl in IMPLEMENTATIONS[1:]:
        devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]
        reasons = [unavailable(impl, device) for device in devices]
        values[f"impl {impl}"] = "ready" if [] in reasons else "; ".join(reasons[-1])
    for index in range(torch.cuda.device_count()):
        rule = "convolutional layers in float32 with 17 images and 4 parent types or more"
        sweeps = f"for {rule}" if has_asynchronous_copies(index) else "never: they need compute capability 8.0"
        values[f"staged sweeps, cuda:{index}"] = sweeps
    for dataset in (*DATASETS, *PLAIN_DATASETS, *imported_names()):
        ready = [part for part in ("train", "test") if prepared_path(dataset, part).exists()]
        values[f"data {dataset}"] = f"{' and '.join(ready)} in {data_folder()}" if ready else "not there yet"
    wide_console().print(pairs_table(values, "emcaps"))


def demo(
    run: Annotated[Path, typer.Option(help="Folder for the demo's data, runs and pictures.")] = Path("demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few toys and steps, in seconds, to see that everything works.")
    ] = False,
    device: DeviceOption = "auto",
) -> None:
    """Make toys, train a small capsule network and a CNN on them, compare, and draw what the network routes."""
    from emcaps.experiments.demo import run_demo

    with interruption(RESUMES):
        run_demo(run, device, wide_console(), quick=quick)
