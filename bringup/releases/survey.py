"""What is on the hosts and what runs there: the stores, the processes, and what each head answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.results import Result
from bringup.base.text import duration, fold_hosts
from bringup.base.verdicts import Finding, Verdict
from bringup.releases.document import short
from bringup.releases.history import CONTRACT_FAILED, History, HostStore, led_away, merge
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.causes import how_it_ended
from bringup.serving.plan import POOL_ROLES
from bringup.serving.probing import Probe, probe
from bringup.serving.signs import numbers


@dataclass(frozen=True)
class Node:
    """One process on one host as its manager sees it; `state` is unreachable when the host did not answer.

    `ranks` are those meant for it, `ready` says that a run saw it become ready, `missing` names rank processes that
    were there then and are gone, `watch` is what its watcher wrote last (None without one);
    `now` is the host's own clock then.
    """

    host: str
    name: str
    state: str
    release: str | None = None
    pid: int | None = None
    uptime: float | None = None
    ranks: tuple[int, ...] = ()
    ready: bool = False
    missing: tuple[str, ...] = ()
    leftover: tuple[str, ...] = ()
    exit: Mapping[str, Any] = field(default_factory=dict)
    role: str = ""
    unit: str | None = None
    manager: str | None = None
    error: str = ""
    watch: Mapping[str, Any] | None = None
    now: float = 0.0

    @property
    def up(self) -> bool:
        """True when the process runs and no rank process of it is gone."""
        return self.state == "running" and not self.missing


@dataclass(frozen=True)
class ReplicaView:
    """One replica as found: its nodes head first, and what the head answered (None when it was not asked)."""

    name: str
    nodes: Mapping[str, Node]
    probe: Probe | None = None

    @property
    def running(self) -> tuple[str, ...]:
        """Hosts where a process of it runs or left something behind."""
        return tuple(h for h, n in self.nodes.items() if n.state == "running" or n.leftover)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases that run, without repeats."""
        return tuple(dict.fromkeys(n.release for n in self.nodes.values() if n.state == "running" and n.release))

    @property
    def whole(self) -> bool:
        """True when every node is up on one release."""
        return all(node.up for node in self.nodes.values()) and len(self.releases) == 1

    @property
    def serves(self) -> bool:
        return self.probe is not None and self.probe.serves


