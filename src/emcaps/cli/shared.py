"""What the commands share: options, help pages, the console, and how an interruption ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
FolderOption = Annotated[
    Path | None, typer.Option(help="Folder of the prepared data (default: $EMCAPS_DATA, else the user's cache folder).")
]


def examples(*commands: str) -> str:
    """The end of a help page, one command a line."""
    return "\n\n".join(["Examples:", *commands])


@contextmanager
def interruption(advice: str) -> Iterator[None]:
    """Say what Ctrl-C left behind."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"emcaps: interrupted; {advice}", file=sys.stderr)
        raise typer.Exit(130) from None


def wide_console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    in_a_file = not console.is_terminal and "COLUMNS" not in os.environ
    console.width = max(160 if in_a_file else 80, console.width)  # tables are made for 80 columns or more
    return console
