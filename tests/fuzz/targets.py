"""What is damaged: for every kind of file a small good one, how it is read, and what must hold of what is accepted.

A format with a checksum must notice every change of its content. Others cannot notice a changed pixel or setting: of
what they accept, only the structure can be judged. Where a file is packed, its content is also damaged below the
checksum (`inner`), so that the readers behind it are reached, too.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from emcaps.cli.training import _read_config_file
from emcaps.config import RunConfig, preset
from emcaps.data.idx import idx_header, read_idx
from emcaps.data.matrix_format import DTYPES, read_matrix, write_matrix
from emcaps.data.picture_files import read_picture
from emcaps.data.prepared import Examples, load_prepared, save_prepared
from emcaps.data.sources import Options, read_source
from emcaps.nn import build_network
from emcaps.train.checkpoint import load_network, save_weights
from emcaps.train.run_folder import read_metrics
from emcaps.train.tensor_file import DIGEST, TensorFile, _with_sorted_header, digest_of

Damage = Callable[[bytes], bytes]


class Target(NamedTuple):
    """One kind of file. `structure` gives what is wrong with an accepted value, given the file's bytes; "" if none."""

    name: str
    good: bytes
    read: Callable[[Path], Any]
    structure: Callable[[Any, bytes], str]
    checksum: bool = False
    inner: Callable[[bytes, Damage], bytes] | None = None
    """Damages the content of a packed file and packs it again, with a checksum that is right."""


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return type(one) is type(other) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and repr(one) == repr(other)


