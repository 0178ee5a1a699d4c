"""`start_replicas`: bring replicas to the chosen release, one after the other; go back when a start fails."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from bringup.base.errors import BringupError, FindingError, ServedError, StepError, UnreachableError
from bringup.base.events import Note, Progress, Ready, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts, plural
from bringup.releases import chosen as chosen_release
from bringup.releases import diagnosis, pooled, storing, watching
from bringup.releases.chosen import Chosen
from bringup.releases.contract import ask_before_traffic
from bringup.releases.document import number_text
from bringup.releases.earlier import Displaced, find
from bringup.releases.planned import key_of
from bringup.releases.proving import prove
from bringup.releases.survey import ReplicaView, Survey, look
from bringup.releases.traffic import Traffic, left_is_told, named_inventory
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.causes import Cause
from bringup.serving.start import Deadlines, Outcome, ReplicaStart, Starting
from bringup.serving.stop import stop_processes


@dataclass(frozen=True)
class Step:
    """What becomes of one replica: keep (nothing), join (it is starting already), start, or replace (stop, start)."""

    replica: str
    what: str
    reason: str


def decide(view: ReplicaView, digest: str, current: Mapping[str, str | None], *, restart: bool = False) -> Step:
    """What a replica needs so that it serves this release. Pure.

    A replica that serves it already is kept, one that an earlier run left starting is joined, anything else of ours
    that runs is replaced as a whole: ranks of two starts never meet.
    """
    hosts = list(view.nodes)
    on_it = all(current.get(host) == digest for host in hosts)
    if not view.running:
        return Step(view.name, "start", "nothing runs")
    if restart:
        return Step(view.name, "replace", "a restart was asked for")
    if view.whole and view.probe is not None and view.probe.other_key:
        return Step(view.name, "replace", "runs with another key")
    if view.whole and view.releases == (digest,):
        if view.serves and on_it:
            return Step(view.name, "keep", "serves it")
        if not all(node.ready for node in view.nodes.values()):
            return Step(view.name, "join", "is starting it")
        if view.serves:
            return Step(view.name, "keep", "serves it")
        return Step(view.name, "replace", f"runs it and does not serve: {view.probe.told if view.probe else '?'}")
    if len(view.running) < len(hosts):
        missing = [host for host in hosts if host not in view.running]
        return Step(view.name, "replace", f"runs in part: nothing on {fold_hosts(missing)}")
    return Step(view.name, "replace", "runs another release" if view.releases != (digest,) else "a rank of it is gone")


def start_replicas(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Start the chosen release on every replica of the run, one replica after the other.

    `args`: restart (bool) starts also what serves already; rolling (bool) stops one only while another serves, and
    none after one that failed its contract; asked (bool): the question was put before. Nothing changes where the
    release serves. A start that stops something asks first; without an answer the run ends prepared (FindingError).
    """
    began = time.monotonic()
    chosen = chosen_release.needed(fleet)
    key = key_of(fleet, chosen.key_variable)
    survey = look(fleet, chosen.replicas, chosen.manager, key=key[1] if key else None)
    lost: dict[str, Result] = {}
    if survey.unreachable:
        chosen, survey, lost = _without_unreachable(fleet, chosen, survey)
    steps = [decide(view, chosen.digest, survey.history.current, restart=bool(args.get("restart")))
             for view in survey.replicas.values()]
    rolling = bool(args.get("rolling"))
    if rolling:
        steps.sort(key=lambda step: survey.replicas[step.replica].serves)  # who does not serve has nothing to lose
    earlier = Displaced(find(fleet, chosen, survey, key[1] if key else None))
    steps = pooled.together(earlier.steps(steps, chosen.launches), chosen.launches)
    reached = replace(survey, replicas={**earlier.views(), **survey.replicas})
    traffic = Traffic.of(fleet, reached, key[1] if key else None)
    changed = {step.replica for step in steps if step.what != "keep"}
    results = {host: Result(host, "start_replicas", Status.CHANGED if name in changed else Status.OK)
               for name, hosts in chosen.replicas.items() for host in hosts}
    results.update(lost)
    for step in steps:
        other = {n.manager for n in survey.replicas[step.replica].nodes.values() if n.manager} - {chosen.manager}
        if step.what == "keep" and other:
            names = ", ".join(sorted(map(str, other)))
            fleet.emit(Note(f"{step.replica} runs under {names}; {chosen.manager} keeps it "
                            "from its next start on (invoke restart)"))
    if fleet.check:
        for step in steps:
            fleet.emit(StageSummary(step.replica, f"{_would(step)} ({step.reason})"))
        if left := earlier.beside([chosen.launches[name] for name in changed]):
            fleet.emit(Note(f"{left} would be ended: this plan has no such replica"))
        if traffic.hooks is not None and changed:
            fleet.emit(Note(f"not run: {traffic.told()}"))
        return results
    if not args.get("asked"):
        _ask(fleet, chosen, survey, steps, traffic, earlier)
    turn = _Turn(fleet, chosen, survey, key, traffic, earlier, rolling=rolling)
    for parts in pooled.wholes_of(steps, chosen.launches):
        with left_is_told(fleet, traffic):
            if len(parts) > 1:
                pooled.take(turn, parts)
            else:
                turn.take(parts[0])
            turn.finished += [step.replica for step in parts]
    earlier.rest(turn, end=not args.get("asked"))
    _tell(fleet, chosen, steps, time.monotonic() - began)
    return results


