"""Which reader of ours takes each recorded output, and what it makes of it in a line."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

from preflight_hosts import SAMPLES

from bringup.preflight.answers import Answer, Answers
from bringup.preflight.facts import Facts
from bringup.preflight.parsers import (
    amd,
    ascend,
    dcgm,
    host,
    kernel,
    load,
    lossless,
    machine,
    neighbours,
    npu,
    nvidia_q,
    nvidia_text,
    optics,
    processes,
    rdma,
    settings,
)

Reader = Callable[[str], Any]


def loop(read: Callable[[str], Any]) -> Reader:
    """A reader of one device's answer on a text that holds one answer a line."""
    return lambda text: [read(line + "\n") for line in text.splitlines() if line.strip()]


def two_lines(text: str) -> list[str]:
    lines = text.splitlines()
    return [ascend.address("\n".join(lines[at:at + 2])) for at in range(0, len(lines), 2)]


def nvme(text: str) -> Any:
    return host.nvme("== /dev/nvme0\n" + text)


def mtu(text: str) -> Any:
    """What stands in /sys/class/net/eth0/mtu."""
    answer = Answer("net.links", files={"/sys/class/net/eth0/mtu": text})
    return Facts(Answers.of("h", [answer])).link_mtu


def fabric_manager(text: str) -> Any:
    """The answer of systemctl about the fabric manager, where only properties are asked for."""
    return Facts(Answers.of("h", [Answer("nvidia.fabricmanager", stdout=text)])).fabric_manager


def each(read: Reader) -> Reader:
    """A reader of many ports' answers on the answer of one."""
    return lambda text: read("".join(f"ens1np0| {line}\n" for line in text.splitlines()) + "== end\n")


def conf(text: str) -> Any:
    return ascend.hccn_conf(text)


