"""Small sets of one's own: bars in noise, each class at its own angle, as arrays and as picture files."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def bars(
    count: int, classes: int = 3, side: int = 20, channels: int = 1, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (count, channels, side, side) and labels int64 (count,), class after class."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side] - (side - 1) / 2
    labels = np.arange(count) % classes
    images = np.empty((count, channels, side, side), np.uint8)
    for number, label in enumerate(labels):
        angle = np.pi * label / classes
        bar = np.abs(rows * np.cos(angle) + columns * np.sin(angle)) < 3
        images[number] = np.clip(60 + 120 * bar + random.normal(0, 10, (channels, side, side)), 0, 255)
    return images, labels


def write_pictures(
    folder: Path, names: tuple[str, ...] = ("ant", "bee", "cat"), each: int = 10, side: int = 20, colour: bool = True
) -> Path:
    """A folder for each class; every second picture is a JPEG, and their heights differ."""
    from PIL import Image

    images, labels = bars(each * len(names), len(names), side, 3 if colour else 1)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / names[label]
        place.mkdir(parents=True, exist_ok=True)
        pixels = image.transpose(1, 2, 0)[: side - number % 3]
        suffix = "jpg" if number % 2 else "png"
        Image.fromarray(pixels if colour else pixels[..., 0]).save(place / f"{number:03}.{suffix}")
    return folder
