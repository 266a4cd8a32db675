"""Reading and writing files: a reader never finds half of one, whatever stops the writer."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR)
"""Error numbers of the system for a full disk, and for a place where nothing can be written."""


@contextmanager
def atomic_write(path: str | Path, older: Sequence[Path] = ()) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes the place of `path`, on any failure it is removed.

    The old file, if there is one, stays whole until the new one is complete and on disk. It is then kept as the first
    of `older`, the one that was there as the second, and so on: one of them is whole whenever the writer is killed.
    """
    path = Path(path)
    with explain_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
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
    try:
        value = parse_json(Path(path).read_bytes())
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
            message = f"no space left to write {path}; what was there before is untouched: free some space or choose "
        elif error.errno in UNWRITABLE:
            message = f"{path} cannot be written ({os.strerror(error.errno)}): choose "
        else:
            raise
        raise OSError(error.errno, message + "another folder") from error


def check_writable(folder: Path) -> None:
    """Make the folder if need be, and raise OSError now rather than after long work if no file can be written there."""
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
