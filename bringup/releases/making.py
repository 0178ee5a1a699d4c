"""`make_release`: from plan, environments and model to a release on every node, numbered, not yet in use."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import bringup
from bringup.base.errors import StepError
from bringup.base.events import Note, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts
from bringup.releases import chosen as chosen_release
from bringup.releases import document, images, storing
from bringup.releases.chosen import Chosen
from bringup.releases.document import Release, differences, short
from bringup.releases.flags import ask_engine
from bringup.releases.history import HostStore, merge
from bringup.releases.kernel_builds import with_kernels
from bringup.releases.layout import by_provision, made_for
from bringup.releases.places import Place, check_version, places_of
from bringup.releases.planned import Planned, deadlines_of, key_of, plan_now
from bringup.releases.traffic import named_inventory
from bringup.releases.vendor_env import with_vendor_environment
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls
from bringup.serving.engines.facts import engine_named
from bringup.serving.plan_digest import ProcessTemplate, launches, templates


def make_release(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Make the release of the inventory's plan and bring it to every node of its replicas.

    `args` has none. Nothing in use is touched. A release that is there already is found by its digest.
    """
    began = time.monotonic()
    planned = plan_now(fleet)
    _same_model(planned)
    if planned.plan.image:
        places = images.bring(fleet, planned)
    else:
        places = places_of(fleet, planned.plan.environment, planned.hosts)
        check_version(places, engine_named(planned.plan.engine).package, planned.plan.engine_version)
    planned = with_kernels(fleet, with_vendor_environment(fleet, planned, places))
    ask_engine(fleet, planned, places)
    shapes, values = shapes_of(fleet, planned, places)
    release = release_of(fleet, planned, places, shapes)
    stores = storing.stores_of(fleet, planned.hosts)
    known = all(release.digest in store.releases for store in stores.values())
    stored = storing.put(fleet, release, planned.hosts)
    head = planned.replicas[0].hosts[0]
    number = storing.give_number(fleet, release.digest, head, planned.hosts, stores)
    documents = launch_documents(planned, release, shapes, values)
    if not fleet.check or known:
        _write_launches(fleet, release.digest, documents)
    choice = _choice(fleet, planned, release, number, documents, stores)
    chosen_release.save(fleet, choice)
    if known and choice.previous not in (None, choice.digest) and not fleet.check:
        storing.mark(fleet, choice.digest, planned.hosts, "prepared")
    _tell(fleet, choice, stores, known)
    changed = {host for host, result in stored.items() if result.status is Status.CHANGED}
    seconds = time.monotonic() - began
    return {host: Result(host, "make_release", Status.CHANGED if host in changed else Status.OK, seconds=seconds,
                         data={"digest": release.digest, "number": number, "release": choice.label})
            for host in planned.hosts}


def _same_model(planned: Planned) -> None:
    """Raise when the model's files differ between nodes: one bad shard answers in exclamation marks."""
    seen: dict[str, list[str]] = {}
    for host, manifest in planned.manifests.items():
        seen.setdefault(repr(sorted((manifest or {}).items())), []).append(host)
    if len(seen) > 1:
        groups = sorted(seen.values(), key=len, reverse=True)
        raise StepError("the model's files are not the same on all nodes",
                        expected=f"as on {fold_hosts(groups[0])}",
                        found="; ".join(f"different on {fold_hosts(group)}" for group in groups[1:]),
                        next="invoke preflight (weights) names the file")


def shapes_of(fleet: Fleet, planned: Planned, places: Mapping[str, Place]
              ) -> tuple[dict[str, tuple[ProcessTemplate, ...]], dict[str, dict[str, str]]]:
    """The process templates of each replica, and the values of each host."""
    shapes: dict[str, tuple[ProcessTemplate, ...]] = {}
    values: dict[str, dict[str, str]] = {}
    roots = {host: str(fleet.paths(host).root) for host in planned.hosts}
    paths = {host: place.path for host, place in places.items()}
    for replica in planned.replicas:
        shapes[replica.name], own = templates(replica, roots, paths)
        for host, found in own.items():
            values.setdefault(host, {}).update(found)  # a host may hold several parts of a replica
    for host, place in places.items():
        if place.image:
            values[host].update(image=place.image, client=str((planned.plan.container or {}).get("client") or ""),
                                image_digest=place.digest)
        else:
            values[host]["environment"] = place.digest
            if place.cuda_home:
                values[host]["cuda_home"] = place.cuda_home
    return shapes, values


