"""Arrays as PNG files, by the standard library alone, so that a page needs nothing to be installed."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"
GREY, COLOUR = 0, 2
"""The numbers that the format gives to its kinds of pixels."""


def png_bytes(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A PNG file of grey (H, W) or coloured (H, W, 3) pixels."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in ((), (3,)) or not pixels.size:
        raise ValueError(f"pixels must be uint8 (H, W) or (H, W, 3), not {pixels.dtype} {pixels.shape}")
    height, width = pixels.shape[:2]
    lines = pixels.reshape(height, -1)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1)  # filter 0: bytes as they are
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR if pixels.ndim == 3 else GREY, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
