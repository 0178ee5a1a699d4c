"""The ports that carry the model, seen from the wire: cables and optics, bit errors, PCIe, pauses, neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bringup.base.text import fold_hosts
from bringup.preflight.checks.devices import gpus
from bringup.preflight.checks.driver import DRIVER
from bringup.preflight.checks.rdma import APART, carrying
from bringup.preflight.parsers.lossless import Priorities
from bringup.preflight.parsers.optics import Link, Module, Silent
from bringup.preflight.parsers.rdma import Port
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
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread

HOUR, DAY = 3600.0, 86400.0
_LOST = {"out_of_sequence": "out of sequence", "packet_seq_err": "sequence errors", "local_ack_timeout_err":
         "acknowledgements that came too late", "rx_icrc_encapsulated": "with a wrong checksum"}
CABLE = "clean or replace cable and module (mlxlink -d DEVICE -m -c); look at the switch's side of it"


def _cable(device: str) -> str:
    """The mend of one port's cable."""
    return CABLE.replace("DEVICE", device)


def _carrying(view: View) -> list[Port]:
    """The ports that carry the model. Raises Unread, absent where none does."""
    inside, _ = carrying(view)
    if not inside:
        raise Unread("no active RDMA port", absent=True)
    return inside


def _harm(view: View, text: str, **more: Any) -> Outcome:
    """What stops a replica over several hosts, and harms none within one."""
    return (failed if view.need.multi_node else warned)(text, **more)


def _interfaces(view: View, ports: Sequence[Port]) -> dict[str, str]:
    """The device of each network interface of these ports. Raises Unread."""
    cards = view.facts.cards
    return {name: port.device for port in ports if port.device in cards for name in cards[port.device].interfaces}


@check("rdma.affinity", "every GPU has a port that carries the model beside it", platform="nvidia",
       reads=("nvidia.topo", "rdma.sysfs", "rdma.ibstat"), source="NCCL: PIX or PXB between GPU and NIC; SYS is slow",
       after=("rdma.path", *DRIVER),
       remedy="look at the slots of the NICs; rdma_ports in the inventory leaves ports out")
def affinity(view: View) -> Outcome:
    inside, outside = carrying(view)
    # one of their kind that stands apart carries nothing, and is what this GPU lacks
    devices = {port.device for port in (*inside, *(port for port, why in outside if why == APART))}
    matrix = view.facts.topology
    nics = [nic for nic, device in matrix.nics.items() if device in devices]
    if not nics:
        return skipped("the driver's matrix names none of the ports")
    apart = [gpu for gpu in matrix.gpus() if not any(matrix.cells.get((gpu, nic)) in ("PIX", "PXB") for nic in nics)]
    if not apart:
        return passed(f"{len(matrix.gpus())} GPUs")
    text = f"{gpus(int(gpu.removeprefix('GPU')) for gpu in apart)}: no such port beside it"
    # fewer ports than GPUs, or a hypervisor that shows no switches, is a way to build a host
    built = len(nics) < len(matrix.gpus()) or len(apart) == len(matrix.gpus())
    return noted(text) if built or not view.need.multi_node else warned(text)


@check("rdma.pcie", "the PCIe links of these ports' cards carry the ports' rate", reads=("rdma.counters", "rdma.sysfs"),
       source="GT/s by lanes against the port's rate; imbue: any mlx5 limited by its link", after=("rdma.path",),
       remedy="reseat the card; look at the slot's lanes and the BIOS' link speed")
def pcie(view: View) -> list[Outcome]:
    cards = view.facts.cards
    out: list[Outcome] = []
    seen = 0
    for port in _carrying(view):
        card = cards.get(port.device)
        if card is None or None in (card.speed, card.speed_max, card.width, card.width_max):
            continue
        seen += 1
        room = card.capacity
        text = f"{port.device}: x{card.width} at {card.speed:g} GT/s, the card x{card.width_max} at {card.speed_max:g}"
        if room is not None and port.rate and room < port.rate:
            out.append(warned(f"{text}: {room:.0f} Gb/s for a port of {port.rate:g}"))
        elif (card.speed or 0) < (card.speed_max or 0) or (card.width or 0) < (card.width_max or 0):
            out.append(noted(f"{text}; it suffices for a port of {port.rate or 0:g} Gb/s"))
    return out or [passed(f"{seen} cards") if seen else skipped("the kernel does not say how these cards are linked")]


