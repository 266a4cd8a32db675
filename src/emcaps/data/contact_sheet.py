"""Many grey images on one sheet, to look at."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def contact_sheet(
    images: npt.NDArray[np.uint8], columns: int, *, gap: int = 2, background: int = 255
) -> npt.NDArray[np.uint8]:
    """The images (N, height, width) row by row, `columns` to a row, as one grey image; empty places are background."""
    if images.ndim != 3 or images.dtype != np.uint8 or len(images) == 0:
        raise ValueError(
            f"a contact sheet needs uint8 images of shape (N, height, width) with N at least 1, not {images.dtype} "
            f"{images.shape}: choose one camera, as in images[:, 0]"
        )
    if columns < 1:
        raise ValueError(f"a contact sheet has at least 1 column, not {columns}")
    if gap < 0:
        raise ValueError(f"the gap between images is zero or more pixels, not {gap}")
    if not 0 <= background <= 255:
        raise ValueError(f"the background is a grey from 0 to 255, not {background}")
    count, height, width = images.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), background, np.uint8)
    for n, image in enumerate(images):
        top, left = (n // columns) * (height + gap), (n % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = image
    return sheet
