"""A data set that is quick to make and easy to learn: each category is a bar at its own angle, in noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from emcaps.data.prepared import Examples, prepared_path, save_prepared


def pattern_examples(instances: tuple[int, ...], views: int, seed: int) -> Examples:
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:48, :48] - 23.5
    images, labels = [], []
    for category in range(5):
        angle = np.pi * category / 5
        bar = np.abs(rows * np.cos(angle) + columns * np.sin(angle)) < 4
        for instance in instances:
            for view in range(views):
                noise = random.normal(0, 10, (2, 48, 48))
                images.append(np.clip(100 + 100 * bar + noise, 0, 255).astype(np.uint8))
                labels.append((category, instance, view % 9, 2 * (view % 18), view % 6))
    return Examples(np.stack(images), *np.array(labels, np.int16).T)


def write_patterns(folder: Path, views: int = 4) -> Path:
    """Write both parts under the name of the toys, which is what training reads by default."""
    parts = {
        "train": pattern_examples((4, 6, 7, 8, 9), views, seed=1),
        "test": pattern_examples((0, 1, 2, 3, 5), views, seed=2),
    }
    save_prepared({prepared_path("toys", part, folder): examples for part, examples in parts.items()})
    return folder
