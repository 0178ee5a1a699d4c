"""ECC, row remapping, retired pages; and whether the model fits what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bringup.base.text import plural, size
from bringup.preflight.checks.devices import gpus
from bringup.preflight.checks.driver import DRIVER
from bringup.preflight.parsers.nvidia_q import Gpu
from bringup.preflight.registry import (
    Outcome,
    View,
    check,
    failed,
    fleet_check,
    noted,
    passed,
    skipped,
    unknown,
    warned,
)
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread

MIB = 1024 * 1024
GIB = 1024 * MIB


def _serial(gpu: Gpu) -> str:
    return f" (serial {gpu.serial})" if gpu.serial else ""


@check("nvidia.ecc-mode", "ECC is on", platform="nvidia", reads=("nvidia.q",), source="imbue",
       remedy="sudo nvidia-smi -e 1; reboot", after=DRIVER)
def ecc_mode(view: View) -> Outcome:
    off = [gpu.index for gpu in view.facts.smi.gpus if gpu.ecc is False]
    if off:
        return warned(f"off on {gpus(off)}: memory errors go unseen")
    return passed("on") if any(gpu.ecc for gpu in view.facts.smi.gpus) else skipped("these GPUs have none")


@check("nvidia.ecc", "no uncorrectable memory error since the driver was loaded", platform="nvidia",
       reads=("nvidia.q",), source="imbue, gcm, Azure: 0", after=DRIVER,
       remedy="reset the GPU when no job runs; replace it when errors come back")
def ecc(view: View) -> Outcome:
    log = view.facts.smi
    bad = [gpu for gpu in log.gpus if gpu.ecc_uncorrected]
    blind = [gpu for gpu in log.gpus if any("ECC" in name for name in gpu.unreadable)]
    if bad:
        counts = ", ".join(f"GPU {gpu.index}: {gpu.ecc_uncorrected}{_serial(gpu)}" for gpu in bad)
        return failed(f"uncorrectable errors: {counts}",
                      mend=f"sudo nvidia-smi -r -i {','.join(str(gpu.index) for gpu in bad)}   (no process may use it)")
    if blind:
        return unknown(f"{gpus(gpu.index for gpu in blind)} does not say its ECC errors")
    # a device that answers N/A has no counter: that is neither zero nor an error
    if all(gpu.ecc_uncorrected is None for gpu in log.gpus):
        return skipped("these GPUs count none")
    return passed("0")


@check("nvidia.ecc-corrected", "corrected memory errors stay under the line", platform="nvidia", reads=("nvidia.q",),
       source="Azure: 10,000 in SRAM, 20,000,000 in DRAM", after=DRIVER,
       remedy="reset the GPU when no job runs; watch whether the count comes back")
def ecc_corrected(view: View) -> list[Outcome]:
    log = view.facts.smi
    out = []
    for gpu in log.gpus:
        for kind, count in (("SRAM", gpu.ecc_corrected_sram), ("DRAM", gpu.ecc_corrected_dram)):
            line = limits()[f"ecc_corrected_{kind.lower()}"]
            if count is not None and count > line.number:
                out.append(warned(f"GPU {gpu.index}: {count:,} corrected {kind} errors{_serial(gpu)}",
                                  required=f"at most {line.value:,}", found=f"{count:,}", source=line.source))
    blind = [gpu.index for gpu in log.gpus if any("ECC" in name for name in gpu.unreadable)]
    if out or blind:
        return out or [unknown(f"{gpus(blind)} does not say its ECC errors")]
    if all(gpu.ecc_corrected is None for gpu in log.gpus):
        return [skipped("these GPUs count none")]
    return [passed(f"{max(gpu.ecc_corrected or 0 for gpu in log.gpus):,} at most")]


@check("nvidia.sram", "SRAM errors over the GPU's life stay under the line for replacement", platform="nvidia",
       reads=("nvidia.q",), source="vendor: threshold flag; published policy: more than 4 is RMA", after=DRIVER,
       remedy="take the GPU out of service: open a case with the vendor")
def sram(view: View) -> list[Outcome]:
    line = limits()["sram_lifetime_fail"]
    out = []
    for gpu in view.facts.smi.gpus:
        count = gpu.sram_uncorrected_lifetime
        if gpu.sram_threshold:
            out.append(failed(f"GPU {gpu.index}: the driver's threshold is exceeded{_serial(gpu)}"))
        elif count is not None and count > line.number:
            out.append(failed(f"GPU {gpu.index}: {count} in its life{_serial(gpu)}", required=f"at most {line}",
                              source=line.source))
        elif count:
            out.append(noted(f"GPU {gpu.index}: {count} in its life (line: {line.value})"))
        if gpu.unrepairable:
            out.append(failed(f"GPU {gpu.index}: memory that cannot be repaired{_serial(gpu)}"))
        elif gpu.repair_pending:
            out.append(failed(f"GPU {gpu.index}: a repair waits for a reset",
                              mend=f"sudo nvidia-smi -r -i {gpu.index}"))
    return out or [passed("below the line")]


@check("nvidia.remap", "no row remapping is pending or has failed", platform="nvidia", reads=("nvidia.q",),
       source="vendor: pending needs a reset, a failure is RMA; DCGM: 512 at most", after=DRIVER,
       remedy="pending: reset the GPU; failed: take it out of service")
def remap(view: View) -> list[Outcome]:
    log = view.facts.smi
    ceiling = limits()["remap_ceiling"]
    out = []
    for gpu in log.gpus:
        fixed, broken = gpu.remapped_correctable or 0, gpu.remapped_uncorrectable or 0
        counts = f"{fixed} correctable, {broken} uncorrectable"
        if gpu.remap_failed:
            out.append(failed(f"GPU {gpu.index}: a row could not be remapped ({counts}){_serial(gpu)}",
                              mend="take the GPU out of service: open a case with the vendor"))
        elif broken >= ceiling.number:
            out.append(failed(f"GPU {gpu.index}: {counts}{_serial(gpu)}", required=f"below {ceiling}",
                              source=ceiling.source, mend="take the GPU out of service"))
        elif gpu.remap_pending:
            out.append(failed(f"GPU {gpu.index}: a row remap is pending ({counts}){_serial(gpu)}: reset needed",
                              mend=f"sudo nvidia-smi -r -i {gpu.index}   (no process may use it), or reboot"))
        elif broken:
            out.append(warned(f"GPU {gpu.index}: {counts} rows remapped, none pending (0 failures)", mend="watch it"))
        elif fixed:
            out.append(noted(f"GPU {gpu.index}: {counts} rows remapped, none pending"))
    if out:
        return out
    blind = [gpu.index for gpu in log.gpus if any("Remap" in name for name in gpu.unreadable)]
    if blind:
        return [unknown(f"{gpus(blind)} does not say")]
    if all(gpu.remap_pending is None for gpu in log.gpus):
        return [skipped("these GPUs remap no rows")]
    return [passed("none")]


@check("nvidia.remap-spare", "every memory bank has spare rows left", platform="nvidia", reads=("nvidia.q",),
       source="vendor: Bank Remap Availability Histogram; a bank without spare rows fails at its next error",
       after=DRIVER, remedy="plan its replacement: the next error of that bank ends in a remapping failure")
def remap_spare(view: View) -> list[Outcome]:
    log = view.facts.smi
    out = [warned(f"GPU {gpu.index}: {plural(gpu.banks_full, 'bank')} without a spare row{_serial(gpu)}")
           for gpu in log.gpus if gpu.banks_full]
    out += [noted(f"GPU {gpu.index}: {plural(gpu.banks_low, 'bank')} with few spare rows left{_serial(gpu)}")
            for gpu in log.gpus if gpu.banks_low and not gpu.banks_full]
    blind = [gpu.index for gpu in log.gpus if any("Remap" in name for name in gpu.unreadable)]
    if out or blind:
        return out or [unknown(f"{gpus(blind)} does not say")]
    if all(gpu.banks_full is None for gpu in log.gpus):
        return [skipped("these GPUs show no histogram of their banks")]
    return [passed("in every bank")]


@check("nvidia.retired", "retired pages stay under the line, none pending", platform="nvidia", reads=("nvidia.q",),
       source="DCGM: 63 pages; only before Ampere", after=DRIVER, remedy="reboot; replace the GPU above the line")
def retired(view: View) -> Outcome:
    line = limits()["retired_fail"]
    known = [gpu for gpu in view.facts.smi.gpus if gpu.retired is not None]
    if not known:
        return skipped("these GPUs remap rows instead")
    over = [gpu for gpu in known if (gpu.retired or 0) >= line.number]
    waiting = [gpu for gpu in known if gpu.retired_pending]
    if over:
        return failed(f"{gpus(gpu.index for gpu in over)}: {over[0].retired} pages", required=f"below {line}",
                      source=line.source)
    if waiting:
        return failed(f"{gpus(gpu.index for gpu in waiting)}: a retirement is pending", mend="sudo reboot")
    return passed("below the line")


@check("plan.memory-fraction", "the memory fraction leaves room for the weights", reads=("nvidia.q",),
       source="the plan: weights on each device against fraction x memory", platform="nvidia",
       remedy="change --gpu-memory-utilization or --mem-fraction-static", after=DRIVER)
def fraction(view: View) -> Outcome:
    need = view.need
    if need.memory_fraction is None or need.weights_per_device is None:
        return skipped("the plan names no fraction")
    sizes = [gpu.memory_total for gpu in view.facts.smi.gpus if gpu.memory_total]
    if not sizes:
        raise Unread("no GPU says its memory")
    total = min(sizes) * MIB
    # what CUDA contexts and activations take beside the weights, at least
    least = (need.weights_per_device + 2 * GIB) / total
    if need.memory_fraction * total < need.weights_per_device + 2 * GIB:
        given = need.memory_fraction * total / GIB
        return failed(f"fraction {need.memory_fraction:g} gives {given:.1f} GiB, the weights are "
                      f"{need.weights_per_device / GIB:.1f} GiB on each device",
                      mend=f"at least {_up(least):.2f}" if least < 0.97 else "more devices, or a smaller variant")
    return passed(f"{need.memory_fraction:g} of {total / GIB:.0f} GiB")


def _up(value: float) -> float:
    return int(value * 100 + 0.999) / 100


@fleet_check("plan.memory", "the devices of each replica hold the recipe's least memory", reads=("nvidia.q",),
             source="recipe: vram_minimum_gb of the variant", remedy="more hosts a replica, or a smaller variant")
def replica_memory(views: Sequence[View]) -> Iterable[Outcome]:
    by_host = {view.host: view for view in views}
    for view in views:
        need = view.need
        if need.memory_minimum is None or not need.nodes or need.nodes[0] != view.host:
            continue
        try:
            total = sum(_memory(by_host[host]) for host in need.nodes if host in by_host)
        except Unread as error:
            yield skipped(f"not judged: {error.reason}", subject=view.host)
            continue
        if any(host not in by_host for host in need.nodes):
            continue
        if total < need.memory_minimum:
            yield failed(f"{size(total)} on {len(need.nodes)} hosts, {need.recipe} {need.variant} needs "
                         f"{size(need.memory_minimum)}", subject=view.host, source=need.memory_source or None)
        else:
            yield passed(size(total), subject=view.host)


def _memory(view: View) -> int:
    if view.platform == "ascend":
        return sum((chip.memory_total or 0) for chip in view.facts.npu.chips) * 1_000_000
    sizes = [gpu.memory_total for gpu in view.facts.smi.gpus]
    if any(one is None for one in sizes):
        raise Unread(f"{view.host} does not say its memory")
    return sum(one or 0 for one in sizes) * MIB
