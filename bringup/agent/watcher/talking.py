"""How the watchers of a replica ask each other: HTTP with a signature, so that nobody else is believed. Python 3.6."""

import hashlib
import hmac
import http.client
import json
import os
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

PATH = "/bringup/watch"
HEADER = "X-Bringup-Signature"
PATIENCE = 3.0
"""Seconds for an answer."""
_LARGEST = 65536


def signed(key, *parts):
    return hmac.new(key.encode("utf-8"), "\n".join(parts).encode("utf-8"), hashlib.sha256).hexdigest()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def server_bind(self):
        socketserver.TCPServer.server_bind(self)  # HTTPServer would look up a name for the address
        self.server_name, self.server_port = self.server_address[:2]


def serve(address, port, key, report):
    """Answer the others' questions with what `report()` gives, in a thread of its own. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self):
            path, _, nonce = self.path.partition("?")
            wanted = signed(key, "ask", nonce)
            if path != PATH or not nonce or not hmac.compare_digest(self.headers.get(HEADER) or "", wanted):
                self.send_error(403)
                return
            body = json.dumps(report(), sort_keys=True)
            data = body.encode("utf-8")
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header(HEADER, signed(key, "answer", nonce, body))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    server = _Server((address, port), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.5}, name="answers")
    thread.daemon = True
    thread.start()
    return server


def ask(address, port, key):
    """What the watcher there says, None when nobody answers as one of ours."""
    nonce = os.urandom(12).hex()
    connection = http.client.HTTPConnection(address, port, timeout=PATIENCE)
    try:
        connection.request("GET", "%s?%s" % (PATH, nonce), headers={HEADER: signed(key, "ask", nonce)})
        answer = connection.getresponse()
        body = answer.read(_LARGEST).decode("utf-8", "replace")
        if answer.status != 200:
            return None
        if not hmac.compare_digest(answer.getheader(HEADER) or "", signed(key, "answer", nonce, body)):
            return None
        return json.loads(body)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
