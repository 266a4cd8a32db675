"""Writes the explorer's page for a trained network and the pictures that it is shown on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from emcaps.config import DataConfig, RunConfig
from emcaps.data.picture_files import is_picture, pictures_below
from emcaps.data.prepared import class_names
from emcaps.data.splits import load_tested
from emcaps.data.toy_set import Views
from emcaps.explorer.page_file import GENERATOR, page_html
from emcaps.explorer.pictures import VIEWS, given_images, given_pictures, reads_toys, turning_toys
from emcaps.files import atomic_write, check_replaces
from emcaps.nn import MatrixCapsNet
from emcaps.nn.network import remove_decoder
from emcaps.train.checkpoint import load_network, save_weights
from emcaps.weights import find_weights

EXAMPLES = 30
"""How many images of a run's own data are shown."""
MOST_PICTURES = 200


def explorer_page(
    name: str,
    pictures: Sequence[Path] = (),
    folder: Path | None = None,
    views: Views = VIEWS,
    on_progress: Callable[[int, int], None] | None = None,
) -> str:
    """The page for a network: that of a run's folder, of a weights file, or one that comes with the package.

    It shows the given pictures. Without any it shows toys in these views, or, if toys are not what the network reads,
    images that it was tested on, from the prepared data in `folder`. `on_progress(done, total)` is told of every toy.
    """
    path = find_weights(name)
    network, config, step = load_network(path, "cpu", "reference")
    if not isinstance(network, MatrixCapsNet):
        raise ValueError(
            f"{name} is a {config.network.kind} network, which has no routing to show: name a capsule network"
        )
    if config.network.pose != "matrix":
        raise ValueError(f"the poses of {name} are vectors, which the page cannot show: name a network of matrices")
    if any(layer.padding for layer in config.network.layers or ()):
        raise ValueError(f"windows of {name} are padded, which the page cannot show: name a network without padding")
    if pictures:
        shown = given_pictures(_all_pictures(pictures), config.data)
    elif reads_toys(config.data):
        shown = turning_toys(config.data, views=views, on_progress=on_progress)
    else:
        shown = _tested_images(config.data, folder)
    weights = path.read_bytes()
    if config.network.decoder:
        config = remove_decoder(network, config)
        weights = _weights_of(network, config, step)
    return page_html(weights, shown, f"{_short(name)} on {_described(shown)}")


def _weights_of(network: MatrixCapsNet, config: RunConfig, step: int) -> bytes:
    """A weights file's content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        save_weights(path, network, config, step)
        return path.read_bytes()


def write_page(page: str, out: Path) -> None:
    """Write the page to a file; one that this did not make is not replaced."""
    check_replaces(out, "page of the explorer", b"<!doctype html>", GENERATOR.encode())
    with atomic_write(out) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _all_pictures(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += pictures_below(path, path)[0]
        elif path.exists() and not is_picture(path):
            raise ValueError(f"{path} is no .png, .jpg or .jpeg file: name pictures, or a folder of them")
        else:
            found.append(path)
    if not 0 < len(found) <= MOST_PICTURES:
        raise ValueError(f"a page shows 1 to {MOST_PICTURES} pictures, not {len(found)}: name others")
    return found


def _tested_images(data: DataConfig, folder: Path | None) -> dict[str, Any]:
    """Some images of the set that the network was tested on, as many of each class."""
    try:
        examples = load_tested(data, folder)["test"]
    except (OSError, ValueError) as error:
        raise ValueError(
            f"the images of {data.dataset} cannot be shown ({error}): name pictures of your own"
        ) from error
    names = class_names(data)
    of_class = max(1, EXAMPLES // len(names))
    chosen = np.concatenate([np.flatnonzero(examples.category == number)[:of_class] for number in range(len(names))])[
        :EXAMPLES
    ]
    shown = [names[int(examples.category[place])] for place in chosen]
    return given_images(examples.images[chosen, : data.image_channels], shown, shown)


def _described(shown: dict[str, Any]) -> str:
    if shown["kind"] == "toys":
        return "toys"
    return "test images" if shown["truths"] else "pictures"


def _short(name: str) -> str:
    return Path(name).name or name
