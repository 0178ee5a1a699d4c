"""How an interface keeps RoCE from being dropped: priorities that may be paused (PFC), trust, global pause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bringup.preflight.parsers.optics import by_port
from bringup.preflight.parsers.text import pairs
from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class Priorities:
    """What an interface trusts (`dscp` or `pcp`) and the priorities that are paused instead of dropped."""

    trust: str
    lossless: tuple[int, ...]

    def __str__(self) -> str:
        kept = ", ".join(str(one) for one in self.lossless)
        return f"priority {kept} lossless, trust {self.trust}" if kept else f"no lossless priority, trust {self.trust}"


def mlnx_qos(text: str) -> Mapping[str, Priorities | str]:
    """`mlnx_qos -i IF` of each interface, see `by_port`; what the tool said where it refused. Raises Unread."""
    out: dict[str, Priorities | str] = {}
    for port, answer in by_port(text).items():
        trust = re.search(r"(?m)^Priority trust state:\s*(dscp|pcp)\s*$", answer)
        enabled = re.search(r"(?m)^PFC configuration:\s*\n\s*priority((?:\s+\d)+)\s*\n\s*enabled((?:\s+[01])+)\s*$",
                            answer)
        if trust and enabled and len(enabled.group(1).split()) == len(enabled.group(2).split()) == 8:
            out[port] = Priorities(trust.group(1), tuple(
                number for number, word in enumerate(enabled.group(2).split()) if word == "1"))
            continue
        line = next((one.strip() for one in answer.splitlines() if one.strip()), "")
        if not re.search(r"not supported|no such device|not permitted|denied", line, re.IGNORECASE):
            raise Unread(f"mlnx_qos says of {port}: {line[:120] or 'nothing'}")
        out[port] = line
    return out


def pause(text: str) -> Mapping[str, bool | None]:
    """`ethtool -a IF` of each interface: whether global pause is on in both ways; None where there is none to say.

    Raises Unread.
    """
    out: dict[str, bool | None] = {}
    for port, answer in by_port(text).items():
        fields = pairs(answer)
        if "RX" not in fields or "TX" not in fields:
            line = next((one.strip() for one in answer.splitlines() if one.strip()), "")
            if not re.search(r"not supported|no data|not permitted", line, re.IGNORECASE):
                raise Unread(f"ethtool -a says of {port}: {line[:120] or 'nothing'}")
            out[port] = None
            continue
        if {fields["RX"], fields["TX"]} - {"on", "off"}:
            raise Unread(f"ethtool -a says of {port}: RX {fields['RX'][:20]}, TX {fields['TX'][:20]}")
        out[port] = fields["RX"] == fields["TX"] == "on"
    return out
