"""The commands of `emcaps data`: fetch, make, import and look at data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from emcaps.cli.shared import FolderOption, examples, interruption, wide_console
from emcaps.config import DATASETS, FITS, PLAIN_DATASETS
from emcaps.files import check_replaces
from emcaps.names import check_name

PNG_START = b"\x89PNG"
"""The first bytes of a PNG picture."""

FETCHED = ("smallnorb", *PLAIN_DATASETS)

data_app = typer.Typer(
    help="Fetch, make, import and look at data.",
    no_args_is_help=True,
    epilog=examples("emcaps data make --quick", "emcaps data show toys --png toys.png"),
)


@data_app.command(
    "get",
    epilog=examples("emcaps data get", "emcaps data get mnist", "emcaps data get --from ~/Downloads/smallnorb"),
)
def data_get(
    name: Annotated[
        str, typer.Argument(help=f"One of {', '.join(FETCHED)}.", metavar="DATASET", show_default=True)
    ] = "smallnorb",
    source: Annotated[Path | None, typer.Option("--from", help="Folder that holds the original files.")] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Accept files that differ from the published ones.")
    ] = False,
    folder: FolderOption = None,
) -> None:
    """Download a data set (resumes), check its SHA-256, and prepare it: smallNORB (263 MB) to 48x48, others as is."""
    check_name("dataset", name, FETCHED)
    if name != "smallnorb":
        _get_plain(name, source, folder, verify=not unverified)
        return
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


def _get_plain(name: str, source: Path | None, folder: Path | None, *, verify: bool) -> None:
    from emcaps.data.builtin import ORIGINALS, originals_folder, prepare_builtin
    from emcaps.data.download import fetch
    from emcaps.report.progress import counting_bar

    if source is None:
        source = originals_folder(name, folder)
        with interruption("the same command resumes"), counting_bar("downloading", "bytes") as on_progress:
            fetch(ORIGINALS[name], source, on_progress, dataset=name)
    for path in prepare_builtin(name, source, folder, verify=verify):
        print(path)


@data_app.command(
    "import",
    epilog=examples(
        "emcaps data import pictures/ --name birds",
        "emcaps data import pictures/ --name birds --size 48 --fit pad --grey --png sheet.png",
        "emcaps data import images.npz --name cells --test-share 0.1",
    ),
)
def data_import(
    source: Annotated[
        Path,
        typer.Argument(
            help="A folder of class subfolders with PNG or JPEG pictures, a folder with train/ and test/ of these, or "
            "an .npz with images and labels (and test_images, test_labels, names, groups).",
            metavar="SOURCE",
        ),
    ],
    name: Annotated[str, typer.Option(help="What `emcaps train --data` shall call the set.")],
    size: Annotated[
        int | None, typer.Option(help="Side of the prepared images (default: 32; an .npz keeps its own).")
    ] = None,
    fit: Annotated[str, typer.Option(help="How pictures become square: crop, pad or stretch.")] = "crop",
    colour: Annotated[
        bool | None, typer.Option("--colour/--grey", help="Three channels or one (default: as the pictures are).")
    ] = None,
    test_share: Annotated[float, typer.Option(help="Share of each class to test on, if there is no test part.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed of the choice of test images.")] = 0,
    groups: Annotated[
        Path | None,
        typer.Option(help="CSV file of lines PICTURE,GROUP: the pictures of a group are all trained or all tested on."),
    ] = None,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Name and skip pictures that are broken.")] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Replace another set of this name; runs that were trained on it can then not be resumed.",
        ),
    ] = False,
    png: Annotated[Path | None, typer.Option(help="Draw a contact sheet into this file.")] = None,
    folder: FolderOption = None,
) -> None:
    """Prepare your own images once: resize, split into training and test part, and show what there is."""
    check_name("fit", fit, FITS)
    from emcaps.data.prepared import PARTS, check_replaces_no_other_set, imported_path, save_prepared
    from emcaps.data.sources import Options, read_source
    from emcaps.report.figures import check_matplotlib
    from emcaps.report.pictures import draw_contact_sheet
    from emcaps.report.progress import counting_bar
    from emcaps.report.tables import holdings_table

    if png is not None:
        check_matplotlib()
        check_replaces(png, "PNG picture", PNG_START)
        top = Path(source).expanduser().resolve()
        if png.resolve().is_relative_to(top) and png.resolve().parent != top:
            raise ValueError(
                f"{png} lies in a subfolder of {source}, where the next import would take a contact sheet for a "
                "picture of a class: name a --png outside of the subfolders"
            )
    paths = {part: imported_path(name, part, folder) for part in PARTS}
    with interruption("nothing was written"), counting_bar("reading", "pictures") as on_progress:
        found = read_source(source, Options(size, fit, colour, test_share, seed, groups, skip_broken), on_progress)
    for reason in found.skipped:
        print(f"note: skipped: {reason}", file=sys.stderr)
    if found.ignored:
        print(f"note: {found.ignored} files that are neither PNG nor JPEG were passed over", file=sys.stderr)
    prepared = {paths[part]: examples for part, examples in found.parts.items()}
    if not replace:
        check_replaces_no_other_set(name, prepared)
    save_prepared(prepared)
    wide_console().print(holdings_table(found.parts, name))
    if png is not None:
        draw_contact_sheet(found.parts, png)
        print(png)
    for path in paths.values():
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
    with interruption("the same command starts over"), counting_bar("rendering", "toys") as on_progress:
        paths = write_toys(
            folder, seed=seed, views=QUICK if quick else WHOLE, originals=originals, on_progress=on_progress
        )
    for path in paths:
        print(path)
    if before not in (None, file_fingerprint(train)):
        print("note: other toys were there before; runs that were trained on them cannot be resumed", file=sys.stderr)


@data_app.command("show", epilog=examples("emcaps data show toys --png toys.png"))
def data_show(
    name: Annotated[
        str, typer.Argument(help=f"One of {', '.join((*DATASETS, *PLAIN_DATASETS))} or imported.", metavar="DATASET")
    ] = "toys",
    png: Annotated[Path | None, typer.Option(help="Draw a contact sheet into this file.")] = None,
    folder: FolderOption = None,
) -> None:
    """Print what a data set holds and draw a contact sheet of it."""
    from emcaps.data.prepared import load_prepared, prepared_path
    from emcaps.report.figures import check_matplotlib
    from emcaps.report.pictures import draw_contact_sheet
    from emcaps.report.tables import holdings_table

    paths = {part: prepared_path(name, part, folder) for part in ("train", "test")}
    if png is not None:
        check_matplotlib()
        check_replaces(png, "PNG picture", PNG_START)
    parts = {part: load_prepared(path) for part, path in paths.items()}
    wide_console().print(holdings_table(parts, name))
    if png is not None:
        draw_contact_sheet(parts, png)
        print(png)
