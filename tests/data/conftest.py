"""Small examples for the tests of the data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from emcaps.data.prepared import LABEL_RANGES, Examples


@pytest.fixture
def make_examples() -> Callable[..., Examples]:
    """Random images with the labels given, and random labels for those that are not."""

    def make(count: int, seed: int = 0, **labels: object) -> Examples:
        rng = np.random.default_rng(seed)
        images = rng.integers(0, 256, (count, 2, 48, 48), np.uint8)
        columns = {name: rng.choice(np.array(allowed, np.int16), count) for name, allowed in LABEL_RANGES.items()}
        columns |= {name: np.array(values, np.int16) for name, values in labels.items()}
        return Examples(images, **columns)

    return make
