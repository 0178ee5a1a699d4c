"""What the deep tier measures inside a host: collectives, copies, disk, DCGM's short diagnosis."""

from __future__ import annotations

from collections.abc import Iterable

from bringup.base.text import duration, size
from bringup.preflight.parsers.load import Collective
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, unknown, warned
from bringup.preflight.requirement import Line, Profile, limits
from bringup.preflight.unread import Unread

LEAST_SIZE = 1 << 30
"""Bytes below which a bus bandwidth says little of the links."""
NVLS_FROM = 5
"""Devices from which NCCL uses NVLS on HGX boards."""


def line_for(profile: Profile, ranks: int, nvls: bool | None) -> Line | None:
    """The line for that number of devices; where the log does not say of NVLS, the lower one."""
    fitting = [line for line in profile.all_reduce if line.devices == ranks]
    exact = [line for line in fitting if line.nvls is None or line.nvls == nvls]
    return min(exact or fitting, key=lambda line: line.busbw, default=None)


@check("collective.all-reduce", "an all-reduce over the devices of the host reaches its line", platform="nvidia",
       tier="deep", reads=("load.all_reduce",), source="hardware profile: the line for that number of devices",
       remedy="look at nvlink.*, fabric.* and the NCCL variables; then with NCCL_DEBUG=INFO by hand")
def all_reduce(view: View) -> Outcome:
    return _against_line(view, view.facts.all_reduce)


def _against_line(view: View, run: Collective) -> Outcome:
    trouble = _trouble(run)
    if trouble is not None:
        return trouble
    speed = run.largest.busbw
    assert speed is not None
    way = "" if run.largest.out_of_place is not None else ", in place"
    text = f"{speed:.1f} GB/s busbw over {run.ranks} devices at {size(run.largest.size)} ({run.by}{way})"
    data = {"busbw": speed, "devices": run.ranks, "size": run.largest.size}
    line = line_for(view.profile, run.ranks, run.nvls) if view.profile else None
    if line is None:
        return noted(f"{text}; no line is known for {run.ranks} of this kind", data=data)
    required = f"{line.busbw:g} GB/s for {run.ranks}" + ("" if line.nvls is None else
                                                        ", with NVLS" if line.nvls else ", without NVLS")
    if speed < line.busbw:
        return failed(text, required=required, found=f"{speed:.1f} GB/s", source=line.source, data=data)
    return passed(text, required=required, source=line.source, data=data)


def _trouble(run: Collective) -> Outcome | None:
    if run.wrong:
        return failed(f"{run.wrong} wrong values in an all-reduce: a device or a link computes wrongly",
                      mend="take the host out; nvidia-smi -q -d ECC, dcgmi diag -r 3")
    if not run.concluded:
        return unknown("the all-reduce stops half way")
    if not run.ranks or run.largest.size < LEAST_SIZE or not run.largest.busbw:
        return unknown("the all-reduce names no devices" if not run.ranks else
                       f"the largest size is {size(run.largest.size)}: too small to judge links by")
    return None


@check("collective.rccl", "an all-reduce over the GPUs of the host reaches its line", platform="amd", tier="deep",
       reads=("load.rccl",), source="hardware profile: the line for that number of devices",
       remedy="rocm-smi --showtopo; look at the links and at the NCCL variables, then with NCCL_DEBUG=INFO by hand")
def rccl(view: View) -> Outcome:
    return _against_line(view, view.facts.rccl)


@check("collective.hccl", "an all-reduce over the chips of the host comes out right", platform="ascend", tier="deep",
       reads=("load.hccl",), source="hccl_test: check_result success at every size",
       remedy="look at ascend.health, ascend.ecc and hccn.*; take the chip out that computes wrongly")
def hccl(view: View) -> Outcome:
    rows = view.facts.hccl
    largest, speed = max(rows)
    if largest < LEAST_SIZE:
        return unknown(f"hccl_test stops at {size(largest)}")
    best = max(one for _, one in rows)
    text = f"right at {len(rows)} sizes, {speed:.1f} GB/s at {size(largest)} (algorithm bandwidth; best {best:.1f})"
    # no peer publishes a line for a host: what is recorded as the baseline is the line
    return passed(text, data={"algbw": speed, "size": largest})


