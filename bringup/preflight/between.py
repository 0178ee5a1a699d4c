"""The deep tier between hosts: pairs measured in rounds, slow ones again with good partners."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bringup.base.events import Progress
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.checks.network import is_loopback
from bringup.preflight.checks.process import Owners
from bringup.preflight.checks.rdma import carrying
from bringup.preflight.facts import Facts
from bringup.preflight.pairs import Pair, again, rounds, sound
from bringup.preflight.parsers import load
from bringup.preflight.registry import View
from bringup.preflight.requirement import Need, limits
from bringup.preflight.unread import Unread
from bringup.run.actions import Call, Fleet

TCP, RDMA = "pair.tcp", "pair.rdma"
PORTS = range(29900, 29990)
"""Where a listener of ours is put when the plan names no port that is free."""
TCP_SECONDS, RDMA_SECONDS = 7.0, 15.0

Found = dict[Pair, dict[str, Any]]


def measure(fleet: Fleet, needs: Mapping[str, Need], answers: Mapping[str, Answers],
            wanted: Collection[str] | None = None) -> dict[str, Answers]:
    """The hosts with what was measured from each to its partners (`pair.tcp`, `pair.rdma`): JSON by partner.

    `wanted` are the ids of the probes that are asked (both).
    """
    asked = [probe for probe in (TCP, RDMA) if wanted is None or probe in wanted]
    if not asked:
        return dict(answers)
    views = {host: View(Facts(found), needs[host]) for host, found in answers.items()}
    reasons = {host: why_not(view) for host, view in views.items()}
    hosts = [host for host, reason in reasons.items() if not reason]
    out = dict(answers)
    tcp = (_all(_told(fleet, "TCP"), hosts, lambda pairs: _tcp(fleet, views, pairs), _slow_tcp)
           if TCP in asked and len(hosts) > 1 else {})
    ready = [host for host in hosts if _links(views[host])]
    rdma = (_all(_told(fleet, "RDMA"), ready, lambda pairs: _rdma(fleet, views, pairs), _slow_rdma)
            if RDMA in asked and len(ready) > 1 else {})
    for host in answers:
        for probe in asked:
            found = tcp if probe == TCP else rdma
            mine = {other: one for (own, other), one in found.items() if own == host}
            if mine:
                answer = Answer(probe, stdout=json.dumps(mine, indent=1, sort_keys=True) + "\n")
            else:
                answer = Answer(probe, rc=None, skipped=reasons[host] or (
                    "no other host to measure with" if probe == TCP or len(hosts) < 2 else
                    "no active RDMA port here and on another host"))
            out[host] = replace(out[host], items={**out[host].items, probe: answer})
    return out


def why_not(view: View) -> str:
    """Why the ways of a host must not be loaded; "" where they may."""
    if is_loopback(view.need.addresses.get(view.host, "127.0.0.1")):
        return "a loopback address"
    try:
        owners = Owners(view)
        running = [pid for pid in view.facts.processes if owners.of(pid) == "running"]
    except Unread as error:
        return f"what runs here cannot be read: {error.reason}"
    return f"the running release serves here ({len(running)} processes)" if running else ""


def _told(fleet: Fleet, name: str) -> Callable[[str, bool], None]:
    """Tells how far the pairs are."""
    return lambda text, done: fleet.emit(Progress(name, text, done=done))


def _all(tell: Callable[[str, bool], None], hosts: Sequence[str], ask: Callable[[Sequence[Pair]], Found],
         slow: Callable[[Found], list[Pair]]) -> Found:
    found: Found = {}
    turns = [*rounds(hosts)]
    for number, pairs in enumerate(turns, 1):
        tell(f"between hosts, round {number} of {len(turns)}", False)
        found.update(ask(pairs))
    bad = slow(found)
    for pairs in again(bad, [pair for pair in found if pair not in bad], hosts) if len(bad) <= 4 * len(hosts) else ():
        tell(f"between hosts, {len(bad)} slow ways again", False)
        for pair, one in ask(pairs).items():
            # the better of two: a moment's other traffic is no defect
            before = found.get(pair, {})
            better = one if _speed(one) >= _speed(before) else before
            found[pair] = {**better, "again": True}
    tell(f"between hosts, {len(found)} ways measured", True)
    return found


def _speed(one: Mapping[str, Any]) -> float:
    if "links" in one:
        return float(sum(link.get("gbits") or 0 for link in one["links"].values()))
    return float(one.get("gbits") or 0)


def _slow_tcp(found: Found) -> list[Pair]:
    usual = sound([_speed(one) for one in found.values() if _speed(one)])
    return [pair for pair, one in found.items()
            if one.get("error") or (usual is not None and _speed(one) < usual * limits()["pair_share"].number)]


def _slow_rdma(found: Found) -> list[Pair]:
    share = limits()["rdma_share"].number
    return [pair for pair, one in found.items() if one.get("error") or any(
        (link.get("gbits") or 0) < (link.get("rate") or 0) * share for link in one.get("links", {}).values())]


def _ask(fleet: Fleet, given: Mapping[str, tuple[str, Mapping[str, Any]]], seconds: float, views: Mapping[str, View]
         ) -> dict[str, dict[str, Any]]:
    """One question to each host at once; what each said, or `error`."""
    calls = {host: Call("probe",
                        {"probes": [{"id": "pair", "ask": ask, "with": dict(values), "deadline": seconds + 4}]},
                        become="root" if views[host].need.privileged and not views[host].facts.answers.notes else None,
                        timeout=seconds + 20, check=False, changes=False)
             for host, (ask, values) in given.items()}
    out: dict[str, dict[str, Any]] = {}
    for host, result in fleet.call(calls).items():
        if result.bad or not result.data.get("answers"):
            out[host] = {"error": result.message or result.status.value}
            continue
        answer = Answer.from_host(result.data["answers"][0])
        try:
            value = json.loads(answer.stdout)
        except ValueError:
            value = {"error": answer.stderr or "no whole answer"}
        out[host] = value if isinstance(value, dict) else {"error": "no whole answer"}
    return out


def _tcp(fleet: Fleet, views: Mapping[str, View], pairs: Sequence[Pair]) -> Found:
    given: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for one, other in pairs:
        address, port = views[one].need.addresses[other], free_port(views[other])
        shared = {"address": address, "port": port, "seconds": TCP_SECONDS}
        given[one] = ("dial", {**shared, "root": views[one].need.root})
        given[other] = ("listen", {**shared, "root": views[other].need.root})
    said = _ask(fleet, given, TCP_SECONDS, views)
    out: Found = {}
    for one, other in pairs:
        found = dict(said.get(one, {}))
        if "error" in said.get(other, {}):
            found = {"error": f"{other} cannot listen: {said[other]['error']}"}
        out[(one, other)] = {**found, "port": given[one][1]["port"]}
    return out


def free_port(view: View) -> int:
    """A port that nobody listens on: one of the plan's first, since those must be open between hosts."""
    try:
        taken = {listener.port for listener in view.facts.listeners}
    except Unread:
        taken = set()
    return next((port for port in (*sorted(view.need.ports), *PORTS) if port not in taken), PORTS[0])


