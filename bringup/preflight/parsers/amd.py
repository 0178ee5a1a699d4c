"""AMD: the table of `rocm-smi` (ROCm 6), its JSON in the words of several vendors, and `amd-smi static`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bringup.preflight.parsers.text import plain
from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class AmdGpu:
    """One device: its id on the PCI bus (`0x74a1`), watts allowed, per cent of its memory in use.

    None is what the tool's form does not show.
    """

    index: int
    device: str
    name: str
    power_cap: float | None
    memory_percent: int | None


def smi(text: str) -> tuple[AmdGpu, ...]:
    """`rocm-smi`, `rocm-smi --json` or `amd-smi static`. Raises Unread."""
    text = plain(text)
    if text.lstrip().startswith("{"):
        out = _of_json(text)
    elif re.search(r"(?m)^GPU: \d+\s*$", text):
        out = _of_static(text)
    else:
        out = _of_table(text)
    if not out:
        raise Unread("rocm-smi shows no device")
    if len({gpu.index for gpu in out}) != len(out):
        raise Unread("rocm-smi shows a device twice")
    return out


def _of_table(text: str) -> tuple[AmdGpu, ...]:
    """One or two lines a device."""
    out: list[AmdGpu] = []
    lines = text.splitlines()
    if not any("End of ROCm SMI Log" in line for line in lines):
        raise Unread("rocm-smi stops half way" if any("ROCm" in line for line in lines) else "no table of rocm-smi")
    for line in lines:
        head = re.match(r"^(\d+)\s+.*?(0x[0-9a-f]{4})", line)
        if head:
            cap = re.search(r"(\d+(?:\.\d+)?)W\s+(\d+)%\s+\d+%\s*$", line)
            out.append(AmdGpu(int(head.group(1)), head.group(2), "", float(cap.group(1)) if cap else None,
                              int(cap.group(2)) if cap else None))
        elif out and not out[-1].name and (name := re.match(r"^\s+([A-Z][\w .-]+?)\s*$", line)):
            out[-1] = replace(out[-1], name=name.group(1))
    return tuple(out)


def _of_json(text: str) -> tuple[AmdGpu, ...]:
    """`cardN: {...}`; releases and vendors write the keys in letters and units of their own."""
    try:
        cards = json.loads(text)
        out = []
        for name, fields in cards.items():
            match = re.fullmatch(r"card(\d+)", name)
            if match:
                words = {str(key).lower(): str(value) for key, value in fields.items()}
                product = words.get("card series") or words.get("device name") or ""
                if "device id" not in words:
                    raise Unread(f"{name} has no device id in the JSON of rocm-smi")
                out.append(AmdGpu(int(match.group(1)), words["device id"], product,
                                  _number(words.get("max graphics package power (w)", "")), _percent(words)))
        return tuple(out)
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise Unread(f"this is no JSON of rocm-smi: {error}") from None


def _percent(words: Mapping[str, str]) -> int | None:
    for unit in ("b", "mib"):
        total = _number(words.get(f"vram total memory ({unit})", ""))
        used = _number(words.get(f"vram total used memory ({unit})", ""))
        if total and used is not None and 0 <= used <= total:
            return round(100 * used / total)
    return None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text.strip()) else None


def _of_static(text: str) -> tuple[AmdGpu, ...]:
    """`amd-smi static`: it shows what a device is, not what it does."""
    out: list[AmdGpu] = []
    for block in re.split(r"(?m)^(?=(?:GPU|CPU): \d+\s*$)", text):
        head = re.match(r"GPU: (\d+)", block)
        if not head:
            continue
        device = re.search(r"(?m)^ +DEVICE_ID: (0x[0-9a-f]{4})\s*$", block)
        name = re.search(r"(?m)^ +MARKET_NAME: (\S.*?)\s*$", block)
        power = re.search(r"(?m)^ +MAX_POWER: (\d+(?:\.\d+)?) W\s*$", block)
        if not device or not name or "VRAM:" not in block:
            raise Unread(f"amd-smi static stops half way in GPU {head.group(1)}")
        out.append(AmdGpu(int(head.group(1)), device.group(1), name.group(1),
                          float(power.group(1)) if power else None, None))
    return tuple(out)


def links(text: str) -> Mapping[tuple[int, int], str]:
    """`rocm-smi --showtopotype --json`: the kind of link (XGMI, PCIE) by pair of devices. Raises Unread."""
    start = text.find("{")
    try:
        tree = json.loads(text[start:]) if start >= 0 else {}
        found = {(int(match.group(1)), int(match.group(2))): str(value).upper()
                 for key, value in tree.get("system", {}).items()
                 if (match := re.fullmatch(r"\(Topology\) Link type between DRM devices (\d+) and (\d+)", key))}
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise Unread(f"this is no JSON of rocm-smi: {error}") from None
    if not found:
        raise Unread("rocm-smi names no link between devices")
    return found


def ras(files: Mapping[str, str]) -> Mapping[str, tuple[int, int]]:
    """amdgpu's error counts in sysfs: (uncorrected, corrected) of each card, all its blocks together. Raises Unread."""
    out: dict[str, tuple[int, int]] = {}
    for path, text in sorted(files.items()):
        match = re.search(r"/(card\d+)/device/ras/(\w+)_err_count$", path)
        if not match:
            continue
        counts = re.fullmatch(r"ue: ([0-9]+)\nce: ([0-9]+)\n(?:de: [0-9]+\n)?", text)
        if not counts:
            raise Unread(f"{match.group(1)}: {match.group(2)} says `{text.strip()[:40]}`")
        worse, mild = out.get(match.group(1), (0, 0))
        out[match.group(1)] = worse + int(counts.group(1)), mild + int(counts.group(2))
    if not out:
        raise Unread("amdgpu counts no errors here", absent=True)
    return out