@check("rdma.errors", "these ports count few errors", reads=("rdma.counters", "rdma.sysfs", "host.uptime"),
       source="InfiniBand: 120 symbol errors an hour; Azure: 5 lost links a day", after=("rdma.path",), remedy=CABLE)
def errors(view: View) -> list[Outcome]:
    cards, up = view.facts.cards, view.facts.uptime
    symbols, downs = limits()["symbol_errors_hour"], limits()["link_downs_day"]
    out: list[Outcome] = []
    seen = 0
    for port in _carrying(view):
        counts = cards[port.device].errors if port.device in cards else {}
        if "symbol_error" not in counts and "link_downed" not in counts:
            continue
        seen += 1
        rate = counts.get("symbol_error", 0) / max(up / HOUR, 1.0)
        lost = counts.get("link_downed", 0) / max(up / DAY, 1.0)
        if rate > symbols.number:
            out.append(warned(f"{port.device}: {rate:,.0f} symbol errors an hour", required=f"at most {symbols}",
                              source=symbols.source, mend=_cable(port.device)))
        if lost >= downs.number:
            out.append(_harm(view, f"{port.device}: the link went down {lost:.0f} times a day",
                             required=f"below {downs}", source=downs.source, mend=_cable(port.device)))
        other = {name: count for name, count in counts.items() if count and name in (
            "link_error_recovery", "local_link_integrity_errors", "excessive_buffer_overrun_errors", "port_rcv_errors")}
        if other:
            told = ", ".join(f"{name} {count:,}" for name, count in sorted(other.items()))
            out.append(noted(f"{port.device}: {told}"))
    return out or [passed(f"{seen} ports") if seen else skipped("these ports show no counters")]


@check("rdma.drops", "RoCE packets did not get lost", reads=("rdma.counters", "rdma.sysfs"),
       source="the card's counters: what was lost is sent again", after=("rdma.path",),
       remedy="PFC and ECN must agree on host and switch (rdma.lossless); then the cable")
def drops(view: View) -> Outcome:
    cards = view.facts.cards
    roce = [port for port in _carrying(view) if port.layer == "Ethernet"]
    counts = {
        port.device: cards[port.device].errors for port in roce if port.device in cards}
    known = {device: {name: found[name] for name in _LOST if name in found} for device, found in counts.items()}
    if not any(known.values()):
        return skipped("no RoCE port carries the model" if not roce else "these ports show no counters of lost packets")
    odd = {device: found for device, found in known.items() if any(found.values())}
    if not odd:
        return passed(f"{len(known)} ports")
    total = {name: sum(found.get(name, 0) for found in odd.values()) for name in _LOST}
    told = ", ".join(f"{count:,} {_LOST[name]}" for name, count in total.items() if count)
    # counters stand since the driver was loaded: a start with a peer that is gone leaves some
    return noted(f"{fold_hosts(list(odd))}: packets {told}")


@check("rdma.load-errors", "these ports count no errors while RDMA is measured over them", tier="deep",
       reads=("rdma.counters", "rdma.counters_after", "pair.rdma"),
       source="ibdiagnet's manual: errors are judged while traffic runs", after=("rdma.path",), remedy=CABLE)
def load_errors(view: View) -> list[Outcome]:
    after, before = view.facts.cards_after, view.facts.cards
    out: list[Outcome] = []
    ports = _carrying(view)
    for port in ports:
        if port.device not in after or port.device not in before:
            raise Unread(f"{port.device} shows no counters")
        earlier = before[port.device].errors
        grown = {name: count - earlier[name] for name, count in after[port.device].errors.items()
                 if name in earlier and count > earlier[name]}
        if grown:
            told = f"{port.device}: " + ", ".join(f"{name} {count:,} more" for name, count in sorted(grown.items()))
            out.append((failed if "link_downed" in grown else warned)(told, mend=_cable(port.device)))
    return out or [passed(f"{len(ports)} ports")]


