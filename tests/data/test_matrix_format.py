from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from emcaps.data import matrix_format
from emcaps.data.matrix_format import read_matrix, write_matrix

MAGICS = {"float32": 0x1E3D4C51, "float64": 0x1E3D4C53, "int32": 0x1E3D4C54, "uint8": 0x1E3D4C55, "int16": 0x1E3D4C56}
any_matrix = st.sampled_from(sorted(MAGICS)).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=5, min_side=0, max_side=4))
)


def matrix_bytes(magic: int, ndim: int, dims: tuple[int, ...], data: bytes = b"", order: str = "<") -> bytes:
    return struct.pack(f"{order}{2 + len(dims)}i", magic, ndim, *dims) + data


def vector_bytes(data: bytes = b"\x01\x02\x03") -> bytes:
    return matrix_bytes(MAGICS["uint8"], 1, (3, 1, 1), data)


def file_with(folder: Path, content: bytes, name: str = "m.mat") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["m.mat", "m.mat.gz"])
@given(array=any_matrix)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_read_matrix_gives_back_what_write_matrix_wrote(tmp_path: Path, name: str, array: np.ndarray) -> None:
    write_matrix(tmp_path / name, array)
    again = read_matrix(tmp_path / name)
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()  # bytes, so that NaN and -0.0 count as themselves


@pytest.mark.parametrize(("dtype", "magic"), MAGICS.items())
def test_write_matrix_bytes_of_a_matrix(tmp_path: Path, dtype: str, magic: int) -> None:
    write_matrix(tmp_path / "m.mat", np.array([[1, 2], [3, 4], [5, 6]], dtype))
    elements = np.arange(1, 7).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    assert (tmp_path / "m.mat").read_bytes() == matrix_bytes(magic, 2, (3, 2, 1), elements)


def test_write_matrix_header_of_a_vector_and_of_four_dims(tmp_path: Path) -> None:
    write_matrix(tmp_path / "m.mat", np.zeros(7, np.int32))
    assert (tmp_path / "m.mat").read_bytes()[:20] == matrix_bytes(MAGICS["int32"], 1, (7, 1, 1))
    write_matrix(tmp_path / "m.mat", np.zeros((2, 3, 4, 5), np.uint8))
    assert (tmp_path / "m.mat").read_bytes()[:24] == matrix_bytes(MAGICS["uint8"], 4, (2, 3, 4, 5))


def test_write_matrix_of_strided_and_big_endian_arrays(tmp_path: Path) -> None:
    grid = np.arange(24, dtype=np.int32).reshape(4, 6)
    for array in (grid.T, grid[::-1, ::2], grid.astype(">i4")):
        write_matrix(tmp_path / "m.mat", array)
        np.testing.assert_array_equal(read_matrix(tmp_path / "m.mat"), array)


def test_write_matrix_gz_bytes_depend_on_the_array_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(100, dtype=np.int16)
    write_matrix(tmp_path / "a.mat.gz", array)
    monkeypatch.setattr("time.time", lambda: 1e9)
    write_matrix(tmp_path / "b.mat.gz", array)
    content = (tmp_path / "a.mat.gz").read_bytes()
    assert content == (tmp_path / "b.mat.gz").read_bytes()
    write_matrix(tmp_path / "a.mat", array)
    assert gzip.decompress(content) == (tmp_path / "a.mat").read_bytes()


