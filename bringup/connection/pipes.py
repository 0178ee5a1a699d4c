"""What a session needs of the way to its host."""

from __future__ import annotations

from typing import Protocol


class Pipe(Protocol):
    """Standard input, output and error of the agent's process on a host. One thread reads, another may write."""

    @property
    def round_trip(self) -> float:
        """Seconds to the host and back, as its connection took."""
        ...

    def read(self, timeout: float) -> bytes | None:
        """What came out; None when nothing came within `timeout` seconds; empty at the end."""
        ...

    def errors(self) -> bytes:
        """What came on standard error since the last call."""
        ...

    def write(self, data: bytes) -> None:
        """Send all of it; waits while the host takes nothing. Raises OSError when the host is gone."""
        ...

    def status(self) -> int | None:
        """The exit status, when the process has ended and the host said so."""
        ...

    def close(self) -> None:
        """End it. A reader and a writer that wait return at once."""
        ...
