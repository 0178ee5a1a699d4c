"""The machine under the host: memory in pieces, memory errors that the kernel counts, what its BMC says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bringup.preflight.parsers.text import plain
from bringup.preflight.unread import Unread

_SEL = re.compile(r"^\s*([0-9a-fA-F]+)\s*\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)"
                  r"(?:\|\s*(Asserted|Deasserted)\s*(?:\|.*)?)?$")
_SENSOR = re.compile(r"^(\S[^|]*?)\s*\|\s*[0-9A-Fa-f]+h?\s*\|\s*(ok|nc|cr|nr|ns|us|lnc|lcr|lnr|unc|ucr|unr)\s*"
                     r"\|\s*[\d.]+\s*\|(.*)$")
_CHASSIS = ("Power Overload", "Main Power Fault", "Power Control Fault", "Drive Fault", "Cooling/Fan Fault")


@dataclass(frozen=True)
class Pieces:
    """Free memory of a NUMA node's normal zone: pages of 4 KiB (or the kernel's size) by order, 2**order each."""

    node: int
    orders: tuple[int, ...]

    @property
    def pages(self) -> int:
        """Free pages of the zone."""
        return sum(count << order for order, count in enumerate(self.orders))

    def share(self, least: int) -> float:
        """How much of the free memory lies in pieces of order `least` or larger, 0..1."""
        large = sum(count << order for order, count in enumerate(self.orders) if order >= least)
        return large / self.pages if self.pages else 1.0


@dataclass(frozen=True)
class Controller:
    """A memory controller as EDAC counts: corrected and uncorrected errors since boot, and those DIMMs that have some.
    """

    name: str
    corrected: int
    uncorrected: int
    dimms: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class BmcEvent:
    """A line of the BMC's event log. `age` is seconds before the BMC's own clock, None where it has no date."""

    number: str
    sensor: str
    event: str
    asserted: bool
    age: float | None


@dataclass(frozen=True)
class Sensor:
    """A sensor of the BMC: `status` is ipmitool's (ok, nc, cr, nr, ns), `state` its reading or what it asserts."""

    name: str
    status: str
    state: str


def buddyinfo(text: str) -> tuple[Pieces, ...]:
    """/proc/buddyinfo: the Normal zone of every node. Raises Unread."""
    out: dict[int, Pieces] = {}
    zones = 0
    for line in plain(text).splitlines():
        if not line.strip():
            continue
        match = re.fullmatch(r"Node (\d+), zone\s+(\w+)((?:\s+\d+){8,16})\s*", line)
        if not match:
            raise Unread(f"/proc/buddyinfo has the line `{line[:80]}`")
        zones += 1
        if match.group(2) == "Normal":
            node = int(match.group(1))
            if node in out:
                raise Unread(f"/proc/buddyinfo names node {node} twice")
            out[node] = Pieces(node, tuple(int(word) for word in match.group(3).split()))
    if not zones:
        raise Unread("/proc/buddyinfo is empty")
    if not out:
        raise Unread("this kernel has no zone Normal", absent=True)
    return tuple(out.values())


def edac(files: Mapping[str, str]) -> tuple[Controller, ...]:
    """/sys/devices/system/edac/mc: every controller. Raises Unread for a count that is no number."""
    raw: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        match = re.search(r"/edac/mc/(mc\d+)/(.+)$", path)
        if match:
            raw.setdefault(match.group(1), {})[match.group(2)] = text
    out = []
    for name, values in sorted(raw.items()):
        counts = {key: _count(f"{name}/{key}", value) for key, value in values.items() if key.endswith("_count")}
        if "ce_count" not in counts or "ue_count" not in counts:
            raise Unread(f"{name} does not say its errors")
        dimms = {}
        for folder in sorted({key.rpartition("/")[0] for key in counts if "/" in key}):
            pair = counts.get(f"{folder}/dimm_ce_count", 0), counts.get(f"{folder}/dimm_ue_count", 0)
            if any(pair):
                dimms[values.get(f"{folder}/dimm_label", "").strip() or folder] = pair
        out.append(Controller(name, counts["ce_count"], counts["ue_count"], dimms))
    if not out:
        raise Unread("the kernel counts no memory errors here", absent=True)
    return tuple(out)


