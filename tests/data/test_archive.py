"""Files that announce more than they hold, or unpack to more than the machine has."""

import io
import re
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from emcaps.data import unpacking
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
    assert path.stat().st_size < 10**4
    assert read(path).size == 10**6
    monkeypatch.setattr(unpacking, "half_of_memory", lambda: 10**5)
    with pytest.raises(ValueError, match=r"would unpack to 1,000,000 bytes, more than the 100,000 .*; REMEDY"):
        read(path)


@pytest.mark.parametrize("kind", ["array", "header"])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, kind):
    """A hundred kilobytes that would unpack to a hundred megabytes, as an array or as what claims to be a header."""
    content = bytes(10**8)
    if kind == "array":
        path = write(tmp_path / "a.npz", (10**8,), content)
    else:
        path = tmp_path / "a.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            made.writestr("images.npy", b"\x93NUMPY\x02\x00" + (10**8).to_bytes(4, "little") + content)
    assert path.stat().st_size < 2 * 10**5
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"a\.npz is damaged: (it would unpack to 100,000,000 bytes|EOF)"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_what_the_directory_lies_about_its_packed_size_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "ALWAYS_ALLOWED", 1000)
    path = write(tmp_path / "a.npz", (10**6,), bytes(10**6))
    with zipfile.ZipFile(path) as made:
        stored = made.getinfo("images.npy").compress_size
    content = path.read_bytes()
    at = content.rindex(b"PK\x01\x02") + 20
    assert content[at : at + 4] == stored.to_bytes(4, "little")
    path.write_bytes(content[:at] + (10**6).to_bytes(4, "little") + content[at + 4 :])
    with pytest.raises(ValueError, match="would unpack to 1,000,000 bytes"):
        read(path)


def npy(descr="|u1", shape="(2, 3)", order="False", content=bytes(6), version=b"\x01\x00"):
    header = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + content


def zipped(path, *members, method=zipfile.ZIP_STORED):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as made:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, content in members:
            made.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy(shape="(-1, -6)"), r"has the shape \(-1, -6\)"),
        (npy(shape="(0, 2**3)"), r"(Cannot parse header|malformed node)"),
        (npy(shape="(0, 1180591620717411303424)"), "has the shape"),
        (npy(shape="(True, 6)"), "has the shape"),
        (npy(shape="[2, 3]"), "shape is not valid"),
        (npy(shape="(2, 3"), "(Cannot parse header|EOF in multi-line)"),
        (npy(shape="(" * 300), "damaged: "),
        (npy(shape="__import__('os').abort()"), "damaged: "),
        (npy(shape="(9, 9)"), "announces 81 bytes and holds 6"),
        (npy(descr="<M8[s]", shape="()", content=bytes(8)), "elements of type datetime64"),
        (npy(descr="<U0", content=b""), "elements of type <U0"),
        (npy(descr="nonsense"), "damaged: "),
        (npy(descr=">U1", shape="(1,)", content=b"\0\x11\0\0"), "characters that do not exist"),
        (npy(order="7"), "fortran_order is not a valid bool"),
        (npy(version=b"\x09\x09"), r"version \(9, 9\)"),
        (b"", "no array"),
        (b"\x93NUMPY\x01\x00", "EOF"),
        (b"PK\x03\x04 a zip in a zip", "no array"),
    ],
)
def test_a_member_that_is_broken_is_one_clear_error(tmp_path, content, message):
    path = zipped(tmp_path / "a.npz", ("images.npy", content))
    with pytest.raises(ValueError, match=r"a\.npz is damaged: .*; REMEDY") as caught:
        read(path)
    assert re.search(message, str(caught.value))
    assert "\n" not in str(caught.value)


def test_an_array_of_python_objects_is_refused_before_it_is_read(tmp_path):
    path = zipped(tmp_path / "a.npz", ("images.npy", npy(descr="|O", content=b"cos\nabort\n(tR.")))
    with pytest.raises(
        ValueError, match=r"a\.npz: its array images holds Python objects, which could run any code.*; REMEDY"
    ):
        read(path)


def test_zips_that_are_broken_are_one_clear_error(tmp_path):
    good = npy(content=bytes(range(6)))
    path = tmp_path / "a.npz"
    with pytest.raises(ValueError, match="two members of the name images"):
        read(zipped(path, ("images.npy", good), ("images.npy", good)))
    with pytest.raises(ValueError, match=r"it has no images, only data/images; REMEDY"):
        read(zipped(path, ("data/images.npy", good)))
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with pytest.raises(ValueError, match=f"packed by method {method}, which numpy does not use"):
            read(zipped(path, ("images.npy", good), method=method))

    content = zipped(path, ("images.npy", good)).read_bytes()
    directory = content.rindex(b"PK\x01\x02")
    encrypted = bytearray(content)
    encrypted[6] |= 1  # in the member's own header and in the directory
    encrypted[directory + 8] |= 1
    path.write_bytes(encrypted)
    with pytest.raises(ValueError, match=r"images\.npy is encrypted"):
        read(path)
    path.write_bytes(content.replace(bytes(range(6)), bytes(6)))
    with pytest.raises(ValueError, match="Bad CRC-32"):
        read(path)
    two = zipped(path, ("images.npy", good), ("names.npy", good)).read_bytes()
    first = two.index(b"PK\x01\x02")
    path.write_bytes(two[: first + 32] + b"\xff" + two[first + 33 :])  # a comment that swallows the second entry
    with pytest.raises(ValueError, match="it announces 2 members and lists 1"):
        read(path)
    second = two.rindex(b"names.npy")
    path.write_bytes(two[:second] + b"m" + two[second + 1 :])
    with pytest.raises(ValueError, match=r"File name in directory 'mames\.npy' and header b'names\.npy' differ"):
        read(path)
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="is not a whole"):
            read(path)
    path.write_bytes(content)
    np.testing.assert_array_equal(read(path), np.arange(6).reshape(2, 3))


def test_columns_first_and_other_byte_orders_are_read(tmp_path):
    array = np.arange(24, dtype=">i4").reshape(2, 3, 4)
    for order in "CF":
        path = _saved(tmp_path / "a.npz", images=np.asarray(array, order=order))
        np.testing.assert_array_equal(read(path), array)
    for empty in (np.zeros((0, 3), np.uint8), np.array(7), np.array(["a", "bc"])):
        np.testing.assert_array_equal(read(_saved(tmp_path / "a.npz", images=empty)), empty)


def test_members_that_nobody_asks_for_are_never_opened(tmp_path):
    path = zipped(tmp_path / "a.npz", ("images.npy", npy()), ("evil.npy", npy(descr="|O")), ("notes.txt", "hello"))
    assert read(path).shape == (2, 3)


def test_missing_arrays_are_named(tmp_path):
    with (
        pytest.raises(ValueError, match=r"it has no images, only labels; REMEDY"),
        open_archive(_saved(tmp_path / "a.npz", labels=np.zeros(3)), "; REMEDY") as opened,
    ):
        read_arrays(opened, ("images",))


def _saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path