@dataclass(frozen=True)
class Survey:
    """Everything that was found in one look."""

    replicas: Mapping[str, ReplicaView]
    history: History
    stores: Mapping[str, HostStore]
    unreachable: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Host -> processes of ours that run there and belong to none of these replicas."""


def look(fleet: Fleet, replicas: Mapping[str, Sequence[str]], manager: str, *, ask: bool = True,
         key: str | None = None) -> Survey:
    """Read stores and processes of these replicas (name -> hosts, head first) and ask each head for a token."""
    hosts = list(dict.fromkeys(host for members in replicas.values() for host in members))
    stores = calls.call_all(fleet, "release_store", {h: {"action": "list"} for h in hosts}, changes=False)
    states = calls.call_all(fleet, "engine_process", {h: {"action": "status", "manager": manager} for h in hosts},
                            changes=False)
    silent = {h: calls.first_line(r) for h, r in {**calls.broken(states), **calls.broken(stores)}.items()}
    read = {h: HostStore.read(r.data) for h, r in stores.items() if not r.bad}
    views = {}
    for name, members in replicas.items():
        nodes = {host: node_of(host, f"{name}-{host}", states.get(host)) for host in members}
        answer = None
        head = members[0]
        if ask and nodes[head].state == "running":
            release = nodes[head].release or ""
            launches = read[head].launches.get(release, {}) if head in read else {}
            document = launches.get(f"{name}-{head}")
            if document and (document.get("endpoint") or document.get("role") in POOL_ROLES):
                answer = probe(fleet, head, document, key, token=all(node.up for node in nodes.values()))
        views[name] = ReplicaView(name, nodes, answer)
    planned = {node.name for view in views.values() for node in view.nodes.values()}
    others = {host: names for host, result in states.items() if not result.bad
              and (names := tuple(name for name, seen in result.data.get("processes", {}).items()
                                  if name not in planned and (seen["state"] == "running" or seen.get("leftover"))))}
    return Survey(views, merge(read), read, silent, others)


def of_others(survey: Survey) -> list[Finding]:
    """What an earlier plan started and this one does not name."""
    return [Finding("process.other", host, Verdict.FAIL,
                    f"{', '.join(names)} runs here and belongs to no replica of this plan",
                    ("it holds devices and ports of this node",), mend="invoke stop ends it")
            for host, names in survey.others.items()]


def node_of(host: str, name: str, result: Result | None) -> Node:
    """A node from the answer of `engine_process` status."""
    if result is None or result.bad:
        return Node(host, name, "unreachable", error=calls.first_line(result) if result else "not asked")
    seen = result.data.get("processes", {}).get(name)
    if not seen:
        return Node(host, name, "absent")
    return Node(
        host, name, seen["state"], seen.get("release"), seen.get("pid"), seen.get("uptime"),
        tuple(seen.get("ranks") or ()), bool((seen.get("note") or {}).get("ready_after")),
        tuple(f"{p['pid']} {p['command']}" for p in seen.get("missing") or ()),
        tuple(f"{p['pid']} {p['command']}" for p in seen.get("leftover") or ()), seen.get("exit") or {},
        str(seen.get("role") or ""), seen.get("unit"), seen.get("manager"),
        watch=seen.get("watch"), now=float(result.data.get("time") or 0.0),
    )


def findings(survey: Survey) -> list[Finding]:
    """What is wrong, for `status`: dead workers by name, mixed releases, leftovers, an endpoint without a token."""
    out: list[Finding] = []
    labels = {e.digest: e.label for e in survey.history.entries}
    for view in survey.replicas.values():
        out += of_watchers(view)
        out += _of_nodes(view)
        out += _of_replica(view, labels)
        out += _of_links(view, survey.history, labels)
        out += _of_traffic(view, survey.stores)
    for entry in survey.history.entries:
        # one that is bad because it did not start shows in its processes, or runs by now
        if entry.state == "bad" and entry.current_on and entry.reason.startswith(CONTRACT_FAILED):
            out.append(Finding("release.bad", fold_hosts(list(entry.current_on)), Verdict.FAIL,
                               f"{entry.label} is in use and bad: {entry.reason}",
                               mend="invoke rollback goes back to the last good one; invoke verify asks again"))
    if survey.history.mixed:
        groups: dict[str, list[str]] = {}
        for host, digest in survey.history.current.items():
            groups.setdefault(labels.get(digest or "", short(digest)), []).append(host)
        told = "; ".join(f"{label} on {fold_hosts(hosts)}" for label, hosts in groups.items())
        by_hand = _by_hand(survey.history, labels)
        out.append(Finding("release.mixed", fold_hosts(list(survey.history.current)), Verdict.FAIL,
                           f"hosts use different releases: {told}",
                           (*(by_hand or ("a deploy or a rollback stopped half way",)),
                            "nothing is started like this"), mend=_mend(survey.history)))
    for where, why in survey.history.broken.items():
        out.append(Finding("release.changed", where.split()[0], Verdict.FAIL, why,
                           mend="invoke provision makes it anew"))
    return out


def _mend(history: History) -> str:
    """What brings all hosts to one release again."""
    return "invoke rollback finishes the one that was begun" if history.unfinished is not None else \
        "invoke provision brings all to the inventory's, invoke rollback to the one before the last deploy"


def _by_hand(history: History, labels: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each host whose `current` somebody else changed."""
    return tuple(f"{host} was switched to {labels.get(digest, short(digest))}; its `current` was changed by hand"
                 for host, digest in history.by_hand.items())


def _of_links(view: ReplicaView, history: History, labels: Mapping[str, str]) -> list[Finding]:
    """Nodes that run another release than their `current` names: the next start would be of that one."""
    wrong = [node for node in view.nodes.values() if node.state == "running" and node.release
             and history.current.get(node.host, node.release) != node.release]
    if history.mixed or not wrong or len(view.releases) > 1:
        return []
    named = history.current[wrong[0].host]
    told = labels.get(named, short(named)) if named else "nothing"
    return [Finding("release.running", fold_hosts([node.host for node in wrong]), Verdict.FAIL,
                    f"{view.name} runs {labels.get(view.releases[0], short(view.releases[0]))}, and `current` names "
                    f"{told}", _by_hand(history, labels), mend=_mend(history))]


def _of_nodes(view: ReplicaView) -> list[Finding]:
    out = []
    some = bool(view.running) or any(n.state == "exited" for n in view.nodes.values())
    for node in view.nodes.values():
        if node.state == "unreachable":
            out.append(Finding("process.unknown", node.host, Verdict.UNKNOWN, f"{view.name}: {node.error}"))
        elif node.state == "exited":
            when = how_it_ended(node.exit) + ("" if node.ready else ", before it was ready")
            out.append(Finding("process.dead", node.host, Verdict.FAIL,
                               f"{view.name}: the {node.role or 'process'} ({_ranks(node.ranks)}) is dead: it ended "
                               f"{when}", _behind_health(view), mend="invoke restart"))
        elif node.missing:
            out.append(Finding("process.rank", node.host, Verdict.FAIL,
                               f"{view.name}: {len(node.missing)} of its rank processes are gone: "
                               f"{'; '.join(node.missing[:3])}", _behind_health(view), mend="invoke restart"))
        elif some and node.state in ("absent", "stopped"):
            out.append(Finding("process.absent", node.host, Verdict.FAIL,
                               f"{view.name}: nothing runs here while the rest of the replica does",
                               mend="invoke restart"))
        if node.leftover:
            out.append(Finding("process.leftover", node.host, Verdict.FAIL,
                               f"{view.name}: left behind: {'; '.join(node.leftover[:3])}", mend="invoke stop"))
    return out


