"""A replica with prefill and decode in pools of their own: its parts start, stop and go back together.

Both pools start side by side; when each is ready the router starts, and a token through it is what makes the replica
ready. A part that breaks takes the others with it: they hand each other what they computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol, TypeVar

from bringup.base.errors import BringupError, ServedError, StepError, UnreachableError
from bringup.base.events import Note, Progress
from bringup.base.text import duration, fold_hosts, plural
from bringup.releases import diagnosis, storing
from bringup.releases.chosen import Chosen
from bringup.releases.document import number_text
from bringup.releases.earlier import Displaced
from bringup.releases.survey import Survey
from bringup.releases.traffic import Traffic
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.causes import Cause
from bringup.serving.plan import POOL_ROLES
from bringup.serving.start import Outcome, ReplicaStart, Starting
from bringup.serving.stop import stop_processes


class AnyStep(Protocol):
    """What becomes of one part: `starting.Step`."""

    @property
    def replica(self) -> str: ...

    @property
    def what(self) -> str: ...


S = TypeVar("S", bound=Any)
Launches = Mapping[str, Mapping[str, Mapping[str, Any]]]


class Turn(Protocol):
    """What this takes of a replica's turn."""

    fleet: Fleet
    chosen: Chosen
    survey: Survey
    traffic: Traffic
    earlier: Displaced

    def _start_of(self, launches: Mapping[str, Mapping[str, Any]]) -> ReplicaStart: ...

    def _prove(self, replica: ReplicaStart) -> None: ...

    def _launches_of(self, digest: str, replica: ReplicaStart) -> ReplicaStart | None: ...

    def _lead_out(self, replica: ReplicaStart) -> None: ...

    def _let_in(self, replica: ReplicaStart) -> None: ...

    def _let_in_again(self, old: ReplicaStart, digest: str) -> str: ...

    def served(self, name: str, hosts: Sequence[str]) -> bool: ...

    def _later(self, name: str) -> list[str]: ...

    def _links_of_untouched(self, names: list[str]) -> None: ...


def group_of(launches: Mapping[str, Mapping[str, Any]]) -> str:
    """The replica that these documents are a part of; empty for a replica without pools."""
    return str(next(iter(launches.values())).get("group") or "")


def is_pool(launches: Mapping[str, Mapping[str, Any]]) -> bool:
    """True for a prefill or decode pool: clients never ask it."""
    return str(next(iter(launches.values())).get("role")) in POOL_ROLES


def rivals(launches: Launches, name: str) -> list[str]:
    """What clients may reach instead while this one is down: replicas and routers that are no part of it."""
    group = group_of(launches[name])
    return [other for other, documents in launches.items() if other != name and not is_pool(documents)
            and not (group and group_of(documents) == group)]


def wholes_of(steps: Sequence[S], launches: Launches) -> list[list[S]]:
    """The steps by whole replica, its parts in start order (pools, then router)."""
    order = list(launches)
    found: dict[str, list[S]] = {}
    for step in steps:
        found.setdefault(group_of(launches[step.replica]) or step.replica, []).append(step)
    return [sorted(parts, key=lambda step: order.index(step.replica)) for parts in found.values()]


def together(steps: Sequence[S], launches: Launches) -> list[S]:
    """The steps with every part of a replica replaced where one of its parts must start."""
    out: list[S] = []
    for parts in wholes_of(steps, launches):
        broken = [step for step in parts if step.what not in ("keep", "join")]
        for step in parts:
            if broken and step not in broken:
                step = replace(step, what="replace", reason=f"starts with {broken[0].replica}: {broken[0].reason}")
            out.append(step)
    return out


def take(turn: Turn, steps: Sequence[AnyStep]) -> None:
    """Bring all parts of one replica to the release. Raises StepError or ServedError when it does not serve it then."""
    _Whole(turn, [turn._start_of(turn.chosen.launches[step.replica]) for step in steps]).take(
        join=all(step.what in ("keep", "join") for step in steps))


