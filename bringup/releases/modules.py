"""The modules that playbooks use for releases and replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bringup.base.errors import BringupError
from bringup.base.results import Result
from bringup.releases.caches import spread_caches
from bringup.releases.choosing import choose_release
from bringup.releases.comparing import compare_plan
from bringup.releases.drifting import find_drift
from bringup.releases.ending import replica_status, stop_replicas
from bringup.releases.keeping import KEEP, pin_release, remove_releases
from bringup.releases.making import make_release
from bringup.releases.moving import move_traffic
from bringup.releases.reading import list_releases
from bringup.releases.reading_logs import replica_logs
from bringup.releases.runs import list_runs
from bringup.releases.starting import announce_ready, start_replicas
from bringup.releases.switching import switch_release
from bringup.run.actions import Fleet, FleetAction, ModuleSpec


def _naming_hosts(action: FleetAction) -> FleetAction:
    """The same action; an error that concerns certain hosts says so in its first words: a meeting fails for all."""

    def run(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
        try:
            return action(fleet, args)
        except BringupError as error:
            if error.host and error.host not in error.what:
                error.what = f"{error.host}: {error.what}"
            raise

    return run


def specs() -> list[ModuleSpec]:
    """All of them, for the table of modules."""
    table = [
        ModuleSpec("make_release", {}, fleet_action=make_release,
                   help="make the release of the inventory's plan and bring it to every node"),
        ModuleSpec("compare_plan", {}, fleet_action=compare_plan, reads_only=True,
                   help="what a provision would change of what is in use"),
        ModuleSpec("choose_release", {
            "to": {"type": "str", "default": "current"}, "prove": {"type": "bool", "default": False},
            "ask": {"type": "bool", "default": False}, "even_if_bad": {"type": "bool", "default": False},
            "rehearse": {"type": "bool", "default": False}}, fleet_action=choose_release,
            help="take a release that is there: current, previous, a number or a digest"),
        ModuleSpec("switch_release", {}, fleet_action=switch_release, help="point `current` at the chosen release"),
        ModuleSpec("spread_caches", {}, fleet_action=spread_caches,
                   help="bring what engines compiled on one host to its likes that have none"),
        ModuleSpec("start_replicas", {
            "restart": {"type": "bool", "default": False}, "asked": {"type": "bool", "default": False},
            "rolling": {"type": "bool", "default": False}}, fleet_action=start_replicas,
            help="start the chosen release, replica by replica"),
        ModuleSpec("move_traffic", {
            "direction": {"type": "str", "required": True, "choices": ["out", "in"]},
            "replicas": {"type": "list", "default": []}}, fleet_action=move_traffic,
            help="lead clients away from replicas, or back to them"),
        ModuleSpec("stop_replicas", {"ask": {"type": "bool", "default": False}}, fleet_action=stop_replicas,
                   help="stop whole replicas"),
        ModuleSpec("announce_ready", {}, fleet_action=announce_ready,
                   help="mark the chosen release good and tell the endpoint"),
        ModuleSpec("replica_status", {}, fleet_action=replica_status, reads_only=True,
                   help="how every replica and node is"),
        ModuleSpec("replica_logs", {
            "lines": {"type": "int"}, "follow": {"type": "bool", "default": False}, "ranks": {"type": "str"},
            "since": {"type": "float"}},
            fleet_action=replica_logs, reads_only=True, help="what the engines print"),
        ModuleSpec("pin_release", {
            "release": {"type": "str", "required": True}, "pinned": {"type": "bool", "default": True},
            "reason": {"type": "str"}}, fleet_action=pin_release, help="keep a release whatever is removed"),
        ModuleSpec("remove_releases", {"keep": {"type": "int", "default": KEEP}}, fleet_action=remove_releases,
                   help="remove old releases and environments that no release uses"),
        ModuleSpec("find_drift", {
            "compare": {"type": "bool", "default": False}, "contract": {"type": "bool", "default": False},
            "times": {"type": "int", "default": 1}}, fleet_action=find_drift, reads_only=True,
            help="what runs against what was approved"),
        ModuleSpec("list_runs", {"since": {"type": "str"}}, fleet_action=list_runs, reads_only=True,
                   help="every run that changed these hosts, from their own journals"),
        ModuleSpec("list_releases", {"between": {"type": "list", "default": []}}, fleet_action=list_releases,
                   reads_only=True, help="which releases the hosts have"),
    ]
    return [replace(spec, fleet_action=_naming_hosts(spec.fleet_action)) for spec in table if spec.fleet_action]
