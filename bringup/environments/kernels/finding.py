"""Where each host has the kernels of its deployment: for releases, which put them before the environment's packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup.base.errors import StepError
from bringup.base.text import fold_hosts
from bringup.environments.kernels.planning import Planner, become
from bringup.run.actions import Call, Fleet


@dataclass(frozen=True)
class FoundKernel:
    """A build on a host. `site` is the folder that its Python packages lie in, None for one that has programs only."""

    host: str
    name: str
    digest: str
    path: str
    sound: bool
    site: str | None
    reason: str | None = None


def kernels_of(fleet: Fleet, hosts: Sequence[str]) -> dict[str, list[FoundKernel]]:
    """The kernels of the deployment by host, in its order; empty where it names none. Raises StepError when a host
    lacks one or cannot have it. In check mode one that is still to be built has the place that it will have."""
    planner = Planner(fleet, ())
    out: dict[str, list[FoundKernel]] = {host: [] for host in hosts}
    if not planner.names:
        return out
    planner.probe(hosts)
    for name in planner.names:
        needs = {host: need for host, need in planner.needs(name).items() if host in out}
        calls = {host: Call("kernel_build", {"action": "find", "builds": [need.item(full=False)]},
                            become=become(fleet.variables(host)), timeout=120.0, changes=False)
                 for host, need in needs.items()}
        for host, result in fleet.call(calls).items():
            if result.bad:
                planner.results[host] = result
                continue
            told, need = result.data["builds"][name], needs[host]
            importable = any(pattern.startswith("site/") for pattern in need.recipe.yields)
            out[host].append(FoundKernel(host, name, need.digest, str(told["path"]), bool(told["sound"]),
                                         f"{told['path']}/site" if importable else None, told.get("reason")))
    for host, result in planner.results.items():
        if host in out:
            raise StepError(result.message or "the kernels cannot be looked at", host=host, expected=result.expected,
                            found=result.found, next=result.next or "invoke kernel.build")
    missing = [item for rows in out.values() for item in rows if not item.sound and not fleet.check]
    if missing:
        names = sorted({item.name for item in missing})
        raise StepError(f"the kernel {', '.join(names)} is not ready", host=fold_hosts([i.host for i in missing]),
                        found=missing[0].reason, next="invoke kernel.build")
    return out
