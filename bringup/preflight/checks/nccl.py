"""NCCL's own settings: what switches a way off, whether all hosts of a replica say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bringup.base.text import fold_hosts
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
from bringup.preflight.unread import Unread

OWN = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_HOSTID",
       "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_IB_TC", "NCCL_IB_SL")
"""Variables that may differ between hosts: they name what a host has."""


def settings(view: View) -> dict[str, tuple[str, str]]:
    """NCCL's variables with where each stands: /etc/nccl.conf, and the plan's, which win. Raises Unread."""
    try:
        conf: Mapping[str, str] = view.facts.nccl_conf
    except Unread as error:
        if not error.absent:
            raise
        conf = {}
    out = {name: (value, "/etc/nccl.conf") for name, value in conf.items()}
    out.update({name: (value, "the plan") for name, value in view.need.env.items() if name.startswith("NCCL_")})
    return out


@check("nccl.settings", "no variable of NCCL switches off a way that the hardware has", platform="nvidia",
       reads=("nccl.conf",), source="NCCL: P2P, shared memory, RDMA and NVLS are on by themselves",
       remedy="take it out of /etc/nccl.conf or of the deployment's env")
def ways(view: View) -> list[Outcome]:
    found = settings(view)
    profile = view.profile
    several = view.need.accelerators is None or view.need.accelerators > 1
    out = []

    def off(name: str, values: tuple[str, ...] = ("1",)) -> str:
        value, where = found.get(name, ("", ""))
        return f"{name}={value} in {where}" if value in values else ""

    if several and (text := off("NCCL_P2P_DISABLE")):
        linked = profile is not None and profile.nvlinks is not None
        out.append((failed if linked else warned)(f"{text}: the devices of a host talk through its memory"))
    if text := off("NCCL_SHM_DISABLE"):
        out.append(warned(f"{text}: what has no peer access goes over the network"))
    if text := off("NCCL_IB_DISABLE"):
        meant = view.need.transport == "tcp" or not view.need.multi_node
        out.append((noted if meant else failed)(f"{text}: traffic between hosts goes over sockets"))
    if several and profile is not None and profile.nvswitch and (text := off("NCCL_NVLS_ENABLE", ("0",))):
        out.append(noted(f"{text}: about a quarter less bandwidth over 5 devices and more"))
    return out or [passed(f"{len(found)} set" if found else "none set")]


@check("nccl.topology", "a topology file that NCCL is given is on the host", platform="nvidia", reads=("nccl.conf",),
       source="Azure: 15 GB/s on a sound host from a wrong topology file",
       remedy="take NCCL_TOPO_FILE out, or give the file of this kind of host")
def topology(view: View) -> Outcome:
    value, where = settings(view).get("NCCL_TOPO_FILE", ("", ""))
    if not value:
        return skipped("none is given: NCCL reads the hardware itself")
    there = view.facts.plan_files.get(value) if where == "the plan" else None
    if there is not None and "text" not in there:
        return failed(f"{value} in {where}: {there.get('error', 'it is not there')}")
    if there is not None and "<system" not in str(there["text"]):
        return failed(f"{value} in {where} holds no topology (<system ...>)")
    return noted(f"{value} in {where} stands for what NCCL would read itself: another host's makes it slow")


@fleet_check("nccl.equal", "NCCL's variables are the same on all hosts of a replica", platform="nvidia",
             reads=("nccl.conf",), source="ranks that choose other algorithms or ways wait for each other for ever",
             remedy="the same /etc/nccl.conf on every host, or none")
def equal(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, dict[str, str]] = {}
    for view in views:
        try:
            seen[view.host] = {name: value for name, (value, _) in settings(view).items() if name not in OWN}
        except Unread as error:
            yield unknown(error.reason, subject=view.host)
    for view in views:
        mates = [host for host in view.need.nodes if host in seen and host != view.host]
        if view.host not in seen or not mates:
            continue
        told = []
        for name in sorted({name for host in (view.host, *mates) for name in seen[host]}):
            own = seen[view.host].get(name, "not set")
            others = {host: seen[host].get(name, "not set") for host in mates}
            if any(value != own for value in others.values()):
                host = next(host for host, value in others.items() if value != own)
                told.append(f"{name} is {own}, on {host} {others[host]}")
        if told:
            yield failed("; ".join(told[:4]), subject=view.host)
        else:
            yield passed(f"as on {fold_hosts(mates)}", subject=view.host)