class _Whole:
    """The parts of one replica in their turn; the last is the router."""

    def __init__(self, turn: Turn, parts: Sequence[ReplicaStart]) -> None:
        self.turn = turn
        self.parts = list(parts)
        self.name = group_of(self.parts[0].launches)
        self.hosts = list(dict.fromkeys(host for part in self.parts for host in part.order))

    @property
    def router(self) -> ReplicaStart:
        return self.parts[-1]

    def take(self, *, join: bool) -> None:
        turn, chosen = self.turn, self.turn.chosen
        begun = [Starting(turn.fleet, part) for part in self.parts]
        if join:
            failed = _watch(begun)
            storing.switch(turn.fleet, chosen.digest, self.hosts)
        else:
            for part in self.parts:
                turn._prove(part)
            turn._lead_out(self.router)
            try:
                self._stop_what_runs()
                storing.switch(turn.fleet, chosen.digest, self.hosts)
            except BringupError as error:
                self._broken_off(error)
            turn.fleet.emit(Progress(self.name, f"starting {chosen.label}: both pools, then the router"))
            begun, failed = start(turn.fleet, self.parts)
        if failed is not None:
            self._go_back(begun, *failed)
        seconds = max(one.seconds for one in begun)
        for part in self.parts:
            storing.mark(turn.fleet, chosen.digest, list(part.order), "started", seconds=round(seconds, 1),
                         replica=part.name)
        turn.earlier.finish(turn, self.hosts)
        ranks = sum(len(part.wanted[host]) for part in self.parts for host in part.order)
        turn.fleet.emit(Progress(self.name, f"{plural(ranks, 'rank')} on {plural(len(self.hosts), 'node')} in two "
                                            f"pools, first token through the router after {duration(seconds)}",
                                 done=True))
        turn._let_in(self.router)

    def _stop_what_runs(self) -> None:
        """The router first: nobody is sent to a pool that ends."""
        self.turn.earlier.stop(self.turn, self.hosts)
        for part in reversed(self.parts):
            view = self.turn.survey.replicas[part.name]
            if view.running:
                self.turn.fleet.emit(Progress(part.name, "stopping what runs"))
                stop_processes(self.turn.fleet, {host: node.name for host, node in view.nodes.items()},
                               self.turn.chosen.manager, part.deadlines.grace)

    def _go_back(self, begun: Sequence[Starting], part: ReplicaStart, outcome: Outcome) -> NoReturn:
        """Keep what all parts said, stop them, start the release before again where that can be."""
        turn, chosen = self.turn, self.turn.chosen
        cause = outcome.cause or Cause("unknown", part.head, "the start failed")
        folder = diagnosis.keep(turn.fleet, part, outcome)
        for one in begun:
            if one.replica is not part and any(watched.lines for watched in one.watched.values()):
                diagnosis.keep(turn.fleet, one.replica, Outcome(False, 0.0, watched=one.watched))
        lines = diagnosis.told(cause, outcome, folder, turn.fleet.project.root)
        served = turn.served(self.router.name, self.hosts)
        lines += [f"left     {line}" for line in self._stop_all(outcome.gone)]
        reachable = [host for host in self.hosts if host not in outcome.gone]
        if cause.lies_in != "host":
            storing.mark(turn.fleet, chosen.digest, reachable, "bad", replica=part.name,
                         reason=f"{part.name} on {cause.host}: {cause.what}")
        back, text = self._restart_previous(outcome.gone)
        later = [name for name in turn._later("") if name not in [one.name for one in self.parts]]
        if later:
            turn._links_of_untouched(later)
            text += f"; {', '.join(later)} untouched"
        kind: type[BringupError] = ServedError if served and not back else StepError
        if cause.key == "lost" and kind is StepError:
            kind = UnreachableError
        raise kind(f"{diagnosis.failed_after(outcome.seconds, part.name)}; {text}", details=lines, next="invoke status")

    def _stop_all(self, gone: Sequence[str]) -> list[str]:
        """End every part of this start; what could not be ended, a line each."""
        left: list[str] = []
        for part in reversed(self.parts):
            names = {host: name for host, name in calls.names_of(part.launches).items() if host not in gone}
            try:
                stop_processes(self.turn.fleet, names, part.manager, part.deadlines.grace)
            except BringupError as error:
                left += [error.what, *error.details]
        return left

    def _broken_off(self, error: BringupError) -> NoReturn:
        """The way between two releases ended: bring the old one back where that can be."""
        served = self.turn.served(self.router.name, self.hosts)
        back, text = self._restart_previous(())
        kind: type[BringupError] = ServedError if served and not back else type(error)
        raise kind(f"{error.what}; {text}", host=error.host, details=error.details, found=error.found,
                   next=error.next or "invoke status") from None

    def _restart_previous(self, gone: Sequence[str]) -> tuple[bool, str]:
        """Start again what ran before, once: whether it serves, and what to say. Raises nothing of ours."""
        try:
            return self._again(gone)
        except BringupError as error:
            return False, f"the release before could not be started again: {error.what}"

    def _again(self, gone: Sequence[str]) -> tuple[bool, str]:
        turn, chosen = self.turn, self.turn.chosen
        otherwise = turn.earlier.again(turn, self.hosts, gone)
        if otherwise is not None:
            return otherwise
        views = [turn.survey.replicas[part.name] for part in self.parts]
        running = list(dict.fromkeys(digest for view in views for digest in view.releases if digest != chosen.digest))
        earlier = {turn.survey.history.current.get(host) for host in self.hosts}
        before = running[0] if len(running) == 1 else next(iter(earlier)) if len(earlier) == 1 else None
        if before == chosen.digest and chosen.leaving:
            before = chosen.previous  # switched already, and nothing ran
        if before == chosen.digest:
            return False, "nothing else was in use here that could be started again"
        if before is None:
            there = [host for host in self.hosts if host not in gone]
            storing.unswitch(turn.fleet, chosen.digest, there, "its first start failed")
            return False, "nothing was in use here before, and nothing is now"
        entry = turn.survey.history.get(before)
        label = number_text(entry.number if entry else None)
        if gone:
            return False, f"{label} is not started again: {fold_hosts(list(gone))} cannot be reached"
        old = [turn._launches_of(before, part) for part in self.parts]
        storing.switch(turn.fleet, before, self.hosts, undo=True)
        if not any(view.running for view in views):
            return False, f"`current` is {label} again; nothing ran before, nothing is started"
        whole = [part for part in old if part is not None]
        if len(whole) < len(old):
            return False, f"{label} has no pools on these nodes and is not started again; `current` is {label}"
        try:
            for part in whole:
                turn._prove(part)
        except BringupError as error:
            return False, f"{label} is not started again: {error.what}"
        turn.fleet.emit(Note(f"{self.name}: the start failed; {label} is starting again", level="warn"))
        begun, failed = start(turn.fleet, whole)
        if failed is None:
            seconds = max(one.seconds for one in begun)
            for part in whole:
                storing.mark(turn.fleet, before, list(part.order), "started", seconds=round(seconds, 1),
                             replica=part.name)
            return True, f"{label} serves again on {self.name} (after {duration(seconds)})"
        part, outcome = failed
        diagnosis.keep(turn.fleet, replace(part, name=f"{part.name}-back"), outcome)
        self._stop_all(())
        return False, f"{label} did not start again either: {outcome.cause.what if outcome.cause else 'it failed'}"


