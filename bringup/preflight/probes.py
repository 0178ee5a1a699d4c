"""The probes: what is asked of a host, how long it may take, and what a recording may answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Probe:
    """One question to a host: a command (`argv`), files (`read`, globs) or a question of the agent (`ask`).

    `deadline` is seconds. `platform` is any, nvidia, ascend, amd or rdma. `root` says that without root the answer is
    incomplete; such a probe is skipped with that reason where `needs_root` and asked anyhow where not. `live` probes
    are asked of the host itself even where a recording answers the rest. `limit` is bytes kept; `tail` keeps the end.
    `load` probes are asked alone, after all others, one after the other, and only where nobody uses the devices.
    """

    id: str
    argv: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    ask: str = ""
    deadline: float = 15.0
    platform: str = "any"
    tier: str = "fast"
    needs_root: bool = False
    live: bool = False
    limit: int = 0
    tail: bool = False
    load: bool = False

    def request(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The probe as the host's module takes it; `given` are the values of a question."""
        out: dict[str, Any] = {"id": self.id, "deadline": self.deadline}
        if self.argv:
            out["argv"] = list(self.argv)
        elif self.read:
            out["read"] = list(self.read)
        else:
            out["ask"] = self.ask
            out["with"] = dict(given)
        if self.limit:
            out["limit"] = self.limit
        if self.tail:
            out["keep"] = "tail"
        return out

    @property
    def shown(self) -> str:
        """The command, the files or the question, as a person reads it."""
        return " ".join(self.argv) if self.argv else ", ".join(self.read) if self.read else f"asks for {self.ask}"


@dataclass(frozen=True)
class Questions:
    """What the plan makes the probes ask: peers by name and address, paths, the model's folder, the account."""

    names: Sequence[str] = ()
    peers: Mapping[str, str] = field(default_factory=dict)
    paths: Sequence[str] = ()
    run_paths: Sequence[str] = ()
    model_path: str = ""
    user: str = ""
    root: str = "/opt/bringup"
    listen: Sequence[int] = ()
    address: str = ""
    dial: Mapping[str, Sequence[int]] = field(default_factory=dict)
    nccl_tests: str = ""
    torch_python: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    urls: Sequence[str] = ()
    files: Sequence[str] = ()

    def given(self, ask: str) -> dict[str, Any]:
        """The values of one question."""
        values: dict[str, dict[str, Any]] = {
            "names": {"names": list(self.names)},
            "reach": {"peers": dict(self.peers)},
            "fetch": {"urls": list(self.urls)},
            "disk": {"paths": list(self.paths)},
            "execute": {"paths": list(self.run_paths)},
            "weights": {"path": self.model_path},
            "account": {"user": self.user},
            "plan_files": {"paths": list(self.files)},
            "libraries": {"root": self.root},
            "environments": {"root": self.root},
            "collective": {"root": self.root, "tool": self.nccl_tests, "python": self.torch_python,
                           "environment": dict(self.environment)},
            "hccl": {"root": self.root},
            "rccl": {"root": self.root, "tool": self.nccl_tests, "environment": dict(self.environment)},
            "copies": {"root": self.root, "python": self.torch_python},
            "diagnosis": {"root": self.root},
            "disk_read": {"path": self.model_path},
            "meet": {"root": self.root, "listen": list(self.listen), "address": self.address, "peers": {
                name: {"address": self.peers[name], "ports": list(ports)} for name, ports in self.dial.items()
                if name in self.peers}},
        }
        return values.get(ask, {})


def _smi(name: str, *words: str, deadline: float = 25.0) -> Probe:
    return Probe(name, argv=("nvidia-smi", *words), platform="nvidia", deadline=deadline)


