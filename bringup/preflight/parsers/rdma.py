"""InfiniBand and RoCE: ports out of sysfs, ibstat and ibv_devinfo; GIDs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bringup.preflight.parsers.text import number, plain
from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class Gid:
    """One GID of a port: its index, type (`IB/RoCE v1` or `RoCE v2`), value and interface."""

    index: int
    type: str
    value: str
    interface: str

    @property
    def ipv4(self) -> str:
        """The IPv4 address in it, or an empty text."""
        match = re.fullmatch(r"0000:0000:0000:0000:0000:ffff:([0-9a-f]{4}):([0-9a-f]{4})", self.value.lower())
        if not match:
            return ""
        raw = bytes.fromhex(match.group(1) + match.group(2))
        return ".".join(str(part) for part in raw)


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device. `rate` is Gb/s."""

    device: str
    port: int = 1
    state: str = ""
    physical: str = ""
    rate: float | None = None
    layer: str = ""
    firmware: str = ""
    model: str = ""
    mtu: int | None = None
    numa: int | None = None
    link_downed: int | None = None
    gids: tuple[Gid, ...] = field(default=())

    @property
    def active(self) -> bool:
        return self.state.lower() == "active" and self.physical.lower() in ("linkup", "")


def ibstat(text: str) -> tuple[tuple[Port, ...], str]:
    """`ibstat`: the ports printed, and what it complained of at the end (it may exit 255 after good ports)."""
    out: list[Port] = []
    device, model, firmware, trouble = "", "", "", ""
    for line in plain(text).splitlines():
        words = line.strip()
        if match := re.match(r"CA '(\S+)'", words):
            device, model, firmware = match.group(1), "", ""
        elif words.startswith("CA type:"):
            model = words.partition(":")[2].strip()
        elif words.startswith("Firmware version:"):
            firmware = words.partition(":")[2].strip()
        elif match := re.match(r"Port (\d+):", words):
            out.append(Port(device, int(match.group(1)), model=model, firmware=firmware))
        elif words.startswith("ibpanic") or "failed:" in words:
            trouble = words
        elif out:
            key, _, value = words.partition(":")
            out[-1] = _with(out[-1], key, value.strip())
    if not out:
        raise Unread(trouble or "ibstat names no port")
    return tuple(out), trouble


def _with(port: Port, key: str, value: str) -> Port:
    if key == "State":
        return replace(port, state=value)
    if key == "Physical state":
        return replace(port, physical=value)
    if key == "Link layer":
        return replace(port, layer=value)
    return replace(port, rate=number(value)) if key == "Rate" else port


def devinfo(text: str) -> Mapping[str, int]:
    """`ibv_devinfo`: the active MTU by device."""
    out = {}
    device = ""
    for line in plain(text).splitlines():
        if match := re.match(r"\s*hca_id:\s*(\S+)", line):
            device = match.group(1)
        elif match := re.match(r"\s*active_mtu:\s*(\d+)", line):
            out[device] = int(match.group(1))
    return out


def sysfs(files: Mapping[str, str]) -> tuple[Port, ...]:
    """Ports out of /sys/class/infiniband. Raises Unread when there is none."""
    raw: dict[tuple[str, int], dict[str, str]] = {}
    devices: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        match = re.search(r"/infiniband/([^/]+)/(?:ports/(\d+)/)?(.+)$", path)
        if not match:
            continue
        value = text.strip()
        if match.group(2):
            raw.setdefault((match.group(1), int(match.group(2))), {})[match.group(3)] = value
        else:
            devices.setdefault(match.group(1), {})[match.group(3)] = value
    out = []
    for (device, port), values in sorted(raw.items(), key=lambda item: (_natural(item[0][0]), item[0][1])):
        about = devices.get(device, {})
        numa = about.get("device/numa_node", "")
        downed = values.get("counters/link_downed", "")
        out.append(Port(
            device, port, _word(values.get("state", "")), _word(values.get("phys_state", "")),
            number(values.get("rate", "").split(" (")[0].replace("Gb/sec", "").strip()), values.get("link_layer", ""),
            about.get("fw_ver", ""), about.get("hca_type", ""), None,
            int(numa) if re.fullmatch(r"-?\d+", numa) else None, int(downed) if downed.isdecimal() else None,
            _gids(values)))
    if not out:
        raise Unread("no RDMA device", absent=True)
    return tuple(out)


