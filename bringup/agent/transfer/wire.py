"""What two hosts of a transfer say to each other: a key shared for this transfer alone, then messages and blocks.

Both prove that they know the key by answering the other's random number; every message after that carries a code over
its place in the conversation, so that none is altered, repeated or left out. Blocks of files carry none: the message
that ends a file holds its SHA-256. Python 3.6.
"""

import hashlib
import hmac
import json
import os
import socket
import struct

BLOCK = 1 << 20
"""Bytes of a file that are sent at a time."""

LONGEST = 64 * 1024 * 1024
"""Bytes of a message: lists of some hundred thousand files fit."""

NONCE = 32


class Trouble(Exception):
    """Why a transfer does not go on. `kind` is network, unreachable, key, space, digest, missing, input or write."""

    def __init__(self, kind, message, **fields):
        super(Trouble, self).__init__(message)
        self.kind = kind
        self.message = message
        self.fields = fields


def code(key, *parts):
    """HMAC-SHA256 over parts whose lengths are part of it."""
    return hmac.new(key, b"".join(struct.pack(">I", len(part)) + part for part in parts), hashlib.sha256).digest()


class Link(object):
    """One side of a conversation over a connected socket, after `greet`."""

    def __init__(self, sock, key, server):
        self.sock = sock
        self.server = server
        self.counts = {b"c": 0, b"s": 0}
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.key = self._greet(key)

    def _greet(self, key):
        """Both sides prove the key. Raises Trouble `key` when the other one has another."""
        own = os.urandom(NONCE)
        if self.server:
            self.sock.sendall(own)
            answer = self._exactly(NONCE + 32)
            other = answer[:NONCE]
            if not hmac.compare_digest(answer[NONCE:], code(key, b"take", own, other)):
                raise Trouble("key", "whoever connected does not know the key of this transfer")
            self.sock.sendall(code(key, b"give", other, own))
            return code(key, b"session", own, other)
        other = self._exactly(NONCE)
        self.sock.sendall(own + code(key, b"take", other, own))
        if not hmac.compare_digest(self._exactly(32), code(key, b"give", own, other)):
            raise Trouble("key", "the other side does not know the key of this transfer")
        return code(key, b"session", other, own)

    def send(self, message):
        """One message, a JSON value."""
        payload = json.dumps(message, sort_keys=True).encode("utf-8")
        mark = self._mark(b"s" if self.server else b"c", payload)
        self.sock.sendall(struct.pack(">I", len(payload)) + mark + payload)

    def receive(self):
        """The next message. Raises Trouble."""
        head = self._exactly(36)
        size = struct.unpack(">I", head[:4])[0]
        if size > LONGEST:
            raise Trouble("network", "a message of %d bytes was announced" % size)
        payload = self._exactly(size)
        if not hmac.compare_digest(head[4:], self._mark(b"c" if self.server else b"s", payload)):
            raise Trouble("key", "a message was altered on its way")
        return json.loads(payload.decode("utf-8"))

    def send_block(self, data):
        """A piece of a file; an empty one ends it."""
        self.sock.sendall(struct.pack(">I", len(data)))
        if data:
            self.sock.sendall(data)

    def receive_block(self):
        """The next piece of a file, empty at its end."""
        size = struct.unpack(">I", self._exactly(4))[0]
        if size > 4 * BLOCK:
            raise Trouble("network", "a piece of %d bytes was announced" % size)
        return self._exactly(size)

    def close(self):
        self.sock.close()

    def _mark(self, side, payload):
        number = self.counts[side]
        self.counts[side] = number + 1
        return code(self.key, side, struct.pack(">Q", number), payload)

    def _exactly(self, size):
        data = bytearray(size)
        view = memoryview(data)
        got = 0
        while got < size:
            count = self.sock.recv_into(view[got:])
            if not count:
                raise Trouble("network", "the connection ended in the middle")
            got += count
        return data
