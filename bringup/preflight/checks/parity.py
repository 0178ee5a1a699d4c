"""What must be equal on all hosts: the majority's value, and who differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.text import fold_hosts
from bringup.preflight.checks.clock import shown
from bringup.preflight.checks.network import is_loopback
from bringup.preflight.parsers import ascend as hccn
from bringup.preflight.parsers.host import nvme
from bringup.preflight.registry import Outcome, View, failed, fleet_check, noted, passed, warned
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class Equal:
    """One fact that must be equal: its row's name, how to read it, how bad a difference is within a replica."""

    name: str
    title: str
    read: Callable[[View], str]
    platform: str = "any"
    grave: bool = False
    shown: bool = True


def _weights(view: View) -> str:
    digests = view.facts.weights.get("digests", {})
    return str(digests.get("config.json", ""))[:12]


def _template(view: View) -> str:
    return str(view.facts.weights.get("digests", {}).get("chat_template.jinja", ""))[:12]


def _nic(view: View) -> str:
    return ", ".join(sorted({port.firmware for port in view.facts.rdma if port.firmware}))


def _vbios(view: View) -> str:
    return ", ".join(sorted({gpu.vbios for gpu in view.facts.smi.gpus if gpu.vbios}))


def _in_use(view: View) -> list[Mapping[str, Any]]:
    """The environments of the release in use; where none is in use, the only one that there is."""
    every = view.facts.environments
    return [one for one in every if one.get("used")] or ([*every] if len(every) == 1 else [])


def _nccl(view: View) -> str:
    names = [one["environment"] for one in _in_use(view)]
    return ", ".join(sorted({str(one["version"]) for one in view.facts.libraries if one.get("environment") in names}))


def _mtu(view: View) -> str:
    sizes = (int(one.get("mtu") or 0) for one in view.facts.reach.values()
             if not is_loopback(str(one.get("address", ""))))
    return str(max(sizes, default=0) or "")


def _tls(view: View) -> str:
    found = {hccn.tls(text) for text in view.facts.hccn("tls").values()}
    return "mixed" if len(found) > 1 else str(found.pop())


EQUAL: tuple[Equal, ...] = (
    Equal("driver", "the NVIDIA driver", lambda view: view.facts.module_version, "nvidia", grave=True),
    Equal("cuda", "the driver's CUDA", lambda view: view.facts.smi_versions.get("cuda", ""), "nvidia"),
    Equal("toolkit", "the CUDA toolkit on the path", lambda view: view.facts.toolkit, "nvidia"),
    Equal("vbios", "the GPUs' VBIOS", _vbios, "nvidia"),
    Equal("inforom", "the GPUs' InfoROM image", lambda view: ", ".join(sorted(
        {gpu.inforom for gpu in view.facts.smi.gpus if gpu.inforom})), "nvidia", shown=False),
    Equal("product", "the accelerator", lambda view: (
        view.facts.smi.gpus[0].name if view.platform == "nvidia" else view.facts.npu.chips[0].name), grave=True),
    Equal("kernel", "the kernel", lambda view: view.facts.kernel),
    Equal("os", "the operating system", lambda view: view.facts.os.get("PRETTY_NAME", view.facts.os["ID"])),
    Equal("nic", "the RDMA firmware", _nic),
    Equal("cpu", "the processor", lambda view: view.facts.cpu.model),
    Equal("memory", "the memory", lambda view: f"{round(view.facts.memory['MemTotal'] / 2**30)} GiB", shown=False),
    Equal("bios", "the BIOS", lambda view: view.facts.answers.file("host.dmi", "bios_version").strip(), shown=False),
    Equal("nvme", "the number of NVMe disks", lambda view: str(len(
        nvme(view.facts.answers.text("host.nvme", any_status=True)))), shown=False),
    Equal("fabric", "the fabric manager",
          lambda view: view.facts.answers.text("nvidia.fabricmanager_version").split()[-1], "nvidia"),
    Equal("amd-driver", "the amdgpu driver",
          lambda view: view.facts.answers.file("amd.version", "amdgpu/version").strip(), "amd", grave=True),
    Equal("npu-driver", "the Ascend driver", lambda view: view.facts.npu_driver.version, "ascend", grave=True),
    Equal("npu-firmware", "the Ascend firmware", lambda view: view.facts.npu_firmware.version, "ascend", grave=True),
    Equal("cann", "CANN", lambda view: view.facts.cann.version, "ascend", grave=True),
    Equal("environment", "the environment in use", lambda view: ", ".join(sorted(
        str(one["environment"])[:12] for one in _in_use(view)))),
    Equal("torch", "torch of the environment in use", lambda view: ", ".join(sorted(
        str(one["torch"]) for one in _in_use(view) if one.get("torch"))), grave=True),
    Equal("torch-npu", "torch_npu", lambda view: view.need.torch_npu, "ascend", grave=True),
    Equal("model", "the model's config.json", _weights, grave=True, shown=False),
    Equal("template", "the chat template", _template, grave=True, shown=False),
)

JUDGED_ELSEWHERE: tuple[Equal, ...] = (
    Equal("nccl", "NCCL of the environment in use", _nccl),
    Equal("mtu", "the packet size towards the others", _mtu),
    Equal("tls", "the TLS switch of the chips", _tls, "ascend"),
)
"""Rows of the table whose differences parity.nccl, net.mtu and hccn.tls judge."""


