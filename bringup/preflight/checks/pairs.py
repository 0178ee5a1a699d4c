"""What was measured between hosts: a bad host told from a bad pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bringup.base.text import fold_hosts, plural
from bringup.preflight.pairs import Pair, blame, matrix
from bringup.preflight.pairs import sound as best
from bringup.preflight.registry import Outcome, View, failed, fleet_check, passed, skipped, unknown, warned
from bringup.preflight.requirement import limits
from bringup.preflight.unread import Unread


def measured(views: Sequence[View], name: str) -> tuple[dict[Pair, Mapping[str, Any]], dict[str, str]]:
    """What each host measured to the others of the views, and why a host measured nothing."""
    known = {view.host for view in views}
    found: dict[Pair, Mapping[str, Any]] = {}
    reasons = {}
    for view in views:
        try:
            pairs = view.facts.pairs(name)
        except Unread as error:
            if not error.absent:
                raise
            reasons[view.host] = error.reason
            continue
        found.update({(view.host, other): one for other, one in pairs.items() if other in known})
    return found, reasons


def _skips(reasons: Mapping[str, str]) -> Iterable[Outcome]:
    for host, reason in reasons.items():
        yield skipped(reason, subject=host)


@fleet_check("net.bandwidth", "no way between hosts is far slower than the others", tier="deep", reads=("pair.tcp",),
             source="four TCP streams, each pair alone on its two hosts; slow ones measured twice",
             remedy="ethtool IF (speed, duplex), the cable, the switch port, MTU")
def bandwidth(views: Sequence[View]) -> Iterable[Outcome]:
    found, reasons = measured(views, "pair.tcp")
    yield from _skips(reasons)
    speeds = {pair: float(one["gbits"]) for pair, one in found.items() if one.get("gbits")}
    by_tcp = any(view.need.transport == "tcp" and view.need.multi_node for view in views)
    make = failed if by_tcp else warned
    usual = best(list(speeds.values()))
    share = limits()["pair_share"].number
    bad = [pair for pair, speed in speeds.items() if usual is not None and speed < usual * share]
    hosts, pairs = blame(bad, list(speeds))
    for host in hosts:
        mine = [speeds[pair] for pair in bad if host in pair]
        yield make(f"{min(mine):.2f} to {max(mine):.2f} Gb/s with {plural(len({*_others(bad, host)}), 'host')}, "
                   f"{usual:.2f} between the others: this host, not its partners", subject=host,
                   data={"usual": usual, "worst": min(mine)})
    for pair in pairs:
        yield make(f"{speeds[pair]:.2f} Gb/s, {usual:.2f} between the others: this pair, both are well with others"
                   if len(views) > 2 else f"{speeds[pair]:.2f} Gb/s", subject=" > ".join(pair))
    for pair, one in found.items():
        if one.get("error"):
            # the plan's own ports are net.ports' to judge: here nothing more is wanted than a measure
            yield skipped(f"not measured on port {one.get('port')}: {one['error']}", subject=" > ".join(pair))
    sound = [speed for pair, speed in speeds.items() if pair not in bad]
    if sound:
        first = next(pair for pair in speeds if pair not in bad)
        yield passed(f"{len(sound)} ways, {min(sound):.2f} to {max(sound):.2f} Gb/s", subject=" > ".join(first))


def _others(pairs: Iterable[Pair], host: str) -> list[str]:
    return [other for pair in pairs if host in pair for other in pair if other != host]


@fleet_check("net.latency", "small messages between hosts are answered at once", tier="deep", reads=("pair.tcp",),
             source="the median of 60 round trips of 8 bytes", remedy="power saving, interrupt coalescing, a detour")
def latency(views: Sequence[View]) -> Iterable[Outcome]:
    found, _ = measured(views, "pair.tcp")
    times = {pair: float(one["rtt_us"]) for pair, one in found.items() if one.get("rtt_us")}
    usual = best(list(times.values()), less=True)
    limit = limits()["tcp_latency"].number
    bad = [pair for pair, value in times.items() if value > limit and (usual is None or value > 3 * usual)]
    hosts, pairs = blame(bad, list(times))
    for host in hosts:
        worst = max(times[pair] for pair in bad if host in pair)
        yield warned(f"{worst:,.0f} us, {usual or 0:,.0f} between the others: this host", subject=host)
    for pair in pairs:
        yield warned(f"{times[pair]:,.0f} us", subject=" > ".join(pair))
    sound = {pair: value for pair, value in times.items() if pair not in bad}
    if sound:
        yield passed(f"{len(sound)} ways, {min(sound.values()):,.0f} to {max(sound.values()):,.0f} us",
                     subject=" > ".join(next(iter(sound))))


@fleet_check("rdma.bandwidth", "RDMA between hosts reaches the rate of its ports", tier="deep", reads=("pair.rdma",),
             source=limits()["rdma_share"].source,
             remedy="cable, switch port, PFC and ECN, GID index; mlxlink -d DEV -m")
def rdma_bandwidth(views: Sequence[View]) -> Iterable[Outcome]:
    found, reasons = measured(views, "pair.rdma")
    yield from _skips(reasons)
    share = limits()["rdma_share"].number
    bad: dict[Pair, str] = {}
    for pair, one in found.items():
        links = one.get("links", {})
        if one.get("error") and not links:
            yield (skipped if str(one["error"]).startswith("no ib_") else unknown)(
                str(one["error"]), subject=" > ".join(pair))
            continue
        slow = {name: link for name, link in links.items() if link.get("gbits") is not None
                and link["gbits"] < float(link.get("rate") or 0) * share}
        broken = {name: str(link["error"]) for name, link in links.items() if link.get("error")}
        if slow or broken:
            words = [f"{name} {link['gbits']:.0f} of {link['rate']:g} Gb/s" for name, link in slow.items()]
            bad[pair] = "; ".join(words + [f"{name}: {text}" for name, text in broken.items()])
    usable = [pair for pair, one in found.items() if one.get("links")]
    hosts, pairs = blame(list(bad), usable)
    for host in hosts:
        first = next(pair for pair in bad if host in pair)
        partners = fold_hosts(sorted(set(_others(bad, host))))
        yield failed(f"{bad[first]}, and so with {partners}: this host", subject=host)
    for pair in pairs:
        yield failed(bad[pair] + (": this pair, both are well with others" if len(views) > 2 else ""),
                     subject=" > ".join(pair))
    for pair in usable:
        if pair not in bad:
            least = min((link["gbits"] for link in found[pair]["links"].values() if link.get("gbits")), default=None)
            yield passed(f"{least:.0f} Gb/s at least", subject=" > ".join(pair)) if least is not None else unknown(
                "nothing was measured", subject=" > ".join(pair))


@fleet_check("rdma.latency", "RDMA writes between hosts are quick", tier="deep", reads=("pair.rdma",),
             source=limits()["rdma_latency"].source, remedy="CPU frequency, power saving, a detour in the fabric")
def rdma_latency(views: Sequence[View]) -> Iterable[Outcome]:
    found, _ = measured(views, "pair.rdma")
    limit = limits()["rdma_latency"].number
    for pair, one in found.items():
        times = {name: float(link["micros"]) for name, link in one.get("links", {}).items() if link.get("micros")}
        if times:
            worst = max(times, key=lambda name: times[name])
            make = warned if times[worst] > limit else passed
            yield make(f"{times[worst]:.1f} us on {worst}", subject=" > ".join(pair))


_MATRICES = (("TCP Gb/s", "pair.tcp", "gbits", "{:.1f}"), ("TCP us", "pair.tcp", "rtt_us", "{:.0f}"),
             ("RDMA Gb/s", "pair.rdma", "gbits", "{:.0f}"), ("RDMA us", "pair.rdma", "micros", "{:.1f}"))


def tables(views: Sequence[View]) -> dict[str, list[tuple[str, ...]]]:
    """The matrices of what was measured between hosts."""
    out = {}
    names = [view.host for view in views]
    for name, probe, key, form in _MATRICES:
        try:
            found, _ = measured(views, probe)
        except Unread:
            continue
        cells = {}
        for pair, one in found.items():
            links = one["links"].values() if "links" in one else [one]
            numbers = [float(link[key]) for link in links if link.get(key)]
            if numbers:
                # of several ports the worst
                cells[pair] = form.format(max(numbers) if key in ("micros", "rtt_us") else min(numbers))
        if cells:
            out[name] = matrix(names, cells)
    return out
