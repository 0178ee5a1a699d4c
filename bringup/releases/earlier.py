"""Replicas of an earlier plan that run on the nodes of this one: cut in another way, or under other names.

Old and new do not fit on the same devices. They end in the turn of the replica that needs their nodes, whole, and start
again as they were when that turn fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from bringup.base.events import Note, Progress
from bringup.base.text import duration, fold_hosts
from bringup.releases import storing
from bringup.releases.chosen import Chosen
from bringup.releases.document import number_text
from bringup.releases.history import HostStore
from bringup.releases.proving import prove
from bringup.releases.survey import Node, ReplicaView, Survey
from bringup.releases.traffic import Traffic
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.plan import POOL_ROLES, ROUTER_ROLE
from bringup.serving.probing import Probe, probe
from bringup.serving.start import Deadlines, ReplicaStart
from bringup.serving.stop import stop_processes

S = TypeVar("S", bound=Any)
_ORDER = {role: at for at, role in enumerate((*POOL_ROLES, "head", ROUTER_ROLE))}


@dataclass(frozen=True)
class Earlier:
    """One replica of an earlier plan. `processes` are (host, name) of all that runs of it; `parts` are what is known to
    start it again, in start order (empty where not all of it ran); `probe` is what its endpoint answered."""

    name: str
    digest: str
    label: str
    processes: tuple[tuple[str, str], ...]
    parts: tuple[ReplicaStart, ...] = ()
    public: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    probe: Probe | None = None

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host for host, _ in self.processes))

    @property
    def serves(self) -> bool:
        return self.probe is not None and self.probe.serves


class Turn(Protocol):
    """What this takes of a replica's turn."""

    fleet: Fleet
    chosen: Chosen
    survey: Survey
    traffic: Traffic

    def _let_in_again(self, old: ReplicaStart, digest: str) -> str: ...


def find(fleet: Fleet, chosen: Chosen, survey: Survey, key: str | None) -> tuple[Earlier, ...]:
    """What runs on the hosts of this run and is no replica of the chosen release as it is cut now, spares looked at
    too. One more look at the others, where something speaks for it."""
    beside = [host for host in fleet.hosts if host not in survey.stores and host not in survey.unreachable]
    doubtful = survey.others or any(_cut_otherwise(survey, view) for view in survey.replicas.values())
    hosts = [*(survey.stores if doubtful else ()), *beside]
    states = calls.call_all(fleet, "engine_process", {host: {"action": "status", "manager": chosen.manager}
                                                      for host in hosts}, changes=False) if hosts else {}
    running = [(host, name, seen) for host, result in states.items() if not result.bad
               for name, seen in result.data.get("processes", {}).items()
               if seen["state"] == "running" or seen.get("leftover")]
    stores = {**survey.stores, **_stores(fleet, [host for host, _, _ in running if host in beside])}
    mine = {(host, str(document["name"])) for nodes in chosen.launches.values() for host, document in nodes.items()}
    groups: dict[tuple[str, str], list[Process]] = {}
    for host, name, seen in running:
        release = str(seen.get("release") or "")
        if release == chosen.digest and (host, name) in mine:
            continue  # a replica of this plan, or a part of one that its own turn looks after
        document = stores[host].launches.get(release, {}).get(name) if host in stores else None
        whole = str((document or {}).get("group") or seen.get("replica") or name)
        groups.setdefault((release, whole), []).append((host, name, document))
    return tuple(_made(fleet, chosen, survey, key, release, whole, found)
                 for (release, whole), found in groups.items()
                 if any((host, name) not in mine for host, name, _ in found)
                 or (whole in survey.replicas and _cut_otherwise(survey, survey.replicas[whole])))


def with_spares(fleet: Fleet, survey: Survey, manager: str) -> Survey:
    """The survey, with what runs on hosts of this run that are in none of its replicas: nothing should."""
    beside = [host for host in fleet.hosts if host not in survey.stores and host not in survey.unreachable]
    if not beside:
        return survey
    states = calls.call_all(fleet, "engine_process", {host: {"action": "status", "manager": manager}
                                                      for host in beside}, changes=False)
    found = {host: names for host, result in states.items() if not result.bad
             and (names := tuple(name for name, seen in result.data.get("processes", {}).items()
                                 if seen["state"] == "running" or seen.get("leftover")))}
    return replace(survey, others={**survey.others, **found}) if found else survey


Process = tuple[str, str, Mapping[str, Any] | None]
"""Host, name and launch document of a process that runs."""


def _stores(fleet: Fleet, hosts: Sequence[str]) -> dict[str, HostStore]:
    found = calls.call_all(fleet, "release_store", {host: {"action": "list"} for host in dict.fromkeys(hosts)},
                           changes=False) if hosts else {}
    return {host: HostStore.read(result.data) for host, result in found.items() if not result.bad}


