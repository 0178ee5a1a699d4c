"""How an interface keeps RoCE from being dropped: priorities that may be paused (PFC), trust, global pause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bringup.preflight.parsers.optics import Silent, by_port, silent
from bringup.preflight.parsers.text import pairs


@dataclass(frozen=True)
class Priorities:
    """What an interface trusts (`dscp` or `pcp`) and the priorities that are paused instead of dropped."""

    trust: str
    lossless: tuple[int, ...]

    def __str__(self) -> str:
        kept = ", ".join(str(one) for one in self.lossless)
        return f"priority {kept} lossless, trust {self.trust}" if kept else f"no lossless priority, trust {self.trust}"


def mlnx_qos(text: str) -> Mapping[str, Priorities | Silent]:
    """`mlnx_qos -i IF` of each interface, see `by_port`; what the tool said where it gave no answer. Raises Unread."""
    out: dict[str, Priorities | Silent] = {}
    for port, answer in by_port(text).items():
        trust = re.search(r"(?m)^Priority trust state:\s*(dscp|pcp)\s*$", answer)
        enabled = re.search(r"(?m)^PFC configuration:\s*\n\s*priority((?:\s+\d)+)\s*\n\s*enabled((?:\s+[01])+)\s*$",
                            answer)
        if trust and enabled and len(enabled.group(1).split()) == len(enabled.group(2).split()) == 8:
            out[port] = Priorities(trust.group(1), tuple(
                number for number, word in enumerate(enabled.group(2).split()) if word == "1"))
        else:
            out[port] = silent(answer, r"not supported|no such device|not permitted|denied")
    return out


def pause(text: str) -> Mapping[str, bool | None]:
    """`ethtool -a IF` of each interface: whether global pause is on in both ways; None where it is not said.

    Raises Unread.
    """
    out: dict[str, bool | None] = {}
    for port, answer in by_port(text).items():
        fields = pairs(answer)
        ways = {fields.get("RX", ""), fields.get("TX", "")}
        out[port] = ways == {"on"} if ways <= {"on", "off"} else None
    return out
