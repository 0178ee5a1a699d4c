"""Reaching a server: name and TCP, or the channel of a bastion; then the login, each with its deadline."""

from __future__ import annotations

import contextlib
import math
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bringup.base.errors import UnreachableError
from bringup.connection import hostkeys
from bringup.connection.gate import Gate
from bringup.connection.way import Server, way_lines

if TYPE_CHECKING:
    import fabric

REFUSED_FOR = 30.0
"""Seconds during which a server that refuses more connections is tried again."""


@dataclass(frozen=True)
class Link:
    """An authenticated connection, the seconds that a round trip takes on its way, that connecting took in all, and
    of these until the server greeted."""

    connection: fabric.Connection
    round_trip: float
    seconds: float = 0.0
    greeting: float = 0.0


def connect(server: Server, gate: Gate) -> Link:
    """An authenticated connection. Raises UnreachableError that names the phase."""
    until = time.monotonic() + REFUSED_FOR
    pause = 0.25
    while True:
        try:
            with _admitted(server, gate):
                began = time.monotonic()
                sock, round_trip = _open(server, gate)
                # loaded only now: while it is, the server makes the process that greets us
                from bringup.connection.login import log_in

                connection, greeting = log_in(server, gate, sock)
                return Link(connection, round_trip, time.monotonic() - began, greeting)
        except Refused as refused:
            if time.monotonic() + pause > until:
                raise UnreachableError(
                    "the server refuses more connections", host=server.label, details=way_lines(server),
                    found=refused.found, expected=f"a greeting within {REFUSED_FOR:g} s of trying",
                    next="raise MaxStartups in its sshd_config, or lower --forks") from None
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 1.7, 4.0)


@contextlib.contextmanager
def _admitted(server: Server, gate: Gate) -> Iterator[None]:
    if server.via is None:
        with gate.handshakes:
            yield
        return
    with gate.bastion(server.via.way).slots, gate.handshakes:
        yield


class Refused(Exception):
    """The server took no more connections just now: worth another try. `found` is what it did."""

    def __init__(self, found: str) -> None:
        super().__init__(found)
        self.found = found


def hang_up(sock: Any) -> None:
    """End a connection for both threads that use it. A socket is shut and not yet closed: its number could be given to
    another while paramiko's thread still reads. A bastion's channel is closed and not shut: an end of file behind its
    close is a breach of the protocol, for which the bastion would drop every host behind it."""
    with contextlib.suppress(OSError, EOFError):
        if isinstance(sock, socket.socket):
            sock.shutdown(socket.SHUT_RDWR)
        else:
            sock.close()


def _open(server: Server, gate: Gate) -> tuple[Any, float]:
    """A socket, or what stands for one (a channel of a bastion, a command's pipes), and the seconds that it took."""
    if server.proxy_command is not None:
        from bringup.connection.bastion import proxied

        return proxied(server, server.proxy_command), math.inf  # not known: taken for a long way
    if server.via is not None:
        from bringup.connection.bastion import through

        began = time.monotonic()
        return through(server, server.via, gate), time.monotonic() - began
    try:
        addresses = socket.getaddrinfo(server.address, server.port, server.family, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        text = error.strerror if isinstance(error, socket.gaierror) else str(error)
        raise UnreachableError(f"the name {server.address} is not known: {text}", host=server.label,
                               details=way_lines(server), next="check ansible_host, DNS or /etc/hosts here") from None
    problems = []
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        sock.settimeout(server.tcp)
        began = time.monotonic()
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            reason = f"no answer within {server.tcp:g} s" if isinstance(error, TimeoutError) else error.strerror
            problems.append(f"{address[0]} port {server.port}: {reason}")
            continue
        round_trip = time.monotonic() - began
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return sock, round_trip
    raise UnreachableError("no TCP connection", host=server.label, details=[*way_lines(server), *problems[1:]],
                           found=problems[0] if problems else "no address",
                           next=f"is the host up and sshd listening there? ssh -p {server.port} {server.address}")


def host_key(server: Server, gate: Gate) -> None:
    """Shake hands without logging in: raises what the policy says of the server's key (unknown, changed, ...)."""
    probe = replace(server, use_agent=False, named=(), usual=False, password=None)
    try:
        connect(probe, gate)
    except hostkeys.UnknownHostKey:
        raise
    except UnreachableError as error:
        if "phase: authentication" not in error.what:
            raise