def _cut_otherwise(survey: Survey, view: ReplicaView) -> bool:
    """True when a release runs there that has no replica of so many nodes."""
    for digest in view.releases:
        entry = survey.history.get(digest)
        if entry is not None and not any(len(shape) == len(view.nodes) for shape in entry.release.identity["replicas"]):
            return True
    return False


def _made(fleet: Fleet, chosen: Chosen, survey: Survey, key: str | None, release: str, whole: str,
          found: Sequence[Process]) -> Earlier:
    entry = survey.history.get(release)
    by_part: dict[str, dict[str, Mapping[str, Any]]] = {}
    for host, _, document in found:
        if document is not None:
            by_part.setdefault(str(document["replica"]), {})[host] = document
    shapes = entry.release.identity["replicas"] if entry is not None else ()
    ordered = sorted(by_part.items(), key=lambda item: _ORDER.get(_role(item[1]), len(_ORDER)))
    complete = all(any(len(shape) == len(nodes) and shape[0]["role"] == _role(nodes) for shape in shapes)
                   for nodes in by_part.values())
    pools = any(_role(nodes) in (*POOL_ROLES, ROUTER_ROLE) for nodes in by_part.values())
    known = len(found) == sum(map(len, by_part.values())) and (not pools or len(by_part) == 3)
    complete = complete and known and release != chosen.digest
    parts = tuple(ReplicaStart(name, nodes, calls.manager_for(next(iter(nodes.values())), chosen.manager),
                               Deadlines(**chosen.deadlines), (chosen.key_variable, key) if chosen.key_variable and key
                               else None) for name, nodes in ordered) if complete else ()
    public = next((nodes for _, nodes in ordered if _role(nodes) not in POOL_ROLES), {})
    answer = None
    for host, document in public.items():
        if int(document["node_rank"]) == 0 and document.get("endpoint"):
            answer = probe(fleet, host, document, key)
    return Earlier(whole, release, number_text(entry.number if entry else None),
                   tuple((host, name) for host, name, _ in found), parts, public, answer)