def _without_unreachable(fleet: Fleet, chosen: Chosen, survey: Survey) -> tuple[Chosen, Survey, dict[str, Result]]:
    """A rollback goes on without the replicas of which a node is gone. Raises UnreachableError where that is all, and
    for every other start."""
    gone = survey.unreachable
    whole = {name: hosts for name, hosts in chosen.launches.items() if not any(host in gone for host in hosts)}
    if not whole or not chosen.leaving:
        raise UnreachableError("what runs there is not known", host=fold_hosts(list(gone)),
                               details=list(gone.values())[:4], next="invoke status")
    left = dict(chosen.left_out)
    for name, hosts in chosen.replicas.items():
        if name not in whole:
            left[name] = f"{fold_hosts([host for host in hosts if host in gone])} cannot be reached any more"
            fleet.emit(Note(f"{name} is left out: {left[name]}; the next rollback finishes it", level="warn"))
    kept = replace(chosen, launches=whole, left_out=left)
    chosen_release.save(fleet, kept)
    lost = {host: Result(host, "start_replicas", Status.LOST, message=text,
                         next="invoke rollback again when it is back") for host, text in gone.items()}
    views = {name: view for name, view in survey.replicas.items() if name in whole}
    return kept, replace(survey, replicas=views, unreachable={}), lost


def _would(step: Step) -> str:
    return {"keep": "stays as it is", "join": "would be waited for", "start": "would be started",
            "replace": "would be stopped and started"}[step.what]


def _ask(fleet: Fleet, chosen: Chosen, survey: Survey, steps: list[Step], traffic: Traffic, earlier: Displaced
         ) -> None:
    """Ask before anything is stopped. Raises FindingError without a yes: everything is prepared then."""
    stopped = [step for step in steps if step.what == "replace"]
    left = earlier.beside([chosen.launches[step.replica] for step in stopped])
    if not stopped and not left:
        return
    names = ", ".join(step.replica for step in stopped)
    served = [step.replica for step in stopped if survey.replicas[step.replica].serves]
    served += [one.name for one in earlier.found if one.serves and one.name not in served]
    long = f"about {duration(chosen.seconds)} each (its last start)" if chosen.seconds else \
        "for as long as the weights take to load (no start was recorded yet)"
    clients = f"; {', '.join(served)} serves now and clients will see it" if served else ""
    if served and traffic.hooks is not None:
        clients = f"; {', '.join(served)} serves now; traffic is led past each while it is down"
        if not [name for name, view in survey.replicas.items() if view.serves and [name] != served]:
            clients += ", and no other replica serves meanwhile"
    also = f"{left} ends: this plan has no such replica"
    text = f"{also}{clients}. Go on?" if not stopped else (
        f"{names} stops ({stopped[0].reason}) and starts {chosen.label}: down {long}{clients}"
        f"{f'; {also}' if left else ''}. Go on?")
    answer = fleet.ask(text)
    if answer:
        return
    raise FindingError(
        "stopped before the start: everything is prepared, nothing in use was touched",
        found="no terminal to ask at" if answer is None else "the answer was no",
        details=[text.removesuffix(" Go on?")], next="the same command with --yes" if answer is None else None)


