"""Downloading the original files of data sets: an interrupted download resumes, and a finished file is verified."""

from __future__ import annotations

import contextlib
import http
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from emcaps.data.smallnorb import ORIGINALS, Original, Progress, file_sha256, part_of_whole
from emcaps.files import check_regular, explain_disk_errors

CHUNK = 1 << 18
REMEDY = (
    "try again later, the download resumes where it stopped; or fetch the files by other means and run "
    "`emcaps data get{} --from FOLDER`; or use the toys, `emcaps data make`"
)


class Published(Protocol):
    """A file that can be downloaded and verified."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...


def fetch_smallnorb(
    folder: str | Path,
    on_progress: Progress | None = None,
    *,
    originals: Sequence[Original] = ORIGINALS,
    timeout: float = 30.0,
) -> list[Path]:
    """Download the originals of smallNORB that `folder` lacks (263 MB in all); gives the path of every original."""
    return fetch(originals, folder, on_progress, timeout=timeout)


def fetch(
    originals: Sequence[Published],
    folder: str | Path,
    on_progress: Progress | None = None,
    *,
    dataset: str = "",
    timeout: float = 30.0,
) -> list[Path]:
    """Download those of the files that `folder` lacks; gives the path of each. Errors name the `dataset`."""
    done, total = 0, sum(original.size for original in originals)
    paths = []
    for original in originals:
        paths.append(Path(folder) / original.name)
        download(
            original.url,
            paths[-1],
            size=original.size,
            sha256=original.sha256,
            on_progress=part_of_whole(done, total, on_progress),
            timeout=timeout,
            remedy=REMEDY.format(f" {dataset}" if dataset else ""),
        )
        done += original.size
    return paths


def download(
    url: str,
    path: str | Path,
    *,
    size: int,
    sha256: str,
    on_progress: Progress | None = None,
    timeout: float = 30.0,
    remedy: str = REMEDY.format(""),
) -> None:
    """Make `path` the file at `url`, which must have this size and SHA-256; nothing happens if it does already.

    Bytes gather in `path` + ".part", which is kept when the download is interrupted and continued by the next call.
    ConnectionError when the server cannot be reached or breaks off; ValueError, and no file, when it sends other bytes.
    Both end with the remedy.
    """
    path = Path(path)
    if path.is_file() and path.stat().st_size == size and file_sha256(path) == sha256:
        if on_progress:
            on_progress(size, size)
        return
    partial = path.with_name(path.name + ".part")
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        _complete(url, partial, size, on_progress, timeout)
        found = file_sha256(partial)
        if found != sha256:
            partial.unlink(missing_ok=True)
            raise _other_bytes(url, f"SHA-256 {found}, expected {sha256}")
    except (ConnectionError, _OtherBytesError) as error:
        kind = ConnectionError if isinstance(error, ConnectionError) else ValueError
        raise kind(f"{error}: {remedy}") from None
    os.replace(partial, path)


def _complete(url: str, partial: Path, size: int, on_progress: Progress | None, timeout: float) -> None:
    """Bring `partial` to `size` bytes; ValueError if the server's file has another size."""
    if partial.is_fifo():  # which would wait for a reader
        check_regular(partial)
    have = partial.stat().st_size if partial.is_file() else 0
    if have == size:
        return
    with _open(url, have if have < size else 0, timeout) as response:
        resumed = response.status == 206  # a server may ignore the range and send the file from its start
        have = have if resumed else 0
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            partial.unlink(missing_ok=True)
            raise _other_bytes(url, f"a range that does not start at byte {have}")
        announced = response.headers.get("Content-Length")
        if announced and have + int(announced) != size:
            if resumed:  # otherwise this may be some page in place of the file, and what we have may be right
                partial.unlink(missing_ok=True)
            raise _other_bytes(url, f"{have + int(announced)} bytes, expected {size}")
        with explain_disk_errors(partial), partial.open("ab" if resumed else "wb") as file:
            while have <= size and (chunk := _read(url, response)):
                file.write(chunk)
                have += len(chunk)
                if on_progress:
                    on_progress(min(have, size), size)
    if have > size:
        partial.unlink(missing_ok=True)
        raise _other_bytes(url, f"more than {size} bytes")
    if have < size:
        raise ConnectionError(f"{url}: the connection ended after {have} of {size} bytes")


class _OtherBytesError(Exception):
    """The server sent another file than the published one."""


def _other_bytes(url: str, found: str) -> _OtherBytesError:
    return _OtherBytesError(f"{url} gave other bytes than the published file ({found}), and they were deleted")


def _open(url: str, start: int, timeout: float) -> Any:
    headers = {"User-Agent": "emcaps"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with _network(url):
        try:
            return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
        except urllib.error.HTTPError as error:
            if not start or error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            error.close()
    return _open(url, 0, timeout)  # what we have is longer than the server's file: start over


def _read(url: str, response: Any) -> bytes:
    with _network(url):
        chunk: bytes = response.read(CHUNK)
        return chunk


@contextlib.contextmanager
def _network(url: str) -> Iterator[None]:
    """Turn errors of the network into one line. The disk's errors have others and stay outside."""
    try:
        yield
    except urllib.error.HTTPError as error:
        reason = f"the server answered {error.code} {error.reason}"
        error.close()
    except (OSError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        reason = f"{cause}" or type(cause).__name__
    else:
        return
    raise ConnectionError(f"cannot fetch {url}: {reason}") from None
