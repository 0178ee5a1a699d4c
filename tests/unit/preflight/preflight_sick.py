"""Hosts with one thing wrong: how to make them, the check that finds it, its verdict, a word of what it says."""


from __future__ import annotations

from collections.abc import Callable

from preflight_hosts import (
    change,
    dead_gpu,
    edit,
    gpu_field,
    inactive_link,
    no_driver_match,
    sample,
    tree,
)

from bringup.base.verdicts import Verdict
from bringup.preflight.answers import Answers

SICK: dict[str, tuple[Callable[[Answers], Answers], str, Verdict, str]] = {
    "library": (no_driver_match, "nvidia.library", Verdict.FAIL, "580.178"),
    "dead GPU": (dead_gpu, "nvidia.count", Verdict.FAIL, "0000:9b:00.0 is dead"),
    "link": (inactive_link, "nvlink.up", Verdict.FAIL, "GPU 3: link 7 inactive"),
    "remap pending": (
        lambda a: gpu_field(a, 5, "Remapped Rows / Pending", "Yes"),
        "nvidia.remap",
        Verdict.FAIL,
        "GPU 5",
    ),
    "mig": (lambda a: gpu_field(a, 0, "MIG Mode / Current", "Enabled"), "nvidia.mig", Verdict.FAIL, "GPU 0"),
    "persistence": (
        lambda a: gpu_field(a, 1, "Persistence Mode", "Disabled"),
        "nvidia.persistence",
        Verdict.WARN,
        "GPU 1",
    ),
    "lanes": (lambda a: gpu_field(a, 6, "Link Width / Current", "8x"), "pcie.width", Verdict.FAIL, "x8 of x16"),
    "heat": (
        lambda a: gpu_field(a, 2, "Clocks Event Reasons / HW Slowdown", "Active"),
        "nvidia.throttle",
        Verdict.FAIL,
        "GPU 2: HW Slowdown",
    ),
    "power cap": (lambda a: gpu_field(a, 2, "Current Power Limit", "400.00 W"), "nvidia.power", Verdict.WARN, "400 W"),
    "no fabric": (lambda a: gpu_field(a, 7, "Fabric / State", "In Progress"), "fabric.state", Verdict.FAIL, "802"),
    "recovery": (lambda a: gpu_field(a, 7, "GPU Recovery Action", "Reset"), "nvidia.recovery", Verdict.FAIL, "Reset"),
    "broken cell": (
        lambda a: gpu_field(a, 3, "VBIOS Version", "[Unknown Error]"),
        "nvidia.readable",
        Verdict.FAIL,
        "GPU 3",
    ),
    "vbios": (lambda a: gpu_field(a, 3, "VBIOS Version", "96.00.01.00.01"), "nvidia.vbios", Verdict.WARN, "96.00.01"),
    "sram": (
        lambda a: gpu_field(a, 3, "Aggregate / SRAM Uncorrectable Parity", "5"),
        "nvidia.sram",
        Verdict.FAIL,
        "5 in its",
    ),
    "fabric manager": (
        lambda a: edit(a, "nvidia.fabricmanager", lambda t: t.replace("=active", "=failed")),
        "fabric.manager",
        Verdict.FAIL,
        "failed",
    ),
    "fabric version": (
        lambda a: edit(a, "nvidia.fabricmanager_version", lambda t: t.replace("159.04", "159.03")),
        "fabric.version",
        Verdict.FAIL,
        "580.159.03",
    ),
    "pending driver": (
        lambda a: change(a, "nvidia.module_disk", "580.200.01\n"),
        "nvidia.pending",
        Verdict.WARN,
        "580.200.01",
    ),
    "xid": (
        lambda a: change(
            a, "host.kernel_log", "[1036000.5] NVRM: Xid (PCI:0000:19:00): 79, pid=1, GPU has fallen off the bus.\n"
        ),
        "nvidia.xid",
        Verdict.FAIL,
        "GPU 0: Xid 79",
    ),
    "sxid": (
        lambda a: change(a, "host.kernel_log", sample("kernel/sxid-mixed.txt")),
        "fabric.sxid",
        Verdict.FAIL,
        "20034",
    ),
    "topology": (
        lambda a: edit(a, "nvidia.topo", lambda t: t.replace("NV18    NV18    PIX", "SYS     NV18    PIX", 1)),
        "nvlink.matrix",
        Verdict.FAIL,
        "SYS",
    ),
    "p2p": (
        lambda a: edit(a, "nvidia.p2p", lambda t: t.replace("GPU1\tOK", "GPU1\tCNS")),
        "nvlink.p2p",
        Verdict.FAIL,
        "CNS",
    ),
    "memory held": (
        lambda a: gpu_field(a, 4, "FB Memory Usage / Used", "132320 MiB"),
        "process.memory",
        Verdict.FAIL,
        "by no listed process",
    ),
    "clock": (
        lambda a: change(a, "time.chrony", sample("time/chronyc-tracking-69s-fast.txt")),
        "time.sync",
        Verdict.FAIL,
        "1 m 09 s fast",
    ),
    "no sync": (
        lambda a: change(a, "time.chrony", sample("time/chronyc-tracking-not-synchronised.txt")),
        "time.sync",
        Verdict.WARN,
        "not synchronised",
    ),
    "swap": (
        lambda a: change(
            a, "host.swaps", files={"/proc/swaps": "Filename Type Size Used Priority\n/swap file 2097148 0 -2\n"}
        ),
        "host.swap",
        Verdict.WARN,
        "/swap",
    ),
    "governor": (
        lambda a: change(a, "host.governor", files={"/sys/a": "powersave\n"}),
        "host.governor",
        Verdict.WARN,
        "powersave",
    ),
    "narrow": (
        lambda a: change(a, "host.kernel_log", sample("kernel/mlx5-warnings.txt")),
        "pcie.narrow",
        Verdict.WARN,
        "0000:9c:00.0",
    ),
    "iommu": (
        lambda a: change(a, "host.cmdline", files={"/proc/cmdline": "ro intel_iommu=on\n"}),
        "pcie.iommu",
        Verdict.WARN,
        "iommu=on",
    ),
    "acs": (
        lambda a: edit(a, "host.pci_acs", lambda t: t.replace("SrcValid-", "SrcValid+")),
        "pcie.acs",
        Verdict.WARN,
        "4",
    ),
    "read-only": (
        lambda a: tree(a, "disk.room", lambda disks: [d.update(options="ro") for d in disks]),
        "disk.local",
        Verdict.FAIL,
        "read-only",
    ),
    "nfs root": (
        lambda a: tree(a, "disk.room", lambda disks: [d.update(type="nfs4") for d in disks]),
        "disk.local",
        Verdict.FAIL,
        "nfs4",
    ),
    "foreign GPU user": (
        lambda a: change(a, "nvidia.apps", "00000000:19:00.0, 99, 900 MiB, python\n"),
        "process.devices",
        Verdict.FAIL,
        "another container",
    ),
    "unit limit": (
        lambda a: change(a, "host.units", "Id=bringup-r1-0.service\nLimitMEMLOCK=65536\n"),
        "host.memlock",
        Verdict.FAIL,
        "64 KiB",
    ),
}