READERS: list[tuple[str, Reader]] = [
    ("nvidia-smi/query-q-*", nvidia_q.parse),
    ("host-h200x2/nvidia-smi-q.txt", nvidia_q.parse),
    ("nvidia-smi/query-d-*", lambda text: nvidia_q.parse(text, complete=False)),
    ("nvidia-smi/fabric-in-progress.txt", lambda text: nvidia_q.parse(text, complete=False)),
    ("*/nvlink-s-*", lambda text: dcgm.nvlink_states(text) if "gpuId" in text else nvidia_text.nvlinks(text)),
    ("host-h200x2/nvidia-smi-nvlink-s.txt", nvidia_text.nvlinks),
    ("dcgm/nvlink-e-*", dcgm.nvlink_errors),
    ("nvidia-smi/nvlink-e-*", nvidia_text.nvlink_errors),
    ("host-h200x2/nvidia-smi-nvlink-e.txt", nvidia_text.nvlink_errors),
    ("nvidia-smi/topo-*", nvidia_text.matrix),
    ("host-h200x2/nvidia-smi-topo-*", nvidia_text.matrix),
    ("nvidia-smi/version-*", nvidia_text.versions),
    ("host-h200x2/nvidia-smi-version.txt", nvidia_text.versions),
    ("nvidia-smi/list-L-inforom-*", nvidia_q.corrupted_inforom),
    ("*/list-L-*", nvidia_text.gpu_list),
    ("host-h200x2/nvidia-smi-L.txt", nvidia_text.gpu_list),
    ("nvidia-smi/query-compute-apps-*", nvidia_text.apps),
    ("host-h200x2/nvidia-smi-query-apps.csv", nvidia_text.apps),
    # all other forms of nvidia-smi stand in the place of the log that is asked for
    ("nvidia-smi/*", nvidia_q.parse),
    ("host-h200x2/nvidia-smi*", nvidia_q.parse),
    ("nvidia-proc/*", nvidia_text.module_version),
    ("host-h200x2/proc-driver-*", nvidia_text.module_version),
    ("nvcc/*", nvidia_text.toolkit),
    ("host-h200x2/nvcc-version.txt", nvidia_text.toolkit),
    ("host-h200x2/nccl-*", load.collective),
    ("host-h200x2/limits.txt", host.limits),
    ("kernel/lsmod-*", kernel.modules),
    ("kernel/*", kernel.parse),
    ("time/chronyc-*", host.chrony),
    ("time/timedatectl-timesync-status.txt", host.timesync),
    ("time/timedatectl-*", host.timedatectl),
    ("*/lscpu*", host.cpu),
    ("*/*meminfo.txt", host.meminfo),
    ("*/os-release*", host.os_release),
    ("host/nvme-smart-log-*", nvme),
    ("host/nvme-list-*", nvme),
    ("host/swapon-*", host.swaps),
    ("*/numactl*", host.meminfo),
    ("host/cpupower-*", host.cpu),
    ("container/*", host.docker),
    ("systemctl/*", host.units),
    ("fabricmanager/*", fabric_manager),
    ("npu-smi/info-m-*", ascend.chip_map),
    ("npu-smi/info-t-health-*", ascend.health),
    ("npu-smi/info-t-ecc-*", ascend.ecc),
    ("npu-smi/info-t-board-*", ascend.compatibility),
    ("npu-smi/info-t-current-fault-event-*", ascend.fault_events),
    ("npu-smi/spod-*", ascend.super_pod),
    ("npu-smi/info-t-topo-*", npu.topology),
    ("npu-smi/*", ascend.info),
    ("ascend-info/*.info*", ascend.package),
    ("ascend-info/hccn.conf.txt", conf),
    ("ascend-info/rank_table-*", npu.rank_table),
    ("hccn_tool/ip-g-a2x8.txt", two_lines),
    ("hccn_tool/ip-*", ascend.address),
    ("hccn_tool/link-g-*", loop(ascend.link)),
    ("hccn_tool/net_health-*", loop(ascend.net_health)),
    ("hccn_tool/tls-g-*", loop(ascend.tls)),
    ("hccn_tool/tls-s-ok.txt", ascend.tls),
    ("hccn_tool/950-tls.txt", ascend.tls),
    ("hccn_tool/*link_stat*", ascend.link_history),
    ("hccn_tool/950-link-down.txt", ascend.link),
    ("hccn_tool/*vnic*", npu.plane),
    ("hccn_tool/optical-*", optics.hccn_optical),
    ("hccn_tool/stat-*", npu.counters),
    ("hccn_tool/fec-*", npu.fec),
    ("hccn_tool/speed-*", npu.speed),
    ("hccn_tool/lldp-g-*", neighbours.npu),
    ("hccn_tool/gateway-*", loop(ascend.gateway)),
    ("hccn_tool/netdetect-*", loop(ascend.detect_address)),
    ("hccn_tool/*", ascend.ub_ports),
    ("ib/ib_write_bw-*", load.perftest),
    ("ib/each-mlnx_qos-*", lossless.mlnx_qos),
    ("ib/mlnx_qos-*", each(lossless.mlnx_qos)),
    ("ib/ibv_devinfo-*", rdma.devinfo),
    ("ib/show_gids-*", rdma.show_gids),
    ("ib/*", rdma.ibstat),
    ("ethtool/each-m-*", optics.ethtool_module),
    ("ethtool/ethtool-m-*", each(optics.ethtool_module)),
    ("ethtool/each-a-*", lossless.pause),
    ("ethtool/ethtool-a.txt", each(lossless.pause)),
    ("ethtool/*", mtu),
    ("mlxlink/*", optics.mlxlink),
    ("lldp/*", neighbours.lldp),
    ("ipmi/sel-*", machine.bmc_events),
    ("ipmi/sdr-*", machine.bmc_sensors),
    ("ipmi/*", machine.chassis),
    ("host/proc-buddyinfo-*", machine.buddyinfo),
    ("nccl/*", settings.nccl_conf),
    ("pci/lspci-vvv-acsctl.txt", processes.acs),
    ("pci/*", processes.pci),
    ("amd/*", amd.smi),
    ("dcgm/diag-*", dcgm.diagnosis),
    ("nccl-tests/*", load.collective),
    ("torch/*", load.collective),
    ("nvbandwidth/*", load.nvbandwidth),
    ("hccl-test/*", load.hccl),
    ("host-h200x2/dev.txt", processes.pci),
]


