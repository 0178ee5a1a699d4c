"""`list_runs`: every run that changed these hosts, whoever typed it wherever, from the hosts' own journals."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bringup.base.errors import ExitStatus, worst
from bringup.base.events import Findings, Note
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts
from bringup.releases.document import number_text, short
from bringup.run.actions import Call, Fleet
from bringup.serving import engine_calls as calls


@dataclass(frozen=True)
class Run:
    """One run over all hosts that know it.

    `began` is seconds since the epoch by this machine's clock, worked out from the age that each host gives it;
    `seconds` how long it held the hosts, None for one that did not end; `outcome` the exit status, None where it is not
    known; `state` is ended, under way or cut off. `before` and `after` are releases as labels.
    """

    run: str
    began: float
    operator: str
    machine: str
    address: str
    verb: str
    inventory: str
    hosts: tuple[str, ...]
    state: str
    seconds: float | None
    outcome: int | None
    before: str
    after: str
    changed: int


def list_runs(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Read what each host knows of runs and tell it as the table `runs`, the newest first; changes nothing.

    `args`: since (seconds; older ones are left out).
    """
    results = fleet.call({host: Call("runs", {}, become=calls.become_of(fleet, host), changes=False)
                          for host in fleet.hosts})
    stores = calls.call_all(fleet, "release_store", {host: {"action": "list", "documents": False}
                                                     for host in fleet.hosts}, changes=False)
    for host, result in calls.broken(results).items():
        fleet.emit(Note(f"its journal cannot be read: {calls.first_line(result)}", host=host, level="warn"))
    labels: dict[str, str] = {}
    for result in stores.values():
        for event in () if result.bad else result.data.get("history") or ():
            if event.get("number") is not None:
                labels.setdefault(str(event["digest"]), number_text(int(event["number"])))
    told = {host: result.data for host, result in results.items() if not result.bad}
    since = args.get("since")
    runs = merge_runs(told, labels, now=time.time(), since=float(since) if since not in (None, "") else None)
    if not runs:
        fleet.emit(Note("no run that changed these hosts is known to them" + (" in that time" if since else "")))
    fleet.emit(Findings("runs", (), {"runs": [[json.dumps(asdict(run))] for run in runs]}))
    return {host: result if result.bad else Result(host, "list_runs", Status.OK) for host, result in results.items()}


def merge_runs(told: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str], *, now: float,
               since: float | None = None) -> list[Run]:
    """Runs by id, the newest first. `told` maps a host to its answer of the agent's `runs`; each host's times are read
    as ages by its own clock. `now` is this machine's time."""
    found: dict[str, dict[str, tuple[float, Mapping[str, Any]]]] = {}
    for host, data in told.items():
        for run in data.get("runs") or ():
            age = max(0.0, float(data["now"]) - float(run.get("at") or 0))
            if since is None or age <= since:
                found.setdefault(str(run["run"]), {})[host] = (age, run)
    out = [_one(name, hosts, {host: told[host].get("held") == name for host in hosts}, labels, now)
           for name, hosts in found.items()]
    return sorted(out, key=lambda run: run.began, reverse=True)


def _one(name: str, hosts: Mapping[str, tuple[float, Mapping[str, Any]]], held: Mapping[str, bool],
         labels: Mapping[str, str], now: float) -> Run:
    first = next(iter(hosts.values()))[1]
    ends = [run["ended"] for _, run in hosts.values() if run.get("ended")]
    spans = [float(run["ended"]["at"]) - float(run["at"]) for _, run in hosts.values() if run.get("ended")]
    outcomes = [ExitStatus(int(end["outcome"])) for end in ends
                if end.get("outcome") is not None and int(end["outcome"]) in set(ExitStatus)]
    state = "under way" if any(held.values()) else "ended" if len(ends) == len(hosts) else "cut off"
    changed = sum(1 for end in ends if (end.get("tasks") or {}).get("changed"))
    before = _release([run.get("release") for _, run in hosts.values()], labels)
    after = _release([end.get("release") for end in ends], labels) if ends else "-"
    return Run(name, now - max(age for age, _ in hosts.values()), str(first.get("operator") or "?"),
               str(first.get("machine") or ""), str(first.get("address") or ""), str(first.get("verb") or "?"),
               str(first.get("inventory") or "?"), tuple(hosts), state,
               round(max(spans), 1) if spans and state == "ended" else None,
               int(worst(outcomes)) if outcomes and state == "ended" else None, before, after, changed)


def _release(digests: Sequence[Any], labels: Mapping[str, str]) -> str:
    names = [labels.get(str(digest), short(digest)) if digest else "none" for digest in digests]
    return "/".join(dict.fromkeys(names))


def hosts_of(run: Mapping[str, Any]) -> str:
    """Hosts of a run's record, folded."""
    return fold_hosts(list(run["hosts"]))
