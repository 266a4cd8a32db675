"""Ways to damage a file: the kinds that disks, networks and people with bad intentions cause."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

EXTREMES = (0, 1, 2, 255, 2**15 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)
NUMBERS = (
    b"0",
    b"-1",
    b"1e999",
    b"NaN",
    b"99999999999999999999",
    b"1000000000",
    b"1",
    b"true",
    b"null",
    b'"x"',
    b"[]",
    b"{}",
    b"0.5",
)
EDGE = 400
"""Headers, and the directory of a zip, are within so many bytes from the start or the end."""


def _place(rng: random.Random, content: bytes) -> int:
    """A place anywhere, but in every second case near the start or the end, where headers and directories are."""
    near = min(EDGE, len(content))
    start = rng.choice((0, 0, len(content) - near)) if rng.random() < 0.5 else 0
    return start + rng.randrange(near if start or rng.random() < 0.5 else len(content))


def flip_bits(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[_place(rng, content)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def set_bytes(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 2, 4))):
        changed[_place(rng, content)] = rng.randrange(256)
    return bytes(changed)


def truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.choice((0, 1, len(content) - 1, rng.randrange(len(content)), rng.randrange(len(content))))]


def blank_block(rng: random.Random, content: bytes) -> bytes:
    start, size = _place(rng, content), rng.choice((1, 4, 16, 64, 512))
    changed = bytearray(content)
    changed[start : start + size] = rng.choice((b"\0", b"\xff", b" ")) * len(changed[start : start + size])
    return bytes(changed)


def delete_block(rng: random.Random, content: bytes) -> bytes:
    start = _place(rng, content)
    return content[:start] + content[start + rng.choice((1, 2, 4, 64)) :]


def repeat_block(rng: random.Random, content: bytes) -> bytes:
    start, size = _place(rng, content), rng.choice((1, 4, 32, 256))
    return content[: start + size] + content[start : start + size] * rng.choice((1, 1, 50)) + content[start + size :]


def insert_bytes(rng: random.Random, content: bytes) -> bytes:
    start = _place(rng, content)
    return content[:start] + rng.randbytes(rng.choice((1, 2, 16))) + content[start:]


def edit_word(rng: random.Random, content: bytes) -> bytes:
    """Put an extreme number, of 1 to 8 bytes in either order, into a place that may be a size or a count."""
    start, size = _place(rng, content), rng.choice((1, 2, 4, 8))
    value = (rng.choice(EXTREMES) % 256**size).to_bytes(size, rng.choice(("little", "big")))
    return content[:start] + value + content[start + size :]


def edit_number(rng: random.Random, content: bytes) -> bytes:
    """Replace a number that is written in digits, as in JSON or in an array's header."""
    found = list(re.finditer(rb"\d+(\.\d+)?", content[:20_000]))
    if not found:
        return edit_word(rng, content)
    chosen = rng.choice(found)
    return content[: chosen.start()] + rng.choice(NUMBERS) + content[chosen.end() :]


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    flip_bits,
    set_bytes,
    truncate,
    blank_block,
    delete_block,
    repeat_block,
    insert_bytes,
    edit_word,
    edit_number,
)


def mutated(rng: random.Random, content: bytes) -> bytes:
    """The content after one to three mutations that leave something to read, if they can."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if content:
            content = rng.choice(MUTATIONS)(rng, content)
    return content
