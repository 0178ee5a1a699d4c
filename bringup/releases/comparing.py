"""`compare_plan`: what a provision would change of what these hosts use now; nothing is written, built or stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bringup.base.events import Findings, Note, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, plural
from bringup.environments.build import find_environments
from bringup.releases import storing
from bringup.releases.caches import tell_caches
from bringup.releases.document import Release, differences
from bringup.releases.history import HostStore, merge
from bringup.releases.images import named
from bringup.releases.kernel_builds import with_kernels
from bringup.releases.making import release_of, shapes_of
from bringup.releases.places import Place
from bringup.releases.planned import Planned, plan_now
from bringup.releases.vendor_env import with_vendor_environment
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.plan_digest import cache_folder

NOT_YET = "not there yet"


@dataclass(frozen=True)
class Difference:
    """The planned release against the one in use. `lines` say what differs; `values` what differs on which hosts."""

    now: str | None
    same: bool
    lines: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()


def compare_plan(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """The plan against the release in use, as release.diff tells it, and per-host values against the last start.

    `args` has none. A host's result holds `in_use`, `same`, `differences` and `values`.
    """
    planned = plan_now(fleet)
    places = _places(fleet, planned)
    if all(place.digest != NOT_YET for place in places.values()):
        planned = with_kernels(fleet, with_vendor_environment(fleet, planned, places))
    shapes, values = shapes_of(fleet, planned, places)
    release = release_of(fleet, planned, places, shapes)
    stores = storing.stores_of(fleet, planned.hosts)
    found = compare(release, values, stores)
    _tell(fleet, found, [host for host, place in places.items() if place.digest == NOT_YET])
    tell_caches(fleet, {
        host: cache_folder(values[host], planned.plan.hardware) for host, place in places.items()
        if place.digest != NOT_YET and (planned.plan.container or {}).get("user") != "image"})
    data = {"in_use": found.now, "same": found.same, "differences": list(found.lines)}
    return {host: Result(host, "compare_plan", Status.OK, data={
        **data, "values": [text for name, text in found.values if name == host]}) for host in planned.hosts}


def compare(release: Release, values: Mapping[str, Mapping[str, str]], stores: Mapping[str, HostStore]) -> Difference:
    """What differs between a release that would be made and what the stores say is in use."""
    history = merge(stores)
    now = history.in_use
    if now is None:
        mixed = "hosts use different releases" if history.mixed else None
        return Difference(mixed, False)
    lines = tuple(differences(now.release, release)) if now.digest != release.digest else ()
    changed: list[tuple[str, str]] = []
    for host, fresh in values.items():
        launches = stores[host].launches.get(now.digest, {}) if host in stores else {}
        before = next((document.get("values") for document in launches.values()), None)
        if before is None:
            changed.append((host, f"{now.label} was never prepared here"))
            continue
        unknown = {"cuda_home"} - set(before)  # a launch file that an older bringup wrote says nothing of it
        for name in sorted({*before, *fresh} - {"environment", "env", "image", "image_digest", "client"} - unknown):
            if before.get(name) != fresh.get(name):
                changed.append((host, f"{name} {before.get(name, 'none')} -> {fresh.get(name, 'none')}"))
    return Difference(now.label, now.digest == release.digest and not changed, lines, tuple(changed))


def _places(fleet: Fleet, planned: Planned) -> dict[str, Place]:
    """Where environment or image is, or would be; nothing is brought."""
    plan = planned.plan
    if plan.image:
        client = str((plan.container or {}).get("client") or plan.manager)
        looked = calls.call_all(fleet, "container_image", {
            host: {"action": "look", "client": client, "image": plan.image} for host in planned.hosts}, changes=False)
        storing.demand(looked, "the images of the hosts cannot be looked at")
        there = {host: result.data for host, result in looked.items() if result.data.get("id")}
        if len(there) == len(looked):
            return named(plan.image, there)
        return {host: Place("", NOT_YET, image=plan.image) for host in planned.hosts}
    found = find_environments(fleet, [plan.environment])
    out = {}
    for host in planned.hosts:
        item = found.get(host, {}).get(plan.environment)
        out[host] = Place(item.path, item.digest, item.packages, cuda_home=item.cuda_home) if item else \
            Place(f"/{NOT_YET}", NOT_YET)
    return out


def _tell(fleet: Fleet, found: Difference, waiting: Sequence[str]) -> None:
    rows = [["plan", line] for line in found.lines] + [[host, text] for host, text in _folded(found.values)]
    fleet.emit(Findings("plan", (), {"differs": rows}))
    if waiting:
        fleet.emit(Note("its environment or image is not there yet", host=fold_hosts(list(waiting))))
    if found.now is None:
        text = "no release is in use here yet: all of it is new"
    elif found.same:
        text = "the plan is what is in use; a provision restarts nothing"
    elif found.lines or found.values:
        text = f"{plural(len(found.lines) + len(found.values), 'difference')} to the plan"
    else:
        text = "in use; the plan cannot be held against it"
    fleet.emit(StageSummary(found.now or "in use", text))


def _folded(values: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Equal lines of many hosts as one."""
    hosts: dict[str, list[str]] = {}
    for host, text in values:
        hosts.setdefault(text, []).append(host)
    return [(fold_hosts(names), text) for text, names in hosts.items()]
