"""Safetensors files that notice damage: they hold a SHA-256 of all their tensors and texts, checked on reading.

Loading runs no code, and takes about twice as much memory as the file is large. A file is read as a whole, not mapped:
what is used is then what the digest was checked of, whatever becomes of the file meanwhile.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from emcaps.files import atomic_write, half_of_memory, open_regular, parse_json

logger = logging.getLogger("emcaps")

DIGEST = "sha256"
SHIPPED_FOLDER = Path(__file__).resolve().parent.parent / "weights"
SHIPPED_DIGESTS = {
    "full-stereo.safetensors": "fe37f8f5c5030ed9e7fe7361a535f1a8b594fa15600c0beee4aae291b48046bb",
    "small-mono.safetensors": "2c2886f4599fdd1112350e56c05999c1883dc5998f473444bf296f72e01b2355",
    "small-stereo.safetensors": "8e2c2c03222671f78eb6d40c5a8c743f2644bce40f1dea773f4d110f102d8dfe",
}
"""Digests of the shipped files that are older than digests and hold none."""


class DamagedFileError(ValueError):
    """The file is not what was written."""

    def __init__(self, path: Path, wrong: object, remedy: str = "use another copy") -> None:
        if is_shipped(path):
            remedy = "install emcaps again"
        # Only the first line: torch's messages go on with a stack of C++ frames.
        self.wrong = str(wrong).partition("\n")[0]
        super().__init__(f"{path} is damaged or was not written by emcaps ({self.wrong}): {remedy}")


class TensorFile(NamedTuple):
    tensors: dict[str, Tensor]
    texts: dict[str, str]
    """Without the digest."""


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str], older: Sequence[Path] = ()
) -> None:
    """Write a file and its digest, atomically; equal tensors and texts give equal files. `older` as in atomic_write."""
    from safetensors.torch import save

    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(kept, {**texts, DIGEST: digest_of(TensorFile(kept, dict(texts)))})
    with atomic_write(path, older) as temporary:
        temporary.write_bytes(_with_sorted_header(content))


def read_tensors(path: Path, names: frozenset[str]) -> TensorFile:
    """Read a file whose texts have these names; DamagedFileError if it is not what was written.

    A file without a digest is read as it is, with a note: older versions wrote none.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = _content(path)
    try:
        tensors = load(content)
        texts = _texts(content)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        # Beside its own errors those of torch, about a size or a type that safetensors knows and torch does not.
        if "memory" in str(error):  # the file is not to blame
            raise
        raise DamagedFileError(path, error) from error
    expected = texts.pop(DIGEST, None)
    # A damaged name of the digest must not make the file one of those that have none.
    if missing := names - texts.keys():
        raise DamagedFileError(path, f"its header lacks {' and '.join(sorted(missing))}")
    if extra := texts.keys() - names:
        raise DamagedFileError(path, f"its header has {', '.join(map(ascii, sorted(extra)))}, which nobody wrote")
    found = TensorFile(tensors, texts)
    if expected is None and is_shipped(path):
        expected = SHIPPED_DIGESTS.get(path.name)
    if expected is None:
        _tell_of_missing_digest(path)
    elif digest_of(found) != expected:
        raise DamagedFileError(path, "its content has another SHA-256 than when it was written")
    return found


def is_shipped(path: Path) -> bool:
    """Whether this file came with the package."""
    return path.resolve().parent == SHIPPED_FOLDER


def digest_of(content: TensorFile) -> str:
    """The SHA-256, in hex, of the texts and of the name, dtype, shape and bytes of every tensor."""
    tensors = sorted(content.tensors.items())
    described = [[name, str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors]
    found = hashlib.sha256(json.dumps([sorted(content.texts.items()), described]).encode())
    for _, tensor in tensors:
        found.update(tensor.flatten().view(torch.uint8).numpy().data)  # no copy of a contiguous tensor
    return found.hexdigest()


def is_utf8(path: Path) -> bool:
    return not any("\udc80" <= letter <= "\udcff" for letter in str(path))  # these stand for bytes that are not UTF-8


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        size, most = os.fstat(file.fileno()).st_size, half_of_memory()
        if size > most:
            raise ValueError(f"{path} has {size:,} bytes, more than half of this machine's memory: use a larger one")
        return file.read()


def _texts(content: bytes) -> dict[str, str]:
    """The texts in the header of a safetensors file that was found to be one."""
    size = int.from_bytes(content[:8], "little")
    texts = parse_json(content[8 : 8 + size]).get("__metadata__") or {}
    if not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("its texts are no texts")
    return dict(texts)


@functools.cache
def _tell_of_missing_digest(path: Path) -> None:
    """Once for each file."""
    logger.info("%s is of an older emcaps and holds no SHA-256 of its content: damage to it may go unnoticed", path)


def _with_sorted_header(content: bytes) -> bytes:
    """A safetensors file with its header's keys sorted: safetensors writes them in random order, so that without this
    equal networks would be saved as different files."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # what follows stays aligned
    return len(header).to_bytes(8, "little") + header + content[8 + size :]
