"""`unlock_run`: remove what a run left behind that did not finish and has no living process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bringup.base.errors import ExitStatus
from bringup.base.results import Result, Status
from bringup.run.actions import Call, Fleet, ModuleSpec


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


def _account(fleet: Fleet, host: str) -> str | None:
    variables = fleet.variables(host)
    return "root" if variables.get("bringup_privileged", True) in (True, "true", "yes") else None


def specs() -> list[ModuleSpec]:
    """The module of this file."""
    return [ModuleSpec("unlock_run", {"run": {"type": "str", "required": True}}, fleet_action=unlock_run,
                       reads_only=True, help="clear what a dead run left behind")]
