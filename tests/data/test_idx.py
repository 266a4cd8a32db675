import gzip
import struct

import numpy as np
import pytest

from emcaps.data.idx import idx_header, read_idx

ARRAY = np.random.default_rng(0).integers(0, 256, (3, 5, 4), np.uint8)
CONTENT = idx_header(ARRAY) + ARRAY.tobytes()


def write(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a-idx3-ubyte", "a-idx3-ubyte.gz"])
def test_an_array_is_read(tmp_path, name):
    assert CONTENT[:16] == struct.pack(">BBBBIII", 0, 0, 8, 3, 3, 5, 4)
    np.testing.assert_array_equal(read_idx(write(tmp_path / name, CONTENT)), ARRAY)


@pytest.mark.parametrize("name", ["a", "a.gz"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"expected 4 more bytes of the header, found 0"),
        (CONTENT[:10], r"expected 12 more bytes of the header, found 6"),
        (b"\x00\x00\x0d" + CONTENT[3:], r"starts with .*, expected .* as IDX files of bytes do"),
        (b"\x00\x00\x08\x09" + CONTENT[4:], r"1 to 4 dims"),
        (b"<html>", r"starts with b'<htm'"),
        (CONTENT[:-1], r"expected 60 bytes of data for uint8 of shape \(3, 5, 4\), found (at most )?59 bytes"),
        (CONTENT + b"!", r"expected 60 bytes .*, found more bytes after them"),
        (struct.pack(">BBBBIII", 0, 0, 8, 3, 2**31, 2**31, 4), r"expected \d+ bytes of data .*found at most"),
    ],
)
def test_damage_is_told_before_memory_is_taken(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        read_idx(write(tmp_path / name, content))
