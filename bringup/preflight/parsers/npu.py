"""Ports, planes and groups of NPUs: hccn_tool's counters and settings, npu-smi's topology, a rank table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bringup.preflight.parsers.text import pairs, plain
from bringup.preflight.unread import Unread

_FAST = ("HCCS", "SIO", "UB")
_WORDS = {*_FAST, "HCCS_SW", "SYS", "PHB", "PIX", "PXB", "PIB", "NA", "X"}


def counters(text: str) -> Mapping[str, int]:
    """`hccn_tool -i N -stat -g`: counts since the driver was loaded. Raises Unread."""
    out = {}
    for key, value in pairs(text).items():
        if re.fullmatch(r"[a-z]\w*_num", key):
            if not re.fullmatch(r"[0-9]+", value):
                raise Unread(f"hccn_tool says of {key}: {value[:40]}")
            out[key] = int(value)
    for key in ("roce_rx_err_pkt_num", "roce_tx_err_pkt_num"):
        if key not in out:
            raise Unread(_first(text) or "hccn_tool shows no counters", absent="not support" in text.lower())
    return out


def fec(text: str) -> str:
    """`hccn_tool -i N -fec -g`: `rs`, `no` ... Raises Unread."""
    match = re.search(r"(?m)^\s*fec mode:\s*(\w+) FEC mode\s*$", plain(text))
    if not match:
        raise Unread(_first(text) or "hccn_tool says no FEC mode", absent="not support" in text.lower())
    return match.group(1)


def speed(text: str) -> int:
    """`hccn_tool -i N -speed -g`: Mb/s. Raises Unread."""
    match = re.search(r"(?m)^\s*Speed:\s*([0-9]+) Mb/s\s*$", plain(text))
    if not match:
        raise Unread(_first(text) or "hccn_tool says no speed", absent="not support" in text.lower())
    return int(match.group(1))


@dataclass(frozen=True)
class Plane:
    """The port of a chip on the plane within a super pod."""

    state: str
    address: str


def plane(text: str) -> Plane:
    """`hccn_tool -i N -vnic -g`. Raises Unread; absent where the chip has none."""
    state = re.search(r"(?m)^\s*vnic link status:\s*(UP|DOWN)\s*$", plain(text))
    address = re.search(r"(?m)^\s*vnic ipaddr:[ \t]*(\S*)[ \t]*$", plain(text))
    if not state or not address:
        raise Unread(_first(text) or "hccn_tool says nothing of the plane", absent="not support" in text.lower())
    return Plane(state.group(1), address.group(1))


@dataclass(frozen=True)
class Topology:
    """How chips are joined: the word of npu-smi by pair of chips."""

    names: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]

    def fast(self, name: str) -> int:
        """How many chips this one meets over HCCS, SIO or UB."""
        return sum(self.cells[(name, other)].startswith(_FAST) for other in self.names if other != name)


def topology(text: str) -> Topology:
    """`npu-smi info -t topo`. Raises Unread."""
    lines = plain(text).splitlines()
    header = next((line.split() for line in lines if len(line.split()) > 1 and line.split()[0] == "NPU0"
                   and line.split()[1] == "NPU1"), None)
    if header is None:
        raise Unread(_first(text) or "npu-smi shows no topology", absent="not support" in text.lower())
    names = [word for word in header if re.fullmatch(r"NPU\d+", word)]
    cells: dict[tuple[str, str], str] = {}
    for line in lines:
        words = line.split()
        if not words or words[0] not in names or words[1:2] == ["NPU1"]:
            continue
        row = words[1:len(names) + 1]
        if len(row) < len(names) or not all(word in _WORDS for word in row):
            raise Unread(f"the topology has the row `{line.strip()[:100]}`")
        cells.update({(words[0], name): word for name, word in zip(names, row, strict=True)})
    if len(cells) != len(names) ** 2 or any(cells[(name, name)] != "X" for name in names):
        raise Unread("the topology is not whole")
    return Topology(tuple(names), cells)


@dataclass(frozen=True)
class Ping:
    """A chip's ping to a chip of another host: packets that went and came; `plane` by the plane of a super pod."""

    chip: int
    host: str
    address: str
    sent: int
    received: int
    plane: bool = False


def pings(text: str) -> tuple[Ping, ...]:
    """`hccn_tool -i N -ping -g address A` (or -hccs_ping) behind each `== N HOST A WORD`, then `== end`. Raises Unread.
    """
    parts = re.split(r"(?m)^== (.+?)\s*$", plain(text))
    if parts[-2:-1] != ["end"]:
        raise Unread(_first(text) or "the pings stop half way")
    out = []
    for head, answer in zip(parts[1:-2:2], parts[2:-2:2], strict=True):
        words = re.fullmatch(r"(\d+) (\S+) (\S+) (ping|hccs_ping)", head)
        told = re.search(r"(?m)^\s*(\d+) packets transmitted, (\d+) received", answer)
        if not words or not told:
            raise Unread(f"a ping ({head[:60]}) says: {_first(answer) or 'nothing'}")
        out.append(Ping(int(words.group(1)), words.group(2), words.group(3), int(told.group(1)), int(told.group(2)),
                        words.group(4) == "hccs_ping"))
    if not out:
        raise Unread("no ping was made")
    return tuple(out)


@dataclass(frozen=True)
class RankTable:
    """A rank table: the servers in order, and (server, device, address) of each rank."""

    servers: tuple[str, ...]
    ranks: Mapping[int, tuple[str, str, str]]


def rank_table(text: str) -> RankTable:
    """A rank table of version 1.0. Raises Unread, saying what does not fit in it."""
    try:
        found: Any = json.loads(text)
        servers = [str(one["server_id"]) for one in found["server_list"]]
        ranks: dict[int, tuple[str, str, str]] = {}
        for one in found["server_list"]:
            for device in one["device"]:
                rank = int(device["rank_id"])
                if rank in ranks:
                    raise Unread(f"rank {rank} stands twice in it")
                ranks[rank] = (str(one["server_id"]), str(device["device_id"]), str(device.get("device_ip", "")))
        count, status = int(found["server_count"]), str(found.get("status", "completed"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unread(f"it is no rank table: {type(error).__name__}: {error}"[:160]) from None
    if count != len(servers) or len(set(servers)) != len(servers):
        raise Unread(f"server_count is {count}, {len(set(servers))} servers stand in it")
    if sorted(ranks) != list(range(len(ranks))) or not ranks:
        raise Unread(f"its ranks are not 0 to {max(len(ranks) - 1, 0)}")
    addresses = [address for _, _, address in ranks.values() if address]
    twice = next((one for one in addresses if addresses.count(one) > 1), "")
    if twice:
        raise Unread(f"{twice} stands for two devices in it")
    if status != "completed":
        raise Unread(f"its status is {status}, not completed")
    return RankTable(tuple(servers), ranks)


def _first(text: str) -> str:
    return next((line.strip()[:160] for line in plain(text).splitlines() if line.strip()), "")
