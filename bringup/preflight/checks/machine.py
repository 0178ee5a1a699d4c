"""The machine under the host: memory errors, NUMA nodes, memory in pieces, errors of the kernel log, the BMC."""

from __future__ import annotations

import re

from bringup.base.text import duration, plural, size
from bringup.preflight.checks.devices import by_bus
from bringup.preflight.parsers.machine import BmcEvent
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, warned
from bringup.preflight.requirement import limits

DAY = 86400.0
_GRAVE = re.compile(r"uncorrectable|non-recoverable|\bIERR\b|internal error|bus fatal|bus uncorrectable|PCI SERR|"
                    r"failure detected|AC lost|input lost|redundancy lost|lower critical|upper critical|drive fault|"
                    r"thermal trip|machine check|insufficient resources", re.IGNORECASE)
_BAD_STATE = re.compile(r"failure detected|predictive failure|AC lost|input lost|out-of-range|config(?:uration)? error|"
                        r"redundancy lost|insufficient resources", re.IGNORECASE)


@check("host.edac", "memory counts no uncorrected error, and few corrected ones", reads=("host.edac", "host.uptime"),
       source="the kernel's EDAC; rasdaemon: 50 corrected in 24 hours", remedy="replace the DIMM that is named")
def edac(view: View) -> list[Outcome]:
    line = limits()["edac_corrected_day"]
    days = max(view.facts.uptime / DAY, 1.0)
    out = []
    for one in view.facts.memory_errors:
        dimms = ", ".join(f"{name}: {corrected} corrected, {uncorrected} not"
                          for name, (corrected, uncorrected) in one.dimms.items())
        where = f"{one.name}" + (f" ({dimms})" if dimms else "")
        if one.uncorrected:
            out.append(failed(f"{where}: {plural(one.uncorrected, 'uncorrected error')} since boot"))
        elif one.corrected / days > line.number:
            out.append(warned(f"{where}: {one.corrected / days:,.0f} corrected errors a day",
                              required=f"at most {line}", source=line.source))
        elif one.corrected:
            out.append(noted(f"{where}: {plural(one.corrected, 'corrected error')} since boot"))
    return out or [passed("none")]


@check("host.machine-check", "processor, memory and bus had no error that was not corrected",
       reads=("host.kernel_log",), source="the kernel's hardware errors (machine check, APEI)",
       remedy="sudo ras-mc-ctl --errors, or the BMC's log, names the part")
def machine_check(view: View) -> Outcome:
    seen = view.facts.kernel_log.machine
    if seen:
        return warned(f"{plural(len(seen), 'line')} of the kernel log", details=(seen[-1][:200],))
    return passed("none")


@check("pcie.errors", "no device had an uncorrected PCIe error", reads=("host.kernel_log",),
       source="the kernel's Advanced Error Reporting", remedy="reseat the device; look at its slot and riser")
def pcie_errors(view: View) -> list[Outcome]:
    seen = view.facts.kernel_log.aer
    return [warned(f"{by_bus(view, device)}: {plural(count, 'uncorrected error')} since boot")
            for device, count in sorted(seen.items())] or [passed("none")]


@check("host.oom", "the kernel ended no process for want of memory", reads=("host.kernel_log",),
       source="the kernel's out-of-memory killer",
       remedy="fewer processes, a smaller page-locked share, or more memory")
def oom(view: View) -> Outcome:
    seen = view.facts.kernel_log.oom
    if seen:
        return noted(f"{plural(len(seen), 'process', 'processes')} since boot", details=(seen[-1][:200],))
    return passed("none")


@check("disk.errors", "no disk or file system reported an error", reads=("host.kernel_log",),
       source="the kernel: I/O errors, file systems made read-only",
       remedy="smartctl -a and fsck of the device that is named; replace it")
def disk_errors(view: View) -> Outcome:
    seen = view.facts.kernel_log.disk
    if seen:
        return warned(f"{plural(len(seen), 'line')} of the kernel log", details=(seen[-1][:200],))
    return passed("none")


@check("host.numa", "every NUMA node with processors has its memory", reads=("host.numa",),
       source="boards are filled alike; a node without memory makes every access a remote one",
       remedy="reseat the DIMMs of that socket; dmidecode -t memory shows the empty ones")
def numa(view: View) -> list[Outcome]:
    share = limits()["numa_share"]
    nodes = {node: amount for node, (amount, cpus) in view.facts.numa.items() if cpus}
    largest = max(nodes.values(), default=0)
    out = []
    for node, amount in nodes.items():
        if not amount:
            out.append(warned(f"node {node} has processors and no memory"))
        elif amount < largest * share.number:
            out.append(warned(f"node {node} has {size(amount)}, another {size(largest)}", source=share.source))
    return out or [passed(f"{plural(len(nodes), 'node')} of {size(min(nodes.values()))}" if nodes else "no node")]