WATCHER_SILENT = 45.0
"""Seconds: a watcher writes down every ten at the latest, and may spend half a minute ending a process."""


def of_watchers(view: ReplicaView) -> list[Finding]:
    """What the watchers of a replica have to tell: restarts under way, given up, silent."""
    out = []
    for node in view.nodes.values():
        if node.watch is None:
            continue
        said = dict(node.watch)
        if not said or node.now - float(said.get("at") or 0) > WATCHER_SILENT:
            out.append(Finding("watcher.silent", node.host, Verdict.WARN,
                               f"{view.name}: its watcher tells nothing; nobody restarts this replica",
                               mend=f"journalctl -u bringup-watch-{node.name}; invoke restart sets it up anew"))
            continue
        phase, cause = said.get("phase"), str(said.get("cause") or "")
        count = f"{said.get('restarts')} of {said.get('restarts_allowed')} restarts this hour"
        if phase == "given up":
            out.append(Finding("watcher.gave-up", node.host, Verdict.FAIL,
                               f"{view.name}: its watcher gave up after {count}: {cause}",
                               mend="mend the cause, then invoke start"))
        elif phase in ("down", "starting"):
            doing = "restarts it" if phase == "starting" else "keeps it down"
            waits = (f"it waits {said['waits']}",) if said.get("waits") else ()
            out.append(Finding("watcher.acts", node.host, Verdict.WARN,
                               f"{view.name}: its watcher {doing} ({count}): {cause}", waits,
                               mend="invoke status again in a while; invoke logs"))
    return out


def _behind_health(view: ReplicaView) -> tuple[str, ...]:
    if view.probe is not None and view.probe.health == 200:
        return ("the head still answers /health with 200",)
    return ()


def _of_replica(view: ReplicaView, labels: Mapping[str, str]) -> list[Finding]:
    head = next(iter(view.nodes))
    if len(view.releases) > 1:
        told = ", ".join(f"{n.host} {labels.get(n.release or '', short(n.release))}" for n in view.nodes.values()
                         if n.state == "running")
        return [Finding("release.running", head, Verdict.FAIL, f"{view.name} runs different releases: {told}",
                        mend="invoke restart")]
    if view.whole and view.probe is not None and view.probe.other_key:
        return [Finding("endpoint.key", head, Verdict.FAIL,
                        f"{view.name} does not take the key of this deployment: {view.probe.error}",
                        ("it was started with another one",), mend="invoke restart gives it this one")]
    if view.whole and view.probe is not None and not view.probe.serves:
        ready = any(node.ready for node in view.nodes.values())
        verdict = Verdict.FAIL if ready else Verdict.WARN
        word = "does not serve" if ready else "is still starting"
        return [Finding("endpoint", head, verdict, f"{view.name} {word}: {view.probe.told}", mend="invoke logs")]
    if not view.running and not any(n.state in ("exited", "unreachable") for n in view.nodes.values()):
        return [Finding("endpoint", head, Verdict.FAIL, f"{view.name} is stopped", mend="invoke start")]
    return []


def _of_traffic(view: ReplicaView, stores: Mapping[str, HostStore]) -> list[Finding]:
    """A replica that runs and that clients were led away from."""
    head = next(iter(view.nodes))
    event = led_away(stores[head].history if head in stores else (), view.name)
    if event is None or not view.running:
        return []
    ago = max(0.0, view.nodes[head].now - float(event.get("at") or 0))
    return [Finding("traffic.out", head, Verdict.WARN,
                    f"{view.name}: clients were led away {duration(ago)} ago by {event.get('by') or '?'} (run "
                    f"{event.get('run') or '?'}) and not back", mend=f"invoke traffic.in --replica {view.name}")]


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers(ranks)}" if ranks else "no ranks"


def rows(survey: Survey, seen: Mapping[str, tuple[str, str]] | None = None) -> list[list[str]]:
    """The table of status: a heading, then a line per node. `seen` is memory and queue by process name."""
    labels = {e.digest: e.label for e in survey.history.entries}
    out = [["replica", "node", "role", "state", "pid", "ranks", "up", "release", "memory", "queue", "endpoint"]]
    for view in survey.replicas.values():
        for node in view.nodes.values():
            head = node.host == next(iter(view.nodes))
            memory, queue = (seen or {}).get(node.name, ("-", "-"))
            out.append([
                view.name if head else "", node.host, node.role or ("head" if head else "worker"),
                "rank gone" if node.missing else node.state, str(node.pid or "-"),
                numbers(node.ranks) if node.ranks else "-",
                duration(node.uptime) if node.uptime is not None else "-",
                labels.get(node.release or "", short(node.release) if node.release else "-"), memory, queue,
                (view.probe.told if view.probe else "-") if head else "",
            ])
    return out
