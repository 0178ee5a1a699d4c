"""Processes, listeners, PCI devices, host files and JSON answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bringup.preflight.parsers.text import bus
from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class Process:
    """A process of a host. `age` is seconds; `start` is clock ticks since boot, 0 where unknown.

    `mark` is what an engine process of ours carries: `root|name|nonce`; empty for all others.
    """

    pid: int
    parent: int
    user: str
    state: str
    age: int | None
    command: str
    start: int = 0
    unit: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket and who holds it (pids empty where that cannot be seen)."""

    address: str
    port: int
    pids: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class PciDevice:
    """A device on the PCI bus: class and ids as four hexadecimal digits; speed in GT/s and width where known."""

    bus: str
    kind: str
    vendor: str
    device: str
    speed: float | None = None
    max_speed: float | None = None
    width: int | None = None
    max_width: int | None = None
    numa: int | None = None
    driver: str = ""


def processes(text: str) -> Mapping[int, Process]:
    """A process table with a header line: PID PPID USER STAT ... COMMAND, as `ps -eo` prints it. Raises Unread."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or "PID" not in lines[0].split():
        raise Unread("no header in the process table")
    names = lines[0].split()
    out: dict[int, Process] = {}
    for line in lines[1:]:
        words = line.split(None, len(names) - 1)
        if len(words) < len(names) or not words[0].isdecimal():
            raise Unread(f"the process table has the line `{line[:80]}`")
        row = dict(zip(names, words, strict=True))
        start, unit, mark = row.get("START", ""), row.get("UNIT", "-"), row.get("MARK", "-")
        parent = row.get("PPID", "0")
        out[int(row["PID"])] = Process(
            pid=int(row["PID"]), parent=int(parent) if parent.isdecimal() else 0, user=row.get("USER", ""),
            state=row.get("STAT", row.get("S", "")), age=age(row.get("ELAPSED", "")),
            command=row.get("COMMAND", row.get("ARGS", row.get("CMD", ""))),
            start=int(start) if start.isdecimal() else 0,
            unit="" if unit == "-" else unit, mark="" if mark == "-" else mark)
    return out


def age(text: str) -> int | None:
    """Seconds out of `2-03:11:09`, `11:09` or `184269`."""
    if text.isdecimal():
        return int(text)
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def listeners(text: str) -> tuple[Listener, ...]:
    """`ss -ltnp`, with or without its header. Raises Unread."""
    out = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] != "LISTEN":
            continue
        local = next((word for word in words[1:] if re.search(r":\d+$", word)), "")
        host, _, port = local.rpartition(":")
        if not port:
            raise Unread(f"a listener reads `{line.strip()[:80]}`")
        pids = tuple(sorted({int(pid) for pid in re.findall(r"pid=(\d+)", line)}))
        name = re.search(r'\(\(?"?([^",]+)', line[line.find("users:"):]) if "users:" in line else None
        out.append(Listener(host.strip("[]"), int(port), pids, name.group(1) if name else ""))
    if not out and text.strip() and not text.startswith(("State", "Netid")):
        raise Unread("this is no list of listeners")
    return tuple(out)


_PCI = re.compile(r"^(?P<bus>[0-9a-f:.]{7,12}) (?:.*?\[)?(?P<kind>[0-9a-f]{4})(?:\])?: "
                  r"(?:.*\[)?(?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})\]?(?P<rest>.*)$", re.IGNORECASE)


def pci(text: str) -> tuple[PciDevice, ...]:
    """`lspci -n`, `lspci -nn` or the agent's list in the shape of the former. Raises Unread when nothing is read."""
    out = []
    for line in text.splitlines():
        match = _PCI.match(line.strip())
        if match:
            extra = dict(word.partition("=")[::2] for word in match["rest"].split() if "=" in word)
            out.append(PciDevice(
                bus(match["bus"]), match["kind"].lower(), match["vendor"].lower(), match["device"].lower(),
                _float(extra.get("speed")), _float(extra.get("max_speed")), _int(extra.get("width")),
                _int(extra.get("max_width")), _int(extra.get("numa")), extra.get("driver", "").strip("-")))
            continue
        huawei = re.match(r"^([0-9a-f:.]{7,12}) Processing accelerators: .*Device (d80\d)", line.strip())
        if huawei:
            out.append(PciDevice(bus(huawei.group(1)), "1200", "19e5", huawei.group(2)))
    if not out:
        raise Unread("no device in the list of the PCI bus")
    return tuple(out)


def _float(text: str | None) -> float | None:
    match = re.match(r"\d+(\.\d+)?", text or "")
    return float(match.group()) if match else None


def _int(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def hosts_file(text: str) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """/etc/hosts as (line number, address, names)."""
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if len(words) > 1:
            out.append((number, words[0], tuple(words[1:])))
    return tuple(out)


def tree(text: str, kind: type) -> Any:
    """A JSON answer of the agent that must be a list or a mapping. Raises Unread."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Unread(f"the answer is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise Unread(f"the answer is no {kind.__name__}")
    return value


@dataclass(frozen=True)
class Holder:
    """A process that has device files open, with the name that the kernel knows it by."""

    pid: int
    devices: tuple[str, ...]
    name: str


def holders(text: str) -> tuple[Holder, ...]:
    """`pid device name` lines, one for each device."""
    out: dict[int, Holder] = {}
    for line in text.splitlines():
        words = line.split(None, 2)
        if len(words) >= 2 and words[0].isdecimal():
            pid, name = int(words[0]), words[2] if len(words) > 2 else ""
            known = out.get(pid, Holder(pid, (), name))
            out[pid] = Holder(pid, (*known.devices, words[1]), name or known.name)
    return tuple(out.values())


def acs(text: str) -> tuple[tuple[str, bool], ...]:
    """`lspci -vvv` cut to device lines and ACSCtl lines: (device, True where SrcValid is on). Raises Unread."""
    out = []
    current = ""
    for line in text.splitlines():
        head = re.match(r"^([0-9a-f]{2,4}:[0-9a-f:.]+)\s", line)
        if head:
            current = bus(head.group(1))
        elif re.search(r"ACSCtl", line, re.IGNORECASE):
            state = re.search(r"ACSCtl:\s+SrcValid([+-])", line)
            if not state:
                raise Unread(f"lspci says `{line.strip()[:80]}`")
            out.append((current, state.group(1) == "+"))
    return tuple(out)
