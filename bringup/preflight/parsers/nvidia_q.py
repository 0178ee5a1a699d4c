"""`nvidia-smi -q` of drivers 510 to 610: one tree of indented keys per GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from bringup.preflight.parsers.text import absent, broken, bus, plain, whole
from bringup.preflight.parsers.text import number as to_number
from bringup.preflight.unread import Unread

_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\S*)\s*$")
_TROUBLE = re.compile(r"unable to determine the device handle|gpu is lost|failed to|unknown error|couldn't communicate"
                      r"|no devices were found", re.IGNORECASE)
_KEPT = frozenset(("Product Name", "Serial Number", "VBIOS Version", "GSP Firmware Version", "Inforom Version",
                   "Persistence Mode", "Compute Mode", "MIG Mode", "GPU Recovery Action", "FB Memory Usage",
                   "ECC Mode", "ECC Errors", "Remapped Rows", "PCI", "Temperature", "GPU Power Readings", "Fabric",
                   "Clocks Event Reasons", "Clocks Throttle Reasons"))
"""Keys whose values are judged."""
_INFOROM = re.compile(r"infoROM is corrupted at gpu ([0-9A-Fa-f:.]+)", re.IGNORECASE)
_FAULTS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory is MiB, power W, temperature C; None is what the device does not have.

    `unreadable` names fields that should have a value and answered with an error.
    """

    index: int
    bus: str
    name: str = ""
    uuid: str = ""
    serial: str = ""
    vbios: str = ""
    inforom: str = ""
    gsp: str = ""
    persistence: bool | None = None
    mig: bool | None = None
    compute_mode: str = ""
    recovery: str = ""
    memory_total: int | None = None
    memory_used: int | None = None
    ecc: bool | None = None
    ecc_uncorrected: int | None = None
    sram_uncorrected_lifetime: int | None = None
    ecc_corrected: int | None = None
    ecc_corrected_sram: int | None = None
    ecc_corrected_dram: int | None = None
    sram_threshold: bool | None = None
    repair_pending: bool | None = None
    unrepairable: bool | None = None
    retired: int | None = None
    retired_pending: bool | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    banks_full: int | None = None
    banks_low: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    slowdown: tuple[str, ...] = ()
    temperature: float | None = None
    temperature_margin: float | None = None
    power_limit: float | None = None
    power_default: float | None = None
    fabric_state: str = ""
    fabric_status: str = ""
    fabric_health: tuple[str, ...] = ()
    virtual: str = ""
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class SmiLog:
    """The whole log. `attached` is the number it announces; `troubles` are error lines between the GPUs."""

    driver: str
    cuda: str
    attached: int
    gpus: tuple[Gpu, ...]
    troubles: tuple[str, ...] = ()


def parse(text: str, *, complete: bool = True) -> SmiLog:
    """Read the log. Raises Unread when it is none, stops half way, or names a GPU twice.

    `complete` False also takes the excerpts that `-q -d SECTION` prints.
    """
    head, blocks, troubles = _blocks(plain(text).splitlines())
    if not blocks:
        raise Unread(troubles[0] if troubles else "this is not the output of nvidia-smi -q")
    seen = [address for address, _ in blocks]
    if len(set(seen)) != len(seen):
        raise Unread("nvidia-smi -q names a GPU twice")
    for address, tree in blocks:
        if complete and not any(path and path[0] == "Processes" for path in tree):
            raise Unread(f"nvidia-smi -q stops half way in GPU {bus(address)}")
    driver = head.get("KMD Version") or head.get("Driver Version", "")
    cuda = head.get("CUDA UMD Version") or head.get("CUDA Version", "")
    attached = whole(head.get("Attached GPUs", ""))
    if complete and attached is not None and len(blocks) + len(troubles) < attached:
        raise Unread(f"nvidia-smi -q stops after {len(blocks)} of {attached} GPUs")
    gpus = _alike([_gpu(number, address, tree) for number, (address, tree) in enumerate(blocks)],
                  [tree for _, tree in blocks])
    return SmiLog(driver.split(" ")[0], cuda.split(" ")[0], attached if attached is not None else len(gpus), gpus,
                  tuple(troubles))


