"""The deep tier over the hosts of a replica: one all-reduce by torch, a rank a device, where all of them are idle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bringup.base.events import Progress
from bringup.base.text import plural
from bringup.preflight.answers import Answer, Answers
from bringup.preflight.between import free_port
from bringup.preflight.deep import why_not
from bringup.preflight.facts import Facts
from bringup.preflight.needs import questions
from bringup.preflight.registry import View
from bringup.preflight.requirement import Need
from bringup.run.actions import Call, Fleet

PROBE = "load.replica"
SECONDS = 200.0


def over_replicas(fleet: Fleet, needs: Mapping[str, Need], answers: Mapping[str, Answers]) -> dict[str, Answers]:
    """The hosts with `load.replica`: on the head of a replica the run, elsewhere why there is none."""
    views = {host: View(Facts(found), needs[host]) for host, found in answers.items()}
    if not any(view.platform == "nvidia" for view in views.values()):
        return dict(answers)
    replicas = {tuple(view.need.nodes) for view in views.values() if view.need.multi_node}
    skipped: dict[str, str] = dict.fromkeys(views, "no replica spans hosts")
    ready: dict[str, Mapping[str, Any]] = {}
    asked = [host for nodes in replicas for host in nodes if _reason(nodes, views) == ""]
    for host, answer in _ask(fleet, views, {host: ("ready", {}) for host in asked}, 100.0).items():
        if answer.skipped or answer.rc != 0:
            skipped[host] = answer.skipped or answer.stderr or "it could not be asked"
        else:
            ready[host] = json.loads(answer.stdout)
    given: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for nodes in replicas:
        reason = _reason(nodes, views) or next((f"{host}: {skipped[host]}" for host in nodes if host not in ready), "")
        for host in nodes:
            if host in views:
                skipped[host] = reason or f"measured from {nodes[0]}"
        if not reason:
            given.update(_parts(nodes, views, ready))
    if given:
        fleet.emit(Progress("replicas", f"an all-reduce over {plural(len(given), 'host')}"))
    found = _ask(fleet, views, given, SECONDS + 30)
    if given:
        fleet.emit(Progress("replicas", f"an all-reduce over {plural(len(given), 'host')}", done=True))
    out = dict(answers)
    for host in views:
        mine = [answer for nodes in replicas if nodes[0] == host for answer in [_joined(nodes, found)] if answer]
        answer = mine[0] if mine else Answer(PROBE, rc=None, skipped=skipped[host])
        out[host] = replace(out[host], items={**out[host].items, PROBE: answer})
    return out


def _reason(nodes: Sequence[str], views: Mapping[str, View]) -> str:
    for host in nodes:
        if host not in views:
            return f"{host} is not among the hosts of this run"
        if views[host].platform != "nvidia":
            return f"{host}: no measure for this platform"
        reason = why_not(views[host])
        if reason:
            return f"{host}: {reason}"
    return ""


def _parts(nodes: Sequence[str], views: Mapping[str, View], ready: Mapping[str, Mapping[str, Any]]
           ) -> dict[str, tuple[str, Mapping[str, Any]]]:
    head = views[nodes[0]]
    shared = {"world": sum(int(ready[host]["count"]) for host in nodes), "port": free_port(head), "seconds": SECONDS,
              "head": head.need.addresses[nodes[0]]}
    out: dict[str, tuple[str, Mapping[str, Any]]] = {}
    first = 0
    for host in nodes:
        count = int(ready[host]["count"])
        out[host] = ("replica", {**shared, "first": first, "count": count, "python": ready[host]["python"]})
        first += count
    return out


def _ask(fleet: Fleet, views: Mapping[str, View], given: Mapping[str, tuple[str, Mapping[str, Any]]], deadline: float
         ) -> dict[str, Answer]:
    calls = {}
    for host, (ask, values) in given.items():
        need = views[host].need
        basic = questions(host, need).given("collective")
        probe = {"id": PROBE, "ask": ask, "with": {**basic, **values}, "deadline": deadline}
        root = need.privileged and not views[host].facts.answers.notes
        calls[host] = Call("probe", {"probes": [probe]}, become="root" if root else None, timeout=deadline + 30,
                           check=False, changes=False)
    out = {}
    for host, result in (fleet.call(calls) if calls else {}).items():
        whole = not result.bad and result.data.get("answers")
        out[host] = (Answer.from_host(result.data["answers"][0]) if whole else
                     Answer(PROBE, rc=1, stderr=result.message or result.status.value))
    return out


def _joined(nodes: Sequence[str], found: Mapping[str, Answer]) -> Answer | None:
    """The head's rows with the ways that the others' logs name; the worst status of all."""
    if nodes[0] not in found:
        return None
    head = found[nodes[0]]
    others = [found[host] for host in nodes[1:]]
    ways = [line for one in others for line in one.stdout.splitlines() if " via " in line]
    worst = next((f"{host}: {found[host].skipped or found[host].stderr or 'see its output'}" for host in nodes
                  if found[host].rc != 0), "")
    rc = next((found[host].rc or 1 for host in nodes if found[host].rc != 0), 0)
    tail = "".join(one.stdout[-1500:] for one in others if one.rc) if rc else ""
    return replace(head, rc=rc, skipped="", stdout=head.stdout + "".join(f"{line}\n" for line in ways) + tail,
                   stderr=worst if rc else head.stderr)
