"""Names with ranges: `node[01:16]`, `rack[a:c]`, `gpu[0:8:2]`, and a port behind a name."""

from __future__ import annotations

import ipaddress
import re
import string

from bringup.base.errors import InputError
from bringup.base.origin import Origin

LIMIT = 100_000
"""Hosts that one line may stand for: a mistyped range is told, not expanded."""

RANGE = re.compile(r"\[[0-9A-Za-z]*:[0-9A-Za-z]+(?::[0-9]+)?\]")
_BRACKETED = re.compile(r"^\[(?P<host>.+)\]:(?P<port>[0-9]+)$")
_WITH_PORT = re.compile(r"^(?P<host>(?:[^:\[\]]|\[[^\]]*\])*):(?P<port>[0-9]+)$")
_LABEL_RANGE = r"\[(?:[a-z]:[a-z]|[0-9]+:[0-9]+)(?::[0-9]+)?\]"
_LABEL = rf"(?:\w|{_LABEL_RANGE})(?:[\w-]|{_LABEL_RANGE})*(?<![_-])"
_HOSTNAME = re.compile(rf"^{_LABEL}(?:\.{_LABEL})*$", re.IGNORECASE)


def expand(text: str, where: Origin | None = None) -> tuple[list[str], int | None]:
    """The host names that a text stands for, in order, and the port behind it. Raises InputError."""
    name, port = split_port(text)
    names = [name]
    while any("[" in item for item in names):
        names = [out for item in names for out in (_expand_first(item, text, where) if "[" in item else [item])]
        if len(names) > LIMIT:
            raise InputError(f"the range `{text}` stands for more than {LIMIT:,} hosts", where=where)
    return names, port


def split_port(text: str) -> tuple[str, int | None]:
    """`gpu01:2222` as name and port; a text that is no name with a port comes back whole, with None."""
    match = _BRACKETED.match(text) or _WITH_PORT.match(text)
    if match and (_HOSTNAME.match(match["host"]) or _is_ipv6(match["host"])):
        return match["host"], int(match["port"])
    return text, None


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(RANGE.sub("1", text))
    except ValueError:
        return False
    return True


def _expand_first(name: str, text: str, where: Origin | None) -> list[str]:
    head, _, rest = name.partition("[")
    inner, closed, tail = rest.partition("]")
    if not closed:
        raise InputError(f"the range in `{text}` is not closed", where=where, expected="[01:16]")
    bounds = inner.split(":")
    if len(bounds) not in (2, 3) or not bounds[1]:
        raise InputError(f"`[{inner}]` in `{text}` is no range", where=where,
                         expected="[first:last] or [first:last:step], as in node[01:16] or rack[a:c]")
    begin, end = bounds[0] or "0", bounds[1]
    step = bounds[2] if len(bounds) == 3 else "1"
    if not step.isdecimal() or int(step) == 0:
        raise InputError(f"the step `{step}` in `{text}` is no whole number from 1 on", where=where)
    return [f"{head}{item}{tail}" for item in _items(begin, end, int(step), text, where)]


def _items(begin: str, end: str, step: int, text: str, where: Origin | None) -> list[str]:
    letters = string.ascii_letters
    if len(begin) == len(end) == 1 and begin in letters and end in letters:
        first, last = letters.index(begin), letters.index(end)
        items = list(letters[first : last + 1 : step])
    elif begin.isdecimal() and end.isdecimal():
        width = len(begin) if begin[0] == "0" and len(begin) > 1 else 0
        if width and width != len(end):
            raise InputError(f"both ends of the range in `{text}` must be written with as many digits", where=where,
                             expected=f"[{begin}:{end.zfill(width)}]", found=f"[{begin}:{end}]")
        if (int(end) - int(begin)) // step > LIMIT:
            raise InputError(f"the range `{text}` stands for more than {LIMIT:,} hosts", where=where)
        items = [str(number).zfill(width) for number in range(int(begin), int(end) + 1, step)]
    else:
        raise InputError(f"`{begin}` and `{end}` in `{text}` are no range", where=where,
                         expected="two numbers or two single letters")
    if not items:
        raise InputError(f"the range in `{text}` is empty: {begin} comes after {end}", where=where,
                         next=f"[{end}:{begin}]")
    return items