def test_write_matrix_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.mat"
    write_matrix(path, np.zeros(3, np.uint8))
    before = path.read_bytes()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(matrix_format.gzip.GzipFile, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        write_matrix(tmp_path / "new.mat.gz", np.ones(3, np.uint8))
    monkeypatch.setattr(matrix_format.struct, "pack", stop)
    with pytest.raises(KeyboardInterrupt):
        write_matrix(path, np.ones(3, np.uint8))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.mat"]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, np.int64), r"m\.mat: cannot hold elements of type int64 \(allowed: float32.*use array\.astype"),
        (np.uint8(3), r"1 to 8 dims, not 0: reshape"),
        (np.zeros((1,) * 9, np.uint8), r"1 to 8 dims, not 9: reshape"),
        (np.broadcast_to(np.uint8(0), (2, 2**31)), r"must fit in 31 bits.*2147483648.*split"),
    ],
)
def test_write_matrix_refuses(tmp_path: Path, array: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_matrix(tmp_path / "m.mat", array)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", MAGICS)
def test_read_matrix_of_big_endian_bytes(tmp_path: Path, dtype: str) -> None:
    array = np.array([[1, 2, 3], [100, 50, 25]], dtype)
    data = array.astype(np.dtype(dtype).newbyteorder(">")).tobytes()
    again = read_matrix(file_with(tmp_path, matrix_bytes(MAGICS[dtype], 2, (2, 3, 1), data, ">")))
    assert again.dtype == array.dtype
    assert again.dtype.isnative
    np.testing.assert_array_equal(again, array)


def test_read_matrix_gives_an_array_that_can_be_changed(tmp_path: Path) -> None:
    array = read_matrix(file_with(tmp_path, vector_bytes()))
    array += 1
    assert array.tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"m\.mat: expected 8 more bytes of the header, found 0; .*fetch or write it again"),
        (vector_bytes()[:7], r"expected 8 more bytes of the header, found 7"),
        (vector_bytes()[:19], r"expected 12 more bytes of the header, found 11"),
        (matrix_bytes(MAGICS["uint8"], 5, (1, 1, 1, 1)), r"expected 20 more bytes of the header, found 16"),
        (b"<!DOCTYPE html>", r"starts with b'<!DOCTYP', expected the magic number.*web page.*fetch the file again"),
        (b"\n <html>..", r"looks like a web page"),
        (gzip.compress(vector_bytes()), r"this is gzip data: give the file a name that ends in \.gz"),
        (b"PK\x03\x04....", r"another kind of file, or a damaged one: fetch it again"),
        (matrix_bytes(0x1E3D4C52, 1, (3, 1, 1)), r"packed matrix \(magic number 0x1e3d4c52\), expected plain elements"),
        (matrix_bytes(0x1E3D4C52, 1, (3, 1, 1), order=">"), r"packed matrix"),
        (matrix_bytes(MAGICS["uint8"], 0, (1, 1, 1)), r"found ndim 0, expected 1 to 8"),
        (matrix_bytes(MAGICS["uint8"], -1, (1, 1, 1)), r"found ndim -1, expected 1 to 8"),
        (matrix_bytes(MAGICS["uint8"], 10**9, (1, 1, 1)), r"found ndim 1000000000, expected 1 to 8"),
        (matrix_bytes(MAGICS["uint8"], 2, (3, -2, 1)), r"found dims \(3, -2, 1\), expected none to be negative"),
        (
            matrix_bytes(MAGICS["uint8"], 1, (3, 2, 1), b"123"),
            r"dims \(3, 2, 1\) with ndim 1, expected unused.*to be 1",
        ),
        (vector_bytes(b"12"), r"expected 3 bytes of data for uint8 of shape \(3,\), found at most 2 bytes; .*damaged"),
        (vector_bytes(b"1234"), r"expected 3 bytes of data .* found more bytes after them"),
        (matrix_bytes(MAGICS["uint8"], 3, (2**31 - 1,) * 3), r"expected 9903520300447984150353281023 bytes .* found"),
    ],
)
def test_read_matrix_refuses(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_matrix(file_with(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"m\.mat\.gz: expected 8 more bytes of the header, found 0"),
        (b"<html>oops</html>", r"m\.mat\.gz: expected gzip data of 17 bytes, found: Not a gzipped file"),
        (gzip.compress(vector_bytes(), mtime=0)[:-12], r"found: Compressed file ended before the end.*fetch or write"),
        (gzip.compress(vector_bytes(), mtime=0)[:-8] + b"\0" * 8, r"found: CRC check failed"),
        (gzip.compress(vector_bytes(), mtime=0)[:10] + b"\xff" * 20, r"found: Error -3 while decompressing"),
        (gzip.compress(vector_bytes(b"12")), r"expected 3 bytes of data .*, found 2 bytes"),
        (gzip.compress(vector_bytes(b"1234")), r"found more bytes after them"),
        (
            gzip.compress(matrix_bytes(MAGICS["uint8"], 2, (2**31 - 1, 9, 1))),
            r"expected 19327352823 bytes .* found at most",
        ),
    ],
)
def test_read_matrix_gz_refuses(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_matrix(file_with(tmp_path, content, "m.mat.gz"))


def test_read_matrix_refuses_what_memory_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(matrix_format.np, "empty", full)
    with pytest.raises(ValueError, match=r"asks for 3 bytes .*, more than this machine can hold"):
        read_matrix(file_with(tmp_path, vector_bytes()))


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_read_matrix_of_a_cut_file_always_refuses(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["m.mat", "m.mat.gz"]))
    write_matrix(tmp_path / name, np.arange(30, dtype=np.float64).reshape(2, 3, 5))
    content = (tmp_path / name).read_bytes()
    path = file_with(tmp_path, content[: data.draw(st.integers(0, len(content) - 1))], name)
    with pytest.raises(ValueError, match=str(path)):
        read_matrix(path)


def test_read_matrix_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.mat"):
        read_matrix(tmp_path / "nowhere.mat")


@pytest.mark.parametrize("name", ["m.mat", "m.mat.gz"])
def test_read_matrix_holds_one_copy(tmp_path: Path, name: str) -> None:
    array = np.zeros((20, 1 << 20), np.uint8)
    array[:, ::4096] = np.arange(20)[:, None]
    write_matrix(tmp_path / name, array)
    tracemalloc.start()
    try:
        again = read_matrix(tmp_path / name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(again, array)
    assert peak < 1.3 * array.nbytes


def test_a_gz_bomb_is_refused_before_it_is_unpacked(tmp_path):
    """A hundred kilobytes that would unpack to a hundred megabytes, as its header says."""
    path = tmp_path / "bomb.mat.gz"
    header = np.array([0x1E3D4C55, 1, 10**8, 1, 1], "<i4").tobytes()
    path.write_bytes(gzip.compress(header + bytes(10**8)))
    assert path.stat().st_size < 2 * 10**5
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"expected 100000000 bytes .* at most .* a \.gz may unpack to 250 times"):
            read_matrix(path)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
