"""The image of a plan on its hosts: brought where it is missing, the same everywhere, named by what is sure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from bringup.base.errors import StepError, UnreachableError
from bringup.base.events import Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts, plural
from bringup.releases.places import Place
from bringup.releases.planned import Planned
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls

PULL_SECONDS = 7200.0
"""Images of engines have 10 to 30 GB."""
_FOLLOW = 2.0
"""Seconds that a host waits for news of its job before it answers."""
_LAYER = re.compile(r"^([0-9a-f]{12}): (.+?)\s*$", re.M)
_BLOB = re.compile(r"^Copying (?:blob|config) (?:sha256:)?([0-9a-f]{10,64})\b(.*)$", re.M)
_HERE = ("Pull complete", "Already exists", "Mounted from")


def bring(fleet: Fleet, planned: Planned) -> dict[str, Place]:
    """The image on every host of the plan, pulled or loaded by a job where it is not: the job goes on when this run is
    cut off, and the next run follows it.

    Raises StepError where it cannot be brought or hosts have different images under one name, UnreachableError for a
    host that is gone.
    """
    plan, box = planned.plan, planned.plan.container or {}
    image = str(plan.image)
    client = str(box.get("client") or plan.manager)
    args = {host: {"client": client, "image": image, "archive": _archive(fleet, host)} for host in planned.hosts}

    def ask(action: str, hosts: Iterable[str]) -> dict[str, Result]:
        found = calls.call_all(fleet, "container_image", {host: {**args[host], "action": action} for host in hosts},
                               changes=True, timeout=300)
        _demand(image, found)
        return found

    results = ask("start", planned.hosts)
    jobs = {host: str(result.data["job"]) for host, result in results.items() if result.data.get("job")}
    for host, name in jobs.items():
        what = "followed: it was under way already" if results[host].data.get("attached") else "under way"
        fleet.emit(Progress("image", f"{what}, job {name}", host=host))
    _follow(fleet, image, jobs, {host: args[host]["archive"] for host in jobs})
    results.update(ask("outcome", jobs))
    changed = [host for host, result in results.items() if result.status is Status.CHANGED]
    brought = "would be brought to" if fleet.check else "brought to"
    fleet.emit(StageSummary("image", f"{image}: " + (f"{brought} {fold_hosts(changed)}" if changed
                                                     else f"there on {fold_hosts(list(results))}")))
    return named(image, {host: result.data for host, result in results.items()})


def _follow(fleet: Fleet, image: str, jobs: Mapping[str, str], archives: Mapping[str, str | None]) -> None:
    """Read what the jobs print until each has ended. Raises when a host is gone or a job takes too long."""
    began = time.monotonic()
    offsets, texts, told = dict.fromkeys(jobs, 0), dict.fromkeys(jobs, ""), dict.fromkeys(jobs, "")
    live = dict(jobs)
    while live:
        found = calls.call_all(fleet, "job", {
            host: {"action": "follow", "id": name, "offset": offsets[host], "wait": _FOLLOW}
            for host, name in live.items()}, changes=False, timeout=120)
        gone = calls.gone(found)
        if gone:
            raise UnreachableError(f"the image {image} is not ready", host=fold_hosts(list(gone)),
                                   found=f"it is brought there by the job {live[gone[0]]}, which goes on without us",
                                   next="the same command again follows it")
        _demand(image, found)
        for host, result in found.items():
            offsets[host] = int(result.data.get("offset") or 0)
            texts[host] += str(result.data.get("text") or "")
            line = pulled(texts[host]) or (
                f"loading {archives[host]}, {duration(time.monotonic() - began)}" if archives[host] else "")
            if line and line != told[host]:
                told[host] = line
                fleet.emit(Progress("image", line, host=host))
            if result.data.get("state") not in ("running", "starting"):
                live.pop(host)
        if live and time.monotonic() - began > PULL_SECONDS:
            raise StepError(f"the image {image} is not ready after {duration(PULL_SECONDS)}",
                            host=fold_hosts(list(live)), found=f"the job {next(iter(live.values()))} still runs",
                            next="look at the way to the registry; the same command again follows the job")


def pulled(text: str) -> str:
    """How far a pull is, of what Docker or Podman printed so far: `12 of 30 layers here`; empty when nothing tells."""
    layers = {name: state for name, state in _LAYER.findall(text) if not state.startswith("Pulling from")}
    if layers:
        here = sum(state.startswith(_HERE) for state in layers.values())
        return f"{here} of {plural(len(layers), 'layer')} here"
    blobs: dict[str, bool] = {}
    for name, rest in _BLOB.findall(text):
        blobs[name] = blobs.get(name, False) or "done" in rest or "already exists" in rest
    return f"{sum(blobs.values())} of {plural(len(blobs), 'layer')} here" if blobs else ""


def _demand(image: str, results: Mapping[str, Result]) -> None:
    bad = calls.broken(results)
    if not bad:
        return
    kind: type[StepError | UnreachableError] = UnreachableError if len(calls.gone(bad)) == len(bad) else StepError
    first = next(iter(bad.values()))
    raise kind(f"the image {image} is not ready", host=fold_hosts(list(bad)),
               details=[f"{host}: {calls.first_line(result)}" for host, result in bad.items()],
               found=str(first.found) if first.found else None, next=str(first.next) if first.next else None)


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
