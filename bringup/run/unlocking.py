"""`unlock_run` and `run_record`: what a run left on its hosts, cleared or told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bringup.base.errors import ExitStatus
from bringup.base.events import StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, plural
from bringup.run.actions import Call, Fleet, ModuleSpec
from bringup.run.holders import about, step_of, who


def unlock_run(fleet: Fleet, args: Mapping[str, Any], /) -> dict[str, Result]:
    """Clear the record of run `run` on every host that has it. A host without it is left as it is."""
    run = str(args["run"])
    calls = {host: Call("unlock", {"run": run}, become=_account(fleet, host), changes=False) for host in fleet.hosts}
    out: dict[str, Result] = {}
    for host, result in fleet.call(calls).items():
        if result.status is Status.FAILED and "is recorded here" in result.message:
            out[host] = Result(host, result.task, Status.OK, origin=result.origin,
                               message=f"nothing of run {run} here", found=result.found)
            continue
        if result.status is Status.FAILED and result.data.get("record"):
            result = replace(result, data={**result.data, "exit_status": int(ExitStatus.LOCKED)})
        out[host] = result
    if out and all(result.status is Status.OK for result in out.values()):
        first = next(iter(out))
        out[first] = Result(first, out[first].task, Status.FAILED, origin=out[first].origin,
                            message=f"no host knows an unfinished run {run}", found=out[first].found,
                            next="invoke status shows which run holds a host")
    return out


def run_record(fleet: Fleet, args: Mapping[str, Any], /) -> dict[str, Result]:
    """Tell what each host's lock and journal say of run `run`, wherever that was typed."""
    run = str(args["run"])
    calls = {host: Call("journal", {"run": run, "digests": []}, become=_account(fleet, host), changes=False)
             for host in fleet.hosts}
    out = fleet.call(calls)
    told: dict[str, list[str]] = {}
    for host, result in out.items():
        if result.status is Status.OK:
            told.setdefault(_told(run, result.data), []).append(host)
    for text, hosts in told.items():
        fleet.emit(StageSummary(fold_hosts(hosts), text))
    known = {host for text, hosts in told.items() for host in hosts if text != _UNKNOWN}
    if told and not known:
        first = next(iter(out))
        out[first] = replace(out[first], status=Status.FAILED, message=f"no host knows a run {run}",
                             data={"exit_status": int(ExitStatus.FINDING)}, next="invoke status --run last")
    return out


_UNKNOWN = "knows nothing of it"


def _told(run: str, data: Mapping[str, Any]) -> str:
    states = [str(task.get("state")) for task in (data.get("tasks") or {}).values()]
    parts = [f"{plural(states.count(state), 'task')} {state}" for state in ("running", "ended", "interrupted")
             if state in states]
    record = data.get("record") or {}
    if record.get("run") == run:
        holder = "holds the lock" if data.get("held") else "did not finish here, nobody is at it"
        parts.insert(0, f"{who(record)} ({about(record)}) {holder}; {step_of(record)}")
    return "; ".join(parts) or _UNKNOWN


def _account(fleet: Fleet, host: str) -> str | None:
    variables = fleet.variables(host)
    return "root" if variables.get("bringup_privileged", True) in (True, "true", "yes") else None


def specs() -> list[ModuleSpec]:
    """The modules of this file."""
    return [ModuleSpec("unlock_run", {"run": {"type": "str", "required": True}}, fleet_action=unlock_run,
                       reads_only=True, help="clear what a dead run left behind"),
            ModuleSpec("run_record", {"run": {"type": "str", "required": True}}, fleet_action=run_record,
                       reads_only=True, help="what a run left on its hosts")]
