"""The command line: each command reads its arguments, calls the library and shows the result.

Neither this module nor those of the commands import anything heavy, so that `emcaps --help` answers at once.
"""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import nullcontext
from typing import Annotated

import typer

import emcaps
from emcaps.cli.benchmark import bench
from emcaps.cli.data import data_app
from emcaps.cli.evaluation import evaluate
from emcaps.cli.experiment import experiment_app
from emcaps.cli.explore import explore
from emcaps.cli.export import export_network
from emcaps.cli.predict import predict
from emcaps.cli.report import report
from emcaps.cli.shared import examples, process
from emcaps.cli.show import demo, describe, info
from emcaps.cli.sweep import sweep
from emcaps.cli.training import train
from emcaps.interrupts import sigterm_like_ctrl_c

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


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"emcaps {emcaps.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    processes = process()[1]
    if processes > 1 and context.invoked_subcommand not in ("train", "eval"):
        raise ValueError(
            f"torchrun started {processes} processes, which can train or eval together, not "
            f"{context.invoked_subcommand}: start that with `emcaps` alone"
        )


# The commands, in the order in which the help lists them.
app.command(
    epilog=examples(
        "emcaps describe small --stereo",
        "emcaps describe small --channels 3 --classes 10 --size 28",
        "emcaps describe --settings",
    )
)(describe)
app.command(
    epilog=examples(
        "emcaps train small --data smallnorb --stereo --steps 20000",
        "emcaps train small --data pictures/",
        "emcaps train tiny --set train.learning_rate=1e-3",
        "emcaps train tiny --teacher runs/small-toys-mono-seed0 --teacher runs/small-toys-mono-seed1",
        "emcaps train --config runs/small-toys-mono-seed0/config.json --seed 1",
        "emcaps train --resume runs/small-toys-mono-seed0",
    )
)(train)
app.command(
    "eval",
    epilog=examples(
        "emcaps eval small-stereo",
        "emcaps eval runs/small-toys-mono-seed0",
        "emcaps eval weights.safetensors --crops 13 --by-instance",
    ),
)(evaluate)
app.command(
    epilog=examples("emcaps predict runs/small-birds-seed0 photo.jpg", "emcaps predict small-mono pictures/ --json")
)(predict)
app.command(
    epilog=examples(
        "emcaps explore",
        "emcaps explore small-stereo --out stereo.html",
        "emcaps explore runs/small-birds-seed0 photo.jpg",
        "emcaps explore --serve",
    )
)(explore)
app.command(
    "export",
    epilog=examples(
        "emcaps export small-stereo --onnx small.onnx",
        "emcaps export runs/small-toys-mono-seed0 --onnx small.onnx --pt2 small.pt2",
    ),
)(export_network)
app.command(
    epilog=examples(
        "emcaps report runs/small-toys-mono-seed0 --open",
        "emcaps report runs/sweep/*/seed* --quick --out sweep.html",
    )
)(report)
app.command(epilog=examples("emcaps info"))(info)
app.command(epilog=examples("emcaps demo", "emcaps demo --quick --run /tmp/demo"))(demo)
app.command(
    epilog=examples(
        "emcaps bench",
        "emcaps bench --suite headline --out runs/bench/headline.csv",
        "emcaps bench --network full --batch 16 --batch 64 --iterations 3 --what forward --impl fused",
        "emcaps bench --plot runs/bench/headline.csv --out bench.svg",
        "emcaps bench --table runs/bench/headline.csv",
        "emcaps bench --suite pages --out runs/bench/pages.csv",
        "emcaps bench --profile --network small --iterations 2",
    )
)(bench)
app.command(
    epilog=examples(
        "emcaps sweep small --grid train.learning_rate=1e-3,3e-3 --grid network.iterations=2,3 --seeds 3 --jobs 2 "
        "--runs runs/sweep",
        "emcaps sweep small --grid train.learning_rate=1e-3,3e-3 --runs runs/sweep --part 2/8",
    )
)(sweep)
app.add_typer(data_app, name="data")
app.add_typer(experiment_app, name="experiment")


def main() -> None:
    """Run the command line; a user's mistake, or a refusal of the machine, ends in one line and exit status 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter is no reason to stop
    try:
        # Processes of torchrun wait for one another in libraries, where an exception would have to wait, too.
        with sigterm_like_ctrl_c() if process()[1] == 1 else nullcontext():
            _run()
    except (ValueError, OSError, RuntimeError) as error:
        if os.environ.get("EMCAPS_DEBUG"):
            raise
        if isinstance(error, RuntimeError):
            error = _of_the_machine(error)
        number, processes = process()
        who = f"emcaps, process {number} of {processes}" if number else "emcaps"
        if number:
            time.sleep(1)  # if all fail alike, process 0 has said so, and torchrun ends this one before it repeats it
        if not (number and isinstance(error, ConnectionError)):  # process 0 tells of a process that was lost
            print(f"{who}: {_in_one_line(error)}", file=sys.stderr)
        if processes > 1 and "torch" in sys.modules:
            from emcaps.train.distributed import end_at_once

            end_at_once(1)
        raise SystemExit(1) from None


def _run() -> None:
    try:
        app()
    except KeyboardInterrupt:  # where no command is at work yet, or any more, that knows what to say
        print("emcaps: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _of_the_machine(error: RuntimeError) -> ValueError:
    """What to say of torch's errors about memory and devices; others are ours and are raised."""
    from emcaps.train.device_errors import is_lost_device

    if "out of memory" in str(error) or "allocate memory" in str(error):
        return ValueError("there is not enough memory for this: use smaller images or a smaller batch size")
    if is_lost_device(error):
        reason = str(error).strip().partition("\n")[0]
        return ValueError(f"the GPU failed ({reason}): start the command again, or use --device cpu")
    raise error


def _in_one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split())