Tree = dict[tuple[str, ...], str]


def _blocks(lines: list[str]) -> tuple[dict[str, str], list[tuple[str, Tree]], list[str]]:
    head: dict[str, str] = {}
    blocks: list[tuple[str, Tree]] = []
    troubles: list[str] = []
    tree: Tree | None = None
    stack: list[tuple[int, tuple[str, ...]]] = []
    for line in lines:
        key, found, value = line.partition(" : ")
        if not found:
            match = _GPU.match(line)
            if match:
                tree, stack = {}, []
                blocks.append((match.group(1), tree))
                continue
            if not line.strip() or line.startswith("WARNING:"):
                continue
            if _TROUBLE.search(line):
                troubles.append(line.strip())
                continue
        if not found and line.rstrip().endswith(" :"):
            key, found, value = line.rstrip()[:-2], ":", ""
        bare = key.lstrip()
        indent = len(key) - len(bare)
        name = bare.rstrip().removeprefix("Invalid ")
        if tree is None:
            if found:
                head[name] = value.strip()
            continue
        while stack and stack[-1][0] >= indent:
            stack.pop()
        path = (*stack[-1][1], name) if stack else (name,)
        tree[path] = value.strip()
        if not found:
            stack.append((indent, path))
    return head, blocks, troubles


def _alike(gpus: list[Gpu], trees: list[Tree]) -> tuple[Gpu, ...]:
    """GPUs of one product and driver print the same keys: one that lacks a key of its siblings cannot be read whole."""
    out = []
    for gpu, tree in zip(gpus, trees, strict=True):
        siblings = [keys for other, keys in zip(gpus, trees, strict=True)
                    if other is not gpu and other.name == gpu.name]
        lost = [path for path in siblings[0] if path not in tree and path[0] in _KEPT
                and all(path in keys for keys in siblings)] if siblings else []
        out.append(replace(gpu, unreadable=(*gpu.unreadable, *(" ".join(path) for path in lost))))
    return tuple(out)


def corrupted_inforom(text: str) -> tuple[str, ...]:
    """PCI addresses of the GPUs that nvidia-smi warns of behind any of its answers: their InfoROM is corrupted."""
    if "corrupted at gpu" not in text:
        return ()
    return tuple(dict.fromkeys(bus(address) for address in _INFOROM.findall(plain(text))))


def attached(text: str) -> int | None:
    """How many GPUs the log announces; None where it does not say."""
    match = re.search(r"(?m)^Attached GPUs\s*:\s*(\d+)\s*$", text)
    return int(match.group(1)) if match else None


class _Reader:
    """Looks up values of one GPU and remembers which answered with an error."""

    def __init__(self, tree: Mapping[tuple[str, ...], str]) -> None:
        self.tree = tree
        self.unreadable: list[str] = []

    def text(self, *paths: tuple[str, ...]) -> str:
        for path in paths:
            value = self.tree.get(path)
            if value is None:
                continue
            if broken(value):
                self.unreadable.append(" ".join(path))
                return ""
            if not absent(value):
                return value
        return ""

    def whole(self, *paths: tuple[str, ...]) -> int | None:
        value = self.number(*paths)
        return int(value) if value is not None else None

    def number(self, *paths: tuple[str, ...]) -> float | None:
        text = self.text(*paths)
        value = to_number(text)
        if text and value is None:
            self.unreadable.append(" ".join(next(path for path in paths if path in self.tree)))
        return value

    def flag(self, *paths: tuple[str, ...]) -> bool | None:
        value = self.text(*paths).lower()
        if value in ("yes", "enabled", "active", "on"):
            return True
        return False if value in ("no", "disabled", "not active", "off") else None

    def total(self, *paths: tuple[str, ...]) -> int | None:
        values = [value for value in (self.whole(path) for path in paths) if value is not None]
        return sum(values) if values else None

    def under(self, *first: str) -> Iterator[tuple[str, str]]:
        for path, value in self.tree.items():
            if path[: len(first)] == first and len(path) > len(first):
                yield path[-1], value