@check("host.fragmentation", "free memory lies in pieces that huge pages fit in", reads=("host.buddyinfo",),
       source="gcm reads /proc/buddyinfo; a huge page is 2 MiB",
       remedy="echo 1 | sudo tee /proc/sys/vm/compact_memory")
def fragmentation(view: View) -> list[Outcome]:
    line = limits()["pieces_2m"]
    order = 9  # 512 pages of 4 KiB
    pieces = view.facts.pieces
    if any(len(one.orders) <= order for one in pieces):
        return [skipped("this kernel's zones end below 2 MiB")]
    out = [noted(f"node {one.node}: {one.share(order) * 100:.0f} % of the free memory is in pieces of 2 MiB or more",
                 source=line.source, mend="echo 1 | sudo tee /proc/sys/vm/compact_memory")
           for one in pieces if one.share(order) < line.number]
    least = min(one.share(order) for one in pieces)
    return out or [passed(f"{least * 100:.0f} % in pieces of 2 MiB or more")]


@check("host.page-size", "the kernel's pages have the size that wheels are built for", reads=("host.page_size",),
       source="msprechecker reports it; kernels of arm64 have 4, 16 or 64 KiB",
       remedy="boot the kernel with 4 KiB pages")
def page_size(view: View) -> Outcome:
    line = limits()["page_size"]
    found = view.facts.page_size
    if found == line.number:
        return passed("4 KiB")
    # the NPU's drivers are made for the 64 KiB kernels of openEuler and Kylin too
    make = noted if view.platform == "ascend" else warned
    return make(f"{found // 1024} KiB", required="4 KiB", source=line.source)


def _slow(view: View, probe: str) -> Outcome | None:
    """What stands in the way of the BMC's answer that is no fault of the host's."""
    answer = view.facts.answers.get(probe)
    if answer.timed_out:
        return noted(f"the BMC did not answer within {answer.seconds:.0f} s", mend="by hand: sudo ipmitool sel elist")
    return None


def _spoken(event: BmcEvent) -> str:
    ago = f", {duration(event.age)} ago" if event.age is not None and event.age >= 0 else ""
    return f"{event.sensor}: {event.event}{ago}"


@check("bmc.log", "the BMC's log holds no fresh fault", reads=("bmc.sel",), source="gcm: ipmitool sel list",
       remedy="look at the part that is named; sudo ipmitool sel elist shows all")
def bmc_log(view: View) -> list[Outcome]:
    slow = _slow(view, "bmc.sel")
    if slow is not None:
        return [slow]
    line = limits()["sel_days"]
    standing: dict[tuple[str, str], BmcEvent] = {}
    for event in view.facts.bmc_events:
        if event.asserted:
            standing[(event.sensor, event.event)] = event
            if "Fully Redundant" in event.event:  # that redundancy came back is an event of its own
                standing = {key: one for key, one in standing.items()
                            if key[0] != event.sensor or "Redundancy Lost" not in key[1]}
        else:
            standing.pop((event.sensor, event.event), None)
    fresh = [event for event in standing.values() if _GRAVE.search(event.event)
             and event.age is not None and event.age < line.number * DAY]
    out = [warned(_spoken(event), source=line.source) for event in fresh]
    full = [event for event in standing.values() if "Log full" in event.event]
    if full:
        out.append(noted("the log is full: newer faults are not kept", mend="sudo ipmitool sel clear"))
    return out or [passed(f"none among {plural(len(view.facts.bmc_events), 'event')}")]


@check("bmc.power", "power supplies and fans are sound", reads=("bmc.sensors",),
       source="the BMC's sensors: state of each power supply, thresholds of each fan",
       remedy="replace the part; a host with one power supply left slows its GPUs down under load")
def bmc_power(view: View) -> list[Outcome]:
    slow = _slow(view, "bmc.sensors")
    if slow is not None:
        return [slow]
    sensors = view.facts.bmc_sensors
    out = [warned(f"{one.name}: {one.state or one.status}") for one in sensors
           if one.status in ("cr", "nr", "lcr", "lnr", "ucr", "unr") or _BAD_STATE.search(one.state)]
    return out or [passed(f"{plural(len(sensors), 'sensor')} of power supplies and fans")]


@check("bmc.chassis", "the chassis reports no fault of power, drives or cooling", reads=("bmc.chassis",),
       source="ipmitool chassis status", remedy="look at the part that is named")
def bmc_chassis(view: View) -> list[Outcome]:
    slow = _slow(view, "bmc.chassis")
    if slow is not None:
        return [slow]
    faults = [name for name, on in view.facts.chassis.items() if on]
    return [warned(name) for name in faults] or [passed("none")]
