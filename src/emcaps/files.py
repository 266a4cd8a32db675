"""Reading and writing files: a reader never finds half of one, whatever stops the writer."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

METADATA = "emcaps.json"
"""Where an exported file says what it holds: the key of an ONNX file's metadata, and the name of a .pt2 file's extra
file. No other file has it."""
HAS_LOCKS = fcntl is not None
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR)
"""Error numbers of the system for a full disk, and for a place where nothing can be written."""
OTHERWISE = ", or choose another folder"
"""How the remedies of these errors end; who cannot choose leaves it out."""
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def check_regular(path: str | Path) -> None:
    """Raise ValueError unless `path`, or what it links to, is an ordinary file.

    To open a pipe waits for a writer, and a device may have no end, so this is asked of every file that a user names.
    """
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:
        found = KINDS.get(kind, "something else")
        raise ValueError(f"{path} is {found}, not an ordinary file: name a file, or put a copy of one in its place")


def open_regular(path: str | Path) -> io.BufferedReader:
    """Open an ordinary file for reading bytes; ValueError if `path` is a pipe, a device, a socket or a folder."""
    check_regular(path)
    return open(path, "rb")


@contextmanager
def atomic_write(path: str | Path, older: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes the place of `path`, on any failure it is removed.

    The old file, if there is one, stays whole until the new one is complete and on disk. It is then kept as the first
    of `older`, the one that was there as the second, and so on: one of them is whole whenever the writer is killed.
    What killed processes left of earlier attempts is removed.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        check_regular(path)  # who may do so could put a file in the place of a device
    if path.is_symlink():
        path = path.resolve()  # the link stays, and what it leads to is written
    with explain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        handle, temporary = _locked_temporary(path)
    try:
        with explain_disk_errors(path):
            yield temporary
            _flush_to_disk(temporary)
            os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes private files; ours are ordinary ones
            for source, target in reversed(list(zip((path, *older), older, strict=False))):
                if source.exists():
                    os.replace(source, target)
            os.replace(temporary, path)
            _flush_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        if handle is not None:
            os.close(handle)


def _locked_temporary(path: Path) -> tuple[int | None, Path]:
    """A new temporary file for `path`, locked for as long as the handle is open; without a handle if there are no
    locks."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        if not HAS_LOCKS:
            os.close(handle)
            return None, Path(name)
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.exists(name):
            return handle, Path(name)
        os.close(handle)  # another process took it for a leftover before it was locked


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files for `path` that no process holds locked: their writers were killed."""
    if not HAS_LOCKS:
        return
    for name in os.listdir(path.parent):
        if not (name.startswith(f".{path.name}.") and name.endswith(".part")):
            continue
        with suppress(OSError):  # in use, gone already, or another user's
            descriptor = os.open(path.parent / name, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path.parent / name)
            finally:
                os.close(descriptor)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | Path, text: str) -> None:
    """Replace the file at `path` by this text, as a whole."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Replace the file at `path` by this value as indented JSON."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a ValueError for any other, whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: str | Path) -> dict[str, Any]:
    """The JSON object in `path`; a ValueError names the file if it holds anything else."""
    with open_regular(path) as file:
        content = file.read()
    try:
        value = parse_json(content)
    except ValueError as error:  # not JSON, or not even text
        raise ValueError(f"{path} is damaged ({error}): restore it from another copy") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged (it holds no settings): restore it from another copy")
    return value


def append_line(path: str | Path, line: str) -> None:
    """Append one line and close the file, so that a process that is killed later loses none."""
    with explain_disk_errors(Path(path)), open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn the system's error about a full disk or an unwritable place into one that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            message = f"no space left to write {path}; what was there before is untouched: free some space"
        elif error.errno in UNWRITABLE:
            message = f"{path} cannot be written ({os.strerror(error.errno)}): allow writing there"
        elif error.errno == errno.EEXIST:
            message = f"{path} must be a folder and is a file, or a link to nothing: remove it"
        else:
            raise
        raise OSError(error.errno, message + OTHERWISE) from error


def half_of_memory() -> int:
    """Half of this machine's memory in bytes: the most that the content of one file may take."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # not every system can say
        return 1 << 33


def check_replaces(path: Path, what: str, start: bytes, mark: bytes = b"") -> None:
    """Raise ValueError if a file would take the place of a folder, a device or a pipe, or of a file that is no `what`.

    A `what` starts with the bytes `start`, and `mark` comes somewhere after them. An empty file may be replaced:
    `mktemp` makes one.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name a file in it")
    if not path.exists():
        return
    with open_regular(path) as file:
        known = file.read(len(start)) == start and (not mark or mark in file.read())
    if not known and path.stat().st_size:
        raise ValueError(f"{path} is there and is no {what}, so it is not replaced: name another file")


def check_writable(folder: Path) -> None:
    """Make the folder if need be, and raise OSError now rather than after long work if no file can be written there."""
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