def _gpu(number: int, address: str, tree: Tree) -> Gpu:
    r = _Reader(tree)
    link = ("PCI", "GPU Link Info")
    spare = ("Remapped Rows", "Bank Remap Availability Histogram")
    volatile, lifetime = ("ECC Errors", "Volatile"), ("ECC Errors", "Aggregate")
    parts = ("SRAM Uncorrectable", "SRAM Uncorrectable Parity", "SRAM Uncorrectable SEC-DED")
    reasons = [*r.under("Clocks Event Reasons"), *r.under("Clocks Throttle Reasons")]
    repairs = [r.flag(("ECC Errors", "Channel Repair Pending")), r.flag(("ECC Errors", "TPC Repair Pending"))]
    power = "GPU Power Readings" if any(path[0] == "GPU Power Readings" for path in tree) else "Power Readings"
    return Gpu(
        index=number,
        bus=bus(address),
        name=r.text(("Product Name",)),
        uuid=r.text(("GPU UUID",)),
        serial=r.text(("Serial Number",)),
        vbios=r.text(("VBIOS Version",)),
        inforom=r.text(("Inforom Version", "Image Version")),
        gsp=r.text(("GSP Firmware Version",)),
        persistence=r.flag(("Persistence Mode",)),
        mig=r.flag(("MIG Mode", "Current")),
        compute_mode=r.text(("Compute Mode",)),
        recovery="None" if tree.get(("GPU Recovery Action",)) == "None" else r.text(("GPU Recovery Action",)),
        memory_total=r.whole(("FB Memory Usage", "Total")),
        memory_used=r.whole(("FB Memory Usage", "Used")),
        ecc=r.flag(("ECC Mode", "Current")),
        ecc_uncorrected=r.total(*((*volatile, part) for part in parts), (*volatile, "DRAM Uncorrectable")),
        sram_uncorrected_lifetime=r.total(*((*lifetime, part) for part in parts)),
        ecc_corrected=r.total((*volatile, "SRAM Correctable"), (*volatile, "DRAM Correctable")),
        ecc_corrected_sram=r.whole((*volatile, "SRAM Correctable")),
        ecc_corrected_dram=r.whole((*volatile, "DRAM Correctable")),
        sram_threshold=r.flag((*lifetime, "SRAM Threshold Exceeded")),
        repair_pending=True if True in repairs else (False if False in repairs else None),
        unrepairable=r.flag(("ECC Errors", "Unrepairable Memory")),
        retired=r.total(("Retired Pages", "Single Bit ECC"), ("Retired Pages", "Double Bit ECC")),
        retired_pending=r.flag(("Retired Pages", "Pending Page Blacklist")),
        remapped_correctable=r.whole(("Remapped Rows", "Correctable Error")),
        remapped_uncorrectable=r.whole(("Remapped Rows", "Uncorrectable Error")),
        remap_pending=r.flag(("Remapped Rows", "Pending")),
        remap_failed=r.flag(("Remapped Rows", "Remapping Failure Occurred")),
        banks_full=r.whole((*spare, "None")),
        banks_low=r.whole((*spare, "Low")),
        pcie_gen=r.whole((*link, "PCIe Generation", "Current")),
        pcie_gen_max=r.whole((*link, "PCIe Generation", "Max")),
        pcie_width=r.whole((*link, "Link Width", "Current")),
        pcie_width_max=r.whole((*link, "Link Width", "Max")),
        slowdown=tuple(name for name, value in reasons if value == "Active" and name in _FAULTS),
        temperature=r.number(("Temperature", "GPU Current Temp")),
        temperature_margin=r.number(("Temperature", "GPU T.Limit Temp")),
        power_limit=r.number((power, "Current Power Limit"), (power, "Power Limit")),
        power_default=r.number((power, "Default Power Limit")),
        fabric_state=r.text(("Fabric", "State")),
        fabric_status=r.text(("Fabric", "Status")),
        fabric_health=tuple(f"{name}: {value}" for name, value in r.under("Fabric", "Health")
                            if value.lower() in ("true", "yes", "degraded", "unhealthy", "limited capacity")),
        virtual=r.text(("GPU Virtualization Mode", "Virtualization Mode")),
        unreadable=tuple(r.unreadable),
    )
