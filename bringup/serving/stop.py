"""Stop processes of a replica on all its nodes, and say what is left."""

from __future__ import annotations

from collections.abc import Mapping

from bringup.base.errors import BringupError, StepError, UnreachableError
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls


def stop_processes(fleet: Fleet, names: Mapping[str, str], manager: str, grace: float) -> dict[str, Result]:
    """TERM, grace, KILL to the whole group on every host (host -> process name) side by side.

    Raises StepError when something outlives KILL or a port stays taken, UnreachableError when a host is gone; the
    others are stopped all the same.
    """
    results = calls.call_all(fleet, "engine_process", {
        host: {"action": "stop", "name": name, "manager": manager, "grace": grace} for host, name in names.items()},
        changes=True, timeout=grace + 90)
    bad = calls.broken(results)
    if bad:
        kind: type[BringupError] = UnreachableError if len(calls.gone(bad)) == len(bad) else StepError
        raise kind("not everything could be stopped", host=fold_hosts(list(bad)),
                   details=[f"{host}: {calls.first_line(result)}" + (f" ({result.found})" if result.found else "")
                            for host, result in bad.items()],
                   next=next((str(result.next) for result in bad.values() if result.next), "invoke status"))
    for host, result in results.items():
        for item in result.data.get("taken") or ():
            raise StepError(f"port {item['port']} is still taken after the stop", host=host,
                            found=f"process {item['pid']} {item['command']}", next="end that process, then start")
    return results


def changed_hosts(results: Mapping[str, Result]) -> list[str]:
    """Hosts where something was running."""
    return [host for host, result in results.items() if result.status is Status.CHANGED]
