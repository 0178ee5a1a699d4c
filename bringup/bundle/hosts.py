"""The controller half of `bring_bundle`: system packages and images of a bundle, on the hosts that ask for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from bringup.base.errors import InputError
from bringup.base.events import Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, plural
from bringup.environments.bringing import become_of
from bringup.run.actions import Blob, Call, Fleet, ModuleSpec

_SECONDS = 7200.0


def modules() -> list[ModuleSpec]:
    """`bring_bundle`; its host half is `bundle_content`."""
    return [ModuleSpec("bring_bundle", {}, agent="bundle_content", fleet_action=bring_bundle,
                       help="install the system packages and images that a bundle carries")]


def bring_bundle(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """FleetAction: what `bundle` of a host names (system_packages, images), taken from the bundle that is used."""
    calls: dict[str, Call] = {}
    for host in fleet.hosts:
        variables = fleet.variables(host)
        if variables.get("bringup_bundle"):
            call = _call(variables)
            if call is not None:
                calls[host] = call
    if not calls:
        return {}
    fleet.emit(Progress("bundle", f"looking on {plural(len(calls), 'host')}"))
    done = fleet.call(calls, on_line=lambda host, text: fleet.emit(Progress("bundle", text, host=host)))
    fleet.emit(Progress("bundle", "", done=True))
    fleet.emit(StageSummary("bundle", _summary(done, checked=fleet.check)))
    return done


def _call(variables: Mapping[str, Any]) -> Call | None:
    section = variables.get("bundle") or {}
    names = (section.get("system_packages") or {}).get("names") or []
    names = [names] if isinstance(names, str) else list(names)
    images = section.get("images") or []
    images = {PurePosixPath(str(item)).name for item in ([images] if isinstance(images, str) else images)}
    if not names and not images:
        return None
    others = _others(Path(str(variables["bringup_bundle"])))
    blobs: list[Blob] = []
    sets = _sets(others, names, blobs)
    loaded = []
    for item in others:
        if item["kind"] == "image" and PurePosixPath(item["path"]).name in images:
            blobs.append(_blob(item))
            loaded.append({"layers": item["about"]["layers"], "tags": item["about"]["tags"].split(),
                           "digest": item["sha256"]})
    if not sets and not loaded:
        return None
    deployment = variables.get("deployment") or {}
    client = (deployment.get("container") or {}).get("client") or deployment.get("manager")
    args = {"packages": sets, "images": loaded, "client": str(client or "docker")}
    return Call("bundle_content", args, become=become_of(variables), timeout=_SECONDS,
                blobs=tuple({blob.digest: blob for blob in blobs}.values()))


def _sets(others: list[dict[str, Any]], names: list[str], blobs: list[Blob]) -> list[dict[str, Any]]:
    sets = []
    for index in others:
        carried = index["about"].get("names", "").split() if index["kind"] == "debs" else []
        mine = [name for name in names if name in carried]
        if not mine:
            continue
        key = (index["about"]["release"], index["about"]["architecture"])
        debs = [item for item in others if item["kind"] == "deb"
                and (item["about"]["release"], item["about"]["architecture"]) == key]
        blobs += [_blob(item) for item in (index, *debs)]
        sets.append({"release": key[0], "architecture": key[1], "names": mine, "index": index["sha256"],
                     "files": {PurePosixPath(item["path"]).name: item["sha256"] for item in debs}})
    return sets


def _others(supplies: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads(supplies.read_text())["others"])
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"the unpacked bundle cannot be read: {error}", where=str(supplies),
                         next="give the bundle again: --bundle FILE") from None


def _blob(item: Mapping[str, Any]) -> Blob:
    return Blob(str(item["sha256"]), int(item["size"]), Path(item["file"]))


def _summary(done: Mapping[str, Result], *, checked: bool) -> str:
    changed = [host for host, result in done.items() if result.status is Status.CHANGED]
    failed = [host for host, result in done.items() if result.bad]
    parts = []
    if changed:
        names = list(dict.fromkeys(str(name).split()[0] for host in changed
                                   for key in ("packages", "images") for name in done[host].data.get(key) or []))
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        parts.append(f"{'would bring' if checked else 'brought'} {shown} to {fold_hosts(changed)}")
    if failed:
        parts.append(f"FAILED on {fold_hosts(failed)}")
    return "; ".join(parts) or f"there already on {fold_hosts(list(done))}"
