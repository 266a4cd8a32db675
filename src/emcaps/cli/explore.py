"""`emcaps explore`: a page in which routing can be watched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emcaps.cli.shared import FolderOption, NetworkArgument

DEFAULT = "small-toys"


def explore(
    network: NetworkArgument = DEFAULT,
    pictures: Annotated[
        list[Path] | None,
        typer.Argument(help="Pictures (PNG, JPEG) or folders of them; toys otherwise.", metavar="IMAGE"),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("explorer.html"),
    open_it: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    serve: Annotated[bool, typer.Option("--serve", help="Write no file; serve the page on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --serve; 0 takes a free one.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer views of the toys, in a few seconds.")] = False,
    folder: FolderOption = None,
) -> None:
    """Write one HTML page in which a network runs and its routing can be watched, down to a single vote.

    The page holds everything: it opens from disk, asks no server, and takes pictures that are dropped on it.
    """
    import webbrowser

    from emcaps.explorer.explore import explorer_page, write_page
    from emcaps.explorer.pictures import QUICK, VIEWS
    from emcaps.explorer.serve import page_server
    from emcaps.report.progress import counting_bar

    with counting_bar("rendering", "toys") as on_progress:
        page = explorer_page(network, pictures or [], folder, QUICK if quick else VIEWS, on_progress)
    if not serve:
        write_page(page, out)
        print(f"{out} ({len(page.encode()) / 1e6:.1f} MB)")
        if open_it:
            webbrowser.open(out.resolve().as_uri())
        return
    with page_server(page, port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        print(f"{address}  (Ctrl-C ends)", flush=True)
        if open_it:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
