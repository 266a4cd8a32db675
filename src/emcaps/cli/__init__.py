"""The command line. Thin: each command reads its arguments, calls the library and shows the result.

Nothing heavy is imported at the top, so that `emcaps --help` answers at once.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import emcaps
from emcaps.bench.cases import IMPLEMENTATIONS, NETWORKS, SUITES, WHATS, choose_cases
from emcaps.cli.data import data_app
from emcaps.cli.experiment import experiment_app
from emcaps.cli.shared import DeviceOption, FolderOption, examples, interruption, wide_console
from emcaps.config import DATASETS, PRESETS, SPLITS, RunConfig, preset
from emcaps.files import FULL, check_writable

app = typer.Typer(
    name="emcaps",
    help="Matrix capsules with EM routing: describe networks, make data, train, evaluate.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    epilog="Start with: [bold]emcaps demo[/bold] (no download, no GPU, minutes)",
)
app.add_typer(data_app, name="data")
app.add_typer(experiment_app, name="experiment")

PRESET_NAMES = ", ".join(PRESETS)


def main() -> None:
    """The entry point: what a user did wrong, or a machine refused, ends in one line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter is no reason to stop
    try:
        app()
    except (ValueError, OSError, RuntimeError) as error:
        out_of_memory = "out of memory" in str(error) or "allocate memory" in str(error)
        if os.environ.get("EMCAPS_DEBUG") or (isinstance(error, RuntimeError) and not out_of_memory):
            raise
        if out_of_memory:
            error = ValueError("there is not enough memory for this: use smaller images or a smaller batch size")
        print(f"emcaps: {_in_one_line(error)}", file=sys.stderr)
        raise SystemExit(1) from None


def _in_one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split())


@contextmanager
def _how_to_go_on(run: Path, command: str) -> Iterator[None]:
    """Add to the message of a full disk how to resume once there is space."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and (run / "config.json").exists():
            raise OSError(error.errno, f"{error.strerror}; then go on with: {command}") from error
        raise


@contextmanager
def _removing_if_empty(run: Path) -> Iterator[None]:
    """A folder that was made for a run that never began."""
    try:
        yield
    finally:
        if not (run / "config.json").exists():
            (run / ".lock").unlink(missing_ok=True)
            with suppress(OSError):
                run.rmdir()


def _resume_command(run: Path, folder: Path | None, device: str, tensorboard: bool) -> str:
    words = ["emcaps", "train", "--resume", str(run)]
    words += ["--folder", str(folder)] if folder else []
    words += ["--device", device] if device != "auto" else []
    return shlex.join(words + (["--tensorboard"] if tensorboard else []))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"emcaps {emcaps.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command(epilog=examples("emcaps describe small --stereo"))
def describe(
    name: Annotated[str, typer.Argument(help=f"One of {PRESET_NAMES}.", metavar="PRESET")],
    stereo: Annotated[bool, typer.Option("--stereo", help="Two input channels instead of one.")] = False,
    size: Annotated[int, typer.Option(help="Side of the input image.")] = 32,
) -> None:
    """Print a network layer by layer: shapes, parameters, and how much data EM routing assigns."""
    config = preset(name).network
    from emcaps.nn.summary import summarise
    from emcaps.report.tables import layer_table

    rows = summarise(config, 2 if stereo else 1, size)
    wide_console().print(layer_table(rows, f"{name}, {'stereo' if stereo else 'mono'}"))


@app.command(
    epilog=examples(
        "emcaps train small --data smallnorb --stereo --steps 20000",
        "emcaps train tiny --set train.learning_rate=1e-3",
        "emcaps train --resume runs/small-toys-mono-seed0",
    )
)
def train(
    name: Annotated[str | None, typer.Argument(help=f"One of {PRESET_NAMES}.", metavar="PRESET")] = None,
    data: Annotated[str | None, typer.Option(help=f"Data set: {' or '.join(DATASETS)}.")] = None,
    split: Annotated[str | None, typer.Option(help=f"One of {', '.join(SPLITS)}.")] = None,
    stereo: Annotated[bool, typer.Option("--stereo", help="Pairs of images instead of single ones.")] = False,
    iterations: Annotated[int | None, typer.Option(help="Routing iterations.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random choice.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; may be repeated.")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Folder for the run (default: a new one under runs/).")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard logs too.")] = False,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Train a network. Ctrl-C saves; --resume goes on to the numbers the whole run would have given."""
    changes: dict[str, Any] = {
        "data.dataset": data,
        "data.split": split,
        "data.view": "stereo" if stereo else None,
        "network.iterations": iterations,
        "train.steps": steps,
        "train.batch_size": batch_size,
        "train.seed": seed,
    }
    changes = {key: value for key, value in changes.items() if value is not None} | _assignments(settings or [])
    if resume is not None:
        config, run = _resumed_config(resume, name, changes, run), resume
    elif name is None:
        raise ValueError(f"name a preset ({PRESET_NAMES}), or a run to go on with: --resume FOLDER")
    else:
        config = preset(name).override(changes)

    if run is None:
        assert name is not None
        run = _new_run_folder(name, config)
        empty: AbstractContextManager[None] = _removing_if_empty(run)
    else:
        empty = nullcontext()

    from emcaps.report.progress import training_bar
    from emcaps.train import train as train_network

    print(f"run: {run}")
    go_on = _resume_command(run, folder, device, tensorboard)
    with empty, _how_to_go_on(run, go_on), training_bar("training", config.train.steps) as on_progress:
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
        print(f"emcaps: interrupted and saved; go on with: {go_on}", file=sys.stderr)
        raise typer.Exit(130)
    _show_evaluations(result.evaluations, f"step {result.step}, {result.seconds:.0f} s")


