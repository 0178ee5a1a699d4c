"""The installed engine is asked for its flags before anything stops: a word that it does not know is an input error."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.base.events import Note
from bringup.releases.places import Place
from bringup.releases.planned import Planned
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.engine_flags import check_flags, read_help
from bringup.serving.engines.facts import Engine, engine_named
from bringup.serving.plan import ROUTER_ROLE
from bringup.serving.plan_digest import program_of

HELP_SECONDS = 300.0
"""Importing an engine on cold disks takes up to two minutes."""


def ask_engine(fleet: Fleet, planned: Planned, places: Mapping[str, Place]) -> None:
    """Hold every command line of the plan against the help of the engine that is installed there.

    Asked on one host for each environment or image. Raises InputError; an engine that tells nothing is a note.
    """
    if not planned.plan.facts.get("check_flags", True):
        return
    engine = engine_named(planned.plan.engine)
    first: dict[str, str] = {}
    for host in planned.hosts:
        if places[host].path or places[host].image:  # else it is still to be built
            first.setdefault(places[host].digest, host)
    every = [process for replica in planned.replicas for process in replica.processes if process.role != ROUTER_ROLE]
    processes = {process.host: process for process in every}
    first = {digest: next((p.host for p in every if places[p.host].digest == digest), host)
             for digest, host in first.items()}
    client = str((planned.plan.container or {}).get("client") or planned.plan.manager)
    results = calls.call_all(fleet, "engine_help", {
        host: {"commands": commands_of(engine, places[host]), "key": digest, "image": places[host].image or None,
               "client": client if places[host].image else None, "env": dict(processes[host].environment),
               "timeout": HELP_SECONDS} for digest, host in first.items()},
        changes=False, timeout=HELP_SECONDS * 2 + 30)
    for digest, host in first.items():
        result = results[host]
        text = None if result.bad else result.data.get("text")
        if not text:
            reason = calls.first_line(result) if result.bad else str(result.data.get("reason"))
            fleet.emit(Note(f"the flags are not checked: the engine told nothing of them ({reason})", host=host,
                            level="warn"))
            continue
        known = read_help(str(text))
        for process in every:
            if places[process.host].digest == digest:
                check_flags(process, known, planned.plan.engine, planned.plan.engine_version)


def commands_of(engine: Engine, place: Place) -> list[list[str]]:
    """The commands that print all flags, the better one first: newer vLLM keeps most of them behind `--help=all`."""
    words = list(engine.help_command)
    own = list(program_of(tuple(words))) if not place.image else words
    own[0] = own[0].replace("@{env}", place.path)
    return [[*own[:-1], "--help=all"], own] if engine.name.startswith("vllm") else [own]
