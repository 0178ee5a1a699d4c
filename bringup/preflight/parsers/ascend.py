"""Ascend: the tables of npu-smi in all their widths, version files, hccn_tool and its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from bringup.preflight.parsers.text import bus, number, pairs, plain, whole
from bringup.preflight.unread import Unread

_REFUSALS = ("dcmi model initialized failed", "dcmi module initialize failed", "there is no npu card",
             "npu get board type failed", "invalid card id", "error parameter", "does not support")


@dataclass(frozen=True)
class Npu:
    """One chip as `npu-smi info` shows it. Memory is MB; None is what the chip does not have."""

    npu: int
    chip: int
    name: str
    health: str
    bus: str
    power: float | None
    temperature: float | None
    memory_used: int | None
    memory_total: int | None
    phy_id: int | None = None


@dataclass(frozen=True)
class NpuProcess:
    """A process on a chip; `used` is MB."""

    npu: int
    chip: int
    pid: int
    name: str
    used: int | None


@dataclass(frozen=True)
class NpuInfo:
    """The whole table: the tool's version, chips, processes, the tool's warnings after it."""

    version: str
    chips: tuple[Npu, ...]
    processes: tuple[NpuProcess, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Package:
    """A version.info or install.info: version, and the range that it says it goes with."""

    version: str
    compatible: str = ""
    inner: str = ""
    path: str = ""


def info(text: str) -> NpuInfo:
    """`npu-smi info` of 310 to 950, widths 80 to 118. Raises Unread."""
    lines = plain(text).splitlines()
    lower = plain(text).lower()
    for refusal in _REFUSALS:
        if refusal in lower and "|" not in text:
            raise Unread(_first(text))
    version = re.search(r"\bVersion:\s*(\S+)", text)
    chips: list[Npu] = []
    processes: list[NpuProcess] = []
    upper: list[list[str]] | None = None
    phy, in_processes = False, False
    for line in lines:
        if not line.lstrip().startswith("|"):
            continue
        boxes = [box.split() for box in line.strip().strip("|").split("|")]
        joined = " ".join(word for box in boxes for word in box)
        if "Process id" in joined:
            in_processes = True
        elif "Health" in joined and "Name" in joined:
            in_processes = False
        elif in_processes:
            _process(boxes, processes)
        elif "Phy-ID" in joined:
            phy = True
        elif len(boxes) < 3 or "Version:" in joined or "Bus-Id" in joined or "Health" in joined:
            continue
        elif upper is None:
            upper = boxes
        else:
            chips.append(_chip(upper, boxes, phy))
            upper = None
    if upper is not None:
        raise Unread("npu-smi info stops half way")
    if not chips:
        raise Unread(_first(text) or "npu-smi info shows no chip")
    keys = [(chip.npu, chip.chip, chip.bus) for chip in chips]
    if len(set(keys)) != len(keys):
        raise Unread("npu-smi info shows a chip twice")
    warnings = tuple(line.strip() for line in lines if line.strip().startswith("[WARNING]"))
    return NpuInfo(version.group(1) if version else "", tuple(chips), tuple(processes), warnings)


def _chip(upper: list[list[str]], lower: list[list[str]], phy: bool) -> Npu:
    # the last three boxes are health | power...; what stands before them is the id and the name, in one box or two
    left = [word for box in upper[:-2] for word in box]
    below = [word for box in lower[:-2] for word in box]
    if not left or not left[0].isdecimal() or not upper[-2]:
        raise Unread(f"a row of npu-smi info reads `{' '.join(left)}`")
    right = upper[-1]
    usage = re.findall(r"(\d+)\s*/\s*(\d+)", " ".join(lower[-1]))
    used, total = usage[-1] if usage else (None, None)
    return Npu(
        npu=int(left[0]),
        chip=int(below[0]) if below and below[0].isdecimal() else 0,
        name=" ".join(left[1:]),
        health=" ".join(upper[-2]),
        bus=bus(lower[-2][0]) if lower[-2] else "",
        power=number(right[0]) if right else None,
        temperature=number(right[1]) if len(right) > 1 else None,
        memory_used=int(used) if used else None,
        memory_total=int(total) if total else None,
        phy_id=int(below[1]) if phy and len(below) > 1 and below[1].isdecimal() else None,
    )


def _process(boxes: list[list[str]], out: list[NpuProcess]) -> None:
    if len(boxes) < 3 or not boxes[0] or not boxes[0][0].isdecimal() or not boxes[1]:
        return
    pid = whole(boxes[1][0])
    if pid is None:
        return
    chip = int(boxes[0][1]) if len(boxes[0]) > 1 and boxes[0][1].isdecimal() else 0
    used = whole(boxes[3][0]) if len(boxes) > 3 and boxes[3] else None
    out.append(NpuProcess(int(boxes[0][0]), chip, pid, " ".join(boxes[2]), used))


def health(text: str) -> tuple[str, str]:
    """`npu-smi info -t health`: the status and the error codes. Raises Unread."""
    fields = pairs(text)
    status = fields.get("Health Status") or fields.get("Health")
    if not status:
        raise Unread(_first(text) or "npu-smi says no health")
    code = fields.get("Error Code", "NA")
    return status, "" if code == "NA" else code


def package(text: str) -> Package:
    """A version.info or install.info of driver, firmware or CANN. Raises Unread."""
    fields = pairs(text, "=")
    version = fields.get("Version") or fields.get("version")
    if not version:
        raise Unread("no version in it")
    compatible = fields.get("compatible_version_fw") or fields.get("compatible_version_drv") or ""
    inner = fields.get("innerversion") or fields.get("Innerversion", "")
    return Package(version, compatible, inner, fields.get("path", ""))


def within(version: str, ranges: str) -> bool | None:
    """Whether a version lies in ranges such as `[7.0.0,7.2.99]`; None where nothing comparable is said.

    `[23.0.rc3,23.0.rc3.],[23.0.0,23.0.0.]` names releases by their beginning.
    """
    found = re.findall(r"\[([^,\]]+),([^\]]+)\]", ranges)
    if not found:
        return None
    for low, high in found:
        if high.rstrip(".") == low and (version == low or version.startswith(low + ".")):
            return True
        a, b, v = (_parts(text) for text in (low, high, version))
        if a and b and v and a <= v and v[: len(b)] <= b:
            return True
    return False


def _parts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("rc")[0]))


def per_device(text: str) -> Mapping[int, str]:
    """The output of a loop over devices that prints `== N` before each answer."""
    out: dict[int, str] = {}
    current: int | None = None
    for line in plain(text).splitlines():
        head = re.fullmatch(r"== (\d+)\s*", line)
        if head:
            current = int(head.group(1))
            out[current] = ""
        elif current is not None:
            out[current] += line + "\n"
    if not out:
        raise Unread(_first(text) or "hccn_tool printed nothing")
    return out


def address(text: str) -> str:
    """`hccn_tool -i N -ip -g`: the address; empty where the device has none."""
    match = re.search(r"^\s*ipaddr\s*:\s*(\S+)", text, re.MULTILINE)
    return match.group(1) if match else ""


def link(text: str) -> str:
    """`hccn_tool -i N -link -g`: UP or DOWN. Raises Unread."""
    match = re.search(r"link status\s*:\s*(\S.*)", plain(text))
    if not match:
        raise Unread(_first(text) or "hccn_tool says no link status")
    return match.group(1).strip()


def net_health(text: str) -> str:
    """`hccn_tool -i N -net_health -g`: Success, Init, Socket failed ... Raises Unread."""
    match = re.search(r"net health status\s*:\s*(\S.*)", text)
    if not match:
        raise Unread(_first(text) or "hccn_tool says no net health")
    return match.group(1).strip()


def tls(text: str) -> int:
    """`hccn_tool -i N -tls -g`: the switch, 0 or 1. Raises Unread."""
    match = re.search(r"tls switch\[(\d)\]", text)
    if not match:
        raise Unread(_first(text) or "hccn_tool says no TLS switch")
    return int(match.group(1))


def hccn_conf(text: str) -> Mapping[int, tuple[str, int]]:
    """/etc/hccn.conf: for each device its address and the line where it stands. Raises Unread for one without any."""
    out = {}
    for line_number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*address_(\d+)\s*=\s*(\S+)", line)
        if match:
            out[int(match.group(1))] = (match.group(2), line_number)
    if not out:
        raise Unread("no address stands in /etc/hccn.conf")
    return out


def chip_map(text: str) -> tuple[tuple[int, int], ...]:
    """`npu-smi info -m`: NPU and chip of every chip that computes (controllers are left out). Raises Unread."""
    out: list[tuple[int, int]] = []
    place: int | None = None
    for line in plain(text).splitlines():
        words = re.split(r"\t+| {2,}", line.strip())
        if "NPU ID" in words and "Chip ID" in words:
            place = words.index("Chip ID")
        elif (place is not None and len(words) > place + 1 and words[0].isdecimal() and words[place].isdecimal()
              and words[-1].lower() != "mcu"):
            out.append((int(words[0]), int(words[place])))
    if not out:
        raise Unread(_first(text) or "npu-smi info -m shows no chip")
    return tuple(out)


def gateway(text: str) -> str:
    """`hccn_tool -i N -gateway -g`; empty where there is none."""
    match = re.search(r"default gateway\s*:\s*([\w.:]+)", text)
    return match.group(1) if match else ""


def detect_address(text: str) -> str:
    """`hccn_tool -i N -netdetect -g`; empty where none is set."""
    match = re.search(r"netdetect address\s*:\s*([\w.:]+)", text)
    return match.group(1) if match else ""


def fault_events(text: str) -> tuple[int, tuple[str, ...]]:
    """`npu-smi info -t current-fault-event -i N` of the 950: how many, and what each says. Raises Unread."""
    match = re.search(r"(?m)^\s*Fault Event Count\s*:\s*(\d+)\s*$", plain(text))
    if not match:
        raise Unread(_first(text) or "npu-smi says nothing of fault events")
    return int(match.group(1)), tuple(re.findall(r"event id=\S+, severity=\d+", text))


def super_pod(text: str) -> str:
    """`npu-smi info -t spod-info`: the Super Pod ID. Raises Unread; absent where the device has none."""
    match = re.search(r"Super Pod ID\s*:\s*(\d+)", text)
    if not match:
        raise Unread(_first(text) or "no super pod", absent="not support" in text.lower())
    return match.group(1)


def ecc(text: str) -> Mapping[str, int]:
    """`npu-smi info -t ecc -i N`: counts by name (`HBM Double Bit Error Count`), all chips together. Raises Unread."""
    out: dict[str, int] = {}
    for name, value in re.findall(r"(?m)^\s*([A-Z]+ (?:Single|Double) Bit [\w -]+?)\s*: *(\S+)\s*$", plain(text)):
        if not value.isdecimal():
            raise Unread(f"{name}: {value}")
        out[name] = out.get(name, 0) + int(value)
    if "HBM Double Bit Error Count" not in out and "DDR Double Bit Error Count" not in out:
        raise Unread(_first(text) or "npu-smi says nothing of ECC")
    return out


def compatibility(text: str) -> str:
    """`npu-smi info -t board -i N`: OK, NOK, UNKNOWN or NOT SUPPORT. Raises Unread."""
    found = re.findall(r"(?m)^\s*Compatibility\s*:\s*(\S.*?)\s*$", plain(text))
    if not found:
        raise Unread(_first(text) or "npu-smi says nothing of compatibility")
    return str(next((word for word in found if word != "OK"), "OK"))


@dataclass(frozen=True)
class LinkHistory:
    """Changes of a port, newest first: the newest state, and how many seconds ago it went down each time."""

    newest: str
    downs: tuple[float, ...]


def link_history(text: str) -> LinkHistory:
    """`hccn_tool -i N -link_stat -g`, either prefix; without the tool's own time no age is known. Raises Unread."""
    text = plain(text)
    now = re.search(r"current time\s*: (\w{3} \w{3} +\d+ [\d:]+ \d{4})", text)
    records = re.findall(r"(?m)(\w{3} \w{3} +\d+ \d+:\d+:\d+ \d{4}) +LINK (UP|DOWN)\s*$", text)
    if not records or "link up count" not in text:
        raise Unread(_first(text) or "hccn_tool shows no changes of the link")
    try:
        newest = datetime.strptime(now.group(1), "%a %b %d %H:%M:%S %Y") if now else None
        downs = [datetime.strptime(when, "%a %b %d %H:%M:%S %Y") for when, state in records if state == "DOWN"]
    except ValueError as error:
        raise Unread(f"a time of hccn_tool cannot be read: {error}") from None
    return LinkHistory(str(records[0][1]), tuple((newest - when).total_seconds() for when in downs) if newest else ())


def ub_ports(text: str) -> tuple[str, Mapping[int, str]]:
    """`hccn_tool -g -ub_connect -i N` of the 950: the state of all, and of each port. Raises Unread."""
    state = link(text)
    ports = {int(number): word for number, word in re.findall(r"(?m)^\s*port (\d+)\s*:\s*(\S.*?)\s*$", plain(text))}
    return state, ports


def _first(text: str) -> str:
    return next((line.strip()[:200] for line in plain(text).splitlines() if line.strip()), "")