def make_targets(folder: Path) -> list[Target]:
    matrix = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    write_matrix(folder / "a.mat", matrix)
    write_matrix(folder / "a.mat.gz", matrix)
    images = np.random.default_rng(0).integers(0, 256, (12, 1, 8, 8), np.uint8)
    labels = np.arange(12, dtype=np.int16) % 3
    idx = idx_header(images[:, 0]) + images.tobytes()
    examples = Examples(images, labels, np.arange(12, dtype=np.int32), names=("ant", "bee", "cat"))
    save_prepared({folder / "mine-train.npz": examples, folder / "other" / "mine-test.npz": examples})
    packed = io.BytesIO()
    np.savez_compressed(packed, images=images, labels=labels.astype(np.int64), groups=np.arange(12) // 2)
    config = preset("tiny").override(
        {
            "network.conv_channels": 2,
            "network.primary_types": 2,
            "network.conv1_types": 2,
            "network.conv2_types": 2,
            "data.crop": 16,
        }
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # an input must be the same whenever it is made
        save_weights(folder / "w.safetensors", build_network(config.network, 1, 16), config, 7)
    rows = [{"step": 5 * n, "loss": 1 / n, "accuracy": 0.1 * n, "seconds": 1.5 * n} for n in range(1, 8)]
    metrics = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return [
        Target("a.mat", (folder / "a.mat").read_bytes(), read_matrix, _matrix),
        Target("a.mat.gz", (folder / "a.mat.gz").read_bytes(), read_matrix, _array, True, _in_gzip),
        Target("a-idx3-ubyte", idx, read_idx, _idx),
        Target("a-idx3-ubyte.gz", gzip.compress(idx, mtime=0), read_idx, _array, True, _in_gzip),
        Target("mine-train.npz", (folder / "mine-train.npz").read_bytes(), _prepared, _examples, True, _in_zip),
        Target("a.npz", packed.getvalue(), _source, _examples, True, _in_zip),
        Target("a.png", _picture(images[0, 0], "PNG"), _read_picture, _square, False, _in_png),
        Target("a.jpg", _picture(images[0, 0], "JPEG"), _read_picture, _square),
        Target("config.json", config.to_json().encode(), _read_config_file, _config),
        Target("metrics.jsonl", metrics, lambda path: read_metrics(path.parent), _rows),
        Target("w.safetensors", (folder / "w.safetensors").read_bytes(), _weights, _same_layers, True, _in_header),
    ]


def _picture(pixels: np.ndarray, kind: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def _read_picture(path: Path) -> np.ndarray:
    return read_picture(path, 8, "crop", 1)


def _prepared(path: Path) -> dict[str, Any]:
    return {"train": load_prepared(path)._asdict()}


def _source(path: Path) -> dict[str, Any]:
    return {part: examples._asdict() for part, examples in read_source(path, Options()).parts.items()}


def _weights(path: Path) -> dict[str, Any]:
    network, config, step = load_network(path)
    tensors = {name: value.detach().numpy() for name, value in network.state_dict().items()}
    return {"config": config, "step": step, "tensors": tensors}


def _in_gzip(content: bytes, damage: Damage) -> bytes:
    return gzip.compress(damage(gzip.decompress(content)), mtime=0)


def _in_zip(content: bytes, damage: Damage) -> bytes:
    """Damage one member of a zip; which one depends on the damage itself, through its first byte."""
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    names = sorted(members)
    chosen = names[sum(damage(bytes(8))) % len(names)]
    members[chosen] = damage(members[chosen])
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, member in members.items():
            made.writestr(name, member)
    return file.getvalue()


def _in_header(content: bytes, damage: Damage) -> bytes:
    """Damage the config in the header of a safetensors file, and give the file the digest that is right."""
    from safetensors.torch import load, save

    size = int.from_bytes(content[:8], "little")
    texts = json.loads(content[8 : 8 + size])["__metadata__"]
    del texts[DIGEST]
    texts["config"] = damage(texts["config"].encode()).decode("utf-8", "replace")
    tensors = load(content)
    return _with_sorted_header(save(tensors, {**texts, DIGEST: digest_of(TensorFile(tensors, texts))}))


def _in_png(content: bytes, damage: Damage) -> bytes:
    """Damage the content of one chunk of a PNG, and give every chunk the checksum that is right."""
    chunks, at = list[tuple[bytes, bytes]](), 8
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    chosen = sum(damage(bytes(8))) % (len(chunks) - 1)
    made = content[:8]
    for number, (kind, data) in enumerate(chunks):
        data = damage(data) if number == chosen else data
        made += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return made


def _array(value: Any, _content: bytes) -> str:
    known = isinstance(value, np.ndarray) and value.dtype in DTYPES.values()
    return "" if known else f"{type(value).__name__} is no array of a known type"


def _matrix(value: Any, content: bytes) -> str:
    wanted = value.nbytes + 8 + 4 * max(3, value.ndim)
    return _array(value, content) or ("" if wanted == len(content) else f"{len(content)} bytes, not {wanted}")


def _idx(value: Any, content: bytes) -> str:
    wanted = value.nbytes + 4 + 4 * value.ndim
    return "" if wanted == len(content) else f"{len(content)} bytes, not {wanted}"


def _examples(value: Any, _content: bytes) -> str:
    for part, arrays in value.items():
        images, category, names = arrays["images"], arrays["category"], arrays["names"]
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) == 0 or images.shape[2] != images.shape[3]:
            return f"{part} images {images.dtype} {images.shape}"
        if category.shape != (len(images),) or not 0 <= category.min() <= category.max() < len(names):
            return f"{part} labels {category.shape}, {category.min()} to {category.max()}, of {len(names)} classes"
        if arrays["instance"] is not None and arrays["instance"].shape != (len(images),):
            return f"{part} groups {arrays['instance'].shape}"
    return ""


def _square(value: Any, _content: bytes) -> str:
    return "" if value.dtype == np.uint8 and value.shape == (1, 8, 8) else f"{value.dtype} {value.shape}"


def _config(value: Any, _content: bytes) -> str:
    return "" if RunConfig.from_json(value.to_json()) == value else "the config does not come back from its JSON"


def _rows(value: Any, _content: bytes) -> str:
    return next((repr(row) for row in value if not isinstance(row, dict) or not isinstance(row.get("step"), int)), "")


def _same_layers(value: Any, content: bytes) -> str:
    config = value["config"]
    wanted = build_network(config.network, config.data.image_channels, config.data.crop).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    found = {name: array.shape for name, array in value["tensors"].items()}
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    types = {entry["dtype"] for name, entry in header.items() if name.startswith("network.")}
    return "" if shapes == found and types == {"F32"} else f"types {types}, shapes {found}"