_NVIDIA = (
    _smi("nvidia.q", "-q"),
    _smi("nvidia.version", "--version"),
    _smi("nvidia.list", "-L"),
    _smi("nvidia.nvlink", "nvlink", "-s"),
    _smi("nvidia.nvlink_errors", "nvlink", "-e"),
    _smi("nvidia.topo", "topo", "-m"),
    _smi("nvidia.p2p", "topo", "-p2p", "r"),
    _smi("nvidia.apps", "--query-compute-apps=gpu_bus_id,pid,used_gpu_memory,process_name", "--format=csv,noheader"),
    Probe("nvidia.module", read=("/proc/driver/nvidia/version", "/sys/module/nvidia/version"), platform="nvidia"),
    Probe("nvidia.gpus_proc", read=("/proc/driver/nvidia/gpus/*/information",), platform="nvidia"),
    Probe("nvidia.fabricmanager", argv=(
        "systemctl", "show", "nvidia-fabricmanager.service", "--no-pager",
        "--property=LoadState,ActiveState,SubState,UnitFileState,ExecMainStatus"), platform="nvidia"),
    Probe("nvidia.fabricmanager_version", argv=("nv-fabricmanager", "--version"), platform="nvidia"),
    Probe("nvidia.fabricmanager_log", argv=(
        "journalctl", "-u", "nvidia-fabricmanager.service", "-n", "40", "--no-pager", "-o", "cat"), platform="nvidia"),
    Probe("nvidia.persistenced", argv=(
        "systemctl", "show", "nvidia-persistenced.service", "--no-pager", "--property=LoadState,ActiveState"),
        platform="nvidia"),
    Probe("nvidia.nvcc", argv=("nvcc", "--version"), platform="nvidia"),
    Probe("nvidia.module_disk", argv=("modinfo", "-F", "version", "nvidia"), platform="nvidia"),
)

def _each(tool: str, words: str, ports: str) -> tuple[str, ...]:
    """A script that asks a tool about each port side by side: `PORT| ` before each line, `== end` last.

    `ports` are paths whose last part is a port; virtual functions are left out.
    """
    names = tool.split()
    found = " || ".join(f"command -v {name} 2>/dev/null" for name in names)
    return ("sh", "-c", f"""t=$({found}) || exit 127
for d in {ports}; do [ -e "$d" ] || continue; [ -e "$d/device/physfn" ] && continue; d=${{d##*/}}
"$t" {words} 2>&1 | sed -u "s/^/$d| /" & done; wait; echo "== end\"""")


_CARDS = "/sys/class/infiniband/*"
_NETS = "/sys/class/infiniband/*/device/net/*"
_ERRORS = ("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "local_link_integrity_errors",
           "excessive_buffer_overrun_errors")
_DROPS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rx_icrc_encapsulated")

_RDMA = (
    Probe("rdma.sysfs", read=(
        "/sys/class/infiniband/*/ports/*/state", "/sys/class/infiniband/*/ports/*/phys_state",
        "/sys/class/infiniband/*/ports/*/rate", "/sys/class/infiniband/*/ports/*/link_layer",
        "/sys/class/infiniband/*/fw_ver", "/sys/class/infiniband/*/hca_type",
        "/sys/class/infiniband/*/ports/*/gid_attrs/ndevs/*", "/sys/class/infiniband/*/ports/*/gid_attrs/types/*",
        "/sys/class/infiniband/*/ports/*/gids/*", "/sys/class/infiniband/*/ports/*/counters/link_downed",
        "/sys/class/infiniband/*/ports/*/counters/symbol_error", "/sys/class/infiniband/*/device/numa_node"),
        platform="rdma"),
    Probe("rdma.ibstat", argv=("ibstat",), platform="rdma"),
    Probe("rdma.devinfo", argv=("ibv_devinfo",), platform="rdma"),
    Probe("rdma.counters", read=(
        *(f"/sys/class/infiniband/*/ports/*/counters/{name}" for name in _ERRORS),
        *(f"/sys/class/infiniband/*/ports/*/hw_counters/{name}" for name in _DROPS),
        "/sys/class/infiniband/*/device/current_link_*", "/sys/class/infiniband/*/device/max_link_*",
        "/sys/class/infiniband/*/device/net/*/ifindex"), platform="rdma"),
    Probe("rdma.mlxlink", argv=_each("mlxlink mstlink", '-d "$d" -m -c', _CARDS), platform="rdma", needs_root=True,
          deadline=20),
    Probe("rdma.module", argv=_each("ethtool", '-m "$d"', _NETS), platform="rdma", needs_root=True),
    Probe("rdma.qos", argv=_each("mlnx_qos", '-i "$d"', _NETS), platform="rdma", needs_root=True),
    Probe("rdma.pause", argv=_each("ethtool", '-a "$d"', _NETS), platform="rdma", needs_root=True),
    Probe("net.lldp", argv=("lldpctl", "-f", "keyvalue"), platform="rdma", needs_root=True),
)

