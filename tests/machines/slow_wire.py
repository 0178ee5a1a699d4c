"""Holds every frame between a network link and a bridge back for a while: netem, for kernels that have none.

Run as `slow_wire.py LINK TAP MILLISECONDS`: makes the device TAP, prints `up`, and forwards until it is killed.
Frames of LINK appear on TAP after MILLISECONDS, and those that the kernel sends to TAP appear on LINK after as long.
"""

from __future__ import annotations

import collections
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
ETH_P_ALL = 3
PACKET_OUTGOING = 4
PR_SET_PDEATHSIG = 1
LONGEST_FRAME = 65536


def open_tap(name: str) -> int:
    """A tap device of that name, gone when the descriptor is closed."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def forward(link: str, tap: int, seconds: float) -> None:
    """Forward both ways for ever."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    wire.bind((link, 0))
    wire.setblocking(False)
    to_tap: collections.deque[tuple[float, bytes]] = collections.deque()
    to_link: collections.deque[tuple[float, bytes]] = collections.deque()
    poll = select.poll()
    poll.register(wire, select.POLLIN)
    poll.register(tap, select.POLLIN)
    while True:
        now = time.monotonic()
        while to_tap and to_tap[0][0] <= now:
            os.write(tap, to_tap.popleft()[1])
        while to_link and to_link[0][0] <= now:
            try:
                wire.send(to_link.popleft()[1])
            except OSError:
                # the machine is off: its end of the cable is gone
                continue
        due = min(queue[0][0] for queue in (to_tap, to_link) if queue) if to_tap or to_link else None
        poll.poll(None if due is None else max(0.0, (due - time.monotonic()) * 1000))
        _take(wire, tap, to_tap, to_link, seconds)


def _take(wire: socket.socket, tap: int, to_tap: collections.deque[tuple[float, bytes]],
          to_link: collections.deque[tuple[float, bytes]], seconds: float) -> None:
    try:
        while True:
            frame, address = wire.recvfrom(LONGEST_FRAME)
            # what we sent ourselves comes by again as outgoing
            if address[2] != PACKET_OUTGOING:
                to_tap.append((time.monotonic() + seconds, frame))
    except OSError:
        pass
    try:
        while True:
            to_link.append((time.monotonic() + seconds, os.read(tap, LONGEST_FRAME)))
    except BlockingIOError:
        pass


def main() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    link, name, milliseconds = sys.argv[1:]
    tap = open_tap(name)
    print("up", flush=True)
    forward(link, tap, float(milliseconds) / 1000)


if __name__ == "__main__":
    main()