def one_file(probe: str, path: str, text: str) -> Callable[[Answers], Answers]:
    """The host with the text of one file that a probe read changed."""

    def make(answers: Answers) -> Answers:
        files = dict(answers.get(probe).files)
        assert path in files, f"{probe} did not read {path}"
        return change(answers, probe, files={**files, path: text})

    return make


def logged(line: str) -> Callable[[Answers], Answers]:
    return lambda a: change(a, "host.kernel_log", f"[1036000.5] {line}\n")


def port(old: str, new: str) -> Callable[[Answers], Answers]:
    """The host whose first RDMA device has one value of mlxlink changed."""
    return lambda a: edit(a, "rdma.mlxlink", lambda t: t.replace(old, new, 1))


SICK.update({
    "power cable": (lambda a: change(a, "nvidia.q", a.get("nvidia.q").stdout, rc=8), "nvidia.status", Verdict.FAIL,
                    "ends with 8: a power cable"),
    "inforom without a name": (lambda a: change(a, "nvidia.q", a.get("nvidia.q").stdout, rc=14), "nvidia.inforom",
                               Verdict.WARN, "ends with 14"),
    "gsp": (lambda a: gpu_field(a, 2, "GSP Firmware Version", "570.00"), "nvidia.gsp", Verdict.WARN, "GPU 2"),
    "inforom": (
        lambda a: edit(a, "nvidia.list", lambda t: t + "".join(
            f"WARNING: infoROM is corrupted at gpu 0000:{bus}:00.0\n" for bus in ("5D", "3B", "19"))),
        "nvidia.inforom", Verdict.WARN, "GPU 0: the InfoROM is corrupted"),
    "corrected": (lambda a: gpu_field(a, 4, "Volatile / SRAM Correctable", "20000"), "nvidia.ecc-corrected",
                  Verdict.WARN, "20,000 corrected SRAM"),
    "banks": (lambda a: gpu_field(a, 1, "Bank Remap Availability Histogram / None", "2 bank(s)"), "nvidia.remap-spare",
              Verdict.WARN, "GPU 1: 2 banks"),
    "uncorrected memory": (one_file("host.edac", "/sys/devices/system/edac/mc/mc1/ue_count", "3\n"), "host.edac",
                           Verdict.FAIL, "mc1: 3 uncorrected"),
    "corrected memory": (one_file("host.edac", "/sys/devices/system/edac/mc/mc1/ce_count", "9000\n"), "host.edac",
                         Verdict.WARN, "750 corrected errors a day"),
    "machine check": (logged("{2}[Hardware Error]: event severity: recoverable"), "host.machine-check", Verdict.WARN,
                      "1 line"),
    "bus error": (logged("nvidia 0000:19:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction"),
                  "pcie.errors", Verdict.WARN, "GPU 0: 1 uncorrected"),
    "disk error": (logged("I/O error, dev nvme1n1, sector 83886080 op 0x0:(READ)"), "disk.errors", Verdict.WARN,
                   "1 line"),
    "memory of a node": (
        one_file("host.numa", "/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       131072000 kB\n"),
        "host.numa", Verdict.WARN, "node 1 has 134 GB"),
    "page size": (lambda a: change(a, "host.page_size", "65536\n"), "host.page-size", Verdict.WARN, "64 KiB"),
    "BMC log": (lambda a: change(a, "bmc.sel", sample("ipmi/sel-faults.txt")), "bmc.log", Verdict.WARN, "ago"),
    "power supply": (lambda a: change(a, "bmc.sensors", sample("ipmi/sdr-failed-supply.txt")), "bmc.power",
                     Verdict.WARN, "Fan 1"),
    "chassis": (lambda a: change(a, "bmc.chassis", sample("ipmi/chassis-fan-fault.txt")), "bmc.chassis", Verdict.WARN,
                "Cooling/Fan Fault"),
    "lanes of a card": (one_file("rdma.counters", "/sys/class/infiniband/mlx5_3/device/current_link_width", "8\n"),
                        "rdma.pcie", Verdict.WARN, "mlx5_3: x8 at 32"),
    "symbol errors": (
        one_file("rdma.counters", "/sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error", "9000000\n"),
        "rdma.errors", Verdict.WARN, "mlx5_3: 31,250 symbol errors an hour"),
    "bit errors": (port("Symbol BER                         : 15E-255", "Symbol BER                         : 3E-11"),
                   "rdma.ber", Verdict.WARN, "mlx5_0: symbol bit error ratio 3.0e-11"),
    "weak light": (port("1.886,1.989,", "1.886,-14.2,"), "rdma.optics", Verdict.WARN,
                   "received power -14.2 dBm on lane 1"),
    "warm module": (port("Temperature [C]                    : 54", "Temperature [C]                    : 79"),
                    "rdma.optics", Verdict.WARN, "temperature 79 C (limits -5 to 75)"),
    "no peer access": (lambda a: change(a, "nccl.conf", files={"/etc/nccl.conf": "NCCL_P2P_DISABLE=1\n"}),
                       "nccl.settings", Verdict.FAIL, "NCCL_P2P_DISABLE=1 in /etc/nccl.conf"),
})
