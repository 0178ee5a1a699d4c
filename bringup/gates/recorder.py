"""A proxy that records: clients ask it as they would ask the endpoint, each attempt becomes a line of traffic."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2

from bringup.gates.traces import record_line

SENT = ("content-type", "accept", "authorization", "user-agent")
"""Headers of the client that are passed on; none of them is written down."""


class Recorder(ThreadingHTTPServer):
    """Listens on `address`, passes everything on to `url`, writes chat to `path`. A request that comes again with the
    same body within a session counts as a retry."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], url: str, path: Path, timeout: float = 900.0) -> None:
        self.target = url.rstrip("/").removesuffix("/v1")
        self.path = path
        self.count = 0
        self.lock = threading.Lock()
        self.open = 0
        self.closed = threading.Condition(self.lock)
        self.seen: dict[str, tuple[str, int, bool]] = {}
        self.client = httpx2.Client(timeout=timeout, trust_env=False)
        super().__init__(address, _Handler)

    def settle(self, seconds: float) -> int:
        """Wait for requests that are being answered or written down; the number of those that are still open then."""
        with self.closed:
            self.closed.wait_for(lambda: not self.open, timeout=seconds)
            return self.open

    def numbered(self, body: bytes) -> tuple[str, int]:
        """(request id, retry) of a body: the number goes up while its attempts fail."""
        digest = hashlib.sha256(body).hexdigest()
        with self.lock:
            known = self.seen.get(digest)
            if known is not None and not known[2]:
                name, retry = known[0], known[1] + 1
            else:
                self.count += 1
                name, retry = f"req-{self.count:05d}", 0
            self.seen[digest] = (name, retry, False)
        return name, retry

    def write(self, body: bytes, line: str, *, good: bool) -> None:
        """Append a line at once: a session that is cut off keeps what it had."""
        digest = hashlib.sha256(body).hexdigest()
        with self.lock:
            name, retry, _ = self.seen[digest]
            self.seen[digest] = (name, retry, good)
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")


class _Handler(BaseHTTPRequestHandler):
    server: Recorder
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        return None

    def do_GET(self) -> None:
        self._pass(b"")

    def do_POST(self) -> None:
        with self.server.closed:
            self.server.open += 1
        try:
            self._pass(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        finally:
            with self.server.closed:
                self.server.open -= 1
                self.server.closed.notify_all()

    def _pass(self, body: bytes) -> None:
        began, at = time.monotonic(), time.time()
        headers = {name: value for name, value in self.headers.items() if name.lower() in SENT}
        lines: list[str] = []
        text, status, error = "", 0, None
        try:
            with self.server.client.stream(self.command, self.server.target + self.path, content=body or None,
                                           headers=headers) as answer:
                status = answer.status_code
                kind = answer.headers.get("content-type", "application/json")
                if "text/event-stream" in kind:
                    self._head(status, kind, None)
                    for line in answer.iter_lines():
                        if line.startswith("data:"):
                            lines.append(line[5:].strip())
                        self._chunk(line.encode() + b"\n")
                    self._chunk(b"")
                else:
                    data = answer.read()
                    text = data.decode("utf-8", "replace")
                    self._head(status, kind, len(data))
                    self.wfile.write(data)
        except httpx2.HTTPError as problem:
            error = str(problem) or type(problem).__name__
            self._failed(error)
        except OSError:
            error = "the client left"
            self.close_connection = True
        if self.path.split("?")[0] == "/v1/chat/completions" and body:
            self._record(body, status, text, lines, at, time.monotonic() - began, error)

    def _record(self, body: bytes, status: int, text: str, lines: list[str], at: float, seconds: float,
                error: str | None) -> None:
        try:
            request = json.loads(body)
        except ValueError:
            return  # what is no JSON is no chat: the endpoint has said so to the client
        if isinstance(request, dict):
            name, retry = self.server.numbered(body)
            self.server.write(body, record_line(request, status, text, lines, name, retry, at, seconds, error),
                              good=status == 200 and error is None)

    def _head(self, status: int, kind: str, length: int | None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _failed(self, error: str) -> None:
        data = json.dumps({"error": {"message": f"the endpoint does not answer: {error}", "code": 502}}).encode()
        try:
            self._head(502, "application/json", len(data))
            self.wfile.write(data)
        except OSError:
            self.close_connection = True
