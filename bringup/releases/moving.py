"""`move_traffic`: clients away from replicas or back to them, by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.base.errors import FindingError, InputError
from bringup.base.events import Note, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import nearest, plural
from bringup.releases.contract import ask_before_traffic
from bringup.releases.planned import key_of, plan_now
from bringup.releases.survey import ReplicaView, Survey, look
from bringup.releases.traffic import Traffic, left_is_told, running_documents, tell_left
from bringup.run.actions import Fleet


def move_traffic(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Run `traffic_out` and wait for requests in flight, or ask the contract and run `traffic_in`.

    `args`: direction (out or in), replicas (names; none: all of the run). Raises InputError for an unknown replica or
    an inventory without hooks, FindingError without a yes and for a replica that does not serve.
    """
    out = args["direction"] == "out"
    planned = plan_now(fleet, facts=False)
    names = _names(planned.members, [str(name) for name in args.get("replicas") or ()])
    key = key_of(fleet, planned.plan.api_key_variable)
    survey = look(fleet, {name: planned.members[name] for name in names}, planned.plan.manager,
                  key=key[1] if key else None)
    traffic = Traffic.of(fleet, survey, key[1] if key else None)
    if traffic.hooks is None:
        raise InputError("the inventory names no traffic_out and traffic_in", next="see docs/serving.md, Traffic")
    if fleet.check:
        wish = traffic.hooks.out if out else traffic.hooks.back
        fleet.emit(Note(f"not run for {', '.join(names)}: {wish.name} ({wish.shown})"))
        return {}
    if out and not fleet.ask(f"Lead clients away from {', '.join(names)}?"):
        raise FindingError("clients were not led away", next="the same command with --yes")
    with left_is_told(fleet, traffic):
        for name in names:
            _move(fleet, traffic, survey, survey.replicas[name], out=out)
    fleet.emit(StageSummary(plural(len(names), "replica"), "clients are led past it" if out and len(names) == 1 else
                            "clients are led past them" if out else "the contract holds, traffic is in"))
    if out:
        tell_left(fleet, traffic.left())
    return {host: Result(host, "move_traffic", Status.CHANGED) for name in names for host in planned.members[name]}


def _move(fleet: Fleet, traffic: Traffic, survey: Survey, view: ReplicaView, *, out: bool) -> None:
    documents = running_documents(survey, view.name)
    if not documents or (not out and not view.serves):
        told = view.probe.told if view.probe else "nothing of it runs"
        raise FindingError(f"{view.name} does not serve", found=told, next="invoke status")
    if out:
        traffic.lead_out(view.name, documents)
        return
    ask_before_traffic(fleet, view.name)
    traffic.lead_in(view.name, documents, view.releases[0])


def _names(members: Mapping[str, Any], wanted: list[str]) -> list[str]:
    for name in wanted:
        if name not in members:
            near = nearest(name, list(members))
            raise InputError(f"no replica of this run is called `{name}`", expected=", ".join(members),
                             next=f"--replica {near}" if near else "invoke plan shows the replicas")
    return [name for name in members if not wanted or name in wanted]