@app.command(
    "eval",
    epilog=examples(
        "emcaps eval small-stereo",
        "emcaps eval runs/small-toys-mono-seed0",
        "emcaps eval weights.safetensors --crops 13 --by-instance",
    ),
)
def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            help="A network that comes with emcaps (full-stereo, small-mono, small-stereo), a run folder or a "
            ".safetensors file.",
            metavar="RUN",
        ),
    ],
    crops: Annotated[int, typer.Option(help="Crops of each image: 1 (centre) or 13.")] = 1,
    data: Annotated[str | None, typer.Option(help="Another data set than the run's.")] = None,
    split: Annotated[str | None, typer.Option(help="Another split than the run's.")] = None,
    by_instance: Annotated[bool, typer.Option("--by-instance", help="Show which objects it gets wrong, too.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the result here as JSON, too.")] = None,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Evaluate trained weights: accuracy and confusion matrix."""
    from emcaps.data.splits import load_split
    from emcaps.report.progress import counting_bar
    from emcaps.report.tables import instance_table
    from emcaps.train import load_network
    from emcaps.train.device import start_work
    from emcaps.train.evaluate import evaluate_split, write_evaluations
    from emcaps.train.run_folder import is_data_of
    from emcaps.weights import find_weights

    weights = find_weights(run)
    place = start_work(device)
    network, config, step = load_network(weights, place)
    own = config.data
    config = config.override({key: value for key, value in (("data.dataset", data), ("data.split", split)) if value})
    examples = load_split(config.data, folder)
    if json is not None:
        check_writable(json.parent)
    if config.data.dataset == own.dataset and config.data.split != own.split:
        print(
            f"note: {run} was trained with the split {own.split!r}: it may have seen images that {config.data.split!r} "
            "tests on in its training",
            file=sys.stderr,
        )
    elif config.data == own and Path(run).is_dir() and not is_data_of(Path(run), examples):
        print(f"note: these are not the images that {run} was trained and tested with", file=sys.stderr)
    with counting_bar("evaluating", "images") as on_progress:
        results = evaluate_split(network, examples, config, place, crops, on_progress)
    _show_evaluations(results, f"{run}, step {step}, crops {crops}")
    if by_instance:
        for part, result in results.items():
            wide_console().print(instance_table(result.instances, f"{part}: objects by errors"))
    if json is not None:
        write_evaluations(json, results, step, crops, by_instance)


@app.command(epilog=examples("emcaps info"))
def info() -> None:
    """Print versions, devices, implementations of the routing and the data that is ready."""
    import torch

    from emcaps.config import IMPLEMENTATIONS
    from emcaps.data.prepared import data_folder, prepared_path
    from emcaps.report.tables import pairs_table
    from emcaps.routing.availability import unavailable
    from emcaps.train.device import pick_device
    from emcaps.train.run_folder import environment

    values: dict[str, object] = environment(pick_device())
    values.pop("started")
    values["GPUs"] = torch.cuda.device_count()
    for impl in IMPLEMENTATIONS[1:]:
        devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]
        reasons = [unavailable(impl, device) for device in devices]
        values[f"impl {impl}"] = "ready" if [] in reasons else "; ".join(reasons[-1])
    for dataset in DATASETS:
        ready = [part for part in ("train", "test") if prepared_path(dataset, part).exists()]
        values[f"data {dataset}"] = f"{' and '.join(ready)} in {data_folder()}" if ready else "not there yet"
    wide_console().print(pairs_table(values, "emcaps"))


@app.command(epilog=examples("emcaps demo --run demo"))
def demo(
    run: Annotated[Path, typer.Option(help="Folder for the demo's data, runs and picture.")] = Path("demo"),
    device: DeviceOption = "auto",
) -> None:
    """Make toys, train a small capsule network and a CNN on them, compare, and draw what the network routes."""
    from emcaps.experiments.demo import run_demo

    with interruption("what is done is saved, and the same command goes on"):
        run_demo(run, device, wide_console())


@app.command(
    epilog=examples(
        "emcaps bench",
        "emcaps bench --suite headline --out runs/bench/headline.csv",
        "emcaps bench --network full --batch 16 --batch 64 --iterations 3 --what forward --impl fused",
        "emcaps bench --plot runs/bench/headline.csv --out bench.svg",
        "emcaps bench --table runs/bench/headline.csv",
    )
)
def bench(
    suite: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(SUITES)} (default: headline on a GPU, quick on a CPU)."),
    ] = None,
    networks: Annotated[
        list[str] | None, typer.Option("--network", help=f"One of {', '.join(NETWORKS)}; may be repeated.")
    ] = None,
    batches: Annotated[list[int] | None, typer.Option("--batch", help="Images a batch; may be repeated.")] = None,
    iterations: Annotated[list[int] | None, typer.Option(help="Routing iterations; may be repeated.")] = None,
    sizes: Annotated[list[int] | None, typer.Option("--size", help="Side of the images; may be repeated.")] = None,
    types: Annotated[
        list[int] | None, typer.Option(help="Types of both convolutional capsule layers; may be repeated.")
    ] = None,
    whats: Annotated[list[str] | None, typer.Option("--what", help=f"{', '.join(WHATS)}; may be repeated.")] = None,
    impls: Annotated[
        list[str] | None,
        typer.Option(
            "--impl",
            help=f"{', '.join(IMPLEMENTATIONS)}; may be repeated (default: the first three). "
            "plain is the reference on a CPU in a process that does not keep freed memory.",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time to spend on the repeats of a row.")] = 0.5,
    tf32: Annotated[bool, typer.Option("--tf32", help="Allow tf32 in all of them (default: exact float32).")] = False,
    device: DeviceOption = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="CSV that rows are added to (default: runs/bench/SUITE.csv), or the picture of --plot."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the rows of this CSV instead of timing.")] = None,
    table: Annotated[Path | None, typer.Option(help="Print this CSV's headline as Markdown instead of timing.")] = None,
) -> None:
    """Check the fast implementations against the definition, then time them beside it.

    A suite is a list of cases. Without --suite, --network, --batch, --iterations, --size and --types make a grid.
    """
    if plot is not None or table is not None:
        from emcaps.bench.plots import draw_rows
        from emcaps.bench.rows import read_rows
        from emcaps.bench.tables import markdown_table

        if table is not None:
            print(markdown_table(read_rows(table)))
        if plot is not None:
            picture = out or plot.with_suffix(".png")
            draw_rows(read_rows(plot), picture)
            print(picture)
        return
    axes = {"networks": networks, "batches": batches, "iterations": iterations, "sizes": sizes, "types": types}
    chosen = {name: values for name, values in axes.items() if values}
    if suite is None and not chosen:
        from emcaps.train.device import pick_device

        suite = "quick" if pick_device(device).type == "cpu" else "headline"
    cases = choose_cases(suite, chosen, whats or ())

    from emcaps.bench.run import run_bench

    out = out or Path("runs") / "bench" / f"{suite or 'grid'}.csv"
    with interruption(f"the rows that are done are in {out}"):
        run_bench(cases, impls or (), out, wide_console(), device=device, seconds=seconds, tf32=tf32)


def _assignments(settings: list[str]) -> dict[str, str]:
    changes = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--set takes NAME=VALUE, such as train.learning_rate=1e-3, not {text!r}")
        changes[name.strip()] = value.strip()
    return changes


def _resumed_config(resume: Path, name: str | None, changes: dict[str, Any], run: Path | None) -> RunConfig:
    from emcaps.train.loop import MAY_CHANGE
    from emcaps.train.run_folder import read_config

    if name is not None or run is not None or not changes.keys() <= set(MAY_CHANGE):
        raise ValueError("a resumed run keeps its settings: only --steps and --set train.graph=... may change")
    return read_config(resume).override(changes)


def _new_run_folder(name: str, config: RunConfig) -> Path:
    """runs/NAME-DATA-VIEW-seedN, numbered if it is taken."""
    base = Path("runs") / f"{name}-{config.data.dataset}-{config.data.view}-seed{config.train.seed}"
    base.parent.mkdir(exist_ok=True)
    candidate, number = base, 2
    while True:
        try:
            candidate.mkdir()  # which one process alone can do, of several that start together
            return candidate
        except FileExistsError:
            candidate, number = base.with_name(f"{base.name}-{number}"), number + 1


def _show_evaluations(evaluations: Any, origin: str) -> None:
    from rich.markup import escape

    from emcaps.data.prepared import CATEGORIES
    from emcaps.report.tables import confusion_table

    for part, result in evaluations.items():
        title = f"{part} accuracy {100 * result.accuracy:.2f} % of {result.images:,} images\n{escape(origin)}"
        wide_console().print(confusion_table(result, CATEGORIES, title))
