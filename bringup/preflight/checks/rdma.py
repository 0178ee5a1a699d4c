"""InfiniBand and RoCE: which ports carry the model, their state, rate, packet size, GID."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bringup.base.text import fold_hosts
from bringup.preflight.parsers.rdma import Port
from bringup.preflight.registry import Outcome, View, check, failed, fleet_check, noted, passed, skipped, warned
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread

APART = "beside no device"
"""Why a port of the highest rate carries nothing."""


def carrying(view: View) -> tuple[list[Port], list[tuple[Port, str]]]:
    """The ports that carry the model (active, of the highest rate, beside a GPU), the others with the reason.

    Where the driver does not say how NICs and GPUs are joined, or none is beside one, that does not count.
    Raises Unread.
    """
    ports = list(view.facts.rdma)
    chosen = list(view.need.rdma_ports)
    if chosen:
        return ([port for port in ports if port.device in chosen],
                [(port, "not in rdma_ports") for port in ports if port.device not in chosen])
    active = [port for port in ports if port.active and port.rate]
    if not active:
        return [], [(port, port.state or "no state") for port in ports]
    top = max(port.rate or 0 for port in active)
    beside = _beside(view)
    near = any(beside.get(port.device) for port in active if (port.rate or 0) >= top)
    inside: list[Port] = []
    outside: list[tuple[Port, str]] = []
    for port in ports:
        if port.active and (port.rate or 0) >= top:
            if near and beside.get(port.device) is False:
                outside.append((port, APART))
            else:
                inside.append(port)
        elif not port.active:
            outside.append((port, f"{port.state or 'no state'}, {port.physical or 'no physical state'}"))
        else:
            outside.append((port, f"{port.rate:g} Gb/s"))
    return inside, outside


def _beside(view: View) -> Mapping[str, bool]:
    try:
        return view.facts.topology.beside_gpus()
    except Unread:
        return {}


def _span(ports: Sequence[Port]) -> str:
    names = fold_hosts([port.device for port in ports])
    return names if len(ports) == 1 else f"{len(ports)} ports ({names})"


@check("rdma.path", "a plan over several hosts has an RDMA path", reads=("rdma.sysfs", "rdma.ibstat"),
       source="without it tensor parallelism between hosts is slower by a hundred", remedy="transport: tcp in the "
       "inventory says that this is meant")
def path(view: View) -> Outcome:
    if not view.need.multi_node:
        return skipped("no replica spans hosts")
    if view.need.transport == "tcp":
        return skipped("the inventory says transport: tcp")
    if view.platform == "ascend":
        return skipped("the NPUs have ports of their own: see hccn")
    try:
        inside, _ = carrying(view)
    except Unread as error:
        if not error.absent:
            raise
        inside = []
    if not inside:
        return failed("the replica spans hosts and no RDMA port is active", mend="bring the ports up, or say "
                      "transport: tcp in the inventory")
    return passed(f"{len(inside)} ports")


@check("rdma.ports", "the ports that carry the model are named", reads=("rdma.sysfs", "rdma.ibstat"),
       source="active, of the highest rate, PIX or PXB to a device; rdma_ports overrides",
       remedy="rdma_ports: [...] in the inventory")
def ports(view: View) -> Outcome:
    inside, outside = carrying(view)
    gone = [name for name in view.need.rdma_ports if name not in {port.device for port in view.facts.rdma}]
    if gone:
        return failed(f"rdma_ports names {', '.join(gone)}, which this host has not")
    if not inside:
        return noted("no active RDMA port", details=tuple(f"{port.device}: {why}" for port, why in outside[:4]))
    left = "".join(f"; {port.device} left out: {why}" for port, why in outside[:3])
    return noted(f"{_span(inside)} at {inside[0].rate:g} Gb/s carry the model{left}",
                 data={"ports": [port.device for port in inside]})


@check("rdma.state", "no port like those that carry the model is down", reads=("rdma.sysfs", "rdma.ibstat"),
       source="Azure, imbue, gpud: Active and LinkUp; other ports must not fail a host", after=("rdma.path",),
       remedy="ibstat PORT; look at the cable and the switch port")
def state(view: View) -> list[Outcome]:
    inside, outside = carrying(view)
    models = {port.model for port in inside}
    down = [port for port, _ in outside if not port.active and (not inside or port.model in models)
            and (not view.need.rdma_ports or port.device in view.need.rdma_ports)]
    down += [port for port in inside if not port.active]
    out = []
    for port in down:
        text = f"{port.device}: {port.state or '?'}, {port.physical or '?'}"
        profile = view.profile
        enough = profile is not None and len(inside) >= profile.count.number
        if enough:
            out.append(noted(text + f" ({len(inside)} others carry the model)"))
        else:
            out.append((failed if view.need.multi_node else warned)(text))
    return out or [passed(f"{len(inside)} active")]


@check("rdma.rate", "the ports run at the rate of their kind", reads=("rdma.sysfs", "rdma.ibstat"), platform="nvidia",
       source="one 400G port a GPU on HGX", remedy="look at cable, switch port and firmware", after=("rdma.path",))
def rate(view: View) -> Outcome:
    inside, _ = carrying(view)
    least = limits()["ib_rate"]
    if not inside:
        return skipped("no active RDMA port")
    if not view.need.multi_node:
        return passed(f"{inside[0].rate:g} Gb/s")
    if (inside[0].rate or 0) < least.number:
        return warned(f"{inside[0].rate:g} Gb/s", required=f"{least.value} Gb/s", source=least.source)
    profile = view.profile
    if profile and len(inside) < profile.count.number:
        return noted(f"{len(inside)} ports for {profile.count.number:.0f} devices")
    return passed(f"{len(inside)} x {inside[0].rate:g} Gb/s")


@check("rdma.mtu", "the ports that carry the model use the full RDMA packet", reads=("rdma.devinfo",),
       source="4096 on every RoCE and InfiniBand port", remedy="MTU 9000 on a RoCE interface; the subnet manager's MTU",
       after=("rdma.path",))
def rdma_mtu(view: View) -> Outcome:
    inside, _ = carrying(view)
    known = [port for port in inside if port.mtu]
    if not known:
        return skipped("no port says its active MTU")
    small = [port for port in known if (port.mtu or 0) < 4096]
    if small:
        more = f" and {len(small) - 1} more" if small[1:] else ""
        return warned(f"{small[0].device}: active MTU {small[0].mtu}{more}")
    return passed("4096")


@check("rdma.gid", "a RoCE port has a RoCE v2 GID with an IPv4 address", reads=("rdma.sysfs",),
       source="NCCL_IB_GID_INDEX is read here, not assumed", remedy="give the port's interface an address",
       after=("rdma.path",))
def gid(view: View) -> Outcome:
    inside, _ = carrying(view)
    roce = [port for port in inside if port.layer == "Ethernet"]
    if not roce:
        return skipped("no RoCE port carries the model")
    if not any(port.gids for port in roce):
        return skipped("the GIDs are not shown")
    found: dict[str, list[int]] = {}
    for port in roce:
        found[port.device] = [one.index for one in port.gids if "v2" in one.type and one.ipv4]
    bare = [device for device, indexes in found.items() if not indexes]
    if bare:
        return failed(f"{bare[0]} has no RoCE v2 GID with an IPv4 address")
    wanted = view.need.env.get("NCCL_IB_GID_INDEX", "")
    wrong = [device for device, indexes in found.items() if wanted.isdecimal() and int(wanted) not in indexes]
    if wrong:
        return failed(f"NCCL_IB_GID_INDEX={wanted}, {wrong[0]} has RoCE v2 at {found[wrong[0]][0]}",
                      mend=f"NCCL_IB_GID_INDEX={found[wrong[0]][0]}, or leave it out")
    return passed(f"index {', '.join(sorted({str(indexes[0]) for indexes in found.values()}))}")


@check("rdma.env", "the devices that NCCL_IB_HCA names are there and active", reads=("rdma.sysfs", "rdma.ibstat"),
       source="the plan's environment", remedy="name ports that are there")
def env(view: View) -> Outcome:
    value = view.need.env.get("NCCL_IB_HCA", "")
    if not value or value.startswith("^"):
        return skipped("the plan names none")
    active = {port.device for port in view.facts.rdma if port.active}
    exact = value.startswith("=")
    for one in value.lstrip("=").split(","):
        device = one.split(":")[0]
        if not (device in active if exact else any(name.startswith(device) for name in active)):
            return failed(f"NCCL_IB_HCA={value}: {device} is not active here")
    return passed(value)


@check("rdma.flaps", "no port lost its carrier again and again", reads=("host.kernel_log",),
       source="Azure: 5 in the log", remedy="replace the cable or the optics")
def flaps(view: View) -> list[Outcome]:
    line = limits()["flaps"]
    seen = view.facts.kernel_log.flaps
    out = [(failed if view.need.multi_node else warned)(f"{name} lost its carrier {count} times", source=line.source)
           for name, count in sorted(seen.items()) if count >= line.number]
    return out or [passed("none")]


@check("rdma.cables", "no cable is unplugged", reads=("host.kernel_log",), source="DeepOps, imbue: port module event",
       remedy="plug it in")
def cables(view: View) -> Outcome:
    seen = view.facts.kernel_log.unplugged
    return noted(f"{len(seen)} reported", details=(seen[-1],)) if seen else passed("none")


@check("rdma.tool", "ibstat tells of every device to its end", reads=("rdma.ibstat",),
       source="ibstat may exit 255 after good ports", remedy="the device that it names is broken or going away")
def tool(view: View) -> Outcome:
    from bringup.preflight.parsers.rdma import ibstat

    found, trouble = ibstat(view.facts.answers.text("rdma.ibstat", any_status=True))
    if trouble:
        return warned(f"{len(found)} ports are good; then: {trouble}")
    return passed(f"{len(found)} ports")


@fleet_check("rdma.equal", "all hosts of a replica have as many ports, at one rate and packet size",
             reads=("rdma.sysfs", "rdma.devinfo"), source="a collective is as fast as its slowest host",
             remedy="bring the odd host to what the others have")
def equal(views: Sequence[View]) -> Iterable[Outcome]:
    seen = {}
    for view in views:
        try:
            inside, _ = carrying(view)
        except Unread:
            continue
        if inside:
            mtus = sorted({port.mtu for port in inside if port.mtu})
            seen[view.host] = (f"{len(inside)} x {inside[0].rate:g} Gb/s {inside[0].layer}"
                               + (f", MTU {mtus[0]}" if mtus else ""))
    if len(seen) < 2:
        return
    values = list(seen.values())
    usual = max(sorted(set(values), reverse=True), key=values.count)
    multi = any(view.need.multi_node for view in views)
    for host, value in seen.items():
        if value != usual:
            yield (failed if multi else warned)(f"{value}; the others: {usual}", subject=host)
        else:
            yield passed(value, subject=host)
