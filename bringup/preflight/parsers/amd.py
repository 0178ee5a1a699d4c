"""`rocm-smi`, the concise table of ROCm 6: one or two lines a device."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bringup.preflight.parsers.text import plain
from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class AmdGpu:
    """One device: its id on the PCI bus (`0x74a1`), watts allowed, per cent of its memory in use."""

    index: int
    device: str
    name: str
    power_cap: float | None
    memory_percent: int | None


def smi(text: str) -> tuple[AmdGpu, ...]:
    """Read the table. Raises Unread."""
    out: list[AmdGpu] = []
    lines = plain(text).splitlines()
    if not any("End of ROCm SMI Log" in line for line in lines):
        raise Unread("rocm-smi stops half way" if any("ROCm" in line for line in lines) else "no table of rocm-smi")
    for line in lines:
        head = re.match(r"^(\d+)\s+.*?(0x[0-9a-f]{4})", line)
        if head:
            cap = re.search(r"(\d+(?:\.\d+)?)W\s+(\d+)%\s+\d+%\s*$", line)
            out.append(AmdGpu(int(head.group(1)), head.group(2), "", float(cap.group(1)) if cap else None,
                              int(cap.group(2)) if cap else None))
        elif out and not out[-1].name and (name := re.match(r"^\s+([A-Z][\w .-]+?)\s*$", line)):
            last = out[-1]
            out[-1] = AmdGpu(last.index, last.device, name.group(1), last.power_cap, last.memory_percent)
    if not out:
        raise Unread("rocm-smi shows no device")
    if len({gpu.index for gpu in out}) != len(out):
        raise Unread("rocm-smi shows a device twice")
    return tuple(out)
