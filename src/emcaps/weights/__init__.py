"""Trained networks that come with the package. Their model card is README.md beside this file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from emcaps.data.crops import evaluation_crops
from emcaps.data.prepared import SIDE
from emcaps.names import unknown_name
from emcaps.nn.classifier import Classifier
from emcaps.train.checkpoint import kept_checkpoints, load_network
from emcaps.train.checkpoint import load as load_file
from emcaps.train.run_folder import CHECKPOINT, WEIGHTS

SHIPPED = tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.safetensors")))
"""The names that `load` knows."""


def find_weights(name: str | Path) -> Path:
    """The weights file of a shipped network or of a run (its checkpoint if it is not complete), or the file itself."""
    path = Path(name)
    if path.is_dir():
        saved = [] if (path / WEIGHTS).exists() else kept_checkpoints(path / CHECKPOINT)
        return saved[0] if saved else path / WEIGHTS
    if str(name) in SHIPPED and not path.exists():
        return Path(__file__).parent / f"{name}.safetensors"
    if path.exists() or path.suffix == ".safetensors":
        return path
    raise FileNotFoundError(
        f"there is no file {name}; {unknown_name('network', str(name), SHIPPED)}: name one of these, a run folder or a "
        ".safetensors file that exists"
    )


def load(name: str | Path, device: torch.device | str = "cpu", impl: str | None = None) -> Classifier:
    """A trained network, ready to classify.

    `name` is the name of a network that comes with the package, a run folder or a .safetensors file. `impl` is the
    implementation of its routing, as in `conv_routing`; without it the network keeps the one of its training where that
    can run.

    Examples:
        >>> import emcaps, torch
        >>> network = emcaps.load("small-stereo")
        >>> images = torch.randint(256, (4, 2, 48, 48), dtype=torch.uint8)
        >>> network(emcaps.crops_for("small-stereo", images)).activation.shape
        torch.Size([4, 5])
    """
    network, _, _ = load_network(find_weights(name), device, impl)
    return network.eval()


def crops_for(name: str | Path, images: Tensor) -> Tensor:
    """What the network of this name reads: the centre of uint8 images (B, C, side, side), prepared as in its training.

    The side is 48 for the networks that come with the package, else that of the images that the network was trained on.

    Networks differ in their preparation, and one that gets crops of another kind gives wrong answers without an error.
    """
    data = load_file(find_weights(name)).config.data
    side = data.size or SIDE
    shape = (data.image_channels, side, side)
    kind = "" if data.channels else f", {data.view}"
    rule = f"images for {name} must be a uint8 tensor (B, {', '.join(map(str, shape))}){kind}, not"
    if not isinstance(images, Tensor):
        raise TypeError(f"{rule} {type(images).__name__}: torch.from_numpy or torch.as_tensor makes one")
    if images.dtype != torch.uint8:
        raise ValueError(f"{rule} {images.dtype}: give grey levels from 0 to 255, not standardised")
    if images.ndim != 4 or images.shape[1] != shape[0]:
        raise ValueError(f"{rule} {tuple(images.shape)}: one channel a camera, stereo pairs as two")
    if images.shape[2:] != shape[1:]:
        raise ValueError(f"{rule} {tuple(images.shape)}: resize them to {side} x {side}")
    return evaluation_crops(images, data.crop, 1, data.standardise)[:, 0]