@check("collective.transport", "the devices of a host talk through NVLink or PCIe peers, not through the host's memory",
       platform="nvidia", tier="deep", reads=("load.all_reduce",), source="NCCL's log",
       remedy="unset NCCL_P2P_DISABLE; look at nvlink.p2p, pcie.acs and the IOMMU")
def transport(view: View) -> Outcome:
    run = view.facts.all_reduce
    if not run.transports:
        return skipped("the run has no log of NCCL")
    shown = ", ".join(sorted(run.transports))
    socket = [name for name in run.transports if name.startswith("NET/Socket")]
    if socket:
        return failed(f"devices of one host talk through {socket[0]}", found=shown)
    if "SHM" in run.transports:
        profile = view.profile
        make = failed if profile is not None and profile.nvlinks else warned
        return make(f"some devices talk through the host's memory ({shown})", found=shown)
    if run.ranks >= NVLS_FROM and run.nvls is False and view.profile and view.profile.nvswitch:
        return noted(f"{shown}; NVLS is off: a fifth to a quarter of the bandwidth of {run.ranks} is left")
    return passed(shown)


@check("collective.replica", "an all-reduce over the hosts of a replica goes by RDMA and reaches its line",
       platform="nvidia", tier="deep", reads=("load.replica",), source="NCCL's log; hardware profile: across",
       remedy="NCCL_IB_HCA, NCCL_IB_GID_INDEX, rdma.*; NCCL_DEBUG=INFO says which way was taken")
def over_replica(view: View) -> Outcome:
    run = view.facts.replica_run
    speed, nodes = run.largest.busbw or 0.0, len(view.need.nodes)
    nets = sorted(name for name in run.transports if name.startswith("NET/"))
    way = "" if run.largest.out_of_place is not None else ", in place"
    text = (f"{speed:.1f} GB/s busbw over {run.ranks} devices of {nodes} hosts at {size(run.largest.size)} "
            f"({run.by}{way}), {', '.join(nets) or 'the way is not in the log'}")
    data = {"busbw": speed, "devices": run.ranks, "hosts": nodes, "transport": nets}
    meant = view.need.transport == "tcp"
    if "NET/Socket" in nets and not meant:
        return failed(text, required="NET/IB", found="NET/Socket", data=data,
                      details=("sockets where RDMA was wanted: slower by a hundred",))
    trouble = _trouble(run)
    if trouble is not None:
        small = meant and run.concluded and not run.wrong and run.largest.size < LEAST_SIZE
        return noted(f"{text}: too small to judge by", data=data) if small else trouble
    if not nets:
        return unknown(text, data=data)
    profile = view.profile
    line = profile.across if profile is not None and nodes > 1 and run.ranks >= nodes * profile.count.number else None
    if line is None or meant:
        return noted(f"{text}; no line is known for this", data=data)
    make = failed if speed < line.number else passed
    return make(text, required=f"{line.number:g} GB/s", found=f"{speed:.1f} GB/s", source=line.source, data=data)


@check("copy.host", "copies between host and each device reach their line", platform="nvidia", tier="deep",
       reads=("load.copies",), source="hardware profile: host_copy",
       remedy="PCIe generation and width under load (pcie.*), NUMA binding, ACS")
def host_copy(view: View) -> Iterable[Outcome]:
    tests = view.facts.copies
    least = view.profile.host_copy if view.profile else None
    out = []
    for name, title in (("host_to_device_memcpy_ce", "to device"), ("device_to_host_memcpy_ce", "from device")):
        if name not in tests:
            out.append(unknown(f"the test {title} did not run to its end"))
            continue
        (_, device), speed = tests[name].least
        text = f"{speed:.1f} GB/s {title} {device}"
        data = {"copy": name, "speed": speed, "device": device}
        if least is None:
            out.append(noted(f"{text}; no line is known for this kind", data=data))
        elif speed < least.number:
            # a hypervisor between takes its part: that harms, and is no broken device
            make = warned if view.facts.virtual not in ("none", "") else failed
            out.append(make(text, required=f"{least.number:g} GB/s", found=f"{speed:.1f} GB/s", source=least.source,
                            data=data))
        else:
            out.append(passed(text, required=f"{least.number:g} GB/s", source=least.source, data=data))
    return out