def _role(nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """The role of a part: that of its first node."""
    return str(min(nodes.values(), key=lambda document: int(document["node_rank"]))["role"])


class Displaced:
    """The earlier replicas of a run: which are in the way of a turn, and what became of them."""

    def __init__(self, found: Iterable[Earlier]) -> None:
        self.found = tuple(found)
        self.ended: set[tuple[str, str]] = set()

    def of(self, hosts: Iterable[str]) -> list[Earlier]:
        """Those that run on these hosts still."""
        wanted = set(hosts)
        return [one for one in self.found if (one.digest, one.name) not in self.ended and wanted & set(one.hosts)]

    def serve(self, hosts: Iterable[str]) -> bool:
        return any(one.serves for one in self.of(hosts))

    def steps(self, steps: Sequence[S], launches: Mapping[str, Mapping[str, Any]]) -> list[S]:
        """The steps, those that start where an earlier replica runs as ones that replace it."""
        out: list[S] = []
        for step in steps:
            there = self.of(launches[step.replica]) if step.what == "start" else []
            out.append(replace(step, what="replace", reason=f"{there[0].name} of {there[0].label} runs there, of an "
                                                            "earlier plan") if there else step)
        return out

    def views(self) -> dict[str, ReplicaView]:
        """Their endpoints as replicas, for the hooks of the traffic."""
        found = {}
        for one in self.found:
            names = {host: str(document["name"]) for host, document in one.public.items()}
            if names:
                name = str(next(iter(one.public.values()))["replica"])
                found[name] = ReplicaView(name, {host: Node(host, own, "running", one.digest)
                                                 for host, own in names.items()}, one.probe)
        return found

    def ending(self, hosts: Iterable[str]) -> dict[str, list[str]]:
        """Host -> names of processes that end in the turn of these hosts: their ports count as free."""
        out: dict[str, list[str]] = {}
        for one in self.of(hosts):
            for host, name in one.processes:
                out.setdefault(host, []).append(name)
        return out

    def lead_out(self, turn: Turn, hosts: Sequence[str], name: str) -> None:
        """Clients away from each endpoint that ends, beside the one of the turn's own `name`. Raises StepError."""
        for one in self.of(hosts):
            own = str(next(iter(one.public.values()))["replica"]) if one.public else name
            if one.public and (own != name or not turn.survey.replicas[name].running):
                turn.traffic.lead_out(own, one.public)

    def stop(self, turn: Turn, hosts: Sequence[str]) -> None:
        """End them on all of their nodes, the router first. Raises StepError when something outlives KILL."""
        grace = Deadlines(**turn.chosen.deadlines).grace
        for one in self.of(hosts):
            turn.fleet.emit(Progress(one.name, f"{one.label} of an earlier plan is stopped on {fold_hosts(one.hosts)}"))
            known = [calls.names_of(part.launches) for part in reversed(one.parts)]
            rest = [{host: name} for host, name in one.processes
                    if not any(names.get(host) == name for names in known)]
            for names in (*known, *rest):
                stop_processes(turn.fleet, names, turn.chosen.manager, grace)

    def beside(self, taken: Iterable[Iterable[str]]) -> str:
        """Those whose nodes none of these replicas needs, as `r3 of r0001 on gpu03`; empty where there are none."""
        needed = {host for hosts in taken for host in hosts}
        return ", ".join(f"{one.name} of {one.label} on {fold_hosts(one.hosts)}" for one in self.found
                         if not needed & set(one.hosts))

    def rest(self, turn: Turn, *, end: bool) -> None:
        """End what no turn needed the nodes of; without `end` only say that it runs. Raises StepError."""
        for one in self.found:
            if (one.digest, one.name) in self.ended:
                continue
            text = f"{one.name} of {one.label} on {fold_hosts(one.hosts)}"
            if not end:
                turn.fleet.emit(Note(f"{text} runs on: this plan has no such replica; invoke provision ends it",
                                     level="warn"))
                continue
            if one.public:
                turn.traffic.lead_out(str(next(iter(one.public.values()))["replica"]), one.public)
            self.stop(turn, one.hosts)
            self.finish(turn, one.hosts)
            turn.fleet.emit(Note(f"{text} was ended: this plan has no such replica"))

    def finish(self, turn: Turn, hosts: Sequence[str]) -> None:
        """The turn of these hosts is done: what ended in it does not come back, and no clients to it."""
        for one in self.of(hosts):
            self.ended.add((one.digest, one.name))
            for document in list(one.public.values())[:1]:
                own = str(document["replica"])
                if own not in turn.chosen.launches:
                    turn.traffic.out.pop(own, None)
                    turn.traffic.serving.pop(own, None)

    def again(self, turn: Turn, hosts: Sequence[str], gone: Sequence[str]) -> tuple[bool, str] | None:
        """Start again what ended in this turn, once: whether all of it serves, and what to say. None where nothing of
        an earlier plan was in the way. Raises BringupError for links that cannot be set."""
        there = self.of(hosts)
        if not there:
            return None
        label = " and ".join(dict.fromkeys(f"{one.label} ({one.name})" for one in there))
        every = list(dict.fromkeys([*hosts, *(host for one in there for host in one.hosts)]))
        reached = [host for host in every if host not in gone]
        self._links(turn, reached)
        if gone:
            return False, f"{label} is not started again: {fold_hosts(list(gone))} cannot be reached"
        if not all(one.parts for one in there):
            return False, f"{label} did not run whole before and is not started again"
        turn.fleet.emit(Note(f"the start failed; {label} starts again as it was", level="warn"))
        said = []
        for one in there:
            said.append(self._start(turn, one))
        return all(good for good, _ in said), "; ".join(text for _, text in said)

    def _start(self, turn: Turn, one: Earlier) -> tuple[bool, str]:
        from bringup.releases.pooled import start  # which knows what is displaced

        problems = [problem for part in one.parts for problem in prove(turn.fleet, part.launches, part.manager)]
        if problems:
            return False, f"{one.label} is not started again as {one.name}: {problems[0][0]}: {problems[0][1]}"
        begun, failed = start(turn.fleet, one.parts)
        if failed is not None:
            for part in reversed(one.parts):
                stop_processes(turn.fleet, calls.names_of(part.launches), part.manager, part.deadlines.grace)
            cause = failed[1].cause
            return False, f"{one.label} did not start again as {one.name}: {cause.what if cause else 'it failed'}"
        seconds = max(state.seconds for state in begun)
        for part in one.parts:
            storing.mark(turn.fleet, one.digest, list(part.order), "started", seconds=round(seconds, 1),
                         replica=part.name)
        text = f"{one.label} serves again on {one.name} (after {duration(seconds)})"
        return True, text + turn._let_in_again(one.parts[-1], one.digest)

    def _links(self, turn: Turn, hosts: Sequence[str]) -> None:
        """Each host's `current` as it was before this run."""
        before = {host: turn.survey.history.current.get(host) for host in hosts}
        new = [host for host in hosts if before[host] is None]
        if new:
            storing.unswitch(turn.fleet, turn.chosen.digest, new, "its first start failed")
        for digest in dict.fromkeys(found for found in before.values() if found):
            storing.switch(turn.fleet, digest, [host for host in hosts if before[host] == digest], undo=True)
