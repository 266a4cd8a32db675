import os
import stat
from pathlib import Path

import pytest

from emcaps.files import append_line, atomic_write, check_writable, read_json, write_json, write_text


def test_atomic_write_replaces_the_whole_file(tmp_path):
    path = tmp_path / "new" / "file.txt"
    for text in ("first", "second"):
        with atomic_write(path) as temporary:
            temporary.write_text(text)
        assert path.read_text() == text
    assert os.listdir(path.parent) == ["file.txt"]


def test_atomic_write_that_fails_keeps_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="half way"), atomic_write(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise RuntimeError("half way")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_atomic_write_makes_an_ordinary_file_not_a_private_one(tmp_path):
    before = os.umask(0o022)
    try:
        with atomic_write(tmp_path / "file") as temporary:
            temporary.write_text("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full, which Linux has")
def test_a_full_disk_is_one_clear_line(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"no space left to write .*metrics\.jsonl.*free some space"):
        append_line(tmp_path / "metrics.jsonl", "{}")


def test_a_place_that_cannot_be_written_is_named_with_the_remedy(tmp_path):
    (tmp_path / "taken").mkdir()
    with (
        pytest.raises(OSError, match=r"taken cannot be written \(Is a directory\): choose another folder"),
        atomic_write(tmp_path / "taken") as temporary,
    ):
        temporary.write_text("new")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot be written \(Not a directory\): choose another folder"):
        check_writable(tmp_path / "file" / "folder")
    check_writable(tmp_path / "new" / "folder")
    assert os.listdir(tmp_path / "new" / "folder") == []


def test_atomic_write_explains_a_full_disk_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "weights"
    path.write_text("old")
    with (
        pytest.raises(OSError, match=r"no space left to write .*what was there before is untouched"),
        atomic_write(path),
    ):
        raise OSError(28, "No space left on device")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["weights"]


def test_json_comes_back_as_it_was_written(tmp_path):
    write_json(tmp_path / "new" / "file.json", {"ä": [1, 0.5, None]})
    assert read_json(tmp_path / "new" / "file.json") == {"ä": [1, 0.5, None]}
    write_text(tmp_path / "file.txt", "ä\n")
    assert (tmp_path / "file.txt").read_bytes() == "ä\n".encode()


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff\xfe", b""])
def test_read_json_names_a_damaged_file(tmp_path, content):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"file\.json is damaged \(.*\): restore it from another copy"):
        read_json(tmp_path / "file.json")
