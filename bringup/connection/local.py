"""`connection: local`: the agent as a process on this machine."""

from __future__ import annotations

import os
import select
import subprocess
import sys

from bringup.agent import bootstrap
from bringup.base.errors import UnreachableError
from bringup.connection.messages import Target


class LocalPipe:
    """The agent's process on this machine, as the account that runs bringup."""

    round_trip = 0.0

    def __init__(self, target: Target, marker: str) -> None:
        command = bootstrap.command(marker, target.python, extra=(sys.executable,))
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                bufsize=0, start_new_session=True,
            )
        except OSError as error:
            raise UnreachableError(f"the agent cannot be started here: {error.strerror or error}",
                                   host=target.host) from None
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._in, self._out, self._err = self._process.stdin, self._process.stdout, self._process.stderr
        self._errors = bytearray()
        self._err_open = True
        self._wake_read, self._wake_write = os.pipe()

    def read(self, timeout: float) -> bytes | None:
        """See Pipe."""
        watched = [self._out.fileno(), self._wake_read] + ([self._err.fileno()] if self._err_open else [])
        ready, _, _ = select.select(watched, [], [], timeout)
        if self._err_open and self._err.fileno() in ready:
            data = os.read(self._err.fileno(), 65536)
            self._err_open = bool(data)
            self._errors = (self._errors + data)[-65536:]
        if self._wake_read in ready:
            return b""
        return os.read(self._out.fileno(), 262144) if self._out.fileno() in ready else None

    def errors(self) -> bytes:
        """See Pipe."""
        if self._err_open and select.select([self._err.fileno()], [], [], 0)[0]:
            self._errors += os.read(self._err.fileno(), 65536)
        data, self._errors = bytes(self._errors), bytearray()
        return data

    def write(self, data: bytes) -> None:
        """See Pipe."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._in.fileno(), view):]

    def status(self) -> int | None:
        """See Pipe."""
        try:
            return self._process.wait(1)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Closing its input ends the agent; a process that does not go within 2 s is left to its own limits."""
        os.write(self._wake_write, b"x")
        try:
            self._in.close()
            self._process.wait(2)
        except (OSError, subprocess.TimeoutExpired):
            return
