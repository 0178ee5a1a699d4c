"""Pieces that parsers share: escapes, cells that hold no value, numbers with units, versions."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")
_NUMBER = re.compile(r"^([-+]?\d+(?:\.\d+)?)(?:\s*(?:[A-Za-z%/]+(?:\(s\))?))?$")
_ABSENT = {"n/a", "[n/a]", "not supported", "[not supported]", "none", "-", "", "na", "not applicable",
           "requested functionality has been deprecated", "[requested functionality has been deprecated]",
           "insufficient permissions", "[insufficient permissions]"}
_BROKEN = ("unknown error", "err!", "gpu requires reset", "gpu is lost", "timeout")


def plain(text: str) -> str:
    """Text without terminal escapes and carriage returns."""
    return _ESCAPE.sub("", text).replace("\r", "")


def absent(cell: str) -> bool:
    """True for a cell that says: this device has no such value."""
    return cell.strip().lower() in _ABSENT


def broken(cell: str) -> bool:
    """True for a cell that says: the device could not be asked (`[Unknown Error]`, `ERR!`, `[GPU requires reset]`)."""
    lower = cell.strip().lower()
    # a cell in brackets holds no value but a word about it
    return any(mark in lower for mark in _BROKEN) or (lower.startswith("[") and not absent(cell))


def number(cell: str) -> float | None:
    """`143771 MiB`, `700.00 W`, `16x`, `0 bank(s)` as a number; None for anything else."""
    match = _NUMBER.match(cell.strip())
    return float(match.group(1)) if match else None


def whole(cell: str) -> int | None:
    """The same as a whole number."""
    value = number(cell)
    return int(value) if value is not None else None


def version(text: str) -> tuple[int, ...]:
    """`580.126.09` as (580, 126, 9); letters end it. Empty for no version."""
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", text, re.IGNORECASE)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def same_release(longer: str, shorter: str) -> bool:
    """True when two versions name one release though one is written with fewer parts (580.126 and 580.126.09)."""
    a, b = version(longer), version(shorter)
    if not a or not b:
        return False
    count = min(len(a), len(b))
    return a[:count] == b[:count]


def bus(text: str) -> str:
    """A PCI address in one spelling: `0000:3a:00.0`; from `00000000:3A:00.0`, `3a:00.0`, `PCI:0000:3a:00`."""
    match = re.search(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-9a-fA-F]))?", text)
    if not match:
        return text.strip().lower()
    domain = (match.group(1) or "0")[-4:].rjust(4, "0")
    return f"{domain}:{match.group(2)}:{match.group(3)}.{match.group(4) or '0'}".lower()


def pairs(text: str, separator: str = ":") -> dict[str, str]:
    """`Key : value` lines as a dict; the last of a key wins; lines without the separator are left out."""
    out = {}
    for line in plain(text).splitlines():
        key, found, value = line.partition(separator)
        if found:
            out[key.strip()] = value.strip()
    return out
