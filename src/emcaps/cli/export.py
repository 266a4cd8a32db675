"""`emcaps export`: trained weights as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emcaps.cli.shared import NetworkArgument, note_unfinished, wide_console
from emcaps.files import METADATA, check_replaces, check_writable

STARTS = {"ONNX file": b"\x08", "file of torch.export": b"PK"}
"""The first bytes of what is written: the field of a version, and those of a zip."""


def export_network(
    weights: NetworkArgument,
    onnx: Annotated[Path | None, typer.Option(help="Write this ONNX file.")] = None,
    pt2: Annotated[Path | None, typer.Option(help="Write this file for torch.export.load.")] = None,
) -> None:
    """Write a trained network as ONNX or for torch.export.load, and check the file against PyTorch."""
    paths = [path for path in (onnx, pt2) if path is not None]
    if not paths:
        raise ValueError("there is no file to write: name one by --onnx FILE, --pt2 FILE or both")
    if onnx is not None and pt2 is not None and onnx.resolve() == pt2.resolve():
        raise ValueError(f"--onnx and --pt2 name the same file, {onnx}: name two files")
    for path, (what, start) in zip((onnx, pt2), STARTS.items(), strict=True):
        if path is not None:
            check_replaces(path, f"{what} by emcaps", start, METADATA.encode())
            check_writable(path.parent)
    from emcaps.export import export
    from emcaps.report.tables import export_table
    from emcaps.train.checkpoint import load
    from emcaps.weights import find_weights

    saved = load(find_weights(weights))
    note_unfinished(weights, saved.step, saved.config)
    wide_console().print(export_table(export(weights, onnx, pt2), f"{weights}, exported"))
