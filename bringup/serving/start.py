"""Start one replica: head, workers in rank order, then wait until it serves, watching every process meanwhile."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.events import Progress
from bringup.base.results import Result
from bringup.base.text import duration
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.causes import Cause, first_cause, how_it_ended, waited_for
from bringup.serving.probing import Probe, probe
from bringup.serving.signs import Signs, numbers, rank_gaps, rank_mismatches, tensor_parallel_of
from bringup.serving.transport import slow_transport
from bringup.serving.vitals import EVERY, Vitals, growth, of_ranks, told

POLL = 1.0
"""Seconds that a host waits for news before it answers a poll."""
LINES_KEPT = 200_000
"""Log lines of one process that are kept for the diagnosis."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds. `rendezvous`: until every rank joined. `load`: without any progress. `token`: for the first answer.

    `grace`: between TERM and KILL (a vLLM ignores TERM while it loads). The defaults fit GLM-5.1 on 8 devices a node:
    three imports of torch and vllm one after the other take up to 107 s; a cold DeepGEMM or FlashInfer compiles for 10
    to 20 minutes without a line.
    """

    rendezvous: float = 300.0
    load: float = 1800.0
    token: float = 120.0
    grace: float = 30.0


@dataclass(frozen=True)
class ReplicaStart:
    """What is started: the launch document of each host, under which manager, with which key and deadlines.

    `key` is (variable, value) for the engine's environment; None without one.
    """

    name: str
    launches: Mapping[str, Mapping[str, Any]]
    manager: str
    deadlines: Deadlines = field(default_factory=Deadlines)
    key: tuple[str, str] | None = None

    @property
    def order(self) -> Sequence[str]:
        """Hosts, head first, workers in rank order."""
        return calls.in_rank_order(self.launches)

    @property
    def head(self) -> str:
        return self.order[0]

    @property
    def wanted(self) -> dict[str, tuple[int, ...]]:
        """The ranks meant for each host."""
        return {host: tuple(self.launches[host]["ranks"]) for host in self.order}

    @property
    def world_size(self) -> int:
        return int(self.launches[self.head]["world_size"])


@dataclass
class Watched:
    """One process while it is watched."""

    signs: Signs
    after: str = ""
    state: str = "absent"
    lines: list[tuple[float | None, str]] = field(default_factory=list)
    status: Mapping[str, Any] = field(default_factory=dict)
    vitals: Vitals | None = None
    grows: tuple[str, str] = ("", "")
    grew: float = field(default_factory=time.monotonic)

    @property
    def told(self) -> str:
        """How far it is: shards, what grows in its processes, its log's last word; each rank's own figures last, where
        a wide screen shows them."""
        grows, ranks = self.grows
        counted = self.signs.shards is not None and self.signs.shards[0] < self.signs.shards[1]
        parts = (self.signs.told, grows, ranks) if counted or not grows else (grows, self.signs.told[:60], ranks)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Outcome:
    """What became of a start: ready after `seconds` with so many ranks, or the first cause. `watched` per host."""

    ready: bool
    seconds: float
    ranks: int = 0
    cause: Cause | None = None
    watched: Mapping[str, Watched] = field(default_factory=dict)
    gone: Sequence[str] = ()
    probe: Probe | None = None


class Starting:
    """One start of one replica."""

    def __init__(self, fleet: Fleet, replica: ReplicaStart) -> None:
        self.fleet = fleet
        self.replica = replica
        self.began = time.monotonic()
        self.progressed = self.began
        self.bound_at: float | None = None
        self.busy, self.looked = float("-inf"), self.began
        self.seconds = 0.0
        self.asked = 0.0
        self.answer: Probe | None = None
        self.watched = {host: Watched(Signs(tensor_parallel_of(list(replica.launches[host]["argv"]))))
                        for host in replica.order}

    def start(self) -> Outcome:
        """Start head, then workers in rank order, and watch. Stops nothing: that is the caller's decision."""
        return self.begin() or self.watch()

    def begin(self) -> Outcome | None:
        """Start head, then workers in rank order. An outcome where one of them does not start."""
        for host in self.replica.order:
            cause = self._start_one(host)
            if cause is not None:
                return self._failed(cause)
            self._say(host, "started")
        return None

    def watch(self) -> Outcome:
        """Wait until the replica serves or fails; also for one that an earlier run left starting."""
        while True:
            outcome = self.look()
            if outcome is not None:
                return outcome

    def look(self) -> Outcome | None:
        """One look at it, POLL seconds at the longest while nothing is new; the outcome once there is one."""
        cause = self._poll()
        if cause is not None:
            return self._failed(cause)
        gaps = rank_gaps(self._signs(), self.replica.wanted)
        if not gaps and self.bound_at is None:
            self.bound_at = self.progressed = time.monotonic()
        cause = self._overdue(gaps, self.answer)
        if cause is not None:
            return self._failed(cause)
        if not gaps and time.monotonic() - self.asked >= POLL:
            self.answer = self._ask()
            self.asked = time.monotonic()
            cause = self._refused(self.answer)
            if cause is not None:
                return self._failed(cause)
            if self.answer.serves and self._poll() is None:
                return self._ready(self.answer)
        return None

    def gone(self) -> Outcome | None:
        """One look at what was ready: an outcome when a process of it ended meanwhile."""
        cause = self._poll()
        return self._failed(cause) if cause is not None else None

    def _start_one(self, host: str) -> Cause | None:
        document = self.replica.launches[host]
        secrets = {self.replica.key[0]: self.replica.key[1]} if self.replica.key else {}
        args = {"action": "start", "name": document["name"], "manager": self.replica.manager, "launch": document,
                "grace": self.replica.deadlines.grace, "secrets": secrets, **calls.account_args(self.fleet, host)}
        result = calls.call_all(self.fleet, "engine_process", {host: args}, changes=True)[host]
        if not result.bad:
            return None
        return refusal(host, result)

    def _poll(self) -> Cause | None:
        """One look at every process: new lines, states. A cause when one ended or a host is gone."""
        results = calls.call_all(self.fleet, "engine_process", {
            host: {"action": "status", "names": [self.replica.launches[host]["name"]], "wait": POLL,
                   "manager": self.replica.manager,
                   "after": {self.replica.launches[host]["name"]: self.watched[host].after}}
            for host in self.replica.order}, changes=False, timeout=60)
        for host, result in results.items():
            if not result.bad:
                self._take(host, result)
        missing = calls.gone(results)
        if missing:
            return Cause("lost", missing[0], "the host cannot be reached", "the start was under way there",
                         f"look at {missing[0]}, then provision again", calls.first_line(results[missing[0]]),
                         lies_in="host")
        for host, result in calls.broken(results).items():
            return Cause("status", host, calls.first_line(result), lies_in="unknown")
        ended = {host: w.status.get("exit") or {} for host, w in self.watched.items() if w.state != "running"}
        if ended:
            return self._cause_of_end(ended)
        self._look()
        mismatches = rank_mismatches(self._signs(), self.replica.wanted, self.replica.world_size)
        if mismatches:
            host, _, what = mismatches[0].partition(" ")
            signs = self.watched[host].signs
            return Cause("rank", host, what, "ranks must be 0..W-1, each on the node meant for it: what runs there is "
                         "not what the release says", "invoke drift names what was edited there, drop-ins of the unit "
                         "too; an earlier worker may still be up", signs.joined or signs.last, lies_in="host")
        return None

    def _take(self, host: str, result: Result) -> None:
        watched = self.watched[host]
        name = self.replica.launches[host]["name"]
        seen = result.data["processes"][name]
        watched.state, watched.status = seen["state"], seen
        watched.after = seen.get("after") or watched.after
        for at, text in seen.get("lines") or ():
            if len(watched.lines) < LINES_KEPT:
                watched.lines.append((at, text))
            if watched.signs.read(text, at):
                self.progressed = watched.grew = time.monotonic()
        if seen.get("lines"):
            self._say(host, watched.told)

    def _look(self) -> None:
        """What grows in the processes of every node: progress, whether their logs say something or not."""
        if time.monotonic() - self.looked < EVERY:
            return
        results = calls.call_all(self.fleet, "engine_vitals", {
            host: {"name": self.replica.launches[host]["name"],
                   "devices": not (watched.vitals and watched.vitals.silent)}
            for host, watched in self.watched.items()}, changes=False, timeout=30)
        self.looked = time.monotonic()
        for host, result in results.items():
            if result.bad:
                continue  # the next look at its state says what is wrong there
            watched = self.watched[host]
            now = Vitals.read(result.data, self.replica.wanted[host], watched.signs.tensor_parallel)
            grown = growth(watched.vitals, now) if watched.vitals else None
            if grown is not None and grown.strong:
                self.progressed = watched.grew = self.looked
            if grown is not None and grown.busy:
                self.busy = self.looked
            watched.vitals = now
            watched.grows = (told(now, grown, self.looked - watched.grew), of_ranks(now))
            self._say(host, watched.told)

    def _cause_of_end(self, ended: Mapping[str, Mapping[str, Any]]) -> Cause:
        """Look once more, so that the last lines of all nodes are there, then name the first cause."""
        time.sleep(0.3)
        results = calls.call_all(self.fleet, "engine_process", {
            host: {"action": "status", "names": [self.replica.launches[host]["name"]],
                   "manager": self.replica.manager,
                   "after": {self.replica.launches[host]["name"]: self.watched[host].after}}
            for host in self.replica.order}, changes=False, timeout=60)
        for host, result in results.items():
            if not result.bad:
                self._take(host, result)
        cause = first_cause({host: w.lines for host, w in self.watched.items()}, ended)
        host = next(iter(ended))
        if cause is not None:
            return waited_for(cause, rank_gaps(self._signs(), self.replica.wanted), ended)
        return Cause("ended", host, f"the process ended {how_it_ended(ended[host])}")

    def _overdue(self, gaps: Sequence[str], answer: Probe | None) -> Cause | None:
        now, limits = time.monotonic(), self.replica.deadlines
        logs = {host: w.lines for host, w in self.watched.items()}
        if gaps and now - self.began > limits.rendezvous:
            known = first_cause(logs, {})
            if known is not None:
                return known
            # who fell silent first is named first: the others wait for it
            first, *others = sorted(gaps, key=lambda gap: self.watched[gap.split(":")[0]].signs.last_at or 0.0)
            host, _, what = first.partition(": ")
            signs = self.watched[host].signs
            return Cause("rendezvous", host, "; ".join((what, *others)),
                         f"not every rank joined within {duration(limits.rendezvous)}",
                         "look at that node's log and at the way between the nodes: invoke preflight",
                         signs.last, signs.last_at, lies_in="unknown")
        # processor time alone is a weak sign, a rank that spins has it too: it makes the wait twice as long at most
        patience = limits.load * (2 if now - self.busy < 3 * EVERY else 1)
        if not gaps and now - self.progressed > patience:
            known = first_cause(logs, {})
            if known is not None:
                return known
            return Cause("stall", self.replica.head, f"no progress for {duration(patience)}",
                         answer.told if answer else "the endpoint was never asked",
                         "invoke logs; raise deployment.load_deadline if it only needs longer",
                         self.watched[self.replica.head].signs.last,
                         self.watched[self.replica.head].signs.last_at, lies_in="unknown")
        return None

    def _ask(self) -> Probe:
        document = self.replica.launches[self.replica.head]
        return probe(self.fleet, self.replica.head, document, self.replica.key[1] if self.replica.key else None,
                     self.replica.deadlines.token)

    def _refused(self, answer: Probe) -> Cause | None:
        """A cause when the head answers in a way that no waiting mends."""
        if answer.wrong is None:
            return None
        cause = self._poll()
        if cause is not None:
            return cause
        known = first_cause({host: w.lines for host, w in self.watched.items()}, {})
        if known is not None and known.lies_in != "unknown":
            return known
        evidence = known.evidence if known is not None else answer.error or ""
        return Cause("first-request", known.host if known is not None else self.replica.head, answer.wrong,
                     "/health alone says nothing about the ranks", "look at the kept logs", evidence,
                     known.at if known is not None else None, lies_in="unknown")

    def _ready(self, answer: Probe) -> Outcome:
        slow = slow_transport(self.fleet, self.replica.launches)
        if slow is not None:
            return self._failed(slow)
        seconds = self.seconds = time.monotonic() - self.began
        ranks = sorted(rank for signs in self._signs().values() for rank in signs.ranks)
        calls.call_all(self.fleet, "engine_process", {
            host: {"action": "note", "name": self.replica.launches[host]["name"], "manager": self.replica.manager,
                   "note": {"ranks": sorted(self.watched[host].signs.ranks), "ready_after": round(seconds, 1)}}
            for host in self.replica.order}, changes=True)
        for host in self.replica.order:
            up = self.watched[host].signs.ranks
            told = f"{'rank' if len(up) == 1 else 'ranks'} {numbers(up)} up" if up else "answers"
            self._say(host, told, done=True)
        return Outcome(True, seconds, len(ranks), None, self.watched, (), answer)

    def _failed(self, cause: Cause) -> Outcome:
        return Outcome(False, time.monotonic() - self.began, 0, cause, self.watched,
                       [cause.host] if cause.key == "lost" else ())

    def _signs(self) -> dict[str, Signs]:
        return {host: watched.signs for host, watched in self.watched.items()}

    def _say(self, host: str, text: str, done: bool = False) -> None:
        document = self.replica.launches[host]
        role = str(document["role"])
        where = f"node {document['node_rank']}" if role == "worker" else role
        self.fleet.emit(Progress(f"{self.replica.name} {host}", f"{where}, {text}", host=host, done=done))


def refusal(host: str, result: Result) -> Cause:
    """The cause when a host refused to start its process: a taken port, an unreachable host, systemd's own words."""
    if calls.gone({host: result}):
        return Cause("lost", host, "the host cannot be reached", "whether its process runs is not known",
                     f"look at {host}, then provision again", calls.first_line(result), lies_in="host")
    if result.data.get("taken"):
        return Cause("port", host, calls.first_line(result), "this release wants the port and another process has it",
                     str(result.next or "end that process, or choose another port"), calls.first_line(result),
                     lies_in="host")
    detail = str(result.data.get("stderr") or result.found or "")
    return Cause("start", host, calls.first_line(result), "the process was not started",
                 str(result.next or ""), detail.strip()[:400])
