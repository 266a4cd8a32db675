"""Files that announce more than they hold, or unpack to more than the machine has."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from emcaps.data import archive
from emcaps.data.archive import open_archive, read_arrays


def write(path: Path, header_shape: tuple[int, ...], content: bytes) -> Path:
    """An .npz whose member `images` announces this shape and holds this content."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": header_shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("images.npy", file.getvalue() + content)
    return path


def read(path: Path) -> np.ndarray:
    with open_archive(path, "; REMEDY") as opened:
        return read_arrays(opened, ("images",))["images"]


def test_an_array_is_read(tmp_path):
    np.testing.assert_array_equal(read(write(tmp_path / "a.npz", (2, 3), bytes(range(6)))), [[0, 1, 2], [3, 4, 5]])


def test_a_header_that_announces_more_than_there_is_takes_no_memory(tmp_path):
    path = write(tmp_path / "a.npz", (10**6, 10**6), bytes(10))
    with pytest.raises(
        ValueError, match=r"a\.npz is damaged: images\.npy announces 1,000,000,000,000 bytes and holds 10"
    ):
        read(path)


def test_a_file_that_would_unpack_to_more_than_memory_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "a.npz", (10**6,), bytes(10**6))
    assert path.stat().st_size < 10**4  # it is a small zip bomb
    assert read(path).size == 10**6
    monkeypatch.setattr(archive, "_half_of_memory", lambda: 10**5)
    with pytest.raises(ValueError, match=r"would unpack to 1,000,\d+ bytes, more than the 100,000 .*; REMEDY"):
        read(path)


def test_missing_arrays_are_named(tmp_path):
    with (
        pytest.raises(ValueError, match=r"it has no images, only labels; REMEDY"),
        open_archive(_saved(tmp_path / "a.npz", labels=np.zeros(3)), "; REMEDY") as opened,
    ):
        read_arrays(opened, ("images",))


def _saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path
