"""Kernels that are there, proven again: every file as it was built, and the computation once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bringup.base.errors import ExitStatus, InputError
from bringup.base.events import Findings
from bringup.base.results import Result, Status
from bringup.base.text import plural
from bringup.base.verdicts import Finding, Verdict
from bringup.environments.kernels.planning import Need, Planner, become, runner
from bringup.environments.kernels.signs import cause_of
from bringup.run.actions import Call, Fleet


def verify_kernels(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """FleetAction of `verify_kernels`; changes nothing. What is found is emitted as Findings; a host with findings has
    a failed result that ends the run with 4. Raises InputError where no kernel is named."""
    planner = Planner(fleet, args.get("names") or ())
    if not planner.names:
        raise InputError("no kernel is named", expected="`kernels` in the deployment, or --kernel",
                         next="invoke kernel.list")
    planner.probe()
    findings: list[Finding] = []
    for name in planner.names:
        needs = planner.needs(name)
        calls = {host: _call(fleet, host, need) for host, need in needs.items()}
        for host, result in fleet.call(calls).items():
            if result.bad:
                planner.results[host] = result
            else:
                findings.append(_finding(host, name, result.data["builds"][name]))
    fleet.emit(Findings("kernels", tuple(findings)))
    out = {}
    for host in fleet.hosts:
        bad = [item for item in findings if item.subject == host and item.verdict is Verdict.FAIL]
        if host in planner.results:
            out[host] = replace(planner.results[host], task="verify_kernels")
        elif bad:
            out[host] = Result(host, "verify_kernels", Status.FAILED, next="invoke kernel.build",
                               message=f"{plural(len(bad), 'finding')} in its kernels", module="verify_kernels")
    return {host: replace(result, data={**result.data, "exit_status": int(ExitStatus.FINDING)})
            if result.status is Status.FAILED else result for host, result in out.items()}


def _call(fleet: Fleet, host: str, need: Need) -> Call:
    return Call("kernel_build", {"action": "verify", "builds": [need.item(full=True)]},
                become=become(fleet.variables(host)), timeout=300.0 + need.recipe.proof.seconds, changes=False,
                blobs=(runner(), *need.files().values()))


def _finding(host: str, name: str, told: Mapping[str, Any]) -> Finding:
    if told.get("sound"):
        return Finding(f"kernel.{name}", host, Verdict.PASS, str((told.get("proof") or {}).get("proof")))
    result = told.get("result") or {}
    cause = cause_of([str(line) for line in result.get("tail") or []], result)
    return Finding(f"kernel.{name}", host, Verdict.FAIL, cause.cause if cause else str(told.get("reason")),
                   found=cause.line or None if cause else None, required="a build that is there and computes right",
                   mend="invoke kernel.build")