_ASCEND = (
    Probe("ascend.info", argv=("npu-smi", "info"), platform="ascend", deadline=40),
    Probe("ascend.map", argv=("npu-smi", "info", "-m"), platform="ascend", deadline=40),
    Probe("ascend.driver", read=("/usr/local/Ascend/driver/version.info",), platform="ascend"),
    Probe("ascend.firmware", read=("/usr/local/Ascend/firmware/version.info",), platform="ascend"),
    Probe("ascend.cann", read=(
        "/usr/local/Ascend/ascend-toolkit/latest/*/ascend_toolkit_install.info",
        "/usr/local/Ascend/ascend-toolkit/latest/ascend_toolkit_install.info",
        "/usr/local/Ascend/cann*/*/ascend_toolkit_install.info"), platform="ascend"),
    Probe("ascend.install", read=("/etc/ascend_install.info",), platform="ascend"),
    Probe("ascend.hccn_conf", read=("/etc/hccn.conf",), platform="ascend"),
    Probe("ascend.spod", argv=("npu-smi", "info", "-t", "spod-info", "-i", "0", "-c", "0"), platform="ascend"),
    *(Probe(f"hccn.{name}", argv=("sh", "-c", f"""command -v hccn_tool >/dev/null 2>&1 || exit 127
for d in /dev/davinci[0-9]*; do i=${{d#/dev/davinci}}; echo "== $i"; hccn_tool -i "$i" -{name} -g 2>&1; done"""),
            platform="ascend", deadline=60)
      for name in ("ip", "link", "net_health", "tls", "gateway", "netdetect", "link_stat", "optical", "stat", "lldp",
                   "fec", "speed", "vnic")),
    Probe("ascend.topo", argv=("npu-smi", "info", "-t", "topo"), platform="ascend", deadline=40),
    Probe("ascend.paths", argv=("sh", "-c", """for p in /usr/local/dcmi /usr/local/bin/npu-smi \\
/usr/local/sbin/npu-smi /usr/local/Ascend/driver/lib64 /usr/local/Ascend/driver/version.info \\
/usr/local/Ascend/driver/tools/hccn_tool \\
/etc/ascend_install.info /etc/hccn.conf; do [ -e "$p" ] && echo "$p"; done; exit 0"""), platform="ascend"),
    # the 950 takes its arguments in another order and has ports of another kind
    Probe("hccn.ub", argv=("sh", "-c", """command -v hccn_tool >/dev/null 2>&1 || exit 127
for d in /dev/davinci[0-9]*; do i=${d#/dev/davinci}; echo "== $i"; hccn_tool -g -ub_connect -i "$i" 2>&1; done"""),
          platform="ascend", deadline=60),
    *(Probe(f"ascend.{name}", argv=("sh", "-c", f"""command -v npu-smi >/dev/null 2>&1 || exit 127
for i in $(npu-smi info -l 2>/dev/null | sed -n 's/^[[:space:]]*NPU ID *: *//p'); do
echo "== $i"; npu-smi info -t {name} -i "$i" 2>&1; done"""), platform="ascend", deadline=60)
      for name in ("ecc", "board", "current-fault-event")),
)

_AMD = (
    Probe("amd.smi", argv=("rocm-smi",), platform="amd", deadline=30),
    Probe("amd.static", argv=("amd-smi", "static"), platform="amd", deadline=30),
    Probe("amd.links", argv=("rocm-smi", "--showtopotype", "--json"), platform="amd", deadline=30),
    Probe("amd.ras", read=("/sys/class/drm/card*/device/ras/*_err_count",), platform="amd"),
    Probe("amd.version", read=("/sys/module/amdgpu/version", "/opt/rocm/.info/version"), platform="amd"),
)

