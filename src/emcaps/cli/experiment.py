"""The commands of `emcaps experiment`; as thin as the others, and as quick to show their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emcaps.cli.shared import DeviceOption, FolderOption, examples, interruption, wide_console
from emcaps.config import DATASETS

experiment_app = typer.Typer(
    help="Re-make a table or figure, from recorded runs or from scratch.",
    no_args_is_help=True,
    epilog=examples("emcaps experiment table2", "emcaps experiment table2 --train --runs runs/table2"),
)
JobsOption = Annotated[
    int,
    typer.Option(
        help="Train this many runs at a time. On a GPU they share it well if NVIDIA's MPS is on "
        "(nvidia-cuda-mps-control -d).",
        min=1,
    ),
]


@experiment_app.command(
    epilog=examples(
        "emcaps experiment table2",
        "emcaps experiment table2 --train --runs runs/table2 --row best-stereo-it2 --seeds 5",
    )
)
def table2(
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("results/table2"),
    train: Annotated[bool, typer.Option("--train", help="Train what is missing first; Ctrl-C saves.")] = False,
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Only this row, as best-mono-it2; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds to train each row with.", min=1)] = 3,
    jobs: JobsOption = 1,
    figure: Annotated[Path | None, typer.Option(help="Draw accuracy over training (Figure 6) to this PNG.")] = None,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Table 2 of the paper: smallNORB by the small and the full network, beside what others published."""
    from emcaps.experiments.table2 import ROWS, run_table2

    with interruption("what is done is saved, and the same command goes on"):
        run_table2(
            runs,
            rows or list(ROWS),
            range(seeds),
            wide_console(),
            train_first=train,
            jobs=jobs,
            device=device,
            data_folder=folder,
            figure=figure,
        )


@experiment_app.command(
    epilog=examples("emcaps experiment iterations", "emcaps experiment iterations --train --data toys --runs runs/it")
)
def iterations(
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("results/three-iterations"),
    data: Annotated[str, typer.Option(help=f"Data set: {' or '.join(DATASETS)}.")] = "smallnorb",
    figures: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    train: Annotated[bool, typer.Option("--train", help="Train what is missing first; Ctrl-C saves.")] = False,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Why three iterations learn more slowly than two; with --train from scratch, in minutes on a CPU."""
    from emcaps.experiments.iterations import run_iterations

    with interruption("what is done is saved, and the same command goes on"):
        run_iterations(runs, folder, device, data, wide_console(), figures, train_first=train)


@experiment_app.command(
    epilog=examples(
        "emcaps experiment pitfalls --train --figures docs/images",
        "emcaps experiment pitfalls --train --network small --data smallnorb --runs runs/pitfalls --jobs 8",
    )
)
def pitfalls(
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("results/pitfalls"),
    network: Annotated[
        str,
        typer.Option(help="tiny, for minutes on a CPU, or small, for minutes on a GPU in runs six times as long."),
    ] = "tiny",
    data: Annotated[str, typer.Option(help=f"Data set: {' or '.join(DATASETS)}.")] = "toys",
    figures: Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")] = None,
    train: Annotated[bool, typer.Option("--train", help="Train what is missing first; Ctrl-C saves.")] = False,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """What each of the three pitfalls costs, in accuracy and inside the network."""
    from emcaps.experiments.pitfalls import run_pitfalls

    with interruption("what is done is saved, and the same command goes on"):
        run_pitfalls(runs, folder, device, data, wide_console(), figures, network, jobs, train_first=train)


@experiment_app.command(epilog=examples("emcaps experiment cost --figure docs/images/cost.png"))
def cost(
    runs: Annotated[Path, typer.Option(help="Folder of the runs of Table 2.")] = Path("results/table2"),
    speeds: Annotated[Path, typer.Option(help="Rows of `emcaps bench` on the GPU.")] = Path("results/bench/h200.csv"),
    figure: Annotated[Path | None, typer.Option(help="Draw error against parameters and minutes to this PNG.")] = None,
) -> None:
    """Test error against parameters and minutes of training, beside what others published."""
    from emcaps.experiments.cost import run_cost

    run_cost(runs, speeds, wide_console(), figure)


@experiment_app.command(
    epilog=examples("emcaps experiment inside small-stereo", "emcaps experiment inside RUN --json inside.json")
)
def inside(
    run: Annotated[
        str,
        typer.Argument(help="A network that comes with emcaps, a run folder or a .safetensors file.", metavar="RUN"),
    ],
    json: Annotated[Path | None, typer.Option(help="Write the measurements here, too.")] = None,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """What routing does inside a trained network, by layer and iteration, on 64 of its training images."""
    from emcaps.experiments.trained import run_inside

    run_inside(run, wide_console(), json=json, device=device, data_folder=folder)


@experiment_app.command(epilog=examples("emcaps experiment choices --train --runs runs/choices"))
def choices(
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("results/choices"),
    train: Annotated[bool, typer.Option("--train", help="Train what is missing first; Ctrl-C saves.")] = False,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """How the recipe of Table 2 was chosen, on held-out training instances."""
    from emcaps.experiments.choices import run_choices

    with interruption("what is done is saved, and the same command goes on"):
        run_choices(runs, wide_console(), train_first=train, jobs=jobs, device=device, data_folder=folder)
