"""`stop_replicas` and `replica_status`: end whole replicas in order, and say how everything is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.errors import FindingError
from bringup.base.events import Findings, Note, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, plural
from bringup.releases.earlier import with_spares
from bringup.releases.glance import glances, silent
from bringup.releases.planned import deadlines_of, key_of, looked_at, plan_now
from bringup.releases.pooled import is_pool
from bringup.releases.survey import ReplicaView, findings, look, of_others, rows
from bringup.releases.traffic import Traffic, left_is_told, running_documents
from bringup.run.actions import Fleet
from bringup.serving.stop import changed_hosts, stop_processes


def stop_replicas(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Stop every replica of the run, one after the other, all its nodes at once. `args`: ask (bool).

    Asks when an endpoint serves; clients are led away from each before it stops. Raises FindingError without a yes,
    StepError when something outlives KILL or a hook fails.
    """
    planned = plan_now(fleet, facts=False)
    for name, reason in planned.left_out.items():
        fleet.emit(Note(f"{name} is left out, what runs of it runs on: {reason}", level="warn"))
    key = key_of(fleet, planned.plan.api_key_variable)
    survey = with_spares(fleet, look(fleet, planned.members, planned.plan.manager, key=key[1] if key else None),
                         planned.plan.manager)
    serving = [view.name for view in survey.replicas.values() if view.serves]
    running = [view for view in survey.replicas.values() if view.running]
    results = {host: Result(host, "stop_replicas", Status.OK) for host in planned.hosts}
    traffic = Traffic.of(fleet, survey, key[1] if key else None)
    if fleet.check:
        told = "would be stopped" if running else "nothing runs, nothing would be stopped"
        fleet.emit(StageSummary(plural(len(running or survey.replicas), "replica"), told))
        if running and traffic.hooks is not None:
            fleet.emit(Note(f"not run: {traffic.hooks.out.name} ({traffic.hooks.out.shown})"))
        return {host: Result(host, "stop_replicas", Status.CHANGED if any(host in v.running for v in running)
                             else Status.OK) for host in planned.hosts}
    if serving and args.get("ask"):
        answer = fleet.ask(f"{', '.join(serving)} serves now. Stop?")
        if not answer:
            raise FindingError("nothing was stopped",
                               found="no terminal to ask at" if answer is None else "the answer was no",
                               next="the same command with --yes" if answer is None else None)
    grace = deadlines_of(fleet, planned.plan).grace
    # of a replica with pools the router first: nobody is sent to a pool that ends
    order = [part.name for parts in planned.plan.wholes.values() for part in reversed(parts)]
    for view in (survey.replicas[name] for name in order if name in survey.replicas):
        names = {host: node.name for host, node in view.nodes.items() if node.state != "unreachable"}
        with left_is_told(fleet, traffic):
            if view.running and (documents := running_documents(survey, view.name)) \
                    and not is_pool(documents):
                traffic.lead_out(view.name, documents)
            done = stop_processes(fleet, names, planned.plan.manager, grace)
        for host in changed_hosts(done):
            results[host] = Result(host, "stop_replicas", Status.CHANGED)
    ended = sum(len(names) for names in survey.others.values())
    for host, others in survey.others.items():
        for other in others:  # an earlier plan's, under a name that this one does not have
            stop_processes(fleet, {host: other}, planned.plan.manager, grace)
            results[host] = Result(host, "stop_replicas", Status.CHANGED)
    if ended:
        fleet.emit(Note(f"{plural(ended, 'process', 'processes')} of an earlier plan stopped on "
                        f"{fold_hosts(list(survey.others))}"))
    wholes = len({planned.whole_of(view.name) for view in running})
    fleet.emit(StageSummary(plural(wholes, "replica"), "stopped, nothing is left" if running else "nothing ran"))
    return results


def replica_status(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """How every replica and node is. `args` has none. Raises FindingError (4) when something is wrong."""
    plan, members = looked_at(fleet)
    key = key_of(fleet, plan.api_key_variable)
    survey = with_spares(fleet, look(fleet, members, plan.manager, key=key[1] if key else None), plan.manager)
    seen = glances(fleet, survey, key[1] if key else None)
    every = [*findings(survey), *of_others(survey), *silent(survey, seen)]
    found = sorted(every, key=lambda finding: not finding.blocks)
    blocking = [finding for finding in found if finding.blocks]
    wholes = {name: [survey.replicas[part.name] for part in parts if part.name in survey.replicas]
              for name, parts in plan.wholes.items()}
    unseen = {name: [host for part in parts for host in part.hosts if host not in fleet.hosts]
              for name, parts in plan.wholes.items()}
    asked = {name: views for name, views in wholes.items() if not unseen[name]}
    good = [name for name, views in asked.items() if all(_well(view) for view in views)]
    fleet.emit(Findings("status", tuple(found), {
        "status": rows(survey, {name: (glance.memory, glance.queue) for name, glance in seen.items()})}))
    in_use = survey.history.in_use
    label = in_use.label if in_use else "no release"
    fleet.emit(StageSummary(label, how_many_up(len(good), len(asked), unseen)))
    if blocking:
        worst = blocking[0]
        raise FindingError(worst.summary, host=worst.subject, details=worst.details, next=worst.mend)
    return {host: Result(host, "replica_status", Status.OK, data=_data(survey.replicas[name], host))
            for name, hosts in members.items() for host in hosts}


def how_many_up(good: int, asked: int, unseen: Mapping[str, Sequence[str]]) -> str:
    """`7 of 8 replicas up`; a replica of which a node is not in the run (limited, or not reached) is not counted."""
    names = [name for name, hosts in unseen.items() if hosts]
    text = f"{good} of {plural(asked, 'replica')} up"
    if not names:
        return text
    hosts = list(dict.fromkeys(host for name in names for host in unseen[name]))
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    left = f"{', '.join(names[:4])}{more} not counted: {fold_hosts(hosts)} not looked at"
    return f"{text}; {left}" if asked else left


def _well(view: ReplicaView) -> bool:
    return view.whole and (view.serves or (view.probe is None and all(n.role != "head" for n in view.nodes.values())))


def _data(view: ReplicaView, host: str) -> dict[str, Any]:
    node = view.nodes[host]
    return {"replica": view.name, "state": node.state, "pid": node.pid, "ranks": list(node.ranks),
            "release": node.release, "uptime": node.uptime}
