"""Run inside a network namespace: make a device send whole frames with whole checksums (no offloading)."""

from __future__ import annotations

import array
import contextlib
import fcntl
import socket
import struct
import sys

SIOCETHTOOL = 0x8946
OFFLOADS = (0x17, 0x1F, 0x24, 0x19)
"""ETHTOOL_STXCSUM, STSO, SGSO, SSG: later ones hang on the first."""


def main() -> None:
    device = sys.argv[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in OFFLOADS:
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", device.encode(), value.buffer_info()[0])
            with contextlib.suppress(OSError):
                fcntl.ioctl(control, SIOCETHTOOL, request)


if __name__ == "__main__":
    main()
