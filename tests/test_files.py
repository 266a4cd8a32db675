import io
import os
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from emcaps import files
from emcaps.files import (
    append_line,
    atomic_write,
    check_replaces,
    check_writable,
    read_json,
    write_json,
    write_text,
)


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


KILLED = """
import os, sys
from emcaps.files import atomic_write
with atomic_write(sys.argv[1]) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path):
    path = tmp_path / "toys48-train.npz"
    subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    (left,) = os.listdir(tmp_path)
    assert left.startswith(f".{path.name}.")
    assert left.endswith(".part")
    with atomic_write(tmp_path / "other") as temporary:  # leaves alone what is not its own
        temporary.touch()
    assert left in os.listdir(tmp_path)
    with atomic_write(path) as temporary:
        temporary.write_text("whole")
    assert sorted(os.listdir(tmp_path)) == ["other", path.name]


def test_what_another_writer_is_at_work_on_is_left_alone(tmp_path):
    path = tmp_path / "file"
    with atomic_write(path) as slow:
        slow.write_text("slow")
        with atomic_write(path) as quick:
            quick.write_text("quick")
        assert path.read_text() == "quick"
        assert slow.exists()
    assert path.read_text() == "slow"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full, which Linux has")
def test_a_full_disk_is_one_clear_line(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"no space left to write .*metrics\.jsonl.*free some space"):
        append_line(tmp_path / "metrics.jsonl", "{}")


def test_a_place_that_cannot_be_written_is_named_with_the_remedy(tmp_path):
    (tmp_path / "taken").mkdir()
    with (
        pytest.raises(OSError, match=r"taken cannot be written \(Is a directory\): allow writing there, or choose an"),
        atomic_write(tmp_path / "taken") as temporary,
    ):
        temporary.write_text("new")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"written \(Not a directory\): .*, or choose another folder$"):
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


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff\xfe", b"", b"[" * 10**5])
def test_read_json_names_a_damaged_file(tmp_path, content):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"file\.json is damaged \(.*\): restore it from another copy"):
        read_json(tmp_path / "file.json")


@pytest.mark.parametrize("content", [b"", b"<a>\n<mark>", b"<a><mark> and more"])
def test_a_file_of_its_kind_or_an_empty_one_may_be_replaced(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    check_replaces(tmp_path / "file", "page", b"<a>", b"<mark>")
    check_replaces(tmp_path / "file", "page", b"<a>")
    check_replaces(tmp_path / "nothing", "page", b"<a>")


@pytest.mark.parametrize("content", [b"a", b"<b><a><mark>", b"<a>", b"<a> without it"])
def test_a_file_of_another_kind_is_not_replaced(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=r"file is there and is no page, so it is not replaced: name another file$"):
        check_replaces(tmp_path / "file", "page", b"<a>", b"<mark>")


def test_a_folder_or_a_device_is_not_replaced(tmp_path):
    with pytest.raises(ValueError, match=f"^{tmp_path} is a folder: name a file in it$"):
        check_replaces(tmp_path, "page", b"")
    with pytest.raises(ValueError, match=r"^/dev/null is a device, not an ordinary file: name a file"):
        check_replaces(Path(os.devnull), "page", b"")


def test_without_a_mark_only_the_start_of_a_file_is_read(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    large = io.BytesIO(b"<a>" * 1000)
    monkeypatch.setattr(files, "open_regular", lambda _: nullcontext(large))
    check_replaces(tmp_path / "file", "page", b"<a>")
    assert large.tell() == 3


@pytest.mark.parametrize("there", [True, False], ids=["a file", "nothing yet"])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path, there):
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to(target)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert sorted(path.name for path in target.parent.iterdir()) == ["target"]


def test_a_pipe_and_a_link_to_one_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(ValueError, match="is a named pipe, not an ordinary file"), atomic_write(tmp_path / name):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
