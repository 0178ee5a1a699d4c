"""The recorded baseline of an inventory: what each host showed when it was well, and who differs from it now.

A plain YAML file in the project, `baselines/INVENTORY.yml`, to be kept in version control:

    format: 1
    hosts:
      gpu01:
        recorded: "2026-11-30"
        exact: {driver: 580.126.09, kernel: 6.8.0-85-generic}
        measured: {all_reduce busbw GB/s: 478.1}
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bringup.base.errors import InputError
from bringup.base.paths import Project
from bringup.base.yaml import load_file
from bringup.inventory.model import Inventory
from bringup.preflight.registry import View
from bringup.preflight.unread import Unread

FORMAT = 1
FOLDER = "baselines"
_LESS_IS_BETTER = (" us", " ms")
_EXACT: Mapping[str, Callable[[View], Any]] = {
    "accelerators": lambda view: len(view.facts.smi.gpus),
    "product": lambda view: view.facts.smi.gpus[0].name,
    "driver": lambda view: view.facts.smi.driver,
    "vbios": lambda view: ", ".join(sorted({gpu.vbios for gpu in view.facts.smi.gpus if gpu.vbios})) or None,
    "npu driver": lambda view: view.facts.npu_driver.version,
    "npu firmware": lambda view: view.facts.npu_firmware.version,
    "npu chips": lambda view: len(view.facts.npu.chips),
    "CANN": lambda view: view.facts.cann.version,
    "BIOS": lambda view: view.facts.answers.file("host.dmi", "bios_version").strip() or None,
    "kernel": lambda view: view.facts.kernel,
    "system": lambda view: view.facts.os.get("PRETTY_NAME"),
    "RDMA firmware": lambda view: ", ".join(sorted({one.firmware for one in view.facts.rdma if one.firmware})) or None,
}
_MEASURED: Mapping[str, Callable[[View], Any]] = {
    "host memory GiB": lambda view: round(view.facts.memory["MemTotal"] / 2**30, 1),
    "device memory MiB": lambda view: min(gpu.memory_total for gpu in view.facts.smi.gpus if gpu.memory_total),
    "power limit W": lambda view: min(gpu.power_limit for gpu in view.facts.smi.gpus if gpu.power_limit),
    "NVLinks up": lambda view: min(len(one.speeds) for one in view.facts.nvlinks) or None,
    "RDMA ports": lambda view: sum(1 for port in view.facts.rdma if port.active),
    "RDMA Gb/s": lambda view: sum(port.rate for port in view.facts.rdma if port.active and port.rate),
    "all-reduce busbw GB/s": lambda view: view.facts.all_reduce.largest.busbw,
    "all-reduce over the replica GB/s": lambda view: view.facts.replica_run.largest.busbw,
    "copy to device GB/s": lambda view: view.facts.copies["host_to_device_memcpy_ce"].least[1],
    "copy from device GB/s": lambda view: view.facts.copies["device_to_host_memcpy_ce"].least[1],
    "copy within a device GB/s": lambda view: view.facts.copies["device_local_copy"].least[1],
    "copy between devices GB/s": lambda view: view.facts.copies["device_to_device_memcpy_read_ce"].least[1],
    "disk read GB/s": lambda view: round(view.facts.disk_read[0], 3),
}


def path_of(project: Project, inventory: Inventory) -> Path:
    """The baseline's file of an inventory: its sources' names joined."""
    names = [source.stem if source.suffix in (".yml", ".yaml", ".ini", ".json") else source.name
             for source in inventory.sources]
    return project.root / FOLDER / ("+".join(names or ["inventory"]) + ".yml")


def read(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """What was recorded, by host; nothing where there is no file. Raises InputError for one that is no baseline."""
    if not path.is_file():
        return {}
    document = load_file(path)
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise InputError("is no baseline of this format", where=str(path), expected=f"format: {FORMAT}",
                         next="invoke preflight --record writes it anew")
    hosts = document.get("hosts")
    if not isinstance(hosts, Mapping) or not all(
            isinstance(one, Mapping) and all(isinstance(one.get(part, {}), Mapping) for part in ("exact", "measured"))
            for one in hosts.values()):
        raise InputError("holds no hosts with `exact` and `measured`", where=str(path))
    return hosts


def write(path: Path, views: Iterable[View]) -> int:
    """Record these hosts; others in the file stay. A value that could not be read now stays too.

    Returns the number of values recorded. Raises InputError.
    """
    hosts: dict[str, Any] = {str(host): _plain(one) for host, one in read(path).items()}
    count = 0
    for view in views:
        exact, measured = values(view)
        count += len(exact) + len(measured)
        old = hosts.get(view.host, {})
        hosts[view.host] = {"recorded": datetime.date.today().isoformat(),
                            "exact": {**old.get("exact", {}), **exact},
                            "measured": {**old.get("measured", {}), **measured}}
    text = ("# What `invoke preflight --record` found on these hosts; later runs are compared with it.\n"
            + yaml.safe_dump({"format": FORMAT, "hosts": hosts}, sort_keys=False, allow_unicode=True))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise InputError(f"the baseline cannot be written: {error.strerror or error}", where=str(path)) from None
    return count


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, str) else value


def values(view: View) -> tuple[dict[str, Any], dict[str, float]]:
    """What a host shows now: values that stay equal, and measured numbers. What cannot be read is left out."""
    return ({name: value for name, how in _EXACT.items() if (value := _value(how, view)) is not None},
            {name: float(value) for name, how in _MEASURED.items() if (value := _value(how, view)) is not None})


def _value(how: Callable[[View], Any], view: View) -> Any:
    try:
        return how(view)
    except (Unread, KeyError, ValueError, IndexError):
        return None


def loss(name: str, before: float, now: float) -> float:
    """By how many percent a measure is worse than before; below 0 where it is better."""
    if not before:
        return 0.0
    return (now / before - 1) * 100 if name.endswith(_LESS_IS_BETTER) else (1 - now / before) * 100


def table(views: Sequence[View]) -> list[tuple[str, str, str]]:
    """For each measure of the baseline: how many hosts are within the tolerance, and who differs by how much."""
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for view in views:
        before = (view.need.baseline or {}).get("measured", {})
        _, now = values(view) if before else ({}, {})
        for name, old in before.items():
            if name not in now or not isinstance(old, (int, float)):
                continue
            lost = loss(name, float(old), now[name])
            within, odd = rows.setdefault(str(name), ([], []))
            if abs(lost) <= view.need.tolerance:
                within.append(view.host)
            else:
                odd.append(f"{view.host}: {now[name]:g}, was {float(old):g} ({-lost:+.1f} %)")
    return [(name, f"{len(within)} as recorded" if within else "none as recorded", "; ".join(odd))
            for name, (within, odd) in rows.items()]
