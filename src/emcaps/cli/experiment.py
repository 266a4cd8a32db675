"""The commands of `emcaps experiment`. Like the others they are thin, and import nothing heavy before they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emcaps.cli.shared import (
    RESUMES,
    DeviceOption,
    FolderOption,
    NetworkArgument,
    NetworksArgument,
    examples,
    interruption,
    wide_console,
)
from emcaps.config import DATASETS

if TYPE_CHECKING:
    from emcaps.experiments.runner import Training

experiment_app = typer.Typer(
    help="Re-make a table or figure, from recorded runs or from scratch.",
    no_args_is_help=True,
    epilog=examples("emcaps experiment table2", "emcaps experiment table2 --train --runs runs/table2"),
)
RunsOption = Annotated[Path, typer.Option(help="Folder of the runs.")]
TrainOption = Annotated[bool, typer.Option("--train", help="Train what is missing first; Ctrl-C saves.")]
SeedOption = Annotated[
    list[int] | None, typer.Option("--seed", help="Train with this seed; may be repeated.", min=0, show_default=False)
]
JobsOption = Annotated[
    int,
    typer.Option(
        help="Train this many runs at a time. On a GPU they share it well if NVIDIA's MPS is on "
        "(nvidia-cuda-mps-control -d).",
        min=1,
    ),
]
DataOption = Annotated[str, typer.Option(help=f"Data set: {' or '.join(DATASETS)}.")]
FiguresOption = Annotated[Path | None, typer.Option(help="Draw the figures into this folder.")]


def _seeds_option(default: int) -> Any:
    return typer.Option("--seeds", help=f"Train with this many seeds, from 0 on (default: {default}).", min=1)


ThreeSeedsOption = Annotated[int | None, _seeds_option(3)]
TwoSeedsOption = Annotated[int | None, _seeds_option(2)]
OneSeedOption = Annotated[int | None, _seeds_option(1)]
FiveSeedsOption = Annotated[int | None, _seeds_option(5)]


def _training(
    asked: bool,
    seed: Sequence[int] | None,
    seeds: int | None,
    default: int,
    jobs: int,
    device: str,
    folder: Path | None,
) -> Training | None:
    """How to train, if that was asked for: with the seeds that were named, or as many as were counted."""
    from emcaps.experiments.runner import Training

    if not asked and (seed or seeds is not None or jobs > 1):
        raise ValueError("--seed, --seeds and --jobs say how to train: add --train, or leave them out")
    if seed and seeds is not None:
        raise ValueError(f"--seed names seeds and --seeds {seeds} counts them from 0: give only one of the two")
    chosen = tuple(dict.fromkeys(seed)) if seed else range(default if seeds is None else seeds)
    return Training(chosen, jobs, device, folder) if asked else None


@experiment_app.command(
    epilog=examples(
        "emcaps experiment table2",
        "emcaps experiment table2 --train --runs runs/table2 --row best-stereo-it2 --seeds 5",
        "emcaps experiment table2 --train --runs runs/table2 --row best-stereo-it2 --seed 7 --seed 101",
    )
)
def table2(
    runs: RunsOption = Path("results/table2"),
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Only this row, as best-mono-it2; may be repeated.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw accuracy over training (Figure 6) to this PNG.")] = None,
    train: TrainOption = False,
    seed: SeedOption = None,
    seeds: ThreeSeedsOption = None,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Table 2 of the paper: smallNORB by the small and the full network, beside what others published."""
    from emcaps.experiments.table2 import ROWS, run_table2

    how = _training(train, seed, seeds, 3, jobs, device, folder)
    with interruption(RESUMES):
        run_table2(runs, wide_console(), rows or list(ROWS), train=how, figure=figure)


