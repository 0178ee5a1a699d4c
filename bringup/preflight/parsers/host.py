"""Host outputs: time, memory, processors, limits, units, release files, containers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bringup.preflight.parsers.text import pairs, plain
from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class Clock:
    """How a host keeps time. `synced` None where nothing says; `offset` is seconds ahead (positive) of the source."""

    synced: bool | None
    offset: float | None = None
    source: str = ""
    by: str = ""


@dataclass(frozen=True)
class Cpu:
    """The processors of a host."""

    model: str
    architecture: str
    sockets: int
    cores: int
    threads: int
    numa: int
    flags: frozenset[str]
    hypervisor: str


@dataclass(frozen=True)
class Limits:
    """Soft and hard limits of a process; None is unlimited. `memlock` is bytes."""

    memlock: tuple[int | None, int | None]
    nofile: tuple[int | None, int | None]


@dataclass(frozen=True)
class Docker:
    """What `docker info` says of the server."""

    version: str
    runtimes: tuple[str, ...]
    default_runtime: str
    root: str


def chrony(text: str) -> Clock:
    """`chronyc tracking`. Before sync the offset prints 0: the leap status is read first. Raises Unread."""
    fields = pairs(text)
    leap = fields.get("Leap status")
    if leap is None:
        raise Unread(_first(text) or "chronyc tracking has no leap status")
    source = re.sub(r"^[0-9A-F]{8} \((.*)\)$", r"\1", fields.get("Reference ID", ""))
    if leap == "Not synchronised":
        return Clock(False, None, source, "chrony")
    if leap not in ("Normal", "Insert second", "Delete second"):
        raise Unread(f"chronyc tracking says of the leap status: {leap}")
    match = re.match(r"(\d+\.\d+) seconds (fast|slow)", fields.get("System time", ""))
    if not match:
        raise Unread("chronyc tracking has no system time")
    offset = float(match.group(1)) * (1 if match.group(2) == "fast" else -1)
    return Clock(True, offset, source, "chrony")


def timedatectl(text: str) -> Clock:
    """`timedatectl`, older and newer words. Raises Unread."""
    fields = pairs(text)
    for name in ("System clock synchronized", "NTP synchronized"):
        if name in fields:
            return Clock(fields[name] == "yes", None, "", "timedatectl")
    raise Unread(_first(text) or "timedatectl does not say whether the clock is synchronized")


def timesync(text: str) -> Clock:
    """`timedatectl timesync-status`. Raises Unread."""
    fields = pairs(text)
    match = re.match(r"([-+]?\d+(?:\.\d+)?)(us|ms|s|min)", fields.get("Offset", ""))
    if "Leap" not in fields and "Server" not in fields:
        raise Unread(_first(text) or "timesyncd says nothing")
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
    offset = float(match.group(1)) * unit[match.group(2)] if match else None
    return Clock(fields.get("Leap") == "normal", offset, fields.get("Server", ""), "systemd-timesyncd")


def meminfo(text: str) -> Mapping[str, int]:
    """/proc/meminfo in bytes (counts of huge pages as they are). Raises Unread."""
    out = {}
    for key, value in pairs(text).items():
        words = value.split()
        if words and words[0].isdecimal():
            out[key.split(" ")[-1]] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    if "MemTotal" not in out:
        raise Unread("no MemTotal in /proc/meminfo")
    return out


def cpu(text: str) -> Cpu:
    """`lscpu` of any age. Raises Unread."""
    fields = pairs(text)
    try:
        threads = int(fields["CPU(s)"])
        sockets = int(fields.get("Socket(s)") or fields.get("Cluster(s)") or 1)
        cores = int(fields.get("Core(s) per socket") or fields.get("Core(s) per cluster") or threads) * sockets
    except (KeyError, ValueError):
        raise Unread(_first(text) or "lscpu names no CPU") from None
    numa = fields.get("NUMA node(s)", "")
    return Cpu(fields.get("Model name", ""), fields.get("Architecture", ""), sockets, cores, threads,
               int(numa) if numa.isdecimal() else 0, frozenset(fields.get("Flags", "").split()),
               fields.get("Hypervisor vendor", ""))


def limits(text: str) -> Limits:
    """/proc/PID/limits. Raises Unread."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"Max (locked memory|open files)\s+(\S+)\s+(\S+)", line)
        if match:
            found[match.group(1)] = (_limit(match.group(2)), _limit(match.group(3)))
    if len(found) != 2:
        raise Unread("no limits in /proc/self/limits")
    return Limits(found["locked memory"], found["open files"])


