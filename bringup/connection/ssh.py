"""The agent's process at the other end of an SSH connection."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import paramiko

from bringup.base.errors import UnreachableError
from bringup.connection.dial import Link, hang_up
from bringup.connection.login import LOGIN

_EXEC = paramiko.common.byte_chr(98)  # SSH_MSG_CHANNEL_REQUEST

WRITE = 65536
"""Bytes handed to paramiko at a time: it copies what is left over at each piece."""


class SshPipe:
    """One channel of one connection: the command is sent and the agent behind it, without waiting for the reply."""

    def __init__(self, host: str, link: Link, command: str) -> None:
        self.round_trip = link.round_trip
        self._connection = link.connection
        transport = self._connection.transport
        try:
            self._channel: Any = transport.open_session(window_size=2 << 21, timeout=LOGIN)
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._connection.close()
            raise UnreachableError("the server opens no session (phase: session)", host=host, found=str(error),
                                   next="see MaxSessions, PAM and the account's shell there") from None
        self._transport = transport
        message = paramiko.Message()
        message.add_byte(_EXEC)
        message.add_int(self._channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(command)
        transport._send_user_message(message)

    def read(self, timeout: float) -> bytes | None:
        """See Pipe."""
        channel = self._channel
        channel.settimeout(timeout)
        try:
            return bytes(channel.recv(262144))
        except TimeoutError:
            return None
        except OSError:
            return b""

    def errors(self) -> bytes:
        """See Pipe."""
        out = b""
        while self._channel.recv_stderr_ready():
            out += self._channel.recv_stderr(65536)
        return out

    def write(self, data: bytes) -> None:
        """See Pipe."""
        channel = self._channel
        for start in range(0, len(data), WRITE):
            view = memoryview(data)[start:start + WRITE]
            while view:
                try:
                    sent = channel.send(bytes(view))
                except TimeoutError:
                    continue  # the reader's patience, which the channel shares with us
                if sent == 0:
                    raise OSError("the channel is closed")
                view = view[sent:]

    def status(self) -> int | None:
        """See Pipe."""
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            if self._channel.exit_status_ready():
                status = int(self._channel.recv_exit_status())
                return None if status < 0 else status
            time.sleep(0.01)
        return None

    def close(self) -> None:
        """See Pipe. The socket is shut first: paramiko's thread would notice only at its next look."""
        transport = self._transport
        with contextlib.suppress(OSError, EOFError):
            self._channel.close()
        hang_up(transport.sock)
        with contextlib.suppress(OSError, EOFError):
            self._connection.close()
