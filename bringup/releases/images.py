"""The image of a plan on its hosts: brought where it is missing, the same everywhere, named by what is sure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.base.errors import StepError, UnreachableError
from bringup.base.events import Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts
from bringup.releases.places import Place
from bringup.releases.planned import Planned
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls

PULL_SECONDS = 7200.0
"""Images of engines have 10 to 30 GB."""


def bring(fleet: Fleet, planned: Planned) -> dict[str, Place]:
    """The image on every host of the plan, pulled or loaded where it is not.

    Raises StepError where it cannot be brought or hosts have different images under one name, UnreachableError for a
    host that is gone.
    """
    plan, box = planned.plan, planned.plan.container or {}
    image = str(plan.image)
    client = str(box.get("client") or plan.manager)
    results: dict[str, Result] = dict(fleet.call({
        host: calls.call_of(fleet, host, "container_image", {
            "action": "bring", "client": client, "image": image, "archive": _archive(fleet, host)},
            changes=True, timeout=PULL_SECONDS) for host in planned.hosts},
        on_line=lambda host, text: fleet.emit(Progress("image", text[:120], host=host))))
    bad = calls.broken(results)
    if bad:
        kind: type[StepError | UnreachableError] = UnreachableError if len(calls.gone(bad)) == len(bad) else StepError
        first = next(iter(bad.values()))
        raise kind(f"the image {image} is not ready", host=fold_hosts(list(bad)),
                   details=[f"{host}: {calls.first_line(result)}" for host, result in bad.items()],
                   found=str(first.found) if first.found else None, next=str(first.next) if first.next else None)
    changed = [host for host, result in results.items() if result.status is Status.CHANGED]
    fleet.emit(StageSummary("image", f"{image}: " + (f"brought to {fold_hosts(changed)}" if changed
                                                     else f"there on {fold_hosts(list(results))}")))
    return named(image, {host: result.data for host, result in results.items()})


def _archive(fleet: Fleet, host: str) -> str | None:
    value = (fleet.variables(host).get("deployment") or {}).get("image_archive")
    return str(value) if value else None


def named(image: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Place]:
    """A Place per host. The digest is the registry's where every host has it, else that of the layers.

    A host runs the image by the registry's digest, or by the id that the host itself gives it. Raises StepError when
    hosts have different images.
    """
    layers: dict[str, list[str]] = {}
    for host, data in found.items():
        layers.setdefault(str(data.get("layers")), []).append(host)
    if len(layers) > 1:
        groups = sorted(layers.values(), key=len, reverse=True)
        raise StepError(f"{image} is not the same image on all hosts", expected=f"as on {fold_hosts(groups[0])}",
                        found="; ".join(f"other layers on {fold_hosts(group)}" for group in groups[1:]),
                        next="name it by its digest, or load the same archive everywhere")
    digests = {host: _digest_of(image, data) for host, data in found.items()}
    common = set(digests.values())
    if len(common) == 1 and (only := next(iter(common))) is not None:
        return {host: Place("", only.split("@", 1)[1], image=only) for host in found}
    return {host: Place("", f"layers:{data.get('layers')}", image=str(data.get("id") or image))
            for host, data in found.items()}


def _digest_of(image: str, data: Mapping[str, Any]) -> str | None:
    """`NAME@sha256:...` of the image's own name, None where no registry gave one."""
    name = image.split("@", 1)[0]
    last = name.rsplit("/", 1)[-1]
    if ":" in last:
        name = name[: -len(last)] + last.split(":", 1)[0]
    digests = [str(digest) for digest in data.get("digests") or ()]
    if "@" in image:
        return next((digest for digest in digests if digest.endswith(image.split("@", 1)[1])), None)
    return next((digest for digest in digests if digest.split("@", 1)[0] == name), None)
