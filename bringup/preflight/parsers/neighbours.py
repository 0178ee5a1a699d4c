"""What stands at the other end of a cable: LLDP of a host's interfaces, and of the ports of NPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bringup.preflight.parsers.text import plain
from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class Neighbour:
    """A switch (or another host) and its port, as it names itself."""

    system: str
    port: str
    description: str = ""


def lldp(text: str) -> Mapping[str, tuple[Neighbour, ...]]:
    """`lldpctl -f keyvalue`: the neighbours of each interface. Raises Unread; absent where none is heard."""
    found: dict[str, list[dict[str, str]]] = {}
    odd = ""
    for line in plain(text).splitlines():
        match = re.match(r"lldp\.([^.=\s]+)\.([\w.-]+)=(.*)$", line)
        if match:
            interface, key, value = match.groups()
            blocks = found.setdefault(interface, [])
            # a second neighbour of one interface begins with how it was heard
            if key == "via" or not blocks:
                blocks.append({})
            blocks[-1].setdefault(key, value.strip())
        elif not found and line.strip():
            odd = odd or line.strip()
    if odd:
        raise Unread(f"lldpctl says: {odd[:140]}")
    if not found:
        raise Unread("no neighbour is heard on any interface", absent=True)
    out = {}
    for interface, blocks in found.items():
        seen = []
        for block in blocks:
            system = block.get("chassis.name") or block.get("chassis.mac") or block.get("chassis.local", "")
            port = block.get("port.ifname") or block.get("port.descr") or block.get("port.mac") or block.get(
                "port.local", "")
            if system and port:  # one that does not say what it is tells nothing
                seen.append(Neighbour(system, port, block.get("chassis.descr", "")))
        out[interface] = tuple(seen)
    return out


def npu(text: str) -> Neighbour:
    """`hccn_tool -i N -lldp -g`. Raises Unread, absent where the port hears none."""
    text = plain(text)
    port = re.search(r"(?m)^\s*Ifname:[ \t]*(\S.*?)[ \t]*$", text)
    name = re.search(r"(?m)^System Name TLV\s*\n\s*(\S.*?)[ \t]*$", text)
    described = re.search(r"(?m)^System Description TLV\s*\n\s*(\S.*?)[ \t]*$", text)
    if not port or not name or "End of LLDPDU TLV" not in text:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        raise Unread(first[:160] or "hccn_tool shows no neighbour", absent="TLV" not in text)
    return Neighbour(name.group(1), port.group(1), described.group(1) if described else "")
