"""Mends that preflight may make: safe while engines run, put back by `host_setting` with `state: restored`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.text import fold_hosts
from bringup.base.verdicts import Finding, Verdict
from bringup.preflight.checks.network import is_address
from bringup.preflight.requirement import Need


@dataclass(frozen=True)
class Fix:
    """A setting of the module `host_setting` that mends what a check found, and what it does in words."""

    setting: str
    does: str
    args: Mapping[str, Any] = field(default_factory=dict)


SAFE: Mapping[str, Fix] = {
    "host.numa-balancing": Fix("numa_balancing", "kernel.numa_balancing=0, now and after a boot"),
    "host.governor": Fix("governor", "the CPU governor `performance`, now and after a boot", {"value": "performance"}),
    "nvidia.persistence": Fix("persistence", "persistence mode on, now and after a boot"),
    "nvidia.hold": Fix("driver_hold", "apt-mark hold on the driver's packages"),
    "rdma.peer-memory": Fix("peermem", "the module nvidia_peermem loaded, now and after a boot"),
    "net.self-name": Fix("names", "the names of the cluster at their addresses in /etc/hosts"),
}
"""By check. What may stop a process, free its memory or start a service anew is not among them."""


@dataclass(frozen=True)
class Mend:
    """A fix for one host, for what `check` found there."""

    host: str
    check: str
    fix: Fix

    @property
    def args(self) -> dict[str, Any]:
        """The arguments of `host_setting`."""
        return {"name": self.fix.setting, "state": "present", **self.fix.args}


def mends_of(findings: Sequence[Finding], needs: Mapping[str, Need]) -> tuple[list[Mend], list[str]]:
    """The mends for these findings, one for a host and setting; and why one is left out."""
    out: dict[tuple[str, str], Mend] = {}
    left: list[str] = []
    for finding in findings:
        fix = SAFE.get(finding.check)
        need = needs.get(finding.subject)
        if fix is None or need is None or finding.verdict not in (Verdict.FAIL, Verdict.WARN):
            continue
        if not need.privileged:
            left.append(f"{finding.subject}: {finding.check} is not mended: bringup_privileged is false")
            continue
        if fix.setting == "names":
            addresses = {name: address for name, address in need.addresses.items() if is_address(address)}
            if addresses.keys() != need.addresses.keys():
                left.append(f"{finding.subject}: {finding.check} is not mended: not every host has an address")
                continue
            fix = Fix(fix.setting, fix.does, {"addresses": addresses})
        out[(finding.subject, fix.setting)] = Mend(finding.subject, finding.check, fix)
    return list(out.values()), left


def shown(mends: Sequence[Mend]) -> list[str]:
    """A line for each setting with the hosts that get it."""
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for mend in mends:
        hosts.setdefault((mend.check, mend.fix.setting, mend.fix.does), []).append(mend.host)
    return [f"{fold_hosts(names)}  {check}: {does} (host_setting {setting})"
            for (check, setting, does), names in hosts.items()]
