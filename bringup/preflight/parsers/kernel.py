"""The kernel log and its modules: Xid, SXid, narrow PCIe links, link flaps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from bringup.preflight.parsers.text import bus, plain
from bringup.preflight.unread import Unread

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)$")
_SXID = re.compile(r"(nvidia-nvswitch\d+): SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (Fatal|Non-fatal)?,?\s*(.*)$")
_LOG = re.compile(r"(?m)^(\[ *\d+\.\d+\]|\[\w{3} |\w{3} +\d+ \d+:|kern |\d+,\d+,\d+|<\d+>|\d{4}-\d\d-\d\d)"
                  r"|NVRM: |SXid ")
_NO_XID = re.compile(r"NVRM\W*\bXid\b|\bSXid\b|\bXid\W*\(PCI", re.IGNORECASE)
_AMDGPU = re.compile(r"amdgpu.*(?:uncorrectable hardware error|GPU reset begin|ring \S+ timeout|GPU is lost)")
_SECONDS = re.compile(r"^\[\s*(\d+\.\d+)\]")
_NARROW = re.compile(r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): (\S+ Gb/s) available PCIe bandwidth, "
                     r"limited by (.+?) at (\S+) \(capable of (\S+ Gb/s)")
_GSP = re.compile(r"NVRM:.*\bGSP\b.*(?:heartbeat|tim(?:ed? ?out|eout)|crash)", re.IGNORECASE)
_MACHINE = re.compile(r"\[Hardware Error\].*(?:event severity: (?:fatal|recoverable)|\buncorrect|"
                      r"processor context corrupt)", re.IGNORECASE)
_AER = re.compile(r"([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): .*PCIe Bus Error: severity=(Uncorrect\w+|Fatal)",
                  re.IGNORECASE)
_OOM = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process \d+ \(?[^,]*")
_DISK = re.compile(r"(?:I/O|critical medium|blk_update_request.*) error, dev (?!loop|sr|fd)\S+|EXT4-fs error|"
                   r"XFS \(\S+\): .*(?:[Cc]orruption|shut(?:ting)? ?down)|Remounting filesystem read-only|"
                   r"BTRFS (?:error|critical)|nvme\d+: .*(?:controller is down|I/O .* timeout)")
_FLAP = re.compile(r"\b(ib\d+|ibp\w+|mlx5_\d+|rdma\d+|roce\w+): .*?(lost carrier|link down)", re.IGNORECASE)
_OTHER = (("gsp", _GSP), ("machine", _MACHINE), ("oom", _OOM), ("disk", _DISK))


@dataclass(frozen=True)
class Xid:
    """An Xid of the driver. `at` is seconds since boot, None where the log has no such stamp."""

    bus: str
    code: int
    text: str
    at: float | None


@dataclass(frozen=True)
class SXid:
    """An error of an NVSwitch."""

    switch: str
    code: int
    fatal: bool
    text: str


@dataclass(frozen=True)
class KernelLog:
    """What a kernel log holds that matters to accelerators and their links."""

    lines: int
    xids: tuple[Xid, ...]
    sxids: tuple[SXid, ...]
    narrow: tuple[tuple[str, str], ...]  # device, what the kernel said
    slot_power: tuple[str, ...]
    unplugged: tuple[str, ...]
    flaps: Mapping[str, int]
    segfaults: tuple[str, ...]
    hung: tuple[str, ...]
    torn: tuple[str, ...] = ()
    """Lines of the driver about an Xid that cannot be read."""
    amdgpu: tuple[str, ...] = ()
    """Lines of amdgpu about errors that no driver mends by itself."""
    gsp: tuple[str, ...] = ()
    """Lines of the driver about a GSP that does not answer, those with an Xid left out."""
    machine: tuple[str, ...] = ()
    """Errors of processor, memory or bus that were not corrected."""
    aer: Mapping[str, int] = field(default_factory=dict)
    """Uncorrected PCIe errors by device."""
    oom: tuple[str, ...] = ()
    disk: tuple[str, ...] = ()
    """Errors of disks and file systems."""


def parse(text: str) -> KernelLog:
    """Read dmesg, `journalctl -k` or /dev/kmsg text. Raises Unread for what is no log; an empty one is none."""
    if text.strip() and not _LOG.search(text):
        raise Unread("this is no kernel log")
    xids: list[Xid] = []
    sxids: list[SXid] = []
    narrow: list[tuple[str, str]] = []
    power: list[str] = []
    unplugged: list[str] = []
    flaps: dict[str, int] = {}
    segfaults: list[str] = []
    hung: list[str] = []
    torn: list[str] = []
    lost: list[str] = []
    other: dict[str, list[str]] = {"gsp": [], "machine": [], "oom": [], "disk": []}
    aer: dict[str, int] = {}
    lines = plain(text).splitlines()
    for line in lines:
        if match := _XID.search(line):
            stamp = _SECONDS.match(line)
            xids.append(Xid(bus(match.group(1)), int(match.group(2)), match.group(3).strip(),
                            float(stamp.group(1)) if stamp else None))
        elif match := _SXID.search(line):
            # the driver repeats an SXid with its raw data: that line has no word for how bad it is
            if match.group(4):
                sxids.append(SXid(match.group(1), int(match.group(3)), match.group(4) == "Fatal", match.group(5)))
            elif "Data {" not in line:
                torn.append(line.strip())
        elif _NO_XID.search(line):
            torn.append(line.strip())
        elif match := _NARROW.search(line):
            narrow.append((match.group(1), f"{match.group(2)}, limited by {match.group(3)} at {match.group(4)} "
                                           f"(capable of {match.group(5)})"))
        elif "insufficient power on the PCIe slot" in line:
            power.append(line.strip())
        elif "Cable unplugged" in line:
            unplugged.append(line.strip())
        elif _AMDGPU.search(line):
            lost.append(line.strip())
        elif "segfault at" in line and "libnccl" in line:
            segfaults.append(line.strip())
        elif "blocked for more than" in line and "task " in line:
            hung.append(line.strip())
        elif match := _AER.search(line):
            aer[bus(match.group(1))] = aer.get(bus(match.group(1)), 0) + 1
        else:
            for name, pattern in _OTHER:
                if pattern.search(line):
                    other[name].append(line.strip())
                    break
        if match := _FLAP.search(line):
            flaps[match.group(1)] = flaps.get(match.group(1), 0) + 1
    return KernelLog(len(lines), tuple(xids), tuple(sxids), tuple(narrow), tuple(power), tuple(unplugged), flaps,
                     tuple(segfaults), tuple(hung), tuple(torn), tuple(lost), aer=aer,
                     **{name: tuple(found) for name, found in other.items()})


def modules(text: str) -> frozenset[str]:
    """Names of loaded modules out of /proc/modules or lsmod."""
    return frozenset(line.split()[0] for line in text.splitlines() if line.split() and not line.startswith("Module "))