def _word(text: str) -> str:
    """`4: ACTIVE` as `Active`, `5: LinkUp` as `LinkUp`."""
    word = text.partition(":")[2].strip() or text
    return word.capitalize() if word.isupper() else word


def _natural(text: str) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", text) if part]


def _gids(values: Mapping[str, str]) -> tuple[Gid, ...]:
    out = []
    for name, value in values.items():
        match = re.fullmatch(r"gids/(\d+)", name)
        if match and value.strip("0:") and not value.endswith(":0000:0000:0000:0000"):
            index = match.group(1)
            out.append(Gid(int(index), values.get(f"gid_attrs/types/{index}", ""), value,
                           values.get(f"gid_attrs/ndevs/{index}", "")))
    return tuple(sorted(out, key=lambda gid: gid.index))


def show_gids(text: str) -> Mapping[str, tuple[Gid, ...]]:
    """`show_gids`: GIDs by device."""
    out: dict[str, tuple[Gid, ...]] = {}
    for line in plain(text).splitlines():
        words = line.split()
        if len(words) >= 6 and words[1].isdecimal() and words[2].isdecimal():
            kind = "RoCE v2" if "v2" in words else "IB/RoCE v1"
            out[words[0]] = (*out.get(words[0], ()), Gid(int(words[2]), kind, words[3], words[-1]))
    return out


@dataclass(frozen=True)
class Card:
    """An RDMA device on its PCIe link. `speed` and `speed_max` are GT/s; `errors` are counters by name, since boot (or
    the driver's start); `interfaces` its network interfaces.
    """

    device: str
    speed: float | None = None
    speed_max: float | None = None
    width: int | None = None
    width_max: int | None = None
    interfaces: tuple[str, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def capacity(self) -> float | None:
        """Gb/s of the link as it stands: from 8 GT/s on 128 of 130 bits are data, before that 8 of 10."""
        if self.speed is None or self.width is None:
            return None
        return self.speed * self.width * (128 / 130 if self.speed >= 8 else 0.8)


def cards(files: Mapping[str, str]) -> Mapping[str, Card]:
    """Counters and PCIe links out of /sys/class/infiniband, by device. Raises Unread."""
    raw: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        match = re.search(r"/infiniband/([^/]+)/(.+)$", path)
        if match:
            # the kernel ends a counter with a line: one without is cut
            raw.setdefault(match.group(1), {})[match.group(2)] = text if "counters/" in match.group(2) else text.strip()
    out = {}
    for device, values in sorted(raw.items(), key=lambda item: _natural(item[0])):
        errors: dict[str, int] = {}
        for name, value in values.items():
            if "counters/" in name and not value.startswith("N/A"):  # a device without a performance agent
                if not re.fullmatch(r"[0-9]+\n", value):
                    raise Unread(f"{device}: {name} holds no whole number")
                key = name.rpartition("/")[2]
                errors[key] = errors.get(key, 0) + int(value)
        links = [_transfers(device, values.get(f"device/{name}_link_speed")) for name in ("current", "max")]
        widths = [_lanes(device, values.get(f"device/{name}_link_width")) for name in ("current", "max")]
        out[device] = Card(device, links[0], links[1], widths[0], widths[1],
                           tuple(sorted({name.split("/")[2] for name in values if name.startswith("device/net/")})),
                           errors)
    if not out:
        raise Unread("no RDMA device", absent=True)
    return out


def _transfers(device: str, text: str | None) -> float | None:
    """`32.0 GT/s PCIe`; a virtual function or a slot of a hypervisor says `Unknown`."""
    if text is None or text.startswith("Unknown"):
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) GT/s(?: PCIe)?", text)
    if not match:
        raise Unread(f"{device}: the PCIe link has the speed `{text[:40]}`")
    return float(match.group(1))


def _lanes(device: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,3}", text):
        raise Unread(f"{device}: the PCIe link has the width `{text[:40]}`")
    return int(text) if text not in ("0", "255") else None
