"""Pictures of data, as contact sheets, and of what a network sees and routes; matplotlib is imported to draw one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from emcaps.analysis.flow import image_shares
from emcaps.data.contact_sheet import contact_sheet
from emcaps.data.prepared import CATEGORIES, Examples
from emcaps.files import atomic_write
from emcaps.nn import MatrixCapsNet
from emcaps.report.figures import check_matplotlib

SHEET_ROWS, SHEET_COLUMNS = 20, 10
"""A contact sheet of a set without viewpoints shows so many images of so many classes."""


def draw_contact_sheet(parts: Mapping[str, Examples], path: Path) -> None:
    """Draw a row per category: one image of each instance, training instances first, each from another azimuth.

    Of sets without viewpoints it draws the first training images of the first classes.
    """
    sheet = _sheet_of_views(parts) if parts["train"].has_viewpoints else _sheet_of_classes(parts["train"])
    with atomic_write(path) as temporary:
        _pyplot().imsave(temporary, sheet, cmap="gray", vmin=0, vmax=255, format="png")


def _sheet_of_classes(examples: Examples) -> npt.NDArray[np.uint8]:
    """Grey (H, W) or colour (H, W, 3): a row per class, an image twice as large as it is."""
    side, channels = examples.images.shape[2], 3 if examples.images.shape[1] >= 3 else 1
    rows = []
    for category in range(min(SHEET_ROWS, len(examples.names))):
        found = examples.images[examples.category == category][:SHEET_COLUMNS, :channels]
        blank = np.full((SHEET_COLUMNS - len(found), channels, side, side), 255, np.uint8)
        rows.append(np.concatenate([found, blank]))
    images = np.concatenate(rows)
    sheets = [contact_sheet(images[:, channel], SHEET_COLUMNS) for channel in range(channels)]
    sheet = np.stack([np.kron(one, np.ones((2, 2), np.uint8)) for one in sheets], axis=-1)
    return sheet if channels == 3 else sheet[..., 0]


def _sheet_of_views(parts: Mapping[str, Examples]) -> npt.NDArray[np.uint8]:
    images = []
    for category in range(len(CATEGORIES)):
        row: list[npt.NDArray[np.uint8]] = []
        for examples in parts.values():
            of_instance = examples.arrays["instance"]
            for instance in np.unique(of_instance[examples.category == category]):
                views = np.flatnonzero((examples.category == category) & (of_instance == instance))
                view = int(views[(2 * len(row) + 1) * len(views) // 20 % len(views)])
                row.append(examples.images[view, 0])
        images.append(row)
    columns = max(len(row) for row in images)
    blank = np.full((48, 48), 255, np.uint8)
    flat = [picture for row in images for picture in row + [blank] * (columns - len(row))]
    sheet: npt.NDArray[np.uint8] = np.kron(contact_sheet(np.stack(flat), columns), np.ones((2, 2), np.uint8))
    return sheet


def draw_routing(network: MatrixCapsNet, images: Tensor, labels: Sequence[int], path: Path) -> None:
    """Draw a row per image: image, primary capsules, where the answer's data came from in each iteration, classes.

    The images (B, C, H, W) are what the network reads.
    """
    network.eval()
    with torch.no_grad():
        trace = network.trace(images)
    iterations = len(trace.class_caps)
    activation = trace.class_caps[-1].activation
    answers = activation.argmax(-1)
    heat = [image_shares(network, trace, answers, iteration).cpu().numpy() for iteration in range(iterations)]
    primary = trace.primary_caps.activation.mean(-1).cpu().numpy()

    pyplot = _pyplot()
    figure, axes = pyplot.subplots(
        len(images),
        3 + iterations,
        figsize=(2 * (3 + iterations), 1.9 * len(images)),
        squeeze=False,
        layout="constrained",
    )
    titles = [
        "image",
        "primary capsules",
        *(f"routed to the answer,\niteration {t + 1}" for t in range(iterations)),
        "classes",
    ]
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=9)
    for row, label in enumerate(labels):
        picture = images[row, 0].cpu().numpy()
        side = picture.shape[0]
        axes[row, 0].imshow(picture, cmap="gray")
        axes[row, 0].set_ylabel(CATEGORIES[label], fontsize=9)
        axes[row, 1].imshow(primary[row], cmap="viridis", vmin=0, vmax=1)
        for iteration in range(iterations):
            axis = axes[row, 2 + iteration]
            axis.imshow(picture, cmap="gray")
            extent = (-0.5, side - 0.5, side - 0.5, -0.5)
            axis.imshow(heat[iteration][row], cmap="inferno", alpha=0.6, extent=extent, interpolation="bilinear")
        for axis in axes[row, :-1]:
            axis.set_xticks([])
            axis.set_yticks([])
        _bars(axes[row, -1], activation[row].cpu().numpy(), label, last=row + 1 == len(labels))
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    pyplot.close(figure)


def _bars(axis: Any, activation: np.ndarray[Any, Any], label: int, last: bool) -> None:
    colours = ["tab:green" if index == label else "tab:gray" for index in range(len(activation))]
    axis.barh(range(len(activation)), activation, color=colours)
    axis.set_xlim(0, 1)
    axis.set_yticks(range(len(activation)), CATEGORIES, fontsize=7)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=7, labelbottom=last)


def _pyplot() -> Any:
    check_matplotlib()
    import matplotlib

    matplotlib.use("Agg")  # files only; no screen needed
    from matplotlib import pyplot

    return pyplot