def _links(view: View) -> dict[str, Link]:
    """mlxlink's word on the ports that carry the model. Raises Unread, absent where it was refused for all of them."""
    ports = _carrying(view)
    said = view.facts.mlxlink
    found = {port.device: said[port.device] for port in ports if port.device in said}
    if not found:
        raise Unread("mlxlink answers for none of these ports")
    if all(link.refused for link in found.values()):
        raise Unread(f"mlxlink: {next(iter(found.values())).refused[:120]}", absent=True)
    torn = next((link.unread for link in found.values() if link.unread), "")
    if torn:
        raise Unread(torn)
    gone = [port.device for port in ports if port.device not in found or found[port.device].refused]
    if gone:
        raise Unread(f"mlxlink does not answer for {fold_hosts(gone)}")
    return found


@check("rdma.ber", "what these links receive is right to less than one bit in 10^12",
       reads=("rdma.mlxlink", "rdma.sysfs"), source="InfiniBand: one error in 10^12 bits behind the correction",
       after=("rdma.path",), remedy=CABLE)
def bit_errors(view: View) -> list[Outcome]:
    worst, warn, least = (limits()[name] for name in ("ber_fail", "ber_warn", "ber_minutes"))
    out: list[Outcome] = []
    judged = 0
    for device, link in _links(view).items():
        # of NDR and HDR the symbols are what an application meets, before them the effective bits
        kind, value = ("symbol", link.symbol) if link.symbol is not None else ("effective", link.effective)
        if value is None:
            continue
        if (link.minutes or 0) < least.number:
            out.append(noted(f"{device}: the counters run for {link.minutes:g} min: too short to judge",
                             source=least.source))
            continue
        judged += 1
        if value > worst.number:
            out.append(_harm(view, f"{device}: {kind} bit error ratio {value:.1e}", required=f"below {worst.value:.0e}",
                             found=f"{value:.1e}", source=worst.source, mend=_cable(device)))
        elif value > warn.number:
            out.append(warned(f"{device}: {kind} bit error ratio {value:.1e}", required=f"below {warn.value:.0e}",
                              found=f"{value:.1e}", source=warn.source, mend=_cable(device)))
    return out or [passed(f"{judged} ports") if judged else skipped("these ports show no bit error ratio")]


@check("rdma.optics", "cables and modules of these ports stay within their own limits",
       reads=("rdma.mlxlink", "rdma.module", "rdma.sysfs", "rdma.counters"),
       source="temperature, voltage and light against the limits that the module itself names", after=("rdma.path",),
       remedy=CABLE)
def optics(view: View) -> list[Outcome]:
    try:
        modules: Mapping[str, Module] = {
            device: link.module for device, link in _links(view).items() if link.module is not None}
    except Unread as error:
        if not error.absent:
            raise
        modules = _by_ethtool(view)
    out = [warned(f"{device}: {module.kind or 'a module'}: {'; '.join(module.troubles[:3])}", mend=_cable(device))
           for device, module in modules.items() if module.troubles]
    light = sum(module.optical for module in modules.values())
    return out or [passed(f"{light} optical, {len(modules) - light} copper")]


def _by_ethtool(view: View) -> dict[str, Module]:
    """The modules as `ethtool -m` shows them. Raises Unread, absent where it was refused for all."""
    named = _interfaces(view, _carrying(view))
    said = {device: view.facts.modules_by_interface[name] for name, device in named.items()
            if name in view.facts.modules_by_interface}
    modules = {device: one for device, one in said.items() if isinstance(one, Module)}
    torn = next((f"ethtool -m says of {device}: {one}" for device, one in said.items()
                 if isinstance(one, Silent) and not one.refused), "")
    if torn:
        raise Unread(torn)
    if not modules:
        raise Unread(f"ethtool -m: {next((str(one) for one in said.values()), 'no interface of these ports')[:120]}",
                     absent=True)
    gone = [device for device in named.values() if device not in modules]
    if gone:
        raise Unread(f"ethtool -m does not answer for {fold_hosts(gone)}")
    return modules