def reader(name: str) -> Reader:
    """The reader of a sample, the first that fits."""
    return next(read for pattern, read in READERS if fnmatch.fnmatch(name, pattern))


def names() -> list[str]:
    """Every recorded output."""
    return sorted(str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*")
                  if path.is_file() and path.name != "README.md")


def line(found: Any) -> str:
    """What a reader found, in a line that a person compares with the text."""
    if isinstance(found, nvidia_q.SmiLog):
        kinds = ", ".join(sorted({gpu.name for gpu in found.gpus}))
        marks = [f"GPU {gpu.index} {word}" for gpu in found.gpus for word, on in (
            ("MIG", gpu.mig), ("remap pending", gpu.remap_pending), ("remap failed", gpu.remap_failed),
            ("uncorrected", gpu.ecc_uncorrected), ("retired pending", gpu.retired_pending),
            ("fabric " + gpu.fabric_state, gpu.fabric_state not in ("", "Completed")),
            ("unreadable", gpu.unreadable)) if on]
        return "; ".join([f"{len(found.gpus)} x {kinds}, driver {found.driver}, CUDA {found.cuda}", *marks])
    if isinstance(found, nvidia_text.Matrix):
        return f"{len(found.gpus())} GPUs, {' '.join(sorted(set(found.cells.values())))}"
    if isinstance(found, ascend.NpuInfo):
        health = sorted({chip.health for chip in found.chips})
        return (f"{len(found.chips)} x {found.chips[0].name} {' '.join(health)}, {found.chips[0].memory_total} MB, "
                f"{len(found.processes)} processes, {len(found.warnings)} warnings")
    if isinstance(found, load.Collective):
        return f"{len(found.rows)} rows, {found.largest.size} B at {found.largest.busbw} GB/s, {found.ranks} ranks"
    if isinstance(found, kernel.KernelLog):
        seen = {name: len(getattr(found, name)) for name in (
            "xids", "sxids", "narrow", "slot_power", "unplugged", "flaps", "segfaults", "hung", "gsp", "machine", "aer",
            "oom", "disk")}
        return ", ".join(f"{count} {name}" for name, count in seen.items() if count) or "nothing of note"
    if isinstance(found, host.Cpu):
        return f"{found.sockets} sockets, {found.cores} cores, {found.threads} threads, {found.numa} NUMA nodes"
    return shape(found)


def shape(found: Any) -> str:
    """Small values as they are, large ones by what they begin with and how many there are."""
    if isinstance(found, dict) and "MemTotal" in found:
        return f"MemTotal {found['MemTotal']}"
    if isinstance(found, dict) and "ID" in found:
        return f"{found['ID']} {found.get('VERSION_ID')}"
    if isinstance(found, tuple) and found and isinstance(found[0], nvidia_text.Links):
        return f"{len(found)} GPUs, {len(found[0].speeds)} links, {sum(len(one.down) for one in found)} down, " \
               f"{found[0].note}".rstrip(", ")
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], tuple):
        ports = found[0]
        if ports and isinstance(ports[0], rdma.Port):
            return f"{len(ports)} ports, {sum(port.active for port in ports)} active, {found[1]}".rstrip(", ")
    if isinstance(found, frozenset):
        return f"{len(found)} names"
    if isinstance(found, (tuple, list)) and found and isinstance(found[0], processes.PciDevice):
        return " ".join(f"{one.kind}:{one.vendor}:{one.device}" for one in found[:3]) + f" of {len(found)}"
    if isinstance(found, tuple) and found and isinstance(found[0], dict):
        return f"{len(found)} units: {', '.join(one.get('Id', '?') for one in found)}"
    if isinstance(found, dict) and len(found) > 8:
        first = next(iter(found.items()))
        return f"{len(found)} of {first[0]}: {first[1]}"
    return str(found)