def _bmc(name: str, script: str) -> Probe:
    """A question to the BMC inside the host; slow ones are given up soon: nothing of the plan waits for them."""
    return Probe(name, argv=("sh", "-c", f"""command -v ipmitool >/dev/null 2>&1 || exit 127
[ -e /dev/ipmi0 ] || [ -e /dev/ipmi/0 ] || [ -e /dev/ipmidev/0 ] || {{ echo 'no device of a BMC'; exit 1; }}
exec 2>&1; {script}; echo '== end'"""), needs_root=True, deadline=8)


_HOST = (
    Probe("host.pci", ask="pci"),
    Probe("host.devices", ask="devices"),
    Probe("host.kernel_log", argv=("dmesg",), limit=2 << 20, tail=True),
    Probe("host.modules", read=("/proc/modules",)),
    Probe("host.kernel", read=("/proc/sys/kernel/osrelease",)),
    Probe("host.os", read=("/etc/os-release",)),
    Probe("host.cmdline", read=("/proc/cmdline",)),
    Probe("host.uptime", read=("/proc/uptime",)),
    Probe("host.meminfo", read=("/proc/meminfo",)),
    Probe("host.swaps", read=("/proc/swaps",)),
    Probe("host.cpu", argv=("lscpu",)),
    Probe("host.governor", read=("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",)),
    Probe("host.clocksource", read=("/sys/devices/system/clocksource/clocksource0/current_clocksource",)),
    Probe("host.settings", read=(
        "/proc/sys/vm/swappiness", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/numa_balancing",
        "/sys/kernel/mm/transparent_hugepage/enabled", "/proc/sys/vm/max_map_count", "/proc/sys/fs/file-max")),
    Probe("host.numa", read=("/sys/devices/system/node/node*/meminfo", "/sys/devices/system/node/node*/cpulist")),
    Probe("host.virtual", argv=("systemd-detect-virt",)),
    Probe("host.limits", read=("/proc/self/limits",)),
    Probe("host.manager_limits", argv=(
        "systemctl", "show", "--no-pager", "--property=DefaultLimitMEMLOCK,DefaultLimitNOFILE")),
    Probe("host.units", argv=(
        "systemctl", "show", "bringup*", "--no-pager",
        "--property=Id,ActiveState,SubState,MainPID,LimitMEMLOCK,LimitNOFILE,User,ControlGroup")),
    Probe("host.docker", argv=("docker", "info"), deadline=10),
    Probe("host.pci_acs", argv=("sh", "-c", "command -v lspci >/dev/null || exit 127; "
                                "lspci -vvv 2>/dev/null | grep -E '^[0-9a-f]+:|^[0-9a-f]{4}:|ACSCtl:'"),
          needs_root=True, deadline=20),
    Probe("host.nvme", argv=("sh", "-c", """command -v nvme >/dev/null || exit 127
for d in /dev/nvme[0-9] /dev/nvme[0-9][0-9]; do [ -e "$d" ] || continue
echo "== $d"; nvme smart-log -o json "$d" 2>&1; done"""), needs_root=True),
    Probe("host.buddyinfo", read=("/proc/buddyinfo",)),
    Probe("host.edac", read=(
        "/sys/devices/system/edac/mc/mc*/[cu]e_count", "/sys/devices/system/edac/mc/mc*/dimm*/dimm_[cu]e_count",
        "/sys/devices/system/edac/mc/mc*/dimm*/dimm_label")),
    Probe("host.dmi", read=("/sys/class/dmi/id/bios_version", "/sys/class/dmi/id/product_name")),
    Probe("host.page_size", argv=("getconf", "PAGESIZE")),
    _bmc("bmc.chassis", "echo '== chassis'; ipmitool chassis status"),
    _bmc("bmc.sel", "echo '== now'; ipmitool sel time get; echo '== list'; ipmitool sel elist last 100"),
    _bmc("bmc.sensors", "echo '== sdr'; ipmitool sdr type 'Power Supply'; ipmitool sdr type Fan"),
    Probe("nccl.conf", read=("/etc/nccl.conf",)),
    Probe("host.logind", read=("/etc/systemd/logind.conf", "/etc/systemd/logind.conf.d/*.conf")),
    Probe("host.apt_hold", argv=("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Want}\n",
                                 "nvidia-driver-*", "nvidia-fabricmanager*", "nvidia-dkms-*")),
    Probe("host.packages", argv=("dpkg", "--audit"), deadline=20),
    Probe("time.chrony", argv=("chronyc", "-n", "tracking"), deadline=4),
    Probe("time.timedatectl", argv=("timedatectl",), deadline=4),
    Probe("time.timesync", argv=("timedatectl", "timesync-status", "--no-pager"), deadline=4),
)