Failed = tuple[ReplicaStart, Outcome]


def start(fleet: Fleet, parts: Sequence[ReplicaStart]) -> tuple[list[Starting], Failed | None]:
    """Start the pools side by side and, when each is ready, the router. Stops nothing; the first part that failed."""
    begun: list[Starting] = []
    for phase in ([part for part in parts if is_pool(part.launches)],
                  [part for part in parts if not is_pool(part.launches)]):
        now = [Starting(fleet, part) for part in phase]
        begun += now
        for one in now:
            outcome = one.begin()
            if outcome is not None:
                return begun, (one.replica, outcome)
        failed = _watch(now)
        if failed is None and len(begun) > len(now):
            failed = _still_up(begun[:-len(now)])
        if failed is not None:
            return begun, failed
    return begun, None


def _watch(begun: Sequence[Starting]) -> Failed | None:
    """Look at all of them in turn until each is ready; the first that failed. One that is ready is looked at on."""
    waiting = list(begun)
    while waiting:
        for one in list(begun):
            outcome = one.look() if one in waiting else one.gone()
            if outcome is None:
                continue
            if not outcome.ready:
                return one.replica, outcome
            waiting.remove(one)
    return None


def _still_up(begun: Sequence[Starting]) -> Failed | None:
    for one in begun:
        outcome = one.gone()
        if outcome is not None:
            return one.replica, outcome
    return None
