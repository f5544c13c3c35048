"""A web server with a folder's files, which answers ranges and remembers what was asked for."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Server(ThreadingHTTPServer):
    """`sent`: bytes of content by path; `refused`: paths that nobody may read; `broken`: those that
    are told of, and then not sent; `ranges`: whether parts of files are sent, which many a server
    does not; `tag`: how a file's version is told."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.sent: dict[str, int] = {}
        self.refused: set[str] = set()
        self.broken: set[str] = set()
        self.ranges = True
        self.tag = "ETag"

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self._answer(content=False)

    def do_GET(self) -> None:
        self._answer(content=True)

    def log_message(self, *_: object) -> None:
        return None

    def _answer(self, content: bool) -> None:
        path = self.server.folder / self.path.lstrip("/")
        if self.path.lstrip("/") in self.server.refused:
            self.send_error(403)
            return
        if content and self.path.lstrip("/") in self.server.broken:
            self.send_error(500)
            return
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        start, stop, status = 0, len(data), 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and self.server.ranges:
            start, status = int(asked[1]), 206
            stop = min(int(asked[2]) + 1, stop) if asked[2] else stop
        self.send_response(status)
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        self.send_header(self.server.tag, f'"{path.stat().st_mtime_ns}"')
        self.send_header("Content-Length", str(stop - start))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.end_headers()
        if content:
            name = self.path.lstrip("/")
            self.server.sent[name] = self.server.sent.get(name, 0) + stop - start
            self.wfile.write(data[start:stop])


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
