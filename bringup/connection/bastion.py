"""Servers that are reached by way of another: a bastion's channel, or a command's pipes."""

from __future__ import annotations

from typing import Any

import paramiko

from bringup.base.errors import UnreachableError
from bringup.connection.dial import connect
from bringup.connection.gate import Gate
from bringup.connection.way import Server, way_lines


def proxied(server: Server, command: str) -> Any:
    """The pipes of a ProxyCommand. Raises UnreachableError when it cannot be started."""
    try:
        return paramiko.ProxyCommand(command)
    except OSError as error:
        raise UnreachableError(f"ProxyCommand cannot be started: {error.strerror}", host=server.label,
                               found=command) from None


def through(server: Server, via: Server, gate: Gate) -> Any:
    """A channel of the bastion's one connection, which the first one who needs it opens."""
    bastion = gate.bastion(via.way)
    with bastion.lock:
        if bastion.connection is None or not bastion.connection.is_connected:
            bastion.connection = connect(via, gate).connection
        transport = bastion.connection.transport
    try:
        return transport.open_channel("direct-tcpip", (server.address, server.port), ("", 0), timeout=server.tcp)
    except (paramiko.SSHException, EOFError, OSError) as error:
        reason = error.text if isinstance(error, paramiko.ChannelException) else str(error) or "it hung up"
        raise UnreachableError(f"the bastion {via.address} does not reach it", host=server.label, found=reason,
                               details=way_lines(server),
                               next=f"ssh {via.user}@{via.address} nc -vz {server.address} {server.port}") from None
