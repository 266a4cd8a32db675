"""`emcaps eval`: accuracy and confusion matrix of trained weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emcaps.cli.shared import (
    DeviceOption,
    FolderOption,
    NetworkArgument,
    note_unfinished,
    process,
    show_evaluations,
    wide_console,
)
from emcaps.files import check_writable


def evaluate(
    run: NetworkArgument,
    crops: Annotated[int, typer.Option(help="Crops of each image: 1 (centre) or 13.")] = 1,
    data: Annotated[
        str | None, typer.Option(help="Another data set than the run's: a name, a folder of pictures or an .npz file.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Another split than the run's.")] = None,
    by_instance: Annotated[bool, typer.Option("--by-instance", help="Show which objects it gets wrong, too.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result here as JSON, too.")] = None,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Evaluate trained weights: accuracy and confusion matrix."""
    from emcaps.data.splits import load_tested
    from emcaps.report.progress import counting_bar
    from emcaps.report.tables import instance_table
    from emcaps.train import distributed, load_network
    from emcaps.train.device import start_work
    from emcaps.train.evaluate import check_is_evaluation, evaluate_split, write_evaluations
    from emcaps.train.run_folder import is_data_of
    from emcaps.weights import find_weights

    weights = find_weights(run)
    place = start_work(distributed.device_of(device))
    distributed.join(place)
    network, config, step = load_network(weights, place)
    if not process()[0]:
        note_unfinished(run, step, config)
    own = config.data
    config = config.override({key: value for key, value in (("data.dataset", data), ("data.split", split)) if value})
    is_other = data is not None and str(Path(data).expanduser().resolve()) != own.dataset
    tested = load_tested(config.data, folder, everything=is_other)
    if process()[0]:  # of several processes, the first alone shows what all found
        evaluate_split(network, tested, config, place, crops)
        return
    if crops > 1 and min(len(part.images[0, 0]) for part in tested.values()) <= config.data.crop:
        raise ValueError(
            f"--crops {crops} needs images that are larger than the network's crops of {config.data.crop} pixels: "
            "leave it out"
        )
    if json is not None:
        if str(json) == "-":
            raise ValueError("--json - would write a file called -: name a file")
        check_is_evaluation(json)
        check_writable(json.parent)
    if config.data.dataset == own.dataset and config.data.split != own.split:
        print(
            f"note: {run} was trained with the split {own.split!r}: it may have seen images that {config.data.split!r} "
            "tests on in its training",
            file=sys.stderr,
        )
    elif config.data == own and Path(run).is_dir() and not is_data_of(Path(run), tested):
        print(f"note: these are not the images that {run} was tested with", file=sys.stderr)
    with counting_bar("evaluating", "images") as on_progress:
        results = evaluate_split(network, tested, config, place, crops, on_progress)
    show_evaluations(results, f"{run}, step {step}, crops {crops}")
    if by_instance:
        for part, result in results.items():
            if not result.instances:
                print(f"note: {config.data.dataset} does not say which images show one object", file=sys.stderr)
            else:
                wide_console().print(instance_table(result.instances, f"{part}: objects by errors"))
    if json is not None:
        write_evaluations(json, results, step, crops, by_instance)