def _count(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]+\n", text):  # one without its line's end is cut
        raise Unread(f"{name} holds no whole number")
    return int(text)


def _sections(text: str) -> Mapping[str, str]:
    """What stands behind each `== NAME`. Raises Unread where `== end` is missing."""
    parts = re.split(r"(?m)^== (\w+)\s*$", plain(text))
    out = dict(zip(parts[1::2], parts[2::2], strict=True))
    if "end" not in out:
        raise Unread(next((line.strip()[:160] for line in plain(text).splitlines() if line.strip()),
                          "ipmitool printed nothing"))
    return out


def bmc_events(text: str) -> tuple[BmcEvent, ...]:
    """`ipmitool sel time get` behind `== now`, `ipmitool sel elist` behind `== list`, then `== end`. Raises Unread."""
    parts = _sections(text)
    now = _moment(parts.get("now", "").strip())
    if now is None or "list" not in parts:
        raise Unread(f"the BMC does not say its time: {parts.get('now', '').strip()[:120]}")
    out = []
    others = 0
    for line in parts["list"].splitlines():
        # records of the maker and of a kernel that panicked have no sensor
        if not line.strip() or "SEL has no entries" in line or re.match(r"\s*[0-9a-fA-F]+ \|[^|]*(?:\|[^|]*\|[^|]*)?"
                                                                        r"(?:OEM record|Linux kernel panic)", line):
            others += 1
            continue
        match = _SEL.match(line)
        if not match:
            raise Unread(f"the BMC's log has the line `{line.strip()[:100]}`")
        number, day, time, sensor, event, direction = (part.strip() if part else "" for part in match.groups())
        when = _moment(f"{day} {time}")
        if when is None and "nit" not in day + time:  # Pre-Init: before the BMC knew the time
            raise Unread(f"the BMC's log has the time `{day} {time}`")
        out.append(BmcEvent(number, sensor, event, direction != "Deasserted",
                            (now - when).total_seconds() if when else None))
    if not out and not others:
        raise Unread("the BMC's log is neither empty nor does it hold a line")
    return tuple(out)


def _moment(text: str) -> datetime | None:
    """`11/20/2025 08:11:12`, the year also of two digits, AM or PM and a zone behind it."""
    match = re.match(r"(\d\d)/(\d\d)/(\d{2}|\d{4}) (\d\d):(\d\d):(\d\d)(?: (AM|PM))?\b", text)
    if not match:
        return None
    month, day, year, hour, minute, second = (int(part) for part in match.groups()[:6])
    if match.group(7):
        hour = hour % 12 + (12 if match.group(7) == "PM" else 0)
    try:
        return datetime(year + (2000 if year < 100 else 0), month, day, hour, minute, second)
    except ValueError:
        return None


def bmc_sensors(text: str) -> tuple[Sensor, ...]:
    """`ipmitool sdr type` of power supplies and fans behind `== sdr`, then `== end`. Raises Unread."""
    parts = _sections(text)
    out = []
    for line in parts.get("sdr", "").splitlines():
        if not line.strip():
            continue
        match = _SENSOR.match(line)
        if not match:
            raise Unread(f"the BMC's sensors have the line `{line.strip()[:100]}`")
        out.append(Sensor(match.group(1), match.group(2), match.group(3).strip()))
    if not out:
        raise Unread("the BMC shows no power supply and no fan", absent="sdr" in parts)
    return tuple(out)


def chassis(text: str) -> Mapping[str, bool]:
    """`ipmitool chassis status` behind `== chassis`, then `== end`: which faults stand. Raises Unread."""
    out = {}
    for line in _sections(text).get("chassis", "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in _CHASSIS:
            if value.strip() not in ("true", "false"):
                raise Unread(f"the BMC says of {key.strip()}: {value.strip()[:60]}")
            out[key.strip()] = value.strip() == "true"
    if len(out) < len(_CHASSIS):
        raise Unread("the BMC does not say all faults of its chassis")
    return out