def _limit(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def unit_limit(text: str) -> int | str | None:
    """A LimitMEMLOCK of systemctl: bytes, None for infinity, "" where it is not said."""
    if text in ("infinity", "18446744073709551615"):
        return None
    return int(text) if text.isdecimal() else ""


def units(text: str) -> tuple[Mapping[str, str], ...]:
    """`systemctl show` of one or more units: a dict each, parted by blank lines. Raises Unread."""
    out: list[dict[str, str]] = [{}]
    for line in plain(text).splitlines():
        if not line.strip():
            out.append({})
            continue
        key, found, value = line.partition("=")
        if found and re.fullmatch(r"[A-Za-z]\w*", key):
            out[-1][key] = value
    filled = tuple(unit for unit in out if unit)
    if not filled and text.strip():
        raise Unread(_first(text))
    return filled


def os_release(text: str) -> Mapping[str, str]:
    """/etc/os-release; values without their quotes. Raises Unread."""
    out = {key: value.strip("\"'") for key, value in pairs(text, "=").items() if key and not key.startswith("#")}
    if "ID" not in out:
        raise Unread("no ID in /etc/os-release")
    return out


def docker(text: str) -> Docker:
    """`docker info`. Raises Unread when the daemon refuses or does not answer."""
    fields = pairs(text)
    if "Server Version" not in fields:
        raise Unread(_first(text) or "docker info names no server")
    return Docker(fields["Server Version"], tuple(fields.get("Runtimes", "").split()),
                  fields.get("Default Runtime", ""), fields.get("Docker Root Dir", ""))


def swaps(text: str) -> tuple[tuple[str, int], ...]:
    """/proc/swaps: device and size in bytes. Raises Unread."""
    lines = text.splitlines()
    if not lines or lines[0].split() != ["Filename", "Type", "Size", "Used", "Priority"]:
        raise Unread("no table in /proc/swaps")
    out = []
    for line in lines[1:]:
        # a name may hold blanks: the numbers are counted from the right
        match = re.fullmatch(r"(\S.*?)\s+(\S+)\s+(\d+)\s+(\d+)\s+(-?\d+)\s*", line)
        if not match:
            raise Unread(f"/proc/swaps has the line `{line[:80]}`")
        out.append((match.group(1), int(match.group(3)) * 1024))
    return tuple(out)


def nvme(text: str) -> Mapping[str, tuple[int, int | None]]:
    """`nvme smart-log -o json` of many disks, each behind `== /dev/nvme0`: (critical warning, percent used).

    Raises Unread.
    """
    out: dict[str, tuple[int, int | None]] = {}
    for block in re.split(r"(?m)^== (?=/dev/)", plain(text))[1:]:
        device, _, rest = block.partition("\n")
        try:
            found = json.loads(rest)
            critical = found["critical_warning"]
            used = found.get("percent_used", found.get("percentage_used"))
            out[device.strip()] = (int(critical["value"] if isinstance(critical, dict) else critical),
                                   int(used) if used is not None else None)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Unread(f"{device.strip()}: no SMART log: {_first(rest)}"[:200]) from None
    if not out:
        raise Unread("no NVMe disk", absent=not text.strip())
    return out


def _first(text: str) -> str:
    return next((line.strip()[:200] for line in plain(text).splitlines() if line.strip()), "")