class _Turn:
    """One replica's turn: prove, stop, switch, start, and go back when that fails."""

    def __init__(self, fleet: Fleet, chosen: Chosen, survey: Survey, key: tuple[str, str] | None, traffic: Traffic,
                 earlier: Displaced, *, rolling: bool = False) -> None:
        self.fleet = fleet
        self.chosen = chosen
        self.survey = survey
        self.key = key
        self.traffic = traffic
        self.earlier = earlier
        self.rolling = rolling
        self.finished: list[str] = []

    def take(self, step: Step) -> None:
        """Do what the step says. Raises StepError or ServedError when the replica does not serve the release."""
        name = step.replica
        replica = self._start_of(self.chosen.launches[name])
        hosts = list(replica.order)
        if step.what == "keep":
            if any(self.survey.history.current.get(host) != self.chosen.digest for host in hosts):
                storing.switch(self.fleet, self.chosen.digest, hosts)
            if self.traffic.was_out(name):
                self.traffic.out[name] = "an earlier run led it away"
                self._let_in(replica)
            return
        if step.what == "join":
            outcome = Starting(self.fleet, replica).watch()
            storing.switch(self.fleet, self.chosen.digest, hosts)
        else:
            self._prove(replica)
            self._others_serve(name)
            self._lead_out(replica)
            try:
                self._stop(name, hosts)
                storing.switch(self.fleet, self.chosen.digest, hosts)
            except BringupError as error:
                self._broken_off(replica, error)
            self.fleet.emit(Progress(name, f"starting {self.chosen.label}"))
            outcome = Starting(self.fleet, replica).start()
        if not outcome.ready:
            self._go_back(replica, outcome)
        storing.mark(self.fleet, self.chosen.digest, hosts, "started", seconds=round(outcome.seconds, 1), replica=name)
        self.earlier.finish(self, hosts)
        self.fleet.emit(Progress(name, f"{plural(outcome.ranks, 'rank')} on {plural(len(hosts), 'node')}, first token "
                                       f"after {duration(outcome.seconds)}", done=True))
        self._let_in(replica)

    def _others_serve(self, name: str) -> None:
        """A rolling restart takes a serving replica down only while another serves. Raises StepError."""
        if not self.rolling or not self.survey.replicas[name].serves:
            return
        others = {other: tuple(view.nodes) for other, view in self.survey.replicas.items()
                  if other in pooled.rivals(self.chosen.launches, name)}
        now = look(self.fleet, others, self.chosen.manager, key=self.key[1] if self.key else None)
        if not any(view.serves and other not in self.traffic.out for other, view in now.replicas.items()):
            raise StepError(f"{name} was not stopped: no other replica serves", next="invoke status",
                            expected="another replica that clients reach meanwhile",
                            found="; ".join(f"{other} {view.probe.told if view.probe else 'does not run'}"
                                            for other, view in now.replicas.items()) or "this one alone")

    def _lead_out(self, replica: ReplicaStart) -> None:
        """Clients away from what runs, before it stops. Raises StepError; what was switched for a rollback and not
        stopped is as before then."""
        try:
            if self.survey.replicas[replica.name].running:
                self.traffic.lead_out(replica.name, replica.launches)
            self.earlier.lead_out(self, replica.order, replica.name)
        except BringupError:
            self._links_of_untouched([replica.name, *self._later(replica.name)])
            raise

    def _let_in(self, replica: ReplicaStart) -> None:
        """Clients back to a replica whose contract holds. Raises FindingError when it does not: they stay away."""
        name = replica.name
        if self.traffic.hooks is None and not self.rolling:
            self.traffic.serving[name] = self.chosen.label
            return
        try:
            ask_before_traffic(self.fleet, name)
        except BringupError as error:
            later = self._later(name)
            self._links_of_untouched(later)
            error.details = (*error.details, *([f"untouched {', '.join(later)}"] if later else []))
            if self.traffic.hooks is not None:
                self.traffic.out.setdefault(name, "its contract did not hold")
            raise
        self.traffic.labels.setdefault(self.chosen.digest, self.chosen.label)
        self.traffic.lead_in(name, replica.launches, self.chosen.digest)

    def _start_of(self, launches: Mapping[str, Mapping[str, Any]]) -> ReplicaStart:
        name = str(next(iter(launches.values()))["replica"])
        manager = calls.manager_for(next(iter(launches.values())), self.chosen.manager)
        return ReplicaStart(name, launches, manager, Deadlines(**self.chosen.deadlines), self.key)

    def _prove(self, replica: ReplicaStart) -> None:
        """Raise before anything stops when a node cannot start this release: ports, program, model folder."""
        problems = prove(self.fleet, replica.launches, replica.manager, self.earlier.ending(replica.order))
        if problems:
            serving = self.served(replica.name, replica.order)
            first = problems[0]
            raise StepError(
                f"{self.chosen.label} cannot start on {replica.name}: {first[1]}", host=first[0],
                details=[f"{host}: {text}" for host, text, _ in problems[1:6]],
                found="it was looked at before anything was stopped"
                      + ("; what served serves on" if serving else ""), next=first[2] or None)

    def served(self, name: str, hosts: Sequence[str]) -> bool:
        """Whether clients were served on these hosts before this turn."""
        view = self.survey.replicas.get(name)
        return (view is not None and view.serves) or self.earlier.serve(hosts)

    def _stop(self, name: str, hosts: list[str]) -> None:
        self.earlier.stop(self, hosts)
        view = self.survey.replicas[name]
        if view.running:
            self.fleet.emit(Progress(name, "stopping what runs"))
            stop_processes(self.fleet, {host: node.name for host, node in view.nodes.items()}, self.chosen.manager,
                           Deadlines(**self.chosen.deadlines).grace)

    def _go_back(self, replica: ReplicaStart, outcome: Outcome) -> None:
        """Keep the diagnosis, stop this start everywhere, start the release before it again where that can be."""
        cause = outcome.cause or Cause("unknown", replica.head, "the start failed")
        lines = diagnosis.told(cause, outcome, diagnosis.keep(self.fleet, replica, outcome), self.fleet.project.root)
        served = self.served(replica.name, replica.order)
        reachable = [host for host in replica.order if host not in outcome.gone]
        try:
            stop_processes(self.fleet, {host: str(replica.launches[host]["name"]) for host in reachable},
                           self.chosen.manager, replica.deadlines.grace)
        except BringupError as error:
            lines += [f"left     {line}" for line in (error.what, *error.details)]
        if cause.lies_in != "host":
            storing.mark(self.fleet, self.chosen.digest, reachable, "bad", replica=replica.name,
                         reason=f"{cause.host}: {cause.what}")
        back, text = self._restart_previous(replica, outcome)
        untouched = self._later(replica.name)
        if untouched:
            self._links_of_untouched(untouched)
            text += f"; {', '.join(untouched)} untouched"
        kind: type[BringupError] = ServedError if served and not back else StepError
        if cause.key == "lost" and kind is StepError:
            kind = UnreachableError
        raise kind(f"{diagnosis.failed_after(outcome.seconds, replica.name)}; {text}", details=lines,
                   next="invoke status")

    def _broken_off(self, replica: ReplicaStart, error: BringupError) -> NoReturn:
        """The way from the old to the new release ended in between: bring the old one back where that can be."""
        gone = [host for host in replica.order if isinstance(error, UnreachableError) and _names(error, host)]
        served = self.served(replica.name, replica.order)
        back, text = self._restart_previous(replica, Outcome(False, 0.0, gone=gone))
        kind: type[BringupError] = ServedError if served and not back else type(error)
        raise kind(f"{error.what}; {text}", host=error.host, details=error.details, found=error.found,
                   next=error.next or "invoke status") from None

    def _later(self, name: str) -> list[str]:
        """Replicas whose turn has not come."""
        return [other for other in self.survey.replicas if other != name and other not in self.finished]

    def _restart_previous(self, replica: ReplicaStart, outcome: Outcome) -> tuple[bool, str]:
        """Start again what ran before, once. Returns whether it serves, and what to say. Raises nothing of ours."""
        try:
            return self._again(replica, outcome)
        except BringupError as error:
            return False, f"the release before could not be started again: {error.what}"

    def _again(self, replica: ReplicaStart, outcome: Outcome) -> tuple[bool, str]:
        otherwise = self.earlier.again(self, replica.order, outcome.gone)
        if otherwise is not None:
            return otherwise
        view = self.survey.replicas[replica.name]
        running = [digest for digest in view.releases if digest != self.chosen.digest]
        before = running[0] if len(running) == 1 else None
        earlier = {host: self.survey.history.current.get(host) for host in replica.order}
        before = before or (next(iter(earlier.values())) if len(set(earlier.values())) == 1 else None)
        if before == self.chosen.digest and self.chosen.leaving:
            before = self.chosen.previous  # switched already, and nothing ran
        if before == self.chosen.digest:
            return False, "nothing else was in use here that could be started again"
        if before is None:
            return False, self._links_as_before(replica, outcome, earlier)
        entry = self.survey.history.get(before)
        label = number_text(entry.number if entry else None)
        if outcome.gone:
            return False, f"{label} is not started again: {fold_hosts(list(outcome.gone))} cannot be reached"
        old = self._launches_of(before, replica)
        if old is None:
            return False, f"{label} is not prepared on all nodes of {replica.name} and is not started again"
        storing.switch(self.fleet, before, list(replica.order), undo=True)
        if not view.running:
            return False, f"`current` is {label} again; nothing ran before, nothing is started"
        problems = prove(self.fleet, old.launches, old.manager)
        if problems:
            return False, f"{label} is not started again: {problems[0][0]}: {problems[0][1]}"
        why = f" ({outcome.cause.host}: {outcome.cause.what})" if outcome.cause else ""
        self.fleet.emit(Note(f"{replica.name}: the start failed{why}; {label} is starting again", level="warn"))
        stop_processes(self.fleet, calls.names_of(old.launches), old.manager, replica.deadlines.grace)
        second = Starting(self.fleet, old).start()
        if second.ready:
            storing.mark(self.fleet, before, list(replica.order), "started", seconds=round(second.seconds, 1),
                         replica=replica.name)
            return True, (f"{label} serves again on {replica.name} (after {duration(second.seconds)})"
                          + self._let_in_again(old, before))
        diagnosis.keep(self.fleet, ReplicaStart(f"{replica.name}-back", old.launches, old.manager), second)
        stop_processes(self.fleet, calls.names_of(old.launches), old.manager, replica.deadlines.grace)
        why = second.cause.what if second.cause else "it did not become ready"
        return False, f"{label} did not start again either: {why}"

    def _let_in_again(self, old: ReplicaStart, digest: str) -> str:
        """Clients back to the release that was started again, when its contract holds; what to say if not."""
        if self.traffic.hooks is None:
            return ""
        try:
            ask_before_traffic(self.fleet, old.name)
            self.traffic.lead_in(old.name, old.launches, digest)
        except BringupError as error:
            return f"; its traffic stays out: {error.what}"
        return ", its traffic is back"

    def _links_as_before(self, replica: ReplicaStart, outcome: Outcome, earlier: Mapping[str, str | None]) -> str:
        """Each host's `current` as it was: a release that never started is in use nowhere."""
        there = [host for host in replica.order if host not in outcome.gone]
        first = [host for host in there if earlier[host] is None]
        if first:
            storing.unswitch(self.fleet, self.chosen.digest, first, "its first start failed")
        for digest in dict.fromkeys(found for host in there if (found := earlier[host])):
            storing.switch(self.fleet, digest, [host for host in there if earlier[host] == digest], undo=True)
        if len(first) == len(there):
            return "nothing was in use here before, and nothing is now"
        return "`current` is as it was on each node"

    def _links_of_untouched(self, names: list[str]) -> None:
        """A rollback switched all replicas before the first start: those that it did not come to use the old one."""
        if self.chosen.leaving and self.chosen.previous:
            hosts = [host for name in names for host in self.chosen.launches.get(name, ())]
            storing.try_switch(self.fleet, self.chosen.previous, hosts, undo=True)

    def _launches_of(self, digest: str, replica: ReplicaStart) -> ReplicaStart | None:
        found: dict[str, Mapping[str, Any]] = {}
        for host in replica.order:
            store = self.survey.stores.get(host)
            document = (store.launches.get(digest, {}) if store else {}).get(f"{replica.name}-{host}")
            if document is None:
                return None
            found[host] = document
        return self._start_of(found)


