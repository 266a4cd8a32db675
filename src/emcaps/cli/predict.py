"""`emcaps predict`: which class a trained network sees in pictures."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from emcaps.cli.shared import DeviceOption, NetworkArgument, note_unfinished, wide_console

if TYPE_CHECKING:
    from emcaps.config import DataConfig

AT_A_TIME = 256
"""Pictures that are held in memory at once."""


def predict(
    weights: NetworkArgument,
    files: Annotated[
        list[Path],
        typer.Argument(help="Pictures (PNG, JPEG), folders of pictures, .npz files.", metavar="FILE"),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON with the scores of all classes.")] = False,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Name and skip pictures that are broken.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Print the class that a trained network sees in each picture, and its score.

    Size, colours and normalisation are those of the pictures that the network was trained on.
    """
    from emcaps.report.tables import prediction_table
    from emcaps.train import load_network
    from emcaps.train.device import start_work
    from emcaps.weights import find_weights

    network, config, step = load_network(find_weights(weights), start_work(device))
    note_unfinished(weights, step, config)
    rows: list[dict[str, Any]] = []
    for names, images, archive in _images(files, config.data, skip_broken):
        try:
            found = network.predict(images)
        except ValueError as error:
            raise ValueError(f"{archive}: {error}" if archive else str(error)) from error
        for name, answer, scores in zip(names, found.answers, found.scores.tolist(), strict=True):
            rows.append({"file": name, "answer": answer, "scores": dict(zip(found.names, scores, strict=True))})
    if not rows:
        raise ValueError("none of these pictures can be read: name others")
    if json:
        print(json_module.dumps(rows, indent=2))
    else:
        wide_console().print(prediction_table(rows, weights))


def _images(files: list[Path], data: DataConfig, skip_broken: bool) -> Iterator[tuple[list[str], Any, Path | None]]:
    """The names and images of a few files at a time, and the .npz file that they are from."""
    import numpy as np

    from emcaps.data.archive import open_archive, read_arrays
    from emcaps.data.picture_files import BrokenPictureError, is_picture, pictures_below, read_picture
    from emcaps.data.prepared import SIDE
    from emcaps.data.sources import NPZ_REMEDY

    pictures: list[Path] = []
    for path in files:
        if path.is_dir():
            found, _ = pictures_below(path, path)
            if not found:
                raise ValueError(f"{path} has no PNG or JPEG pictures: name a folder that has some")
            pictures += found
        elif path.suffix != ".npz":
            if not path.exists():
                raise FileNotFoundError(f"there is no file {path}: name a picture that exists")
            if not is_picture(path):
                raise ValueError(f"{path} is no .png, .jpg, .jpeg or .npz file: name one of these, or a folder")
            pictures.append(path)
    for start in range(0, len(pictures), AT_A_TIME):
        names, images = [], []
        for path in pictures[start : start + AT_A_TIME]:
            try:
                images.append(read_picture(path, data.size or SIDE, data.fit, data.image_channels))
                names.append(str(path))
            except BrokenPictureError as error:
                if not skip_broken:
                    raise ValueError(f"{error}, or skip such pictures with --skip-broken") from error
                print(f"note: skipped: {error}", file=sys.stderr)
        if images:
            yield names, np.stack(images), None
    for path in files:
        if path.suffix == ".npz":
            with open_archive(path, NPZ_REMEDY) as archive:
                stack = read_arrays(archive, ("images",))["images"]
            yield [f"{path}[{number}]" for number in range(len(stack) if stack.ndim else 0)], stack, path
