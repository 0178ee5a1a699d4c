"""Taking: files from the hosts above in the tree, the nearest first, another one when it is gone. Python 3.6."""

import os
import socket
import threading
import time

from bringup.agent.transfer.wire import BLOCK, Link, Trouble

CONNECT = 10.0
SILENCE = 120.0


class Peers(object):
    """Files come from `parents`, [address, port] each. Every stream has a connection of its own."""

    def __init__(self, node, parents, patience):
        self.node = node
        self.parents = [(str(address), int(port)) for address, port in parents]
        self.patience = patience
        self.own = threading.local()
        self.lock = threading.Lock()
        self.current = 0
        self.reached = time.time()
        self.asked = 0.0
        self.whole = frozenset()
        self.last_error = None

    def ready(self, name):
        """Whether the file can be had now; asks again at most twice a second."""
        if name in self.whole:
            return True
        with self.lock:
            if name in self.whole or time.time() - self.asked < 0.5:
                return name in self.whole
            self.asked = time.time()
            try:
                link = self._link()
                link.send({"do": "list"})
                told = link.receive()
            except (Trouble, OSError) as error:
                self._gone(error)
                return False
            self._reached()
            self.whole = frozenset(told["whole"])
            if told.get("error") and name not in self.whole:
                self._stopped(told["error"])
            return name in self.whole

    def _stopped(self, error):
        """A host that gives has failed: the one above it is asked. Raises Trouble when there is none above."""
        if self.current == len(self.parents) - 1:
            raise Trouble("unreachable", "the host that gives has stopped: %s" % error.get("message"),
                          found=error.get("found"), parents=["%s:%d" % parent for parent in self.parents])
        self.current += 1

    def copy(self, entry, part):
        """Fill the part; the SHA-256 that the other side says. Raises Trouble, or OSError of the network."""
        try:
            link = self._link()
            link.send({"do": "get", "path": entry["path"], "offset": part.size})
            answer = link.receive()
            if "missing" in answer:
                self.whole = self.whole - {entry["path"]}
                raise Trouble("missing", "%s is not there yet" % entry["path"])
            same = answer["size"] == entry["size"] and (not part.size or answer["prefix"] == part.digest.hexdigest())
            if not same:
                part.restart()
            link.send({"from": part.size})
            while True:
                data = link.receive_block()
                if not data:
                    break
                self.node.in_rate.take(len(data))
                part.write(data)
                self.node.count(len(data))
            told = link.receive()
        except (Trouble, OSError) as error:
            if getattr(error, "kind", "network") in ("network", "key"):
                self._gone(error)
            raise
        self._reached()
        return told["sha256"]

    def source(self):
        """Where files come from now, for people."""
        return self.parents[self.current][0]

    def _link(self):
        link = getattr(self.own, "link", None)
        if link is not None and link.parent == self.current:
            return link
        self._close()
        parent = self.current
        try:
            sock = socket.create_connection(self.parents[parent], CONNECT)
        except OSError as error:
            raise Trouble("network", "%s port %d: %s" % (self.parents[parent] + (error.strerror or str(error),)))
        sock.settimeout(SILENCE)
        try:
            link = Link(sock, self.node.key, server=False)
        except (Trouble, OSError):
            sock.close()
            raise
        link.parent = parent
        self.own.link = link
        return link

    def _close(self):
        link = getattr(self.own, "link", None)
        if link is not None:
            link.close()
            self.own.link = None

    def _reached(self):
        self.reached = time.time()

    def _gone(self, error):
        """The parent does not answer: the next one is asked. Raises Trouble when none did for `patience` seconds."""
        link = getattr(self.own, "link", None)
        self._close()
        self.last_error = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
        if link is None or link.parent == self.current:
            self.current = (self.current + 1) % len(self.parents)
            self.whole = frozenset()
        if time.time() - self.reached > self.patience:
            raise Trouble("unreachable", "no host that gives could be reached for %d s" % self.patience,
                          found=self.last_error, parents=["%s:%d" % parent for parent in self.parents])


class Folder(object):
    """Files come from a folder of this host: a mounted disk, or a share."""

    def __init__(self, node, path):
        self.node = node
        self.path = path

    def ready(self, name):
        return True

    def source(self):
        return self.path

    def copy(self, entry, part):
        """Fill the part; no digest is known beforehand."""
        try:
            handle = open(os.path.join(self.path, entry["path"]), "rb")
        except OSError as error:
            raise Trouble("input", "cannot read %s: %s" % (entry["path"], error.strerror), folder=self.path)
        part.restart()
        with handle:
            while True:
                try:
                    data = handle.read(BLOCK)
                except OSError as error:
                    raise Trouble("input", "cannot read %s: %s" % (handle.name, error.strerror))
                if not data:
                    return
                self.node.in_rate.take(len(data))
                part.write(data)
                self.node.count(len(data))


class Nothing(object):
    """All is here: this process only gives."""

    def ready(self, name):
        raise Trouble("missing", "%s is not here, and nothing gives it" % name)

    def source(self):
        return ""

    def copy(self, entry, part):
        raise Trouble("missing", "%s is not here, and nothing gives it" % entry["path"])


