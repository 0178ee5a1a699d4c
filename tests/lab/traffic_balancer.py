"""A small HTTP load balancer on loopback, and clients that never stop asking, for tests of traffic hooks."""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Balancer:
    """Sends each request to the next replica that is in. `POST /admin/out/NAME` and `/admin/in/NAME` (body: JSON with
    `endpoint`) move them; `moves` keeps the order. With `refuse` the admin side answers 500."""

    endpoints: dict[str, str] = field(default_factory=dict)
    moves: list[tuple[str, str]] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)
    refuse: str = ""
    turn: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        balancer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.path.startswith("/admin/"):
                    self.reply(*balancer.admin(self.path, body, dict(self.headers)))
                else:
                    self.reply(*balancer.forward(self.path, body, self.headers.get("Authorization")))

            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def admin(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        _, _, way, name = path.split("/")
        with self.lock:
            self.headers.append(headers)
            if self.refuse == way:
                return 500, b"the balancer is tired"
            self.moves.append((way, name))
            if way == "in":
                self.endpoints[name] = json.loads(body)["endpoint"]
            else:
                self.endpoints.pop(name, None)
        return 204, b""

    def forward(self, path: str, body: bytes, key: str | None) -> tuple[int, bytes]:
        with self.lock:
            names = sorted(self.endpoints)
            if not names:
                return 503, b"no replica is in"
            name = names[self.turn % len(names)]
            self.turn += 1
            self.served[name] = self.served.get(name, 0) + 1
            where = urlsplit(self.endpoints[name])
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json",
                                                    **({"Authorization": key} if key else {})})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 502, f"{name}: {error!r}".encode()
        finally:
            connection.close()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Clients:
    """Threads that ask one question after the other through the balancer; `answers` counts, `failures` tells."""

    def __init__(self, port: int, count: int = 3, key: str | None = None) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(port, key), daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, port: int, key: str | None) -> None:
        body = json.dumps({"model": "zai-org/GLM-5.1-FP8", "max_tokens": 64, "temperature": 0,
                           "messages": [{"role": "user", "content": "Count from one to thirty."}]})
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        while not self._stop.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                connection.request("POST", "/v1/chat/completions", body, headers)
                answer = connection.getresponse()
                text = answer.read().decode("utf-8", "replace")
                if answer.status == 200:
                    self.answers += 1
                else:
                    self.failures.append(f"{answer.status}: {text[:200]}")
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
            finally:
                connection.close()
            self._stop.wait(0.02)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
