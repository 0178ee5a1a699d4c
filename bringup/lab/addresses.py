"""Loopback addresses for the lab's machines: the first free ones, claimed so that no two labs meet."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bringup.base.errors import StepError

NETWORK = "127.0.77"
FIRST, LAST = 11, 250
"""Last parts of the addresses that labs take: 127.0.77.11 and on."""
FIRST_PORT, LAST_PORT = 2222, 2399


@dataclass
class Claim:
    """An address that is ours while `guard` is open, with the listening socket of its SSH port."""

    address: str
    port: int
    listener: socket.socket
    guard: socket.socket

    def close(self) -> None:
        self.listener.close()
        self.guard.close()


def claim(count: int, before: Sequence[tuple[str, int]] = ()) -> list[Claim]:
    """Take `count` addresses, those of `before` (address, port) again where they are free.

    The claim is a socket name in the kernel (abstract, so of one network namespace, as the loopback addresses are),
    held by the process: it ends with it, whoever the user and whichever the clone. A new address where anything
    listens is passed over. Raises StepError when not enough are free.
    """
    taken: list[Claim] = []
    candidates = [(address, port, True) for address, port in before]
    candidates += [(f"{NETWORK}.{last}", FIRST_PORT, False) for last in range(FIRST, LAST + 1)]
    busy = _listening()
    try:
        for address, port, known in candidates:
            if len(taken) == count:
                break
            if any(item.address == address for item in taken) or (not known and address in busy):
                continue
            item = _claim(address, port)
            if item is not None:
                taken.append(item)
        if len(taken) < count:
            raise StepError("the lab finds no free loopback address", expected=f"{count} of {NETWORK}.{FIRST}-{LAST}",
                            found=f"{len(taken)} free",
                            next="end labs that are not needed: invoke lab.down in their folders")
    except BaseException:
        for item in taken:
            item.close()
        raise
    return taken


def _claim(address: str, first_port: int) -> Claim | None:
    guard = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        guard.bind(f"\0bringup-lab/{address}")
    except OSError:
        guard.close()
        return None
    for port in dict.fromkeys((first_port, *range(FIRST_PORT, LAST_PORT + 1))):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                continue
            guard.close()
            raise StepError(f"the lab cannot listen on {address}:{port}", found=error.strerror or str(error),
                            next="the lab needs Linux, where all of 127.0.0.0/8 is loopback") from None
        listener.setblocking(False)
        return Claim(address, port, listener, guard)
    guard.close()
    return None


def _listening() -> set[str]:
    """Loopback addresses of the lab's network on which some process listens now."""
    found: set[str] = set()
    try:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return found
    for line in lines:
        fields = line.split()
        if len(fields) > 3 and fields[3] == "0A":
            raw = bytes.fromhex(fields[1].partition(":")[0])
            address = ".".join(str(part) for part in reversed(raw))
            if address.startswith(NETWORK + "."):
                found.add(address)
    return found