def _links(view: View) -> list[dict[str, Any]]:
    """The RDMA ports that carry the model: device, GID index (RoCE), rate."""
    try:
        ports, _ = carrying(view)
    except Unread:
        return []
    out = []
    for port in ports:
        gid = next((gid.index for gid in port.gids if gid.type == "RoCE v2" and gid.ipv4), None)
        out.append({"device": port.device, "rate": port.rate, "gid": gid if port.layer == "Ethernet" else None})
    return out


def _rdma(fleet: Fleet, views: Mapping[str, View], pairs: Sequence[Pair]) -> Found:
    out: Found = {pair: {"links": {}} for pair in pairs}
    for tool in ("ib_write_bw", "ib_write_lat"):
        given: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for one, other in pairs:
            ours, theirs = _links(views[one]), _links(views[other])
            count = min(len(ours), len(theirs))
            start = free_port(views[other])
            start = start if start in PORTS else PORTS[0]
            shared = {"tool": tool, "seconds": RDMA_SECONDS}
            for host, links, address in ((one, ours, views[one].need.addresses[other]), (other, theirs, "")):
                numbered = [{**link, "port": start + number} for number, link in enumerate(links[:count])]
                given[host] = ("perftest", {**shared, "links": numbered, "address": address,
                                            "root": views[host].need.root})
        said = _ask(fleet, given, RDMA_SECONDS, views)
        for one, other in pairs:
            error = said.get(one, {}).get("error") or said.get(other, {}).get("error")
            if error:
                out[(one, other)].setdefault("error", error)
                continue
            for link in given[one][1]["links"]:
                took = said[one].get("links", {}).get(link["device"], {})
                out[(one, other)]["links"].setdefault(link["device"], {"rate": link["rate"]}).update(_read(took))
    return out


def _read(took: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if took.get("rc") != 0:
            raise Unread(load.complaint(str(took.get("text", "")).splitlines()))
        row = load.perftest(str(took.get("text", "")))
    except Unread as error:
        return {"error": error.reason}
    return {"gbits": round(row.gbits, 2)} if row.gbits is not None else {"micros": row.micros}
