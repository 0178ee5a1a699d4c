"""The recording proxy: what was answered is written down before it ends."""

from __future__ import annotations

import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bringup.gates.recorder import Recorder

ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "kestrel"}, "finish_reason": "stop"}]})


def test_the_end_waits_for_what_is_being_answered_and_names_what_is_not(tmp_path: Path) -> None:
    released = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            return None

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            released.wait(30)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(ANSWER)))
            self.end_headers()
            self.wfile.write(ANSWER.encode())

    log = tmp_path / "session.jsonl"
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as engine, \
            Recorder(("127.0.0.1", 0), f"http://127.0.0.1:{engine.server_address[1]}", log) as recorder:
        for server in (engine, recorder):
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        request = urllib.request.Request(
            f"http://127.0.0.1:{recorder.server_address[1]}/v1/chat/completions", method="POST",
            data=json.dumps({"model": "m", "messages": [{"role": "user", "content": "a word"}]}).encode())
        client = threading.Thread(target=lambda: urllib.request.urlopen(request, timeout=60).read())
        client.start()
        while not recorder.open:
            assert client.is_alive()
        assert recorder.settle(0.05) == 1 and not log.exists()
        released.set()
        assert recorder.settle(30) == 0
        assert len(log.read_text().splitlines()) == 1
        client.join()
        for server in (engine, recorder):
            server.shutdown()
