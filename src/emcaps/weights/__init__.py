"""Trained networks that come with the package. Their model card is README.md beside this file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from emcaps.names import unknown_name
from emcaps.train.checkpoint import load_network
from emcaps.train.run_folder import CHECKPOINT, WEIGHTS

SHIPPED = tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.safetensors")))
"""The names that `load` knows."""


def find_weights(name: str | Path) -> Path:
    """The file of a shipped network, of a run folder (its last checkpoint if it is not finished), or the file named."""
    path = Path(name)
    if path.is_dir():
        finished = (path / WEIGHTS).exists() or not (path / CHECKPOINT).exists()
        return path / (WEIGHTS if finished else CHECKPOINT)
    if str(name) in SHIPPED and not path.exists():
        return Path(__file__).parent / f"{name}.safetensors"
    if path.exists() or path.suffix == ".safetensors":
        return path
    raise FileNotFoundError(
        f"there is no file {name}; {unknown_name('network', str(name), SHIPPED)}: name one of these, a run folder or a "
        ".safetensors file that exists"
    )


def load(name: str | Path, device: torch.device | str = "cpu") -> nn.Module:
    """A trained network, ready to classify.

    >>> network = emcaps.load("small-stereo")
    >>> crops = emcaps.data.augment.evaluation_crops(images, 32, standardised="crop")[:, 0]  # of uint8 (B, 2, 48, 48)
    >>> network(crops).activation.argmax(-1)

    `name` is that of a network that comes with the package, a run folder or a .safetensors file.
    """
    network, _, _ = load_network(find_weights(name), device)
    return network.eval()