_LIVE = (
    Probe("net.hosts_file", read=("/etc/hosts",), live=True),
    Probe("net.names", ask="names", deadline=8, live=True),
    Probe("net.addresses", argv=("ip", "-o", "addr"), live=True),
    Probe("net.links", read=("/sys/class/net/*/mtu", "/sys/class/net/*/operstate", "/sys/class/net/*/speed"),
          live=True),
    Probe("net.reach", ask="reach", deadline=16, live=True),
    Probe("net.listeners", ask="listeners", live=True),
    Probe("net.proxy", ask="proxy", live=True),
    Probe("net.fetch", ask="fetch", deadline=16, live=True),
    Probe("net.meet", ask="meet", deadline=14, tier="deep", live=True),
    Probe("env.libraries", ask="libraries", deadline=30, live=True),
    Probe("env.packages", ask="environments", live=True),
    Probe("disk.room", ask="disk", live=True),
    Probe("disk.execute", ask="execute", live=True),
    Probe("disk.weights", ask="weights", deadline=60, live=True),
    Probe("proc.processes", ask="processes", live=True),
    Probe("proc.shm", ask="shared_memory", live=True),
    Probe("proc.account", ask="account", live=True),
    Probe("plan.files", ask="plan_files", live=True),
)

_PRIVATE = (
    # whose answer belongs to the devices that a recording stands for
    Probe("proc.holders", ask="holders"),
)

_LOAD = (
    Probe("load.all_reduce", ask="collective", platform="nvidia", tier="deep", deadline=240, load=True, limit=4 << 20),
    Probe("load.hccl", ask="hccl", platform="ascend", tier="deep", deadline=240, load=True, limit=1 << 20),
    Probe("load.rccl", ask="rccl", platform="amd", tier="deep", deadline=240, load=True, limit=4 << 20),
    Probe("load.copies", ask="copies", platform="nvidia", tier="deep", deadline=180, load=True),
    Probe("load.dcgm", ask="diagnosis", platform="nvidia", tier="deep", deadline=150, load=True),
    Probe("load.disk", ask="disk_read", tier="deep", deadline=40, load=True),
)

PROBES: tuple[Probe, ...] = (*_NVIDIA, *_RDMA, *_ASCEND, *_AMD, *_HOST, *_LIVE, *_PRIVATE, *_LOAD)
"""Every probe that preflight knows, in the order of a capture."""

BETWEEN: tuple[Probe, ...] = (Probe("pair.tcp", ask="dial", tier="deep"),
                              Probe("pair.rdma", ask="perftest", tier="deep"),
                              Probe("load.replica", ask="replica", tier="deep", platform="nvidia"),
                              Probe("rdma.counters_after", tier="deep", platform="rdma"),
                              Probe("hccn.ping", tier="deep", platform="ascend"))
"""What between.py puts together out of many calls: an answer for each host, by partner."""

BY_ID: Mapping[str, Probe] = {probe.id: probe for probe in (*PROBES, *BETWEEN)}


def ours(root: str) -> Probe:
    """The records of the engine processes that we keep under a host's bringup_root."""
    return Probe("proc.records", read=(f"{root}/processes/*/record.json",), live=True)


def chosen(*, platform: str | None, tier: str = "fast", root: str = "/opt/bringup", only_live: bool = False
           ) -> list[Probe]:
    """The probes for a host. `platform` None asks for all platforms (the tools that are not there say so at once)."""
    tiers = {"fast"} if tier == "fast" else {"fast", "deep"}
    return [probe for probe in (*PROBES, ours(root))
            if probe.tier in tiers and not probe.load and (not only_live or probe.live)
            and (platform is None or probe.platform in ("any", "rdma", platform))]


def loading(platform: str) -> list[Probe]:
    """The probes of the deep tier that load a host of this platform, in the order in which they run."""
    return [probe for probe in PROBES if probe.load and probe.platform in ("any", platform)]
