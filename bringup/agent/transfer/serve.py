"""Giving: whole files of a store to those who know the key. Python 3.6."""

import hashlib
import socket
import threading
import time

from bringup.agent.transfer.tree import digest_of
from bringup.agent.transfer.wire import BLOCK, Link, Trouble

CONNECTIONS = 64
SILENCE = 120.0
"""Seconds without a word until a connection is given up."""


class Server(object):
    """Listens on an address, at a port that the system chooses. `last` is when anybody was last served."""

    def __init__(self, node, address):
        self.node = node
        self.last = time.time()
        self.sent = 0
        self.gate = threading.Semaphore(CONNECTIONS)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.sock.bind((address, 0))
        except OSError as error:
            raise Trouble("input", "cannot listen on %s: %s" % (address, error.strerror or error))
        self.sock.listen(CONNECTIONS)
        self.port = self.sock.getsockname()[1]

    def start(self):
        thread = threading.Thread(target=self._accept)
        thread.daemon = True
        thread.start()

    def _accept(self):
        while True:
            try:
                sock, _ = self.sock.accept()
            except OSError:
                time.sleep(0.1)  # out of descriptors for a moment: those who wait are served when some are free
                continue
            if not self.gate.acquire(False):
                sock.close()
                continue
            thread = threading.Thread(target=self._guarded, args=(sock,))
            thread.daemon = True
            thread.start()

    def _guarded(self, sock):
        try:
            sock.settimeout(SILENCE)
            self._talk(Link(sock, self.node.key, server=True))
        except (Trouble, OSError, ValueError) as error:
            self.node.note("a connection ended: %s" % (getattr(error, "message", None) or error))
        finally:
            sock.close()
            self.gate.release()

    def _talk(self, link):
        while True:
            asked = link.receive()
            self.last = time.time()
            if asked.get("do") == "list":
                state = self.node.told()
                link.send({"whole": sorted(self.node.store.whole), "complete": state["complete"],
                           "error": state.get("error")})
            elif asked.get("do") == "get":
                self._give(link, str(asked.get("path")), int(asked.get("offset") or 0))
            else:
                return

    def _give(self, link, name, offset):
        store = self.node.store
        try:
            found = store.open_whole(name)
        except OSError as error:
            link.send({"missing": "%s: %s" % (name, error.strerror)})
            return
        if found is None:
            link.send({"missing": name})
            return
        handle, entry = found
        with handle:
            digest = digest_of(handle.name, offset) if offset else hashlib.sha256()
            link.send({"size": entry["size"], "prefix": digest.hexdigest()})
            answer = link.receive()
            if answer.get("from") == 0 and offset:
                digest = hashlib.sha256()
                offset = 0
            handle.seek(offset)
            while True:
                data = handle.read(BLOCK)
                if not data:
                    break
                digest.update(data)
                self.node.out_rate.take(len(data))
                link.send_block(data)
                self.sent += len(data)
                self.last = time.time()
        link.send_block(b"")
        link.send({"sha256": digest.hexdigest()})
