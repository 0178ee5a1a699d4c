"""Patterns of hosts: `head:workers:!gpu03`, `a,b`, `&`, globs, `~regex`, slices, `@file`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bringup.base.errors import InputError
from bringup.base.origin import Origin
from bringup.base.text import nearest
from bringup.inventory.ranges import split_port

if TYPE_CHECKING:
    from bringup.inventory.model import Inventory

_SLICE = re.compile(r"^(?P<name>.+)\[(?:(?P<one>-?[0-9]+)|(?P<first>[0-9]+):(?P<last>[0-9]*))\]$")


def split(pattern: str) -> list[str]:
    """The single patterns of a pattern: at commas, else at colons and blanks outside brackets."""
    if "," in pattern:
        return [part.strip() for part in pattern.split(",") if part.strip()]
    pattern = pattern.strip()
    if split_port(pattern)[1] is not None or _is_address(pattern):
        return [pattern]
    parts, depth, current = [], 0, ""
    for character in pattern:
        depth += (character == "[") - (character == "]" and depth > 0)
        if not depth and (character == ":" or character.isspace()):
            parts.append(current)
            current = ""
        else:
            current += character
    return [part for part in (*parts, current) if part]


def select(inventory: Inventory, pattern: str | Sequence[str], where: Origin | None = None) -> list[str]:
    """Hosts that the pattern matches: plain parts first, then `&` parts, then `!` parts. Raises InputError."""
    given = [pattern] if isinstance(pattern, str) else list(pattern)
    parts = [part for text in given for item in split(text) for part in _from_file(item, where)]
    plain = [part for part in parts if part[0] not in "&!"] or ["all"]
    chosen: dict[str, None] = {}
    for part in plain:
        chosen.update(dict.fromkeys(_match(inventory, part, where)))
    for part in parts:
        if part[0] == "&":
            kept = set(_match(inventory, part[1:], where))
            chosen = {name: None for name in chosen if name in kept}
    for part in parts:
        if part[0] == "!":
            dropped = set(_match(inventory, part[1:], where))
            chosen = {name: None for name in chosen if name not in dropped}
    return list(chosen)


def unknown_name(inventory: Inventory, name: str, where: Origin | None) -> InputError:
    """The error for a name that is neither host nor group, with the nearest that is."""
    near = nearest(name, [*inventory.groups, *inventory.hosts])
    place = f" in {inventory.shown_as}" if inventory.shown_as else ""
    hint = f"; nearest: {near}" if near else ""
    details = [] if near else [f"groups: {', '.join(sorted(inventory.groups))}"]
    return InputError(f"no host or group matches `{name}`{place}{hint}", where=where, details=details)


def _is_address(text: str) -> bool:
    return "::" in text and all(part == "" or re.fullmatch(r"[0-9a-fA-F.]{1,15}", part) for part in text.split(":"))


def _from_file(part: str, where: Origin | None) -> list[str]:
    if not part.startswith("@"):
        return [part]
    try:
        lines = Path(part[1:]).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InputError(f"the file of hosts `{part[1:]}` cannot be read: {reason}", where=where) from None
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _match(inventory: Inventory, part: str, where: Origin | None) -> list[str]:
    if not part:
        raise InputError("a pattern of hosts has an empty part", where=where)
    if part in inventory.hosts:
        return [part]
    sliced = None if part.startswith("~") else _SLICE.match(part)
    name = sliced["name"] if sliced else part
    found = _named(inventory, name, where)
    if not sliced or not found:
        return found
    if sliced["one"] is None:
        last = len(found) - 1 if sliced["last"] == "" else int(sliced["last"])
        return found[int(sliced["first"]) : last + 1]
    try:
        return [found[int(sliced["one"])]]
    except IndexError:
        raise InputError(f"`{part}`: {name} has {len(found)} hosts, counted from 0", where=where,
                         expected=f"[0] to [{len(found) - 1}], or [-1] for the last") from None


def _named(inventory: Inventory, name: str, where: Origin | None) -> list[str]:
    from bringup.inventory.model import LOCALHOST

    matches = _Matcher(name, where)
    groups = [group for group in inventory.groups if matches(group)]
    found: dict[str, None] = {}
    for group in groups:
        found.update(dict.fromkeys(inventory.group_hosts(group)))
    if not groups or name.startswith("~") or any(special in name for special in ".?*["):
        found.update(dict.fromkeys(host for host in inventory.hosts if matches(host)))
    if found or groups:
        return list(found)
    if name in LOCALHOST:
        return [name]
    raise unknown_name(inventory, name, where)


class _Matcher:
    """Says whether a name matches a glob or, behind `~`, the beginning of a name a regular expression."""

    def __init__(self, text: str, where: Origin | None) -> None:
        try:
            self._match = re.compile(text[1:] if text.startswith("~") else fnmatch.translate(text)).match
        except re.error as error:
            raise InputError(f"`{text}` is no regular expression: {error}", where=where) from None

    def __call__(self, name: str) -> bool:
        return self._match(name) is not None
