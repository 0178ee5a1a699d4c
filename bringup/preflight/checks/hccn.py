"""Ascend's own network between chips: addresses, links, health, TLS switches, HCCL variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bringup.base.text import duration, plural
from bringup.preflight.parsers import ascend as parse
from bringup.preflight.registry import (
    Outcome,
    View,
    check,
    failed,
    fleet_check,
    passed,
    skipped,
    unknown,
    warned,
)
from bringup.preflight.unread import Unread

SETTLED = 600.0
"""Seconds after boot in which links go up and down as a matter of course."""


def is_ub(view: View) -> bool:
    """True for the 950, whose chips meet over UB: its hccn_tool knows no RoCE port."""
    return view.profile is not None and view.profile.name == "ascend-950"


def broken(view: View, text: str, **more: Any) -> Outcome:
    """A fault of the network between hosts: it stops a plan over several, and harms none within one."""
    within = view.need.deployed and not view.need.multi_node
    return warned(f"{text} (the plan stays within the host)", **more) if within else failed(text, **more)


BY_UB = "a 950 has no RoCE port of its own: see hccn.ub"


@check("hccn.address", "/etc/hccn.conf says of each chip what the chip says", platform="ascend",
       reads=("hccn.ip", "ascend.hccn_conf"), source="one stale line makes one chip unreachable",
       remedy="hccn_tool -i N -ip -s address A netmask M writes both")
def address(view: View) -> list[Outcome]:
    if is_ub(view):
        return [skipped(BY_UB)]
    chips = {number: parse.address(text) for number, text in view.facts.hccn("ip").items()}
    out = []
    try:
        conf = view.facts.hccn_conf
    except Unread as error:
        if not error.absent:
            raise
        out.append(broken(view, "there is no /etc/hccn.conf: the addresses go at the next reboot"))
        conf = {}
    for number, there in sorted(chips.items()):
        said, line = conf.get(number, ("", 0))
        if not there:
            where = f" (/etc/hccn.conf:{line} says {said})" if said else ""
            out.append(broken(view, f"chip {number} has no address{where}"))
        elif said and said != there:
            out.append(broken(view, f"chip {number}: /etc/hccn.conf:{line} says {said}, the chip says {there}"))
        elif conf and not said:
            out.append(broken(view, f"chip {number} has {there}, /etc/hccn.conf has no line for it"))
    return out or [passed(f"{len(chips)} chips")]


@fleet_check("hccn.unique", "no two chips of the run have one address", platform="ascend", reads=("hccn.ip",),
             source="an address used twice answers for the wrong chip", remedy="give each chip its own address")
def unique(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, list[tuple[str, int]]] = {}
    for view in views:
        try:
            for number, text in view.facts.hccn("ip").items():
                there = parse.address(text)
                if there:
                    seen.setdefault(there, []).append((view.host, number))
        except Unread:
            continue
    twice = {there: where for there, where in seen.items() if len(where) > 1}
    for there, where in twice.items():
        for host, number in where[1:]:
            first = where[0]
            yield failed(f"chip {number} has {there}, as {first[0]} chip {first[1]}", subject=host)
    for host in sorted({host for where in seen.values() for host, _ in where}):
        if not any(host == other for where in twice.values() for other, _ in where[1:]):
            yield passed("own addresses", subject=host)


@check("hccn.link", "the network port of every chip is up", platform="ascend", reads=("hccn.link",),
       source="msprechecker, vllm-ascend", remedy="hccn_tool -i N -optical -g: look at cable and optics")
def link(view: View) -> list[Outcome]:
    if is_ub(view):
        return [skipped(BY_UB)]
    out = [broken(view, f"chip {number}: link {state}") for number, text in sorted(view.facts.hccn("link").items())
           if (state := parse.link(text)) != "UP"]
    return out or [passed("UP")]


@check("hccn.flaps", "no link of a chip went down since the host came up", platform="ascend",
       reads=("hccn.link_stat", "host.uptime"), source="faultdiag: newest record UP, count of DOWN",
       after=("hccn.link",), remedy="hccn_tool -i N -optical -g: look at cable and optics")
def flaps(view: View) -> list[Outcome]:
    if is_ub(view):
        return [skipped(BY_UB)]
    up = view.facts.uptime
    out: list[Outcome] = []
    for number, text in sorted(view.facts.hccn("link_stat").items()):
        history = parse.link_history(text)
        late = [ago for ago in history.downs if 0 <= ago < up - SETTLED]
        if history.newest == "DOWN":
            out.append(broken(view, f"chip {number}: the newest record says DOWN"))
        elif late:
            out.append(warned(f"chip {number}: {plural(len(late), 'loss', 'losses')} of the link since boot, the last "
                              f"{duration(min(late))} ago"))
    return out or [passed("none")]


@check("hccn.ub", "every UB port of a 950 is up", platform="ascend", reads=("hccn.ub",),
       source="hccn_tool of the 950: UP, PARTIAL LINK, DOWN", absent="unknown",
       remedy="hccn_tool -g -link_stat -i N: look at the port that is down")
def ub(view: View) -> list[Outcome]:
    if not is_ub(view):
        return [skipped("only the 950 has UB ports")]
    out: list[Outcome] = []
    for number, text in sorted(view.facts.hccn("ub").items()):
        state, ports = parse.ub_ports(text)
        odd = [f"port {port} {word}" for port, word in sorted(ports.items()) if word != "UP"]
        if state != "UP" or odd:
            out.append(failed(f"chip {number}: {', '.join([state, *odd])}", found=state, required="UP"))
    return out or [passed("UP")]


def _asked(view: View, number: int) -> tuple[str, ...]:
    """What a chip asks to know whether it is on the network, and by what way, where that is known."""
    parts = []
    for name, read, words in (("netdetect", parse.detect_address, "it asks"), ("gateway", parse.gateway, "by gateway")):
        try:
            there = read(view.facts.hccn(name).get(number, ""))
        except Unread:
            continue
        if there:
            parts.append(f"{words} {there}")
    return (", ".join(parts),) if parts else ()


@check("hccn.health", "every chip reaches its detect address", platform="ascend",
       reads=("hccn.net_health", "hccn.netdetect", "hccn.gateway"), source="vllm-ascend: Success",
       remedy="hccn_tool -i N -netdetect -s address GATEWAY", after=("hccn.link",))
def net_health(view: View) -> list[Outcome]:
    if is_ub(view):
        return [skipped(BY_UB)]
    out: list[Outcome] = []
    for number, text in sorted(view.facts.hccn("net_health").items()):
        state = parse.net_health(text)
        if state == "Init":
            out.append(warned(f"chip {number}: Init: no detect address is set"))
        elif state != "Success":
            out.append(broken(view, f"chip {number}: {state}", details=_asked(view, number)))
    return out or [passed("Success")]


@fleet_check("hccn.tls", "the TLS switch of all chips of the run is equal", platform="ascend", reads=("hccn.tls",),
             source="mixed switches end in EI0006, link establish timeout", remedy="hccn_tool -i N -tls -s enable 0")
def tls(views: Sequence[View]) -> Iterable[Outcome]:
    seen: dict[str, dict[int, int]] = {}
    for view in views:
        try:
            seen[view.host] = {number: parse.tls(text) for number, text in view.facts.hccn("tls").items()}
        except Unread as error:
            if not error.absent:
                yield unknown(error.reason, subject=view.host)
    values = [value for chips in seen.values() for value in chips.values()]
    if not values:
        return
    usual = max(sorted(set(values)), key=values.count)
    for host, chips in seen.items():
        odd = [number for number, value in chips.items() if value != usual]
        if odd:
            listed = ", ".join(str(number) for number in odd)
            yield failed(f"chip {listed}: {1 - usual}, all others {usual}", subject=host,
                         mend=f"for i in {' '.join(map(str, odd))}; do hccn_tool -i $i -tls -s enable {usual}; done")
        else:
            yield passed(f"all {usual}", subject=host)


@fleet_check("hccl.env", "the HCCL variables are equal on all hosts", platform="ascend", reads=(),
             source="a timeout raised on one host only does not help", remedy="set it for all hosts at once")
def environment(views: Sequence[View]) -> Iterable[Outcome]:
    views = [view for view in views if not view.need.spare]  # nothing is started there, and so nothing is set
    names = sorted({name for view in views for name in view.need.env
                    if name.startswith("HCCL_") and not name.endswith(("IF_IP", "IFNAME"))})
    for name in names:
        seen = {view.host: view.need.env.get(name, "not set") for view in views}
        values = list(seen.values())
        if len(set(values)) > 1:
            usual = max(sorted(set(values)), key=values.count)
            for host, value in seen.items():
                if value != usual or values.count(usual) * 2 == len(values):
                    other = ", ".join(sorted(set(values) - {value}))
                    yield failed(f"{name} is {value}, elsewhere {other}", subject=host)
            continue
        for view in views:
            yield passed(f"{name}={values[0]}", subject=view.host)
