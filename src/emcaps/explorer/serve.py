"""Serves one page on this machine alone, for browsers that may not open files."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOCAL = "127.0.0.1"


def page_server(page: str, port: int = 0) -> ThreadingHTTPServer:
    """A server of this page, and of nothing else, at http://127.0.0.1:port/; port 0 takes one that is free."""
    content = page.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of another site could have its name lead here and read what is shown; it cannot change this header.
            host = self.headers.get("Host", "").rpartition(":")[0]
            if self.path != "/" or host not in (LOCAL, "localhost"):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the address is all that the user needs."""

    try:
        return ThreadingHTTPServer((LOCAL, port), Handler)
    except OSError as error:
        raise ValueError(f"port {port} cannot be used ({error.strerror}): name another one with --port") from error
