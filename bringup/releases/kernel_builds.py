"""The kernels of the deployment, put before the packages of the environment in every process of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bringup.environments.kernels.finding import FoundKernel, kernels_of
from bringup.releases.planned import Planned
from bringup.run.actions import Fleet
from bringup.serving.plan import ProcessPlan


def with_kernels(fleet: Fleet, planned: Planned) -> Planned:
    """The plan with `PYTHONPATH` naming the builds of each process's host, so that a release is named by them too.

    Unchanged where the deployment names no kernels, and for containers, whose image holds its own. Raises StepError
    when a build is not there.
    """
    if planned.plan.image:
        return planned
    found = kernels_of(fleet, planned.hosts)
    if not any(found.values()):
        return planned
    replicas = tuple(replace(replica, processes=tuple(_with(process, found[process.host])
                                                      for process in replica.processes))
                     for replica in planned.replicas)
    return replace(planned, replicas=replicas)


def _with(process: ProcessPlan, found: Sequence[FoundKernel]) -> ProcessPlan:
    sites = [item.site for item in found if item.site]
    before = process.env.get("PYTHONPATH", ("", ""))[0]
    if not sites:
        return process
    return replace(process, env={**process.env, "PYTHONPATH": (":".join([*sites, *filter(None, [before])]), "site")})
