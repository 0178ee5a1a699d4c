"""Settings that a library reads by itself: /etc/nccl.conf."""

from __future__ import annotations

import re
from collections.abc import Mapping

from bringup.preflight.parsers.text import plain
from bringup.preflight.unread import Unread


def nccl_conf(text: str) -> Mapping[str, str]:
    """/etc/nccl.conf: `NAME=value` lines and comments. Raises Unread for any other line."""
    out: dict[str, str] = {}
    for line in plain(text).splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = re.fullmatch(r"([A-Z][A-Z0-9_]*)\s*=\s*(\S.*)", line)
        if not match:
            raise Unread(f"/etc/nccl.conf has the line `{line[:80]}`")
        out[match.group(1)] = match.group(2)
    return out