def values(views: Sequence[View], equal: Equal) -> dict[str, str]:
    """The fact by host, hosts that cannot say it left out."""
    out = {}
    for view in views:
        if equal.platform not in ("any", view.platform):
            continue
        try:
            value = equal.read(view)
        except (Unread, KeyError, IndexError, TypeError, AttributeError, ValueError):
            continue
        if value:
            out[view.host] = value
    return out


def usual_of(found: dict[str, str]) -> str:
    """The value that most hosts have; among equals the first by name."""
    everything = list(found.values())
    return max(sorted(set(everything)), key=everything.count)


def _register(equal: Equal) -> None:
    @fleet_check(f"parity.{equal.name}", f"{equal.title} is the same on all hosts", platform=equal.platform,
                 source="one kind of host in one run; ranks of a replica must agree",
                 remedy="bring the odd host to what the others have")
    def judge(views: Sequence[View]) -> Iterable[Outcome]:
        found = values(views, equal)
        if len(found) < 2:
            return
        usual = usual_of(found)
        by_host = {view.host: view for view in views}
        others = fold_hosts([host for host, value in found.items() if value == usual])
        for host, value in found.items():
            if value == usual:
                yield passed(value, subject=host)
                continue
            mates = [mate for mate in by_host[host].need.nodes if found.get(mate, value) != value]
            make = failed if equal.grave and mates else warned if equal.grave or mates else noted
            yield make(f"{value}; {others}: {usual}", subject=host, data={"value": value, "usual": usual})


for _equal in EQUAL:
    _register(_equal)


@fleet_check("parity.nccl", "one build of the communication library in each environment", reads=("env.libraries",),
             source="two builds of one version can hang", remedy="build the environment again on the odd host")
def nccl(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, dict[str, dict[str, str]]] = {}
    for view in views:
        try:
            libraries = view.facts.libraries
        except Unread:
            continue
        for one in libraries:
            if one.get("environment"):
                hosts = seen.setdefault(str(one["environment"]), {})
                hosts[view.host] = {key: str(value) for key, value in one.items()}
    by_host = {view.host: view for view in views}
    for hosts in seen.values():
        builds = {host: f"{one['version']} {one['sha256'][:12]}" for host, one in hosts.items()}
        if len(builds) < 2:
            continue
        usual = usual_of(builds)
        first = next(host for host, build in builds.items() if build == usual)
        for host, build in builds.items():
            if build == usual:
                yield passed(build, subject=host)
                continue
            make = failed if any(builds.get(mate, build) != build for mate in by_host[host].need.nodes) else warned
            same = hosts[host]["version"] == hosts[first]["version"]
            word = "another build" if same else f"{hosts[first]['version']} elsewhere"
            yield make(f"NCCL {hosts[host]['version']}, {word}", subject=host, details=(
                f"{host}: {hosts[host]['path']}", f"{first}: {hosts[first]['path']}"))


def table(views: Sequence[View]) -> list[tuple[str, str, str]]:
    """Rows for the report: name, `15 x 580.126.09`, `gpu07: 580.178`. Rows of one host are left out."""
    rows = []
    for equal in (*EQUAL, *JUDGED_ELSEWHERE):
        found = values(views, equal)
        if len(found) < 2:
            continue
        usual = usual_of(found)
        odd: dict[str, list[str]] = {}
        for host, value in found.items():
            if value != usual:
                odd.setdefault(value, []).append(host)
        if equal.shown or odd:
            count = sum(1 for value in found.values() if value == usual)
            rows.append((equal.name, f"{count} x {usual}",
                         "; ".join(f"{fold_hosts(hosts)}: {value}" for value, hosts in odd.items())))
    clock = _clocks(views)
    if clock:
        rows.append(clock)
    connecting = _connecting(views)
    return [*rows, connecting] if connecting else rows


def _connecting(views: Sequence[View]) -> tuple[str, str, str] | None:
    """How long connecting took, and who waited long for the greeting."""
    took = {view.host: view.facts.answers.connect for view in views}
    known = {host: one for host, one in took.items() if one is not None}
    if len(known) < 2:
        return None
    late = {host: one for host, one in known.items() if one[1] >= limits()["greeting"].number}
    usual = [one[0] for host, one in known.items() if host not in late] or [one[0] for one in late.values()]
    least, most = f"{min(usual):.1f}", f"{max(usual):.1f}"
    return ("connect", f"{len(usual)} in {least} s" if least == most else f"{len(usual)} in {least} to {most} s",
            "; ".join(f"{host}: {one[0]:.1f} s" for host, one in late.items() if len(late) < len(known)))


def _clocks(views: Sequence[View]) -> tuple[str, str, str] | None:
    offsets = []
    for view in views:
        try:
            offset = view.facts.clock.offset
        except (Unread, ValueError):
            continue
        if offset is not None:
            offsets.append((offset, view.host))
    if len(offsets) < 2:
        return None
    spread = max(offsets)[0] - min(offsets)[0]
    return ("clock", f"{len(offsets)} within {shown(spread)}", "")