@check("copy.peer", "copies between every two devices reach their line", platform="nvidia", tier="deep",
       reads=("load.copies",), source="hardware profile: peer_copy", remedy="look at nvlink.* and nvlink.p2p")
def peer_copy(view: View) -> Outcome:
    found = view.facts.copies.get("device_to_device_memcpy_read_ce")
    if found is None:
        try:
            single = len(view.facts.smi.gpus) < 2
        except Unread:
            single = False
        return skipped("one device") if single else unknown("the test between devices did not run to its end")
    (one, other), speed = found.least
    least = view.profile.peer_copy if view.profile else None
    text = f"{speed:.1f} GB/s between {one} and {other}, the slowest of {len(found.cells)} pairs"
    if least is None:
        return noted(f"{text}; no line is known for this kind")
    make = failed if speed < least.number else passed
    return make(text, required=f"{least.number:g} GB/s", source=least.source, data={"speed": speed})


@check("copy.memory", "every device's own memory reaches its line", platform="nvidia", tier="deep",
       reads=("load.copies",), source="hardware profile: memory_bandwidth",
       remedy="nvidia.remap, nvidia.ecc and nvidia.throttle; dcgmi diag -r 3 on the idle host")
def own_memory(view: View) -> Outcome:
    found = view.facts.copies.get("device_local_copy")
    if found is None:
        return skipped("the tool does not measure copies within a device")
    (_, device), copied = found.least
    speed = 2 * copied  # what is copied is read and written
    least = view.profile.memory_bandwidth if view.profile else None
    text = f"{speed:,.0f} GB/s read and written by device {device}, the slowest of {len(found.cells)}"
    data = {"speed": speed, "device": device}
    if least is None:
        return noted(f"{text}; no line is known for this kind", data=data)
    make = failed if speed < least.number else passed
    return make(text, required=f"{least.number:g} GB/s", source=least.source, data=data)


@check("disk.read", "the weights are read in the time that a start may take", tier="deep", reads=("load.disk",),
       source="weights of the plan over the speed measured", remedy="a local NVMe disk for model_path, or more servers")
def disk_read(view: View) -> Outcome:
    speed, direct = view.facts.disk_read
    text = f"{speed:.2f} GB/s" + ("" if direct else ", the page cache could not be passed by")
    weights = view.need.weights_bytes
    data = {"speed": speed}
    if not weights:
        return noted(text, data=data)
    seconds = weights / (speed * 1e9)
    text += f": {size(weights)} take {duration(seconds)}"
    limit = limits()["load_seconds"]
    make = warned if seconds > limit.number else passed
    return make(text, required=f"{duration(limit.number)} at most", source=limit.source, data=data)


@check("dcgm.diag", "DCGM's short diagnosis finds nothing", platform="nvidia", tier="deep", reads=("load.dcgm",),
       source="dcgmi diag -r 1", remedy="dcgmi diag -r 3 on the idle host says more")
def diagnosis(view: View) -> list[Outcome]:
    out = []
    for name, (word, said) in view.facts.diagnosis.items():
        text = f"{name}: {word}" + (f": {said[:160]}" if said else "")
        if word in ("fail", "error"):
            # its own switches, no broken device
            out.append((warned if name in ("Persistence Mode", "Environment Variables") else failed)(text))
        elif word == "warn":
            out.append(warned(text))
        elif word not in ("pass", "skip", "not run"):
            out.append(unknown(text))
    return out or [passed(f"{len(view.facts.diagnosis)} tests")]
