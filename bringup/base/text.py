"""Small text helpers that messages share: nearest names, folded host lists, durations, sizes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_ALIKE = str.maketrans({"l": "1", "i": "1", "o": "0", "_": "-"})
_NEAR = 0.66
"""Likeness of two names, 0 to 1: `wbe` is near `web` (0.67), `nope` is not near `ungrouped` (0.62)."""
_NUMBERED = re.compile(r"^(.*?)(\d+)$")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None when nothing is near. Signs that look alike (l and 1) count as equal."""
    names = list(known)
    for other in names:
        if other != name and _look(other) == _look(name):
            return other
    found = difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
    return found[0] if found else None


def _look(name: str) -> str:
    return name.lower().translate(_ALIKE)


def fold_hosts(names: Sequence[str]) -> str:
    """`gpu01, gpu02, gpu03, gpu08` as `gpu[01-03,08]`; names without a number stay as they are."""
    groups: dict[tuple[str, int], list[int]] = {}
    order: list[tuple[str, int] | str] = []
    for name in names:
        match = _NUMBERED.match(name)
        if not match:
            order.append(name)
            continue
        key = (match.group(1), len(match.group(2)))
        if key not in groups:
            groups[key] = []
            order.append(key)
        groups[key].append(int(match.group(2)))
    out = []
    for item in order:
        if isinstance(item, str):
            out.append(item)
            continue
        prefix, width = item
        parts = [
            f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}"
            for low, high in _runs(sorted(set(groups[item])))
        ]
        single = len(parts) == 1 and "-" not in parts[0]
        out.append(f"{prefix}{parts[0]}" if single else f"{prefix}[{','.join(parts)}]")
    return ",".join(out)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def duration(seconds: float) -> str:
    """`0.4 s`, `41 s`, `3 m 12 s`, `1 h 02 m`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def size(count: float) -> str:
    """Bytes in decimal units: `1.49 TB`, `512 MB`, `17 B`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """`1 host`, `16 hosts`."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Text from a host with control characters and escapes made visible."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m.group()):02x}", text)
