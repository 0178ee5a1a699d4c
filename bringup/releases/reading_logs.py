"""`replica_logs`: what the engines print, of some ranks, since some time, and on; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.errors import FindingError, InputError
from bringup.base.events import Line, Note
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts
from bringup.releases.planned import looked_at
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.plan import LaunchPlan
from bringup.serving.signs import numbers

FOLLOW = 5.0
"""Seconds that a host waits for a new line before it answers."""
USUAL, MOST = 50, 5000
"""Lines of each process: when nothing is said; the most that one answer brings."""


@dataclass(frozen=True)
class Source:
    """The log of one process: its host, its name there, and the words before its lines where the host has several."""

    host: str
    name: str
    lead: str = ""


def replica_logs(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Tell the engines' log lines as Line events. `args`: lines (of each process, 50), follow (until interrupted),
    ranks (`3`, `0-7,12`: of processes that hold one of these alone), since (seconds back). Raises InputError."""
    plan, members = looked_at(fleet)
    sources = sources_of(plan, members, str(args.get("ranks") or ""))
    since = float(args["since"]) if args.get("since") not in (None, "") else None
    lines = min(int(args.get("lines") or (MOST if since is not None else USUAL)), MOST)
    results = _ask(fleet, sources, {source: {"lines": lines, "since": since} for source in sources}, plan.manager)
    bad = {source: result for source, result in results.items() if result.bad}
    if len(bad) == len(results):
        first = next(iter(bad.values()))
        raise FindingError(calls.first_line(first), host=fold_hosts(list(dict.fromkeys(s.host for s in bad))),
                           next="invoke status")
    for source, result in bad.items():
        fleet.emit(Note(calls.first_line(result), host=source.host, level="warn"))
    good = {source: result for source, result in results.items() if not result.bad}
    for source, result in good.items():
        if since is not None and len(result.data["lines"]) == MOST:
            fleet.emit(Note(f"{source.name}: the last {MOST:,} lines of that time", host=source.host))
    tell(fleet, {source: result.data["lines"] for source, result in good.items()})
    after = {source: str(result.data.get("after") or "") for source, result in good.items()}
    while args.get("follow") and after:
        after = _more(fleet, after, plan.manager)
    return {source.host: Result(source.host, "replica_logs", Status.OK) for source in sources}


def sources_of(plan: LaunchPlan, members: Mapping[str, Sequence[str]], ranks: str = "") -> list[Source]:
    """The processes of these replicas, those alone that hold one of the ranks when some are named. Raises InputError
    for a rank that no process holds."""
    wanted = ranks_of(ranks)
    processes = [(replica, process) for replica in plan.replicas for process in replica.processes
                 if process.host in members.get(replica.name, ())]
    chosen = [(replica, process) for replica, process in processes if not wanted or wanted & set(process.ranks)]
    if not chosen:
        every = {rank for _, process in processes for rank in process.ranks}
        raise InputError(f"no process of these replicas holds rank {ranks}", expected=f"ranks {numbers(every)}",
                         next="invoke status shows which node has which")
    hosts = [process.host for _, process in processes]
    return [Source(process.host, f"{replica.name}-{process.host}",
                   f"[{replica.name}] " if hosts.count(process.host) > 1 else "") for replica, process in chosen]


def ranks_of(text: str) -> set[int]:
    """`3`, `0-7`, `0,3,8-15`. Raises InputError."""
    found: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InputError("--rank takes whole numbers from 0 on", expected="3, 0-7 or 0,8-15", found=text)
        found.update(range(int(first), int(last or first) + 1))
    return found


def _ask(fleet: Fleet, sources: Sequence[Source], args: Mapping[Source, Mapping[str, Any]], manager: str
         ) -> dict[Source, Result]:
    """Ask for each log; a host with several is asked for one after the other."""
    out: dict[Source, Result] = {}
    waiting = list(sources)
    while waiting:
        now: dict[str, Source] = {}
        for source in waiting:
            now.setdefault(source.host, source)
        waiting = [source for source in waiting if now[source.host] is not source]
        results = calls.call_all(fleet, "engine_process", {
            host: {"action": "logs", "name": source.name, "manager": manager, **args[source]}
            for host, source in now.items()}, changes=False)
        out.update({now[host]: result for host, result in results.items()})
    return {source: out[source] for source in sources}


def _more(fleet: Fleet, after: Mapping[Source, str], manager: str) -> dict[Source, str]:
    """One round of following; returns where each log ends now. A host that is gone is told and left out."""
    hosts = [source.host for source in after]
    results = _ask(fleet, list(after), {
        source: {"after": {source.name: place}, "wait": FOLLOW / max(1, hosts.count(source.host))}
        for source, place in after.items()}, manager)
    for source, result in results.items():
        if result.bad:
            fleet.emit(Note(calls.first_line(result), host=source.host, level="warn"))
    good = {source: result for source, result in results.items() if not result.bad}
    tell(fleet, {source: result.data["lines"] for source, result in good.items()})
    return {source: str(result.data["after"]) for source, result in good.items()}


def tell(fleet: Fleet, lines: Mapping[Source, Sequence[Sequence[Any]]]) -> None:
    """All processes' lines in the order of time."""
    merged = sorted(((line[0] or 0.0, order, number, source.host, source.lead + str(line[1]))
                     for order, (source, own) in enumerate(lines.items()) for number, line in enumerate(own)))
    for _, _, _, host, text in merged:
        fleet.emit(Line(host, "replica_logs", text))
