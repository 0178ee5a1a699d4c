"""Sizes as recipes and env.yml write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*(MiB|GiB)$")


def bytes_of(text: object) -> int | None:
    """Bytes of `2 GiB` or `500 MiB`; None for anything else."""
    match = _SIZE.match(str(text).strip())
    return int(float(match[1]) * (1 << 30 if match[2] == "GiB" else 1 << 20)) if match else None
