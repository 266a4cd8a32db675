"""`emcaps report`: one page about one or several runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emcaps.cli.shared import DeviceOption, FolderOption, interruption


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; they may still be in training.", metavar="RUN")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page (default: NAME-report.html for the run NAME, report.html for several)."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Look at a few hundred test images only, in seconds on a CPU.")
    ] = False,
    device: DeviceOption = "auto",
    folder: FolderOption = None,
) -> None:
    """Write an HTML page about runs: settings, curves, confusions, worst mistakes, routing, warning signs.

    The page is one file that needs no network. It compares several runs. Where weights or data are missing, it says so
    and shows the rest.
    """
    from emcaps.files import check_writable
    from emcaps.report.inspection import inspect_run
    from emcaps.report.progress import counting_bar
    from emcaps.report.run_page import check_place, write_report
    from emcaps.report.run_record import read_runs
    from emcaps.train.device import start_work

    records = read_runs(runs)
    path = out or Path("report.html" if len(records) > 1 else f"{records[0].folder.resolve().name}-report.html")
    check_place(path, len(records))
    check_writable(path.parent)
    place = start_work(device)
    found = []
    with interruption("no report was written"):
        for record in records:
            with counting_bar(record.name, "images") as on_progress:
                inspection = inspect_run(record, device=place, data_folder=folder, quick=quick, on_progress=on_progress)
            found.append((record, inspection))
        write_report(found, path)
    print(f"report: {path}")
    if open_page:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
