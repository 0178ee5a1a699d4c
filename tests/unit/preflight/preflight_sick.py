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
