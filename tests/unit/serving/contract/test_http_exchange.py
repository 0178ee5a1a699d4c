"""The host half that asks an endpoint: real sockets, a server of a few lines."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bringup.agent.modules import http_exchange
from bringup.agent.task import Failure, Task


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *args):
        return None

    def do_GET(self):
        if self.path == "/slow":
            time.sleep(1)
        status = 503 if self.path == "/loading" else 200
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for number in range(3):
                self.wfile.write(f": comment\ndata: {number}\n\n".encode())
                self.wfile.flush()
                time.sleep(0.1)
            return
        if self.path == "/cut":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = json.dumps({"path": self.path, "key": self.headers.get("Authorization")}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body + b"\xff")


@pytest.fixture(scope="module")
def port():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def run(port, *requests, **more):
    args = {"host": "127.0.0.1", "port": port, "requests": list(requests), "side_by_side": 1, "timeout": 5.0, **more}
    result = http_exchange.run(Task(args))
    assert result["changed"] is False
    return result["responses"]


def test_answers_come_in_the_order_of_the_requests(port):
    answers = run(port, {"id": "a", "path": "/a"}, {"id": "b", "path": "/loading"},
                  {"id": "c", "path": "/c", "body": {"x": 1}}, side_by_side=3)
    assert [answer["id"] for answer in answers] == ["a", "b", "c"]
    assert [answer["status"] for answer in answers] == [200, 503, 200]
    assert json.loads(answers[0]["body"])["path"] == "/a"
    assert answers[2]["body"] == '{"x": 1}\N{REPLACEMENT CHARACTER}'


def test_the_key_goes_as_a_bearer_and_a_requests_own_header_wins(port):
    first, second = run(port, {"path": "/"}, {"path": "/", "headers": {"Authorization": "Bearer wrong"}},
                        api_key="open-sesame")
    assert json.loads(first["body"])["key"] == "Bearer open-sesame"
    assert json.loads(second["body"])["key"] == "Bearer wrong"


def test_a_stream_comes_with_times(port):
    [answer] = run(port, {"path": "/stream", "stream": True})
    assert [text for _, text in answer["events"]] == ["0", "1", "2"]
    times = [at for at, _ in answer["events"]]
    assert times[2] - times[0] > 0.15


def test_what_the_network_does_is_told_not_raised(port):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        closed = sock.getsockname()[1]
    assert run(closed, {"path": "/"})[0]["error"] == "Connection refused"
    slow, cut = run(port, {"path": "/slow", "timeout": 0.2}, {"path": "/cut"})
    assert slow["status"] == 0 and slow["error"] == "no answer within 0.2 s"
    assert cut["status"] == 0 and cut["error"]


def test_side_by_side_is_side_by_side(port):
    began = time.monotonic()
    run(port, *[{"path": "/slow"} for _ in range(4)], side_by_side=4)
    assert time.monotonic() - began < 2.5


def test_a_request_without_a_path_is_refused(port):
    with pytest.raises(Failure, match="a mapping with a path"):
        run(port, {"path": "nowhere"})


def test_a_stream_that_is_left_and_a_request_that_waits(port):
    left, later = run(port, {"path": "/stream", "stream": True, "close_after": 1}, {"path": "/", "wait": 0.3})
    assert [text for _, text in left["events"]] == ["0"]
    assert left["error"] is None and later["status"] == 200
    began = time.monotonic()
    run(port, {"path": "/", "wait": 0.3})
    assert time.monotonic() - began >= 0.3
