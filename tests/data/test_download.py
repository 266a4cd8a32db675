from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from emcaps.data.download import download, fetch_smallnorb
from emcaps.data.smallnorb import Original, original_name

CONTENT = np.random.default_rng(0).bytes(700_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REMEDY = r"try again later.*`emcaps data get --from FOLDER`; or use the toys, `emcaps data make`$"


@dataclass
class Server:
    """What the server is to do, and the Range header of each request that it got."""

    content: bytes = CONTENT
    ranges: bool = True
    announce: bool = True
    status: int = 200
    stop_after: int | None = None
    wrong_range: bool = False
    silent: bool = False
    requests: list[str | None] = field(default_factory=list)
    url: str = ""
    release: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    how: Server

    def do_GET(self) -> None:
        how = self.how
        asked = self.headers.get("Range")
        how.requests.append(asked)
        if how.silent:
            how.release.wait(10)
            return
        if how.status != 200:
            self.send_error(how.status)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and how.ranges else 0
        if start >= len(how.content) > 0:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            first = 0 if how.wrong_range else start
            self.send_header("Content-Range", f"bytes {first}-{len(how.content) - 1}/{len(how.content)}")
        body = how.content[start:]
        if how.announce:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # some tests hang up
            self.wfile.write(body[: how.stop_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    how = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("OneHandler", (Handler,), {"how": how})) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        how.url = f"http://127.0.0.1:{httpd.server_port}/file.gz"
        try:
            yield how
        finally:
            how.release.set()
            httpd.shutdown()
            thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "file.gz"


def part_of(path: Path) -> Path:
    return path.with_name("file.gz.part")


def get(server: Server, path: Path, **options: object) -> None:
    download(server.url, path, **{"size": len(CONTENT), "sha256": SHA256, "timeout": 5.0} | options)


def leave_part(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    part_of(path).write_bytes(content)


def test_download_of_a_new_file_reports_progress(server: Server, path: Path) -> None:
    seen: list[tuple[int, int]] = []
    get(server, path, on_progress=lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert server.requests == [None]
    assert len(seen) >= 3
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_download_of_a_file_that_is_there_asks_nothing(server: Server, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    seen: list[tuple[int, int]] = []
    get(server, path, on_progress=lambda *step: seen.append(step))
    assert server.requests == []
    assert seen == [(len(CONTENT), len(CONTENT))]


@pytest.mark.parametrize("there", [b"short", bytes(len(CONTENT))], ids=["wrong size", "wrong bytes"])
def test_download_replaces_a_wrong_file(server: Server, path: Path, there: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(there)
    get(server, path)
    assert path.read_bytes() == CONTENT


def test_download_resumes_after_the_connection_dropped(server: Server, path: Path) -> None:
    server.stop_after = 300_000
    with pytest.raises(ConnectionError, match=rf"ended after 300000 of 700000 bytes: {REMEDY}"):
        get(server, path)
    assert not path.exists()
    assert part_of(path).read_bytes() == CONTENT[:300_000]
    server.stop_after = None
    seen: list[int] = []
    get(server, path, on_progress=lambda done, total: seen.append(done))
    assert server.requests == [None, "bytes=300000-"]
    assert min(seen) > 300_000
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_download_resumes_after_the_user_stopped_it(server: Server, path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(server, path, on_progress=stop)
    kept = part_of(path).stat().st_size
    assert 0 < kept < len(CONTENT)
    get(server, path)
    assert server.requests == [None, f"bytes={kept}-"]
    assert path.read_bytes() == CONTENT


def test_download_starts_over_when_the_server_ignores_the_range(server: Server, path: Path) -> None:
    server.ranges = False
    leave_part(path, b"something else")
    get(server, path)
    assert server.requests == ["bytes=14-"]
    assert path.read_bytes() == CONTENT


def test_download_starts_over_when_the_part_is_too_long(server: Server, path: Path) -> None:
    leave_part(path, CONTENT + b"more")
    get(server, path)
    assert server.requests == [None]
    assert path.read_bytes() == CONTENT


def test_download_starts_over_when_the_range_cannot_be_satisfied(server: Server, path: Path) -> None:
    server.content = CONTENT[:100]
    leave_part(path, CONTENT[:200])
    with pytest.raises(ValueError, match=r"100 bytes, expected 700000"):
        get(server, path)
    assert server.requests == ["bytes=200-", None]


def test_download_of_a_complete_part_asks_nothing(server: Server, path: Path) -> None:
    leave_part(path, CONTENT)
    get(server, path)
    assert server.requests == []
    assert path.read_bytes() == CONTENT


def test_download_without_content_length(server: Server, path: Path) -> None:
    server.announce = False
    get(server, path)
    assert path.read_bytes() == CONTENT


def test_download_of_wrong_bytes_deletes_them(server: Server, path: Path) -> None:
    server.content = bytes(len(CONTENT))
    wrong = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(
        ValueError, match=rf"file\.gz gave .*\(SHA-256 {wrong}, expected {SHA256}\), .*deleted: {REMEDY}"
    ):
        get(server, path)
    assert not list(path.parent.iterdir())


def test_download_deletes_a_part_of_another_file_and_then_succeeds(server: Server, path: Path) -> None:
    leave_part(path, bytes(1000))
    with pytest.raises(ValueError, match=r"other bytes than the published file \(SHA-256"):
        get(server, path)
    assert not list(path.parent.iterdir())
    get(server, path)
    assert path.read_bytes() == CONTENT


def test_download_of_a_page_in_place_of_the_file_keeps_the_part(server: Server, path: Path) -> None:
    server.content, server.ranges = b"<html>please log in</html>", False
    leave_part(path, CONTENT[:1000])
    with pytest.raises(ValueError, match=r"\(26 bytes, expected 700000\)"):
        get(server, path)
    assert not path.exists()
    assert part_of(path).read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("announce", [True, False])
def test_download_of_a_longer_file(server: Server, path: Path, announce: bool) -> None:
    server.content, server.announce = CONTENT + b"!", announce
    found = "700001 bytes, expected 700000" if announce else "more than 700000 bytes"
    with pytest.raises(ValueError, match=found):
        get(server, path)
    assert not list(path.parent.iterdir())


def test_download_resumed_from_a_file_of_another_size_deletes_the_part(server: Server, path: Path) -> None:
    server.content = CONTENT[:5000]
    leave_part(path, CONTENT[:1000])
    with pytest.raises(ValueError, match=r"5000 bytes, expected 700000"):
        get(server, path)
    assert not list(path.parent.iterdir())


def test_download_of_another_range_than_asked_for_deletes_the_part(server: Server, path: Path) -> None:
    server.wrong_range = True
    leave_part(path, CONTENT[:1000])
    with pytest.raises(ValueError, match=r"a range that does not start at byte 1000"):
        get(server, path)
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(("status", "reason"), [(404, "404 Not Found"), (503, "503 Service Unavailable")])
def test_download_of_an_error_status_keeps_the_part(server: Server, path: Path, status: int, reason: str) -> None:
    server.status = status
    leave_part(path, CONTENT[:1000])
    with pytest.raises(ConnectionError, match=rf"^cannot fetch {server.url}: the server answered {reason}: {REMEDY}"):
        get(server, path)
    assert part_of(path).read_bytes() == CONTENT[:1000]
    assert not path.exists()


def test_download_from_a_silent_server(server: Server, path: Path) -> None:
    server.silent = True
    with pytest.raises(ConnectionError, match=rf"cannot fetch {server.url}: timed out: {REMEDY}"):
        get(server, path, timeout=0.2)


def test_download_without_a_network(server: Server, path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as unused:
        port = unused.server_port
    with pytest.raises(ConnectionError, match=rf"cannot fetch http://127.*refused.*: {REMEDY}") as caught:
        download(f"http://127.0.0.1:{port}/file.gz", path, size=1, sha256="", timeout=5.0)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this machine has no /dev/full to write to")
def test_download_to_a_full_disk_is_not_called_a_network_error(server: Server, path: Path) -> None:
    path.parent.mkdir()
    part_of(path).symlink_to("/dev/full")
    with pytest.raises(OSError, match="no space left to write") as caught:
        get(server, path)
    assert not isinstance(caught.value, ConnectionError)


def test_fetch_smallnorb_downloads_each_original_once(server: Server, tmp_path: Path) -> None:
    class Local(Original):
        @property
        def url(self) -> str:
            return server.url

    originals = [Local("train", kind, len(CONTENT), SHA256, 0, "") for kind in ("cat", "info")]
    size = len(CONTENT)
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        seen.clear()
        paths = fetch_smallnorb(tmp_path, lambda *step: seen.append(step), originals=originals, timeout=5.0)
        assert paths == [tmp_path / original_name("train", kind) for kind in ("cat", "info")]
        assert all(path.read_bytes() == CONTENT for path in paths)
        assert seen == sorted(seen)
        assert (size, 2 * size) in seen
        assert seen[-1] == (2 * size, 2 * size)
    assert server.requests == [None, None]  # the second time, nothing was asked


def test_fetch_smallnorb_without_progress(server: Server, tmp_path: Path) -> None:
    original = Original("train", "cat", len(CONTENT), SHA256, 0, "")
    (tmp_path / original.name).write_bytes(CONTENT)
    assert fetch_smallnorb(tmp_path, originals=[original]) == [tmp_path / original.name]
