"""What set_env scripts of CANN and NNAL set, into the processes of a plan: the same on all hosts, or no release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bringup.base.errors import StepError
from bringup.base.text import fold_hosts
from bringup.releases.places import Place
from bringup.releases.planned import Planned
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.plan import ProcessPlan


def with_vendor_environment(fleet: Fleet, planned: Planned, places: Mapping[str, Place]) -> Planned:
    """The plan with the scripts' variables in every process, under those that recipe and site set.

    Unchanged where the plan has no scripts. Raises StepError where a script is missing or hosts get other values.
    """
    scripts = list(planned.plan.facts.get("set_env") or ())
    if not scripts:
        return planned
    client = (planned.plan.container or {}).get("client") or planned.plan.manager
    results = calls.call_all(fleet, "set_env", {
        host: {"scripts": scripts, "image": places[host].image or None,
               "client": str(client) if places[host].image else None} for host in planned.hosts},
        changes=False, timeout=180)
    bad = calls.broken(results)
    if bad:
        first = next(iter(bad.values()))
        raise StepError("the set_env scripts cannot be read", host=fold_hosts(list(bad)),
                        details=[f"{host}: {calls.first_line(result)}" for host, result in bad.items()],
                        found=str(first.found) if first.found else None, next=str(first.next) if first.next else None)
    found = {host: {str(k): str(v) for k, v in result.data["variables"].items()} for host, result in results.items()}
    _demand_equal(found)
    replicas = tuple(replace(replica, processes=tuple(_with(process, found[process.host])
                                                      for process in replica.processes))
                     for replica in planned.replicas)
    return replace(planned, replicas=replicas)


def _demand_equal(found: Mapping[str, Mapping[str, str]]) -> None:
    (first, values), *others = found.items()
    for host, other in others:
        for name in sorted({*values, *other}):
            if values.get(name) != other.get(name):
                raise StepError(f"the set_env scripts set {name} differently on {first} and {host}",
                                expected=f"{first}: {values.get(name, 'not set')}",
                                found=f"{host}: {other.get(name, 'not set')}",
                                next="install the same CANN and NNAL under the same folder on all nodes")


def _with(process: ProcessPlan, variables: Mapping[str, str]) -> ProcessPlan:
    return replace(process, env={**{name: (value, "vendor") for name, value in variables.items()}, **process.env})
