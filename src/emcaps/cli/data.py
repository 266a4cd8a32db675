"""The commands of `emcaps data`: fetch, make and look at data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emcaps.cli.shared import FolderOption, examples, interruption, wide_console
from emcaps.config import DATASETS
from emcaps.names import check_name

data_app = typer.Typer(
    help="Fetch, make and look at data.",
    no_args_is_help=True,
    epilog=examples("emcaps data make --quick", "emcaps data show toys --png toys.png"),
)


@data_app.command("get", epilog=examples("emcaps data get", "emcaps data get --from ~/Downloads/smallnorb"))
def data_get(
    source: Annotated[Path | None, typer.Option("--from", help="Folder that holds the six original files.")] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Accept files that differ from the published ones.")
    ] = False,
    folder: FolderOption = None,
) -> None:
    """Download the six smallNORB files (263 MB; resumes), check their SHA-256, and prepare them to 48x48."""
    from emcaps.data.download import fetch_smallnorb
    from emcaps.data.prepared import data_folder
    from emcaps.data.smallnorb import prepare_smallnorb
    from emcaps.report.progress import counting_bar

    if source is None:
        source = data_folder(folder) / "smallnorb-originals"
        with interruption("the same command resumes"), counting_bar("downloading", "bytes") as on_progress:
            fetch_smallnorb(source, on_progress)
    with counting_bar("preparing", "images") as on_progress:
        paths = prepare_smallnorb(source, folder, on_progress, verify=not unverified)
    for path in paths:
        print(path)


@data_app.command("make", epilog=examples("emcaps data make", "emcaps data make --quick --folder /tmp/toys"))
def data_make(
    quick: Annotated[bool, typer.Option("--quick", help="A small subset, in seconds.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the toys' shapes.")] = 0,
    originals: Annotated[
        Path | None, typer.Option(help="Write 96x96 images here in smallNORB's original file format instead.")
    ] = None,
    folder: FolderOption = None,
) -> None:
    """Render the toys: five categories, ten instances each, in smallNORB's viewpoints and lightings."""
    from emcaps.data.prepared import file_fingerprint, prepared_path
    from emcaps.data.toy_set import QUICK, WHOLE, write_toys
    from emcaps.report.progress import counting_bar

    train = prepared_path("toys", "train", folder)
    before = file_fingerprint(train)
    with interruption("nothing was written"), counting_bar("rendering", "toys") as on_progress:
        paths = write_toys(
            folder, seed=seed, views=QUICK if quick else WHOLE, originals=originals, on_progress=on_progress
        )
    for path in paths:
        print(path)
    if before not in (None, file_fingerprint(train)):
        print("note: other toys were there before; runs that were trained on them cannot be resumed", file=sys.stderr)


@data_app.command("show", epilog=examples("emcaps data show toys --png toys.png"))
def data_show(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(DATASETS)}.", metavar="DATASET")] = "toys",
    png: Annotated[Path | None, typer.Option(help="Draw a contact sheet into this file.")] = None,
    folder: FolderOption = None,
) -> None:
    """Print what a data set holds and draw a contact sheet of it."""
    check_name("dataset", name, DATASETS)
    from emcaps.data.prepared import load_prepared, prepared_path
    from emcaps.report.figures import check_matplotlib
    from emcaps.report.pictures import draw_contact_sheet
    from emcaps.report.tables import holdings_table

    if png is not None:
        check_matplotlib()
    parts = {part: load_prepared(prepared_path(name, part, folder)) for part in ("train", "test")}
    wide_console().print(holdings_table(parts, name))
    if png is not None:
        draw_contact_sheet(parts, png)
        print(png)
