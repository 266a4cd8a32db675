"""What a decoder draws from poses, as a record of `emcaps experiment poses` and as a picture."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from emcaps.analysis.drawings import STEPS, Drawings, Pictures
from emcaps.files import atomic_write
from emcaps.nn.geometry import POSE
from emcaps.report.figures import new_figure


def record_of(drawings: Drawings, names: tuple[str, ...]) -> dict[str, Any]:
    """For a JSON file: pixels are deflated, as base64."""
    return {
        "classes": [names[label] for label in drawings.classes],
        "varied": names[drawings.varied],
        "steps": list(STEPS),
        "side": drawings.images.shape[-1],
    } | {
        name: base64.b64encode(zlib.compress(getattr(drawings, name).tobytes(), 9)).decode()
        for name in ("images", "drawn", "variations")
    }


def pictures_of(record: Mapping[str, Any], name: str) -> Pictures:
    """One of a record's arrays, (N, side, side)."""
    pixels = np.frombuffer(zlib.decompress(base64.b64decode(record[name])), np.uint8)
    return pixels.reshape(-1, record["side"], record["side"])


def draw_drawings(record: Mapping[str, Any], path: Path) -> None:
    """Left the images and what was drawn of them, right the variations of one of them, a strip for each number."""
    figure = new_figure((15, 5.6))
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.9))
    panels = left.subplots(len(record["classes"]), 2, squeeze=False)
    for column, (name, title) in enumerate((("images", "image"), ("drawn", "drawn from its pose"))):
        panels[0, column].set_title(title, fontsize="small")
        for panel, picture in zip(panels[:, column], pictures_of(record, name), strict=True):
            panel.imshow(picture, cmap="gray", vmin=0, vmax=255)
            panel.set(xticks=[], yticks=[])
    for panel, name in zip(panels[:, 0], record["classes"], strict=True):
        panel.set_ylabel(name, fontsize="small")
    steps = len(record["steps"])
    strips = pictures_of(record, "variations").reshape(POSE, steps, record["side"], record["side"])
    for number, (panel, strip) in enumerate(zip(right.subplots(4, 4).flat, strips, strict=True)):
        panel.imshow(np.concatenate(strip, axis=1), cmap="gray", vmin=0, vmax=255)
        panel.set(xticks=[], yticks=[])
        panel.set_title(f"row {number // 4 + 1}, column {number % 4 + 1}", fontsize="x-small")
    lowest, highest = record["steps"][0], record["steps"][-1]
    right.suptitle(
        f"the pose of the {record['varied']}, one number moved from {lowest:g} to {highest:+g} standard deviations",
        fontsize="medium",
    )
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=100, format="png")