def release_of(fleet: Fleet, planned: Planned, places: Mapping[str, Place],
               shapes: Mapping[str, tuple[ProcessTemplate, ...]]) -> Release:
    """The release of a plan; nothing is stored."""
    plan = planned.plan
    digests = sorted({place.digest for place in places.values()})
    environment = {"name": plan.image or plan.environment, "digest": ",".join(digests)}
    manifest = next(iter(planned.manifests.values()), None)
    root = str(fleet.paths(planned.hosts[0]).root)
    model_path = str((fleet.variables(planned.hosts[0]).get("deployment") or {}).get("model_path") or plan.model_path)
    path = f"@{{root}}{model_path[len(root):]}" if model_path.startswith(root + "/") else model_path
    return document.make(plan, list(shapes.values()), environment, {"path": path, "manifest": manifest}, {
        "operator": fleet.operator, "made_at": round(time.time()), "bringup": bringup.__version__,
        "commit": _commit(fleet), "run": fleet.run_id, "inventory": fleet.inventory.shown_as,
    })


def _commit(fleet: Fleet) -> str | None:
    """The commit of the project's folder, None where it is no checkout."""
    try:
        done = subprocess.run(["git", "-C", str(fleet.project.root), "rev-parse", "HEAD"], capture_output=True,
                              text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def launch_documents(planned: Planned, release: Release, shapes: Mapping[str, tuple[ProcessTemplate, ...]],
                     values: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Replica -> host -> launch document. Raises StepError when a value is not known for a host."""
    box, wanted = release.identity.get("container"), planned.plan.manager
    fits = bool(box) == (wanted in calls.CONTAINERS)
    common = {"world_size": release.world_size, "served_name": release.served_name, "hardware": planned.plan.hardware,
              "model_path": release.identity["model"]["path"], "manager": wanted if fits else release.beside["manager"]}
    if box:
        common["container"] = {**box, "client_kind": common["manager"]}
    return {replica.name: launches(replica, shapes[replica.name], values, release.digest, common)
            for replica in planned.replicas}


def _write_launches(fleet: Fleet, digest: str, documents: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    for host, words in storing.put_launches(fleet, digest, list(documents.values())).items():
        fleet.emit(Note(f"differs from the last start here: {', '.join(words)}", host=host))


def _choice(fleet: Fleet, planned: Planned, release: Release, number: int,
            documents: Mapping[str, Mapping[str, Mapping[str, Any]]], stores: Mapping[str, HostStore]) -> Chosen:
    history = merge(stores)
    now = history.in_use
    entry = history.get(release.digest)
    key = key_of(fleet, planned.plan.api_key_variable)
    deadlines = deadlines_of(fleet, planned.plan)
    good = now if now is not None and now.digest != release.digest and now.state == "good" else None
    fits = good is not None and made_for(good.release, planned.replicas)
    other = by_provision(good.release, good.label, named_inventory(fleet)) if good is not None and not fits else ""
    choice = Chosen(
        release.digest, number, planned.plan.manager, documents, previous=now.digest if now else None,
        previous_number=now.number if now else None,
        changes=tuple(differences(now.release, release)) if now and now.digest != release.digest else (),
        undo=fits and good is not None and set(planned.hosts) <= set(good.good_on), undo_else=other,
        seconds=(entry.seconds if entry else None) or (now.seconds if now else None),
        deadlines=dict(deadlines.__dict__), left_out=dict(planned.left_out),
        key_variable=key[0] if key else None,
    )
    return replace(choice, previous=None, previous_number=None) if now is None else choice


def _tell(fleet: Fleet, choice: Chosen, stores: Mapping[str, HostStore], known: bool) -> None:
    using = [host for host, store in stores.items() if store.current == choice.digest]
    if len(using) == len(stores):
        text = "in use, nothing differs"
    elif choice.previous is None:
        text = "the first release here"
    elif choice.previous == choice.digest:
        text = f"in use on {fold_hosts(using)}, not yet on the others"
    else:
        text = f"differs from {choice.previous_label}: {'; '.join(choice.changes[:3]) or 'nothing that is told'}"
    if known and choice.previous != choice.digest and len(using) != len(stores):
        text += " (made before)"
    if fleet.check and not known:
        text = f"would be made: {text}"
    fleet.emit(StageSummary(choice.label, f"{text}   {short(choice.digest)}"))
    for name, reason in choice.left_out.items():
        fleet.emit(Note(f"{name} is left out: {reason}", level="warn"))
