"""A package index on loopback that serves a folder of wheels, and can cut a connection in the middle."""

from __future__ import annotations

import base64
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class SmallIndex:
    """`cut` is how many bytes of a wheel are sent before the connection ends, for the next `cuts` of them. `ranges`
    are the byte ranges that were asked for, by file name; `slow` seconds pass between pieces of a wheel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cut, self.cuts, self.slow = 0, 0, 0.0
        self.password: str | None = None  # what the user `ops` must give
        self.ranges: list[tuple[str, str | None]] = []
        self.sending = threading.Event()
        self.go_on = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/simple"

    def __enter__(self) -> SmallIndex:
        self._thread.start()
        return self

    def __exit__(self, *given: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(index: SmallIndex) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: Any) -> None:
            return

        def do_GET(self) -> None:
            wanted = base64.b64encode(f"ops:{index.password}".encode()).decode()
            if index.password and self.headers.get("Authorization") != f"Basic {wanted}":
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic realm=index")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            parts = self.path.strip("/").split("/")
            if parts[0] == "simple" and len(parts) == 2:
                self._page(parts[1])
            elif parts[0] == "files":
                self._file(index.folder / parts[1])
            else:
                self.send_error(404)

        def do_HEAD(self) -> None:
            self.send_response(405)  # uv then reads the whole wheel for its metadata
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _page(self, name: str) -> None:
            links = []
            for path in sorted(index.folder.iterdir()):
                if path.name.split("-")[0].replace("_", "-").lower() == name:
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                    links.append(f'<a href="/files/{path.name}#sha256={digest}">{path.name}</a>')
            if not links:
                self.send_error(404)
                return
            self._send(200, "".join(["<!DOCTYPE html><html><body>", *links, "</body></html>"]).encode(), "text/html")

        def _file(self, path: Path) -> None:
            asked = self.headers.get("Range")
            index.ranges.append((path.name, asked))
            data = path.read_bytes()
            start = int(asked.split("=")[1].split("-")[0]) if asked else 0
            self._send(206 if asked else 200, data[start:], "application/octet-stream", cuttable=True)

        def _send(self, status: int, data: bytes, kind: str, *, cuttable: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if cuttable and index.cuts > 0:
                index.cuts -= 1
                self.wfile.write(data[:index.cut])
                self.wfile.flush()
                index.sending.set()
                if index.slow:
                    index.go_on.wait(60)
                self.close_connection = True
                return
            self.wfile.write(data)

    return Handler