def _names(error: BringupError, host: str) -> bool:
    """True when the error's lines are about this host."""
    return any(line.startswith(f"{host}: ") for line in error.details) or error.host == host


def _tell(fleet: Fleet, chosen: Chosen, steps: list[Step], seconds: float) -> None:
    wholes = pooled.wholes_of(steps, chosen.launches)
    kept = [parts for parts in wholes if all(step.what == "keep" for step in parts)]
    total = len(wholes)
    if len(kept) == total:
        text = f"{chosen.label} serves already, nothing was restarted"
    else:
        text = f"{chosen.label} serves on {total} of {total}, {total - len(kept)} started in {duration(seconds)}"
    fleet.emit(StageSummary(plural(total, "replica"), text))


def _next(fleet: Fleet, chosen: Chosen) -> tuple[str, ...]:
    """The commands that follow, with the inventory that was named."""
    named = named_inventory(fleet)
    out = []
    if chosen.undo:
        long = f", about {duration(chosen.seconds)}: weights load again" if chosen.seconds else ""
        out.append(f"undo     invoke rollback{named}        (back to {chosen.previous_label}{long})")
    elif chosen.undo_else:
        out.append(f"undo     {chosen.undo_else}")
    out.append(f"look     invoke status{named} · invoke logs{named} --follow · invoke releases{named}")
    return tuple(out)


