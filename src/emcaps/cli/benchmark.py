"""`emcaps bench`: time the implementations of the routing, or draw and print what was timed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emcaps.bench.cases import BACKWARD, IMPLEMENTATIONS, NETWORKS, SUITES, TASKS, choose_cases, page_rows
from emcaps.cli.shared import DeviceOption, interruption, wide_console


def bench(
    suite: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(SUITES)} (default: headline on a GPU, quick on a CPU)."),
    ] = None,
    networks: Annotated[
        list[str] | None, typer.Option("--network", help=f"One of {', '.join(NETWORKS)}; may be repeated.")
    ] = None,
    batches: Annotated[list[int] | None, typer.Option("--batch", help="Images in a batch; may be repeated.")] = None,
    iterations: Annotated[list[int] | None, typer.Option(help="Routing iterations; may be repeated.")] = None,
    sizes: Annotated[list[int] | None, typer.Option("--size", help="Side of the images; may be repeated.")] = None,
    types: Annotated[
        list[int] | None, typer.Option(help="Types of both convolutional capsule layers; may be repeated.")
    ] = None,
    tasks: Annotated[list[str] | None, typer.Option("--what", help=f"{', '.join(TASKS)}; may be repeated.")] = None,
    impls: Annotated[
        list[str] | None,
        typer.Option(
            "--impl",
            help=f"{', '.join(IMPLEMENTATIONS)}; may be repeated (default: the first three). "
            "compiled is the reference by torch.compile, graphed the fused layers by emcaps.nn.graphed, fused+compile "
            "torch.compile around them, and plain the reference on a CPU in a process that does not keep freed memory.",
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
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Show time and issue slots by kernel, as NVIDIA's ncu counts them, instead of timing."
        ),
    ] = False,
) -> None:
    """Check the fast implementations against the definition, then time them beside it.

    A suite is a list of cases. Without --suite, --network, --batch, --iterations, --size and --types make a grid. The
    suite "pages" has the rows that the documentation shows, each with the implementations that it shows.
    """
    if plot is not None or table is not None:
        from emcaps.bench.plots import draw_rows
        from emcaps.bench.rows import read_rows
        from emcaps.bench.tables import markdown_headline

        if table is not None:
            print(markdown_headline(read_rows(table)))
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
    if profile:
        from emcaps.bench.profiler import run_profile
        from emcaps.train.device import pick_device

        run_profile(choose_cases(suite, chosen, tasks or (BACKWARD,)), wide_console(), pick_device(device))
        return
    cases = choose_cases(suite, chosen, tasks or ())

    only = page_rows() if suite == "pages" else None

    from emcaps.bench.run import run_bench

    out = out or Path("runs") / "bench" / f"{suite or 'grid'}.csv"
    with interruption(f"the rows that are done are in {out}"):
        run_bench(cases, impls or (), out, wide_console(), device=device, seconds=seconds, tf32=tf32, only=only)
