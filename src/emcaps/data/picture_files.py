"""Picture files: found in a folder, decoded by Pillow, and made square. Pillow is imported when a picture is read.

Only PNG and JPEG are decoded, and no picture of more than MAX_PIXELS pixels, whatever its file is called.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from emcaps.config import FITS
from emcaps.files import check_regular
from emcaps.names import check_name

SUFFIXES = (".png", ".jpg", ".jpeg")
FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 80_000_000
"""A picture that announces more pixels is refused before it is decoded."""
MAX_PNG_PIXELS = 8 * 1032
"""The most pixels, of one bit, that a byte of a PNG can hold: deflate shrinks data to no less than a 1032nd."""
GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's name for pictures of so many channels."""


def is_picture(path: Path) -> bool:
    """Whether a file's name is that of a picture we read."""
    return path.suffix.lower() in SUFFIXES


def pictures_below(folder: Path, root: Path) -> tuple[list[Path], int]:
    """The pictures in a folder and its subfolders, in order, and how many other files there are.

    Hidden files do not count. A link that leads out of `root` is refused: what it points to was not offered.
    """
    found, others = [], 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            path = Path(place) / name
            check_inside(path, root)
            if path.is_symlink():
                raise ValueError(f"{path} is a link to a folder, and its pictures would count twice: remove the link")
        for name in sorted(files):
            if name.startswith("."):
                continue
            path = Path(place) / name
            check_inside(path, root)
            if is_picture(path):
                found.append(path)
            else:
                others += 1
    return found, others


def check_inside(path: Path, root: Path) -> None:
    """Raise ValueError if the path is a link that leads out of the folder `root`."""
    if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(
            f"{path} is a link that leads out of {root}: remove it, or put a copy of the file in its place"
        )


def is_grey(path: Path) -> bool:
    """Whether a picture has no colours, by its header."""
    with opened(path) as image:
        return image.mode in GREY_MODES


def read_picture(path: Path, size: int, fit: str, channels: int) -> npt.NDArray[np.uint8]:
    """The picture as uint8 (channels, size, size), upright as its camera says; transparent places become white."""
    if channels not in MODES:
        raise ValueError(
            f"a picture has 1, 3 or 4 channels, and this network reads {channels}: give the images as an .npz file"
        )
    with opened(path) as image:
        from PIL import ImageOps

        image.draft(MODES[channels], (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
        square = squared(_converted(ImageOps.exif_transpose(image), MODES[channels]), size, fit)
        pixels = np.asarray(square, np.uint8)
    return pixels.reshape(size, size, channels).transpose(2, 0, 1)


def resized(images: npt.NDArray[np.uint8], size: int, fit: str) -> npt.NDArray[np.uint8]:
    """Images (N, C, H, W) as (N, C, size, size), made square in the way that `fit` names."""
    if images.shape[2:] == (size, size):
        return images
    image_module = _pillow()
    made = np.empty((*images.shape[:2], size, size), np.uint8)
    for index in np.ndindex(*images.shape[:2]):
        made[index] = np.asarray(squared(image_module.fromarray(np.ascontiguousarray(images[index])), size, fit))
    return made


def squared(image: Any, size: int, fit: str) -> Any:
    """A Pillow image as a square of this side: "crop" cuts out the middle, "pad" adds black borders, or "stretch"."""
    check_name("fit", fit, FITS)
    from PIL import Image, ImageOps

    bilinear = Image.Resampling.BILINEAR
    if fit == "stretch":
        return image.resize((size, size), bilinear)
    return (ImageOps.fit if fit == "crop" else ImageOps.pad)(image, (size, size), bilinear)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The picture, opened by Pillow; ValueError names the file if anything about it is wrong."""
    image_module = _pillow()
    try:
        check_regular(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are checked here, and of odd metadata
            with image_module.open(path, formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ValueError(f"{image.width} x {image.height} pixels, more than {MAX_PIXELS:,}")
                if image.format == "PNG" and image.width * image.height > MAX_PNG_PIXELS * path.stat().st_size:
                    raise ValueError(f"{image.width} x {image.height} pixels, more than so small a file can hold")
                yield image
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}: name a picture that exists") from None
    except (ValueError, OSError, SyntaxError, EOFError, image_module.DecompressionBombError) as error:
        reason = "no PNG or JPEG" if isinstance(error, image_module.UnidentifiedImageError) else f"{error}"
        raise BrokenPictureError(f"{path} cannot be read as a picture ({reason}): replace or remove it") from error


class BrokenPictureError(ValueError):
    """A picture file that cannot be decoded."""


def _converted(image: Any, mode: str) -> Any:
    from PIL import Image

    if image.mode == mode:
        return image
    if image.mode.startswith("I"):  # 16 bits of grey: Pillow itself would clip them
        grey = Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))
        return grey.convert(mode)
    if mode != "RGBA" and (image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("pictures are decoded by Pillow, which is not installed: pip install pillow") from None
    return Image