@experiment_app.command(
    epilog=examples("emcaps experiment iterations", "emcaps experiment iterations --train --data toys --runs runs/it")
)
def iterations(
    runs: RunsOption = Path("results/three-iterations"),
    data: DataOption = "smallnorb",
    figures: FiguresOption = None,
    train: TrainOption = False,
    seed: SeedOption = None,
    seeds: ThreeSeedsOption = None,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Why three iterations learn more slowly than two; with --train from scratch, in minutes on a CPU."""
    from emcaps.experiments.iterations import run_iterations

    how = _training(train, seed, seeds, 3, jobs, device, folder)
    with interruption(RESUMES):
        run_iterations(runs, wide_console(), data, train=how, figures=figures)


@experiment_app.command(
    epilog=examples(
        "emcaps experiment pitfalls --train --figures docs/images",
        "emcaps experiment pitfalls --train --network small --data smallnorb --runs runs/pitfalls --jobs 8",
    )
)
def pitfalls(
    runs: RunsOption = Path("results/pitfalls"),
    network: Annotated[
        str,
        typer.Option(help="tiny, for minutes on a CPU, or small, for minutes on a GPU in runs six times as long."),
    ] = "tiny",
    data: DataOption = "toys",
    figures: FiguresOption = None,
    train: TrainOption = False,
    seed: SeedOption = None,
    seeds: ThreeSeedsOption = None,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """What each of the three pitfalls costs, in accuracy and inside the network."""
    from emcaps.experiments.pitfalls import run_pitfalls

    how = _training(train, seed, seeds, 3, jobs, device, folder)
    with interruption(RESUMES):
        run_pitfalls(runs, wide_console(), data, network, train=how, figures=figures)


@experiment_app.command(
    epilog=examples(
        "emcaps experiment ablations",
        "emcaps experiment ablations --train --runs runs/ablations --seeds 1",
        "emcaps experiment ablations --train --network small --data smallnorb --runs runs/ablations-small --jobs 4",
    )
)
def ablations(
    runs: Annotated[
        Path | None, typer.Option(help="Folder of the runs (default: results/ablations-NETWORK, the recorded ones).")
    ] = None,
    network: Annotated[
        str, typer.Option(help="tiny, for minutes on a CPU, or small, for a GPU and the whole of smallNORB.")
    ] = "tiny",
    data: Annotated[
        str | None,
        typer.Option(help=f"Data set: {' or '.join(DATASETS)} (default: toys; without --runs smallnorb, as recorded)."),
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Only this row, as it3-margin; may be repeated.")
    ] = None,
    train: TrainOption = False,
    seed: SeedOption = None,
    seeds: ThreeSeedsOption = None,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Hinton's ablations: iterations, matrix or vector poses, losses, and coordinates on and off."""
    from emcaps.experiments.ablations import run_ablations

    how = _training(train, seed, seeds, 3, jobs, device, folder)
    data = data or ("toys" if runs else "smallnorb")
    with interruption(RESUMES):
        run_ablations(runs or Path(f"results/ablations-{network}"), wide_console(), data, network, rows, train=how)


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
    epilog=examples(
        "emcaps experiment inside small-stereo",
        "emcaps experiment inside runs/small-toys-mono-seed0 --json inside.json",
    )
)
def inside(
    run: NetworkArgument,
    json: Annotated[Path | None, typer.Option(help="Write the measurements here, too.")] = None,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """What routing does inside a trained network, by layer and iteration, on 64 of its training images."""
    from emcaps.experiments.routing_table import show_routing

    show_routing(run, wide_console(), json=json, device=device, data_folder=folder)


@experiment_app.command(
    "moved-digits",
    epilog=examples(
        "emcaps experiment moved-digits --figure moved.png",
        "emcaps experiment moved-digits --train --runs runs/moved-digits --seeds 1",
    ),
)
def moved_digits(
    runs: RunsOption = Path("results/moved-digits"),
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Only this row, as centred-capsules; may be repeated.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw accuracy by change to this PNG.")] = None,
    train: TrainOption = False,
    seed: SeedOption = None,
    seeds: ThreeSeedsOption = None,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Digits moved, turned, enlarged or slanted after training: capsules against CNNs, on MNIST."""
    from emcaps.experiments.moved_digits import ROWS, run_moved

    how = _training(train, seed, seeds, 3, jobs, device, folder)
    with interruption(RESUMES):
        run_moved(runs, wide_console(), rows or list(ROWS), train=how, figure=figure)


@experiment_app.command(epilog=examples("emcaps experiment choices --train --runs runs/choices"))
def choices(
    runs: RunsOption = Path("results/choices"),
    train: TrainOption = False,
    seed: SeedOption = None,
    seeds: OneSeedOption = None,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """How the recipe of Table 2 was chosen, on held-out training instances."""
    from emcaps.experiments.choices import run_choices

    how = _training(train, seed, seeds, 1, jobs, device, folder)
    with interruption(RESUMES):
        run_choices(runs, wide_console(), train=how)


@experiment_app.command(
    epilog=examples(
        "emcaps experiment candidates",
        "emcaps experiment candidates --train --runs runs/candidates --recipe stereo-it2 --change dropout",
    )
)
def candidates(
    runs: RunsOption = Path("results/candidates"),
    recipes: Annotated[
        list[str] | None, typer.Option("--recipe", help="Only this recipe, as mono-it2; may be repeated.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--change", help="Only this change, as dropout; may be repeated.")
    ] = None,
    train: TrainOption = False,
    seed: SeedOption = None,
    seeds: TwoSeedsOption = None,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """What changes to a recipe gain, each by itself, on all five folds of held-out instances."""
    from emcaps.experiments.candidates import run_candidates

    how = _training(train, seed, seeds, 2, jobs, device, folder)
    with interruption(RESUMES):
        run_candidates(runs, wide_console(), recipes, changes, train=how)


@experiment_app.command(
    "other-data",
    epilog=examples(
        "emcaps experiment other-data",
        "emcaps experiment other-data --train --runs runs/other-data --row mnist-quick --device cpu",
    ),
)
def other_data(
    runs: RunsOption = Path("results/other-data"),
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Only this row, as fashion-mnist; may be repeated.")
    ] = None,
    train: TrainOption = False,
    seed: SeedOption = None,
    seeds: ThreeSeedsOption = None,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """MNIST, Fashion-MNIST and CIFAR-10 by capsules and by a CNN; `emcaps data get` fetches them."""
    from emcaps.experiments.other_data import ROWS, run_other_data

    how = _training(train, seed, seeds, 3, jobs, device, folder)
    with interruption(RESUMES):
        run_other_data(runs, wide_console(), rows or list(ROWS), train=how)


@experiment_app.command(
    epilog=examples(
        "emcaps experiment viewpoints --train --seeds 5 --jobs 8 --runs runs/viewpoints",
        "emcaps experiment viewpoints --data toys --train --seeds 1 --runs runs/viewpoints-toys",
        "emcaps experiment viewpoints --validation --train --row best-azimuth-small-it2 --runs runs/viewpoints-chosen",
    )
)
def viewpoints(
    runs: RunsOption = Path("results/viewpoints"),
    data: DataOption = "smallnorb",
    rows: Annotated[
        list[str] | None, typer.Option("--row", help="Only this row, as best-azimuth-small-it2; may be repeated.")
    ] = None,
    validation: Annotated[
        bool,
        typer.Option(
            "--validation",
            help="Train and test on training instances at trained viewpoints alone, of which some are held out.",
        ),
    ] = False,
    figures: FiguresOption = None,
    train: TrainOption = False,
    seed: SeedOption = None,
    seeds: FiveSeedsOption = None,
    jobs: JobsOption = 1,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Novel azimuths and elevations: capsules against CNNs; with --data toys in minutes on a CPU."""
    from emcaps.experiments.viewpoints import run_viewpoints

    how = _training(train, seed, seeds, 5, jobs, device, folder)
    with interruption(RESUMES):
        run_viewpoints(runs, wide_console(), data, rows, validation=validation, train=how, figures=figures)


@experiment_app.command(
    epilog=examples(
        "emcaps experiment poses small-stereo",
        "emcaps experiment poses runs/capsules runs/cnn --json poses.json --figures .",
    )
)
def poses(
    names: NetworksArgument,
    images: Annotated[int, typer.Option(help="Read at most this many training and test images each.", min=1)] = 4000,
    json: Annotated[Path | None, typer.Option(help="Write the measurements here, too.")] = None,
    figures: FiguresOption = None,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """How the class capsule's pose moves when the toy turns: azimuth and elevation, read from new instances."""
    from emcaps.experiments.poses import run_poses

    run_poses(names, wide_console(), images=images, json=json, figures=figures, device=device, data_folder=folder)


@experiment_app.command(
    epilog=examples(
        "emcaps experiment attack small-mono --images 50 --epsilon 0.1 --targeted 0.1 --pgd-steps 10 --starts 1",
        "emcaps experiment attack runs/capsules runs/cnn --json attack.json --figure attack.png",
    )
)
def attack(
    runs: NetworksArgument,
    images: Annotated[int, typer.Option(help="How many test images.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="Chooses images, random signs and random starts.", min=0)] = 0,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(
            help="Size of untargeted attacks, in standard deviations of an image; may be repeated (default: seven "
            "sizes from 0.02 to 0.5).",
            show_default=False,
        ),
    ] = None,
    targeted: Annotated[
        list[float] | None,
        typer.Option(
            help="Size of targeted attacks; may be repeated (default: five sizes from 0.05 to 0.25).",
            show_default=False,
        ),
    ] = None,
    bim_steps: Annotated[int, typer.Option(help="Steps of BIM.", min=1)] = 10,
    pgd_steps: Annotated[int, typer.Option(help="Steps of PGD.", min=1)] = 40,
    starts: Annotated[int, typer.Option(help="Random starts of PGD.", min=1)] = 3,
    json: Annotated[Path | None, typer.Option(help="Write everything that was measured here.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw accuracy against epsilon to this PNG.")] = None,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Attack trained networks: FGSM, BIM, PGD, random signs and images that were made for another network.

    A GPU takes minutes. On a CPU, name a few sizes, fewer images and fewer steps.
    """
    from emcaps.experiments.attack import AttackSettings, run_attack

    settings = AttackSettings(images, seed, bim_steps=bim_steps, pgd_steps=pgd_steps, starts=starts)
    if epsilon:
        settings = settings._replace(epsilons=sorted(set(epsilon)))
    if targeted:
        settings = settings._replace(targeted=sorted(set(targeted)))
    with interruption("nothing is saved before all networks are attacked"):
        run_attack(runs, wide_console(), settings, json=json, figure=figure, device=device, data_folder=folder)
