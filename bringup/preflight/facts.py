"""The typed facts of a host, read from its answers when they are asked for. Reading raises Unread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from bringup.preflight.answers import Answers
from bringup.preflight.facts_links import LinkFacts
from bringup.preflight.facts_machine import MachineFacts
from bringup.preflight.parsers import ascend, dcgm, host, kernel, load, nvidia_q, nvidia_text, processes, rdma
from bringup.preflight.parsers.processes import Holder
from bringup.preflight.unread import Unread

_UNIT_KINDS = ("service", "scope", "slice", "socket", "target", "timer", "path", "mount")


class Facts(LinkFacts, MachineFacts):
    """Facts of one host. Each property parses once; what cannot be read raises Unread each time it is asked."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.host = answers.host

    # NVIDIA

    @cached_property
    def smi(self) -> nvidia_q.SmiLog:
        """`nvidia-smi -q`; a log with all its GPUs counts even where the tool ended with a status."""
        text = self.answers.text("nvidia.q", any_status=True)
        answer = self.answers.get("nvidia.q")
        if answer.rc and "Attached GPUs" not in text:
            kind, line = nvidia_text.smi_trouble(answer.rc, text + answer.stderr)
            raise Unread(f"nvidia-smi ends with {answer.rc} ({kind}): {line}")
        return nvidia_q.parse(text)

    @cached_property
    def smi_trouble(self) -> tuple[str, str] | None:
        """What keeps nvidia-smi from answering at all, as (kind, line); None when it answers."""
        for probe in ("nvidia.q", "nvidia.version", "nvidia.list"):
            answer = self.answers.get(probe)
            if answer.missing or answer.skipped:
                continue
            if answer.timed_out:
                state = f" and cannot be ended (state {answer.abandoned})" if answer.abandoned else ""
                return "hung", f"nvidia-smi did not answer within {answer.seconds:.0f} s{state}"
            if answer.rc and "Attached GPUs" not in answer.stdout:
                kind, line = nvidia_text.smi_trouble(answer.rc, answer.stdout + answer.stderr)
                return kind, f"nvidia-smi ends with {answer.rc}: {line}"
        return None

    @cached_property
    def smi_versions(self) -> Mapping[str, str]:
        """library, driver, cuda. From `--version`, else from the log."""
        try:
            return nvidia_text.versions(self.answers.text("nvidia.version"))
        except Unread:
            log = self.smi
            return {"driver": log.driver, "cuda": log.cuda}

    @cached_property
    def module_version(self) -> str:
        files = self.answers.files("nvidia.module")
        for path in sorted(files):
            if files[path].strip():
                return nvidia_text.module_version(files[path])
        raise Unread("the module's version is empty")

    @cached_property
    def module_on_disk(self) -> str:
        return nvidia_text.module_version(self.answers.text("nvidia.module_disk"))

    @cached_property
    def nvlinks(self) -> tuple[nvidia_text.Links, ...]:
        return nvidia_text.nvlinks(self.answers.text("nvidia.nvlink", any_status=True))

    @cached_property
    def nvlink_errors(self) -> Mapping[int, Mapping[str, int]]:
        return nvidia_text.nvlink_errors(self.answers.text("nvidia.nvlink_errors"))

    @cached_property
    def topology(self) -> nvidia_text.Matrix:
        return nvidia_text.matrix(self.answers.text("nvidia.topo"))

    @cached_property
    def p2p(self) -> nvidia_text.Matrix:
        return nvidia_text.matrix(self.answers.text("nvidia.p2p"))

    @cached_property
    def apps(self) -> tuple[nvidia_text.App, ...]:
        return nvidia_text.apps(self.answers.text("nvidia.apps"))

    @cached_property
    def listed(self) -> tuple[str, ...]:
        return nvidia_text.gpu_list(self.answers.text("nvidia.list", any_status=True))

    @cached_property
    def toolkit(self) -> str:
        return nvidia_text.toolkit(self.answers.text("nvidia.nvcc"))

    @cached_property
    def fabric_manager(self) -> Mapping[str, str]:
        units = host.units(self.answers.text("nvidia.fabricmanager"))
        if units and "LoadState" not in units[0]:
            raise Unread("systemctl does not say whether the unit nvidia-fabricmanager is there")
        return units[0] if units else {}

    # host

    @cached_property
    def pci(self) -> tuple[processes.PciDevice, ...]:
        return processes.pci(self.answers.text("host.pci"))

    @cached_property
    def kernel_log(self) -> kernel.KernelLog:
        answer = self.answers.get("host.kernel_log")
        if answer.rc and "ermitted" in answer.stderr + answer.stdout:
            raise Unread("the kernel log needs root", absent=True)
        text = self.answers.text("host.kernel_log") if not answer.truncated else answer.stdout
        if not text.strip():
            raise Unread("the kernel log is empty", absent=True)
        return kernel.parse(text)

    @cached_property
    def modules(self) -> frozenset[str]:
        return kernel.modules(self.answers.file("host.modules"))

    @cached_property
    def kernel(self) -> str:
        text = self.answers.file("host.kernel").strip()
        if not text:
            raise Unread("the kernel names no release")
        return text

    @cached_property
    def os(self) -> Mapping[str, str]:
        return host.os_release(self.answers.file("host.os"))

    @cached_property
    def uptime(self) -> float:
        try:
            return float(self.answers.file("host.uptime").split()[0])
        except (IndexError, ValueError):
            raise Unread("/proc/uptime holds no number") from None

    @cached_property
    def memory(self) -> Mapping[str, int]:
        return host.meminfo(self.answers.file("host.meminfo"))

    @cached_property
    def swaps(self) -> tuple[tuple[str, int], ...]:
        return host.swaps(self.answers.file("host.swaps"))

    @cached_property
    def cpu(self) -> host.Cpu:
        return host.cpu(self.answers.text("host.cpu"))

    @cached_property
    def virtual(self) -> str:
        """The hypervisor or container engine, `none` on bare metal. Raises Unread."""
        answer = self.answers.get("host.virtual")
        if answer.missing:
            return "vm" if self.cpu.hypervisor else "none"
        return self.answers.text("host.virtual", any_status=True).strip() or "none"

    @cached_property
    def limits(self) -> host.Limits:
        return host.limits(self.answers.file("host.limits"))

    @cached_property
    def units(self) -> tuple[Mapping[str, str], ...]:
        """The units of ours. Raises Unread, absent where no systemd answers."""
        answer = self.answers.get("host.units")
        if answer.rc:
            raise Unread("systemd does not answer", absent=True)
        found = host.units(self.answers.text("host.units"))
        for unit in found:
            name, _, kind = unit.get("Id", "").rpartition(".")
            if not name.startswith("bringup") or kind not in _UNIT_KINDS:
                raise Unread(f"systemctl names `{unit.get('Id', '')}`, no unit of ours")
            # slices and scopes have no such limit
            if kind == "service" and host.unit_limit(unit.get("LimitMEMLOCK", "")) == "":
                raise Unread(f"systemctl says no memory limit of {unit['Id']}")
        return found

    @cached_property
    def docker(self) -> host.Docker:
        return host.docker(self.answers.text("host.docker", any_status=True))

    @cached_property
    def clock(self) -> host.Clock:
        """How time is kept: chrony first, then timesyncd, then what systemd says. Raises Unread."""
        chrony = self.answers.get("time.chrony")
        if chrony.rc and "Cannot talk to daemon" in chrony.stdout + chrony.stderr:
            return host.Clock(False, None, "", "chronyd does not run")
        reasons = []
        for probe, parse in (("time.chrony", host.chrony), ("time.timesync", host.timesync),
                             ("time.timedatectl", host.timedatectl)):
            try:
                return parse(self.answers.text(probe))
            except Unread as error:
                # a tool whose service is not there ends with a status: only text that cannot be read is unknown
                if not error.absent and self.answers.get(probe).rc == 0:
                    raise
                if not error.absent:
                    reasons.append(error.reason)
        raise Unread(reasons[-1] if reasons else "no tool says how time is kept", absent=True)

    @cached_property
    def acs(self) -> tuple[tuple[str, bool], ...]:
        return processes.acs(self.answers.text("host.pci_acs"))

    # network

    @cached_property
    def names(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = processes.tree(self.answers.text("net.names"), dict)
        return found

    @cached_property
    def hosts_file(self) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
        return processes.hosts_file(self.answers.file("net.hosts_file"))

    @cached_property
    def reach(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = processes.tree(self.answers.text("net.reach"), dict)
        return found

    @cached_property
    def listeners(self) -> tuple[processes.Listener, ...]:
        return processes.listeners(self.answers.text("net.listeners"))

    @cached_property
    def meet(self) -> Mapping[str, Any]:
        """Ports listened on and dialled by the deep tier."""
        found: Mapping[str, Any] = processes.tree(self.answers.text("net.meet"), dict)
        return found

    @cached_property
    def proxy(self) -> Mapping[str, Any]:
        """Proxy variables of the session and of login files."""
        found: Mapping[str, Any] = processes.tree(self.answers.text("net.proxy"), dict)
        return found

    @cached_property
    def fetched(self) -> Mapping[str, Mapping[str, Any]]:
        """How far the way to each address went. Raises Unread."""
        found: Mapping[str, Any] = processes.tree(self.answers.text("net.fetch"), dict)
        if not all(isinstance(one, dict) and isinstance(one.get("stage"), str) for one in found.values()):
            raise Unread("the answer about addresses is not of its shape")
        return found

    @cached_property
    def environments(self) -> tuple[Mapping[str, Any], ...]:
        """Environments of ours: `environment` (the folder), `torch`, `torch_npu`, `used` by the release in use."""
        found = tuple(processes.tree(self.answers.text("env.packages"), list))
        if not all(isinstance(one, dict) and one.get("environment") for one in found):
            raise Unread("the answer about environments is not of its shape")
        return found

    @cached_property
    def libraries(self) -> tuple[Mapping[str, Any], ...]:
        """Communication libraries: of our environments, and the system's (environment empty)."""
        return tuple(processes.tree(self.answers.text("env.libraries"), list))

    @cached_property
    def link_mtu(self) -> Mapping[str, int]:
        """MTU by interface. Raises Unread for one that is no number."""
        out = {}
        for path, text in self.answers.files("net.links").items():
            if path.endswith("/mtu"):
                if not text.strip().isdecimal():
                    raise Unread(f"{path} holds no number")
                out[path.split("/")[-2]] = int(text)
        return out

    @cached_property
    def rdma(self) -> tuple[rdma.Port, ...]:
        """RDMA ports: sysfs first, ibstat where a recording has no sysfs; the active MTU added. Raises Unread."""
        try:
            ports = rdma.sysfs(self.answers.files("rdma.sysfs"))
        except Unread:
            ports, _ = rdma.ibstat(self.answers.text("rdma.ibstat", any_status=True))
        try:
            mtu = rdma.devinfo(self.answers.text("rdma.devinfo"))
        except Unread:
            mtu = {}
        return tuple(replace(port, mtu=mtu.get(port.device)) for port in ports)

    # disk and processes

    @cached_property
    def disks(self) -> Mapping[str, Mapping[str, Any]]:
        found = processes.tree(self.answers.text("disk.room"), list)
        for one in found:
            if not isinstance(one, dict) or not isinstance(one.get("free", None if "error" not in one else 0), int):
                raise Unread("the answer about disks is not of its shape")
        return {str(one.get("path")): one for one in found}

    @cached_property
    def executes(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(processes.tree(self.answers.text("disk.execute"), list))

    @cached_property
    def weights(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = processes.tree(self.answers.text("disk.weights"), dict)
        if not isinstance(found.get("exists"), bool) or not isinstance(found.get("files"), dict):
            raise Unread("the answer about the weights is not of its shape")
        return found

    @cached_property
    def processes(self) -> Mapping[int, processes.Process]:
        return processes.processes(self.answers.text("proc.processes"))

    @cached_property
    def records(self) -> tuple[Mapping[str, Any], ...]:
        """Records of the engine processes that we keep on the host; none where there is no such folder."""
        try:
            files = self.answers.files("proc.records")
        except Unread as error:
            if error.absent:
                return ()
            raise
        return tuple(processes.tree(text, dict) for text in files.values())

    @cached_property
    def holders(self) -> tuple[Holder, ...]:
        return processes.holders(self.answers.text("proc.holders"))

    @cached_property
    def shm(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(processes.tree(self.answers.text("proc.shm"), list))

    @cached_property
    def account(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = processes.tree(self.answers.text("proc.account"), dict)
        return found

    @cached_property
    def plan_files(self) -> Mapping[str, Mapping[str, Any]]:
        """Files that the plan's variables name, by path. Raises Unread."""
        found: Mapping[str, Any] = processes.tree(self.answers.text("plan.files"), dict)
        if not all(isinstance(one, dict) and isinstance(one.get("exists"), bool) for one in found.values()):
            raise Unread("the answer about the plan's files is not of its shape")
        return found

    # measured by the deep tier

    @cached_property
    def all_reduce(self) -> load.Collective:
        """The all-reduce inside the host. A run that ended with a status counts as none. Raises Unread."""
        return load.collective(self._run("load.all_reduce"))

    @cached_property
    def rccl(self) -> load.Collective:
        """The same over AMD GPUs, by rccl-tests. Raises Unread."""
        return load.collective(self._run("load.rccl"))

    @cached_property
    def hccl(self) -> tuple[tuple[int, float], ...]:
        """The same over Ascend chips: (bytes, algorithm bandwidth in GB/s), every size right. Raises Unread."""
        return load.hccl(self._run("load.hccl"))

    def _run(self, probe: str) -> str:
        answer = self.answers.get(probe)
        text = self.answers.text(probe, any_status=True)
        if answer.rc:
            raise Unread(f"the all-reduce ended with {answer.rc}: {load.complaint(text.splitlines())}")
        return text

    @cached_property
    def replica_run(self) -> load.Collective:
        """The all-reduce over the hosts of a replica, as its head saw it. Raises Unread."""
        answer = self.answers.get("load.replica")
        text = self.answers.text("load.replica", any_status=True)
        if answer.rc:
            raise Unread(f"the all-reduce over the replica ended with {answer.rc}: "
                         f"{answer.stderr or load.complaint(text.splitlines())}")
        return load.collective(text)

    @cached_property
    def copies(self) -> Mapping[str, load.Bandwidths]:
        """Bandwidths between host and devices, and between devices."""
        return load.nvbandwidth(self.answers.text("load.copies"))

    def pairs(self, probe: str) -> Mapping[str, Mapping[str, Any]]:
        """What this host measured to each partner. Raises Unread."""
        found: Mapping[str, Any] = processes.tree(self.answers.text(probe), dict)
        if not all(isinstance(one, dict) for one in found.values()):
            raise Unread("the answer about pairs is not of its shape")
        return found

    @cached_property
    def diagnosis(self) -> Mapping[str, tuple[str, str]]:
        """DCGM's short diagnosis; it may end with a status beside whole JSON."""
        return dcgm.diagnosis(self.answers.text("load.dcgm", any_status=True))

    @cached_property
    def disk_read(self) -> tuple[float, bool]:
        """GB/s of reading the weights, and whether that went past the page cache."""
        found = processes.tree(self.answers.text("load.disk"), dict)
        read, seconds = found.get("bytes"), found.get("seconds")
        if not isinstance(read, int) or not isinstance(seconds, (int, float)) or read <= 0 or seconds <= 0:
            raise Unread("the answer about reading is not of its shape")
        return read / seconds / 1e9, bool(found.get("direct"))

    # Ascend

    @cached_property
    def npu(self) -> ascend.NpuInfo:
        return ascend.info(self.answers.text("ascend.info", any_status=True))

    @cached_property
    def npu_driver(self) -> ascend.Package:
        return ascend.package(self.answers.file("ascend.driver"))

    @cached_property
    def npu_firmware(self) -> ascend.Package:
        return ascend.package(self.answers.file("ascend.firmware"))

    @cached_property
    def cann(self) -> ascend.Package:
        return ascend.package(self.answers.file("ascend.cann"))

    def hccn(self, what: str) -> Mapping[int, str]:
        """The answers of `hccn_tool -WHAT -g` by device, one for each chip. Raises Unread."""
        found = ascend.per_device(self.answers.text(f"hccn.{what}", any_status=True))
        return self._each(f"hccn.{what}", found, len(self.npu.chips))

    def npus(self, probe: str) -> Mapping[int, str]:
        """The answers of a probe that asks each NPU, by NPU. Raises Unread."""
        found = ascend.per_device(self.answers.text(probe, any_status=True))
        return self._each(probe, found, len({chip.npu for chip in self.npu.chips}))

    @staticmethod
    def _each(probe: str, found: Mapping[int, str], number: int) -> Mapping[int, str]:
        if len(found) < number:
            raise Unread(f"{probe} holds answers of {len(found)} of {number} devices")
        return found

    @cached_property
    def hccn_conf(self) -> Mapping[int, tuple[str, int]]:
        return ascend.hccn_conf(self.answers.file("ascend.hccn_conf"))