def announce_ready(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """The last stage: mark the release good on all its nodes and tell the endpoints; with --check, what would be."""
    chosen = chosen_release.needed(fleet)
    data = {"digest": chosen.digest, "release": chosen.label}
    results = {host: Result(host, "announce_ready", Status.OK, data=data) for host in chosen.hosts}
    heads = [launches[chosen.replicas[name][0]] for name, launches in chosen.launches.items()
             if not pooled.is_pool(launches)]
    endpoints = tuple(str(head["endpoint"]) for head in heads)
    if fleet.check and not _serves_now(fleet, chosen):
        more = f" and {len(endpoints) - 1} more" if len(endpoints) > 1 else ""
        fleet.emit(StageSummary(chosen.label, f"would serve at {endpoints[0]}{more}; nothing was changed"))
        return results
    if not fleet.check:
        storing.mark(fleet, chosen.digest, chosen.hosts, "good")
        storing.approve(fleet, chosen.digest, chosen.hosts)
        watching.set_watchers(fleet, chosen)
    fleet.emit(Ready(endpoints, str(heads[0]["served_name"]), chosen.label, chosen.previous_label, chosen.changes,
                     _next(fleet, chosen)))
    return results


def _serves_now(fleet: Fleet, chosen: Chosen) -> bool:
    """Whether every replica runs this very release already."""
    key = key_of(fleet, chosen.key_variable)
    survey = look(fleet, chosen.replicas, chosen.manager, key=key[1] if key else None)
    return not survey.unreachable and all(
        decide(view, chosen.digest, survey.history.current, restart=False).what == "keep"
        for view in survey.replicas.values())
