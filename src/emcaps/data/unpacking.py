"""How much a packed file may unpack to: enough for every picture, too little for a file that is made to fill memory."""

from __future__ import annotations

from emcaps.files import half_of_memory

CHUNK = 1 << 20
"""Bytes that are unpacked at a time."""
ALWAYS_ALLOWED = 1 << 26
"""Labels, which shrink without a bound, are smaller than this when they are unpacked."""
MAX_RATIO = 250
"""Pictures shrink to less than a hundredth of their size only if nearly all of their pixels are alike: black and white
shapes on an empty ground come to about 115. Deflate itself ends at 1032, which only one repeated byte reaches."""


def most_unpacked(stored_bytes: int) -> int:
    """The most bytes that so many packed ones may unpack to."""
    return min(max(ALWAYS_ALLOWED, MAX_RATIO * stored_bytes), half_of_memory())


def check_unpacked_size(stored_bytes: int, unpacked_bytes: int) -> None:
    """Raise ValueError if the unpacked size that a file announces is more than its packed size allows."""
    most = most_unpacked(stored_bytes)
    if unpacked_bytes > most:
        raise ValueError(
            f"it would unpack to {unpacked_bytes:,} bytes, more than the {most:,} that are allowed here for "
            f"{stored_bytes:,} packed ones: at most {MAX_RATIO} times as many, and half of this machine's memory"
        )
