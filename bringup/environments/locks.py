"""Hashed locks, one per platform: what is in one, which of it holds for an interpreter, how it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name
from packaging.version import Version

from bringup.base.errors import InputError
from bringup.base.origin import Origin

_ENTRY = re.compile(r"^([A-Za-z0-9][\w.-]*)(\[[^\]]*\])?==([^\s;\\]+)\s*(?:;\s*(.*?))?\s*\\?$")
_HEADER = re.compile(r"^# ([a-z_]+): (.*)$")


@dataclass(frozen=True)
class Locked:
    """One package of a lock. `marker` narrows it to some interpreters ("" to none); `via` is who asked for it."""

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True)
class Lock:
    """A lock file. `header` holds what it was made from: platform, python (minor versions), overrides."""

    file: str
    text: str
    packages: tuple[Locked, ...]
    header: Mapping[str, str]

    @property
    def pythons(self) -> tuple[str, ...]:
        return tuple(self.header.get("python", "").split())

    def of_python(self, version: str) -> dict[str, str]:
        """name -> version of what is installed for an interpreter, given as `3.11` or `3.11.2`."""
        minor = ".".join(version.split(".")[:2])
        return {
            item.name: item.version for item in self.packages
            if not item.marker or Marker(item.marker).evaluate({"python_version": minor})
        }


def read_lock(file: Path, shown_as: str | None = None) -> Lock:
    """Read a lock. Raises InputError when it is missing or a package in it has no hash."""
    shown = shown_as or str(file)
    try:
        text = file.read_text()
    except OSError as error:
        raise InputError(f"the lock cannot be read: {error.strerror}", where=shown, next="invoke env.lock") from None
    return parse_lock(text, shown)


def parse_lock(text: str, shown: str) -> Lock:
    """A lock from its text. Raises InputError with the line."""
    packages: list[Locked] = []
    header: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        head = _HEADER.match(line)
        if head and not packages:
            header[head[1]] = head[2].strip()
        elif stripped.startswith("--hash="):
            if not packages:
                raise InputError("a hash without a package", where=Origin(shown, number))
            value = stripped.removeprefix("--hash=").rstrip("\\ ")
            packages[-1] = replace(packages[-1], hashes=(*packages[-1].hashes, value))
        elif stripped.startswith("#"):
            if packages:
                via = re.sub(r"^#\s*(via\b)?", "", stripped).strip()
                if via:
                    packages[-1] = replace(packages[-1], via=(*packages[-1].via, via))
        elif stripped:
            packages.append(_entry(stripped, Origin(shown, number)))
    for item in packages:
        if not item.hashes:
            raise InputError(f"{item.name} has no hash", where=Origin(shown, item.line), next="invoke env.lock")
    return Lock(shown, text, tuple(packages), header)


def _entry(text: str, where: Origin) -> Locked:
    found = _ENTRY.match(text)
    if not found:
        raise InputError("the line is not understood in a lock", where=where, expected="name==version \\", found=text)
    marker = (found[4] or "").rstrip("\\ ")
    if marker:
        try:
            Marker(marker)
        except InvalidMarker as error:
            raise InputError(f"the marker is not understood: {error}", where=where, found=marker) from None
    return Locked(canonicalize_name(found[1]), found[3], marker, line=where.line or 0)


def merge(locks: Mapping[str, Lock]) -> list[Locked]:
    """One list of packages from a lock per minor Python version: a marker where not all agree."""
    pythons = sorted(locks, key=Version)
    seen: dict[tuple[str, str], list[str]] = {}
    items: dict[tuple[str, str], Locked] = {}
    for python in pythons:
        for item in locks[python].packages:
            key = (item.name, item.version)
            seen.setdefault(key, []).append(python)
            before = items.get(key)
            via = tuple(dict.fromkeys((*(before.via if before else ()), *item.via)))
            hashes = tuple(sorted({*(before.hashes if before else ()), *item.hashes}))
            items[key] = replace(item, hashes=hashes, via=via)
    out = []
    for key in sorted(items, key=lambda item: (item[0], Version(item[1]))):
        out.append(replace(items[key], marker=_marker(seen[key], pythons)))
    return out


def _marker(have: Sequence[str], pythons: Sequence[str]) -> str:
    if len(have) == len(pythons):
        return ""
    first, last = pythons.index(have[0]), pythons.index(have[-1])
    if last - first + 1 != len(have):
        return " or ".join(f"python_version == '{python}'" for python in have)
    parts = []
    if first > 0:
        parts.append(f"python_version >= '{have[0]}'")
    if last < len(pythons) - 1:
        parts.append(f"python_version < '{pythons[last + 1]}'")
    return " and ".join(parts)


def render(packages: Sequence[Locked], header: Mapping[str, str]) -> str:
    """A lock's text: header, then packages by name with hashes and who asked. Names no index."""
    lines = ["# bringup lock", *(f"# {key}: {value}" for key, value in header.items()), ""]
    for item in packages:
        marker = f" ; {item.marker}" if item.marker else ""
        lines.append(f"{item.name}=={item.version}{marker} \\")
        hashes = sorted(item.hashes)
        lines += [f"    --hash={value} \\" for value in hashes[:-1]]
        lines += [f"    --hash={hashes[-1]}"] if hashes else []
        lines += [f"    # via {via}" for via in sorted(item.via)]
    return "\n".join(lines) + "\n"


def lock_cuda(lock: Lock) -> str | None:
    """The CUDA version that a lock carries, as `12.8.90`, from nvidia-cuda-runtime (-cu12, -cu13); None without one.

    The driver must reach it: 12.x wants driver 525 or newer, 13.x wants 580 or newer.
    """
    for item in lock.packages:
        if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", item.name):
            return item.version
    for item in lock.packages:
        found = re.search(r"\+cu(\d\d)(\d)", item.version) if item.name == "torch" else None
        if found:
            return f"{found[1]}.{found[2]}"
    return None
