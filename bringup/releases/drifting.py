"""`find_drift`: asks every host what runs and what lies there, and judges it against what was approved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.errors import FindingError
from bringup.base.events import Findings, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, plural
from bringup.base.verdicts import Finding, Verdict
from bringup.releases import storing
from bringup.releases.approval import Approval, approval_of, drift_findings
from bringup.releases.contract import check_contract
from bringup.releases.drift import judge
from bringup.releases.history import History, HostStore, merge
from bringup.releases.planned import looked_at
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls


def find_drift(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Approved against running on every node of a replica; nothing is changed.

    `args`: compare (bool): judge nothing, give each host's facts as its result's data; contract (bool): ask the
    approved checks now, `times` times. Raises FindingError (4) where something drifted or could not be read.
    """
    plan, members = looked_at(fleet)
    hosts = [host for nodes in members.values() for host in nodes]
    stores = storing.stores_of(fleet, hosts)
    secrets = [plan.api_key_variable] if plan.api_key_variable else []
    looks = calls.call_all(fleet, "live_process", {host: {"action": "look", "secrets": secrets} for host in hosts},
                           changes=False)
    bad = calls.broken(looks)
    seen = {host: result.data for host, result in looks.items() if host not in bad}
    packages = _packages(fleet, seen, stores)
    history = merge(stores)
    if args.get("compare"):
        return {host: Result(host, "find_drift", Status.OK, data={
            "facts": _facts(data, stores[host], packages.get(host, {}))}) for host, data in seen.items()}
    labels = {entry.digest: entry.label for entry in history.entries}
    found = [Finding("drift.host", host, Verdict.UNKNOWN, calls.first_line(result)) for host, result in bad.items()]
    for host, data in seen.items():
        found += judge(host, data, stores[host], packages.get(host, {}), labels)
    if history.mixed:
        found.insert(0, Finding("drift.release", fold_hosts(hosts), Verdict.FAIL, "hosts use different releases",
                                mend="invoke provision finishes the deploy, invoke rollback undoes it"))
    found += _contract(fleet, args, members, seen, stores, history)
    fleet.emit(Findings("drift", tuple(found)))
    blocking = [finding for finding in found if finding.blocks]
    label = history.in_use.label if history.in_use else "no release"
    told = f"drifted on {fold_hosts(sorted({f.subject for f in blocking}))}" if blocking else \
        f"as approved on {plural(len(hosts), 'host')}"
    fleet.emit(StageSummary(label, told))
    if blocking:
        raise FindingError(f"{label} {told}", found=blocking[0].summary, next=blocking[0].mend)
    return {host: Result(host, "find_drift", Status.OK) for host in hosts}


def _contract(fleet: Fleet, args: Mapping[str, Any], members: Mapping[str, Sequence[str]],
              seen: Mapping[str, Mapping[str, Any]], stores: Mapping[str, HostStore], history: History
              ) -> list[Finding]:
    """What became of the approved contract, asked again where `args` says so. Raises FindingError without one."""
    if history.in_use is None:
        return []
    digest, silent = history.in_use.digest, []
    if args.get("contract"):
        approval = approval_of(stores, digest)
        if approval is None:
            raise FindingError("there is no approved contract to ask", found=f"{history.in_use.label} in use",
                               next="invoke verify --approve")
        silent = _ask_again(fleet, members, seen, approval, int(args.get("times") or 1))
        stores = storing.stores_of(fleet, list(stores))
    return silent + drift_findings(stores, digest, fold_hosts(list(stores)))


def _ask_again(fleet: Fleet, members: Mapping[str, Sequence[str]], seen: Mapping[str, Mapping[str, Any]],
               approval: Approval, times: int) -> list[Finding]:
    """Ask the approved checks now; the hosts remember how it went. A finding for each replica that cannot be asked."""
    silent = [name for name, hosts in members.items() if not any(
        process["state"] == "running" for process in (seen.get(hosts[0]) or {"processes": {}})["processes"].values())]
    asked = [name for name in members if name not in silent]
    if asked:
        try:
            check_contract(fleet, {"only": list(approval.checks), "times": times, "replicas": asked})
        except FindingError as error:
            # what failed is told as drift, from what the hosts remember of it
            fleet.emit(StageSummary("contract", error.what))
    return [Finding("drift.contract", name, Verdict.UNKNOWN, f"the head {members[name][0]} does not run: there is "
                    "nothing to ask", mend="invoke start") for name in silent]


def _packages(fleet: Fleet, seen: Mapping[str, Mapping[str, Any]], stores: Mapping[str, HostStore]
              ) -> dict[str, dict[str, Mapping[str, Any]]]:
    """host -> environment folder -> what its packages are against how they were built."""
    asked: dict[str, dict[str, str]] = {}
    for host, data in seen.items():
        for process in data["processes"].values():
            launch = process.get("launch") or {}
            if launch.get("env_path") and launch.get("environment"):
                asked.setdefault(host, {})[str(launch["env_path"])] = str(launch["environment"])
    results = calls.call_all(fleet, "live_process", {
        host: {"action": "packages", "environments": environments} for host, environments in asked.items()},
        changes=False, timeout=600)
    storing.demand(results, "the environments cannot be looked at")
    return {host: dict(result.data["environments"]) for host, result in results.items()}


def _facts(data: Mapping[str, Any], store: HostStore, packages: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    release = store.releases.get(str(data["current"]))
    versions: dict[str, str] = {}
    for item in packages.values():
        versions.update(item.get("versions") or {})
    return {"release": release.document() if release else None, "kernel": data["kernel"], "drivers": data["drivers"],
            "packages": data["packages"], "versions": versions}