def _lossless(view: View) -> dict[str, str]:
    """How each RoCE port that carries the model is kept from losing packets. Raises Unread."""
    roce = [port for port in _carrying(view) if port.layer == "Ethernet"]
    if not roce:
        raise Unread("no RoCE port carries the model", absent=True)
    named = _interfaces(view, roce)
    found: dict[str, str] = {}
    for name, device in named.items():
        said = view.facts.priorities.get(name)
        if isinstance(said, Silent) and not said.refused:
            raise Unread(f"mlnx_qos says of {name}: {said}")
        if not isinstance(said, Priorities):
            continue
        found[device] = str(said)
        if not said.lossless and _paused(view, name):
            found[device] = f"global pause, trust {said.trust}"
    if not found:
        raise Unread("mlnx_qos is refused for these ports", absent=True)
    gone = [device for device in named.values() if device not in found]
    if gone:
        raise Unread(f"mlnx_qos does not answer for {fold_hosts(gone)}")
    return found


def _paused(view: View, interface: str) -> bool:
    try:
        return view.facts.pauses.get(interface) is True
    except Unread:
        return False


@check("rdma.lossless", "all RoCE ports of a host treat the model's packets alike", reads=("rdma.qos", "rdma.pause",
       "rdma.sysfs", "rdma.counters"), source="lossless RoCE: PFC on priority 3, trust dscp; the switch must agree",
       after=("rdma.path",),
       remedy="mlnx_qos -i IF --trust dscp --pfc 0,0,0,1,0,0,0,0 on every port, as the switch has it")
def lossless(view: View) -> list[Outcome]:
    found = _lossless(view)
    values = list(found.values())
    usual = max(sorted(set(values)), key=values.count)
    out = [warned(f"{device}: {value}; the others: {usual}") for device, value in found.items() if value != usual]
    if out:
        return out
    if usual.startswith("no lossless"):
        return [noted(f"{usual}: under load packets are dropped and sent again, unless the fabric is made for that")]
    return [passed(usual)]


def _usual(seen: Mapping[str, str]) -> str:
    """The value that most hosts have."""
    values = list(seen.values())
    return max(sorted(set(values)), key=values.count)


@fleet_check("rdma.qos-equal", "all hosts of a replica keep RoCE from being dropped in the same way",
             reads=("rdma.qos", "rdma.pause"),
             source="a sender that is not paused overruns a receiver that relies on it",
             remedy="the same mlnx_qos settings on every host")
def qos_equal(views: Sequence[View]) -> Iterable[Outcome]:
    seen = {}
    for view in views:
        try:
            seen[view.host] = "; ".join(sorted(set(_lossless(view).values())))
        except Unread as error:
            if not error.absent:
                yield unknown(error.reason, subject=view.host)
    if len(seen) < 2:
        return
    usual = _usual(seen)
    for host, value in seen.items():
        same = value == usual
        yield passed(value, subject=host) if same else warned(f"{value}; the others: {usual}", subject=host)


def _switches(view: View) -> dict[str, str]:
    """The switch behind each port that carries the model, where LLDP names exactly one. Raises Unread."""
    heard = view.facts.neighbours
    return {device: heard[name][0].system for name, device in _interfaces(view, _carrying(view)).items()
            if len(heard.get(name, ())) == 1}


@fleet_check("rdma.rails", "the same port of every host is on the same switch",
             reads=("net.lldp", "rdma.counters", "rdma.sysfs"),
             source="rail-optimised fabrics: port N of all hosts meets in one switch",
             remedy="swap the cables back; lldpctl shows the port of the switch")
def rails(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, dict[str, str]] = {}
    for view in views:
        try:
            found = _switches(view)
        except Unread as error:
            if not error.absent:
                yield unknown(error.reason, subject=view.host)
            continue
        if found:
            seen[view.host] = found
    for host, found in seen.items():
        # only hosts that meet the same switches can be told from each other: another pod has other ones
        alike = {name: other for name, other in seen.items() if set(other.values()) == set(found.values())}
        swapped = []
        for device, switch in found.items():
            at = {name: other[device] for name, other in alike.items() if device in other}
            usual = _usual(at)
            if switch != usual and list(at.values()).count(usual) > len(at) / 2 and len(at) > 2:
                swapped.append(f"{device} on {switch}, elsewhere on {usual}")
        if swapped:
            yield warned("; ".join(swapped[:4]), subject=host)
        else:
            spread = ", ".join(f"{device} {switch}" for device, switch in list(found.items())[:8])
            yield passed(spread, subject=host)
