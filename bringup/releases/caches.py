"""`spread_caches`: what engines compiled on one host brought to its likes before they start, so that each kernel is
compiled once in a cluster and not once on every node.

Likes have the same folder (environment, kind of hardware, `bringup_root`), the same processor and devices. A host that
holds something already is left alone: its engines go on with their own. A cache decides nothing but time, so a spread
that fails is a warning and never stops a start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bringup.base.events import Findings, Note, Progress, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts, plural, size
from bringup.releases import chosen as chosen_release
from bringup.run.actions import Fleet
from bringup.run.spreading import Spread, spread
from bringup.serving import engine_calls as calls

TASK = "spread_caches"
TITLE = "compile caches"


@dataclass(frozen=True)
class Held:
    """What one host holds in its folder: `machine` tells processor, instructions and devices; `out` is where an
    archive of it goes."""

    host: str
    path: str
    files: int
    bytes: int
    machine: str
    out: str


@dataclass(frozen=True)
class Way:
    """One host's caches to its likes that have none."""

    source: Held
    takers: tuple[str, ...]


def cache_folders(launches: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, str]:
    """host -> the folder of its caches, from launch documents (replica -> host -> document). Pure.

    None where the site gave its engines another place, and for containers that run as the image's own user.
    """
    out: dict[str, str] = {}
    for documents in launches.values():
        for host, document in documents.items():
            base = f"{document.get('values', {}).get('root')}/cache/compiled/"
            found = str(document.get("env", {}).get("TRITON_CACHE_DIR") or "")
            if found.startswith(base) and found.count("/") == base.count("/") + 1:
                out[host] = found.rpartition("/")[0]
    return out


def ways(held: Mapping[str, Held]) -> list[Way]:
    """Who gives to whom: of each kind the host with most to those with nothing. Pure."""
    kinds: dict[tuple[str, str], list[Held]] = {}
    for item in held.values():
        kinds.setdefault((item.path, item.machine), []).append(item)
    out = []
    for items in kinds.values():
        fullest = max(items, key=lambda item: item.bytes)
        takers = tuple(item.host for item in items if not item.files)
        if fullest.files and takers:
            out.append(Way(fullest, takers))
    return out


def look_at(fleet: Fleet, folders: Mapping[str, str]) -> dict[str, Held]:
    """What each host holds; one that cannot say is left out with a warning."""
    results = calls.call_all(fleet, "compiled_cache", {host: {"action": "look", "path": path}
                                                       for host, path in folders.items()}, changes=False)
    for host, result in calls.broken(results).items():
        fleet.emit(Note(f"its {TITLE} cannot be looked at: {calls.first_line(result)}", host=host, level="warn"))
    return {host: Held(host, folders[host], int(result.data["files"]), int(result.data["bytes"]),
                       str(result.data["machine"]), str(result.data["folder"]))
            for host, result in results.items() if not result.bad}


def tell_caches(fleet: Fleet, folders: Mapping[str, str]) -> None:
    """What a plan shows of them: where they lie, who holds how much, what a start would bring where."""
    held = look_at(fleet, folders)
    rows: dict[tuple[str, str], list[str]] = {}
    coming = {host: way.source.host for way in ways(held) for host in way.takers}
    for host, item in held.items():
        text = f"{size(item.bytes)} in {plural(item.files, 'file')}" if item.files else "empty"
        if host in coming:
            text += f"; a start brings those of {coming[host]}"
        rows.setdefault((item.path, text), []).append(host)
    fleet.emit(Findings("plan", (), {"caches": [[fold_hosts(hosts), path, text]
                                                for (path, text), hosts in rows.items()]}))


def spread_caches(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """FleetAction of `spread_caches`: before the chosen release starts. `args` has none.

    Not in a rollback, whose hosts started that release before and which is not to wait.
    """
    chosen = chosen_release.needed(fleet)
    folders = {} if chosen.leaving else cache_folders(chosen.launches)
    results: dict[str, Result] = {}
    if len(folders) < 2:
        return results
    for way in ways(look_at(fleet, folders)):
        if fleet.check:
            fleet.emit(StageSummary(TITLE, f"would bring {size(way.source.bytes)} from {way.source.host} to "
                                           f"{fold_hosts(list(way.takers))}"))
            results |= {host: Result(host, TASK, Status.CHANGED) for host in way.takers}
        else:
            results |= _bring(fleet, way)
    return results


def _bring(fleet: Fleet, way: Way) -> dict[str, Result]:
    """Packed at the source, spread, unpacked where they are missing; the archives go again."""
    source = way.source
    fleet.emit(Progress(TITLE, f"packing {size(source.bytes)} on {source.host}"))
    packed = calls.call_all(fleet, "compiled_cache", {source.host: {"action": "pack", "path": source.path}},
                            changes=True, timeout=900)[source.host]
    out: dict[str, Result] = {}
    if packed.bad:
        _warn(fleet, source.host, packed)
    elif packed.data["files"]:  # none where all of it was written just now
        out = _spread(fleet, way, packed)
    fleet.emit(Progress(TITLE, "done", done=True))
    calls.call_all(fleet, "compiled_cache", {host: {"action": "drop", "path": source.path}
                                             for host in (source.host, *way.takers)}, changes=True)
    return out


def _spread(fleet: Fleet, way: Way, packed: Result) -> dict[str, Result]:
    source, takers = way.source, list(way.takers)
    fleet.emit(Progress(TITLE, f"from {source.host} to {fold_hosts(takers)}"))
    came = spread(fleet, Spread(
        name=f"caches-{hashlib.sha256(source.path.encode()).hexdigest()[:12]}", path=source.out, source=source.host,
        takers=takers, entries=packed.data["entries"]))
    for host in takers:
        if came[host].bad:
            _warn(fleet, host, came[host])
    done = calls.call_all(fleet, "compiled_cache", {
        host: {"action": "unpack", "path": source.path, **calls.account_args(fleet, host)} for host in takers
        if not came[host].bad}, changes=True, timeout=900)
    out: dict[str, Result] = {}
    for host, result in done.items():
        if result.bad:
            _warn(fleet, host, result)
        else:
            out[host] = replace(result, task=TASK, status=Status.CHANGED)
    if out:
        slowest = max(float(came[host].data.get("seconds") or 0) for host in out)
        what = f"{plural(int(packed.data['files']), 'file')}, {size(int(packed.data['bytes']))}"
        fleet.emit(StageSummary(TITLE, f"{what} from {source.host} to {fold_hosts(list(out))} in {duration(slowest)}"))
    return out


def _warn(fleet: Fleet, host: str, result: Result) -> None:
    fleet.emit(Note(f"its {TITLE} stay empty, its engines compile anew: {calls.first_line(result)}", host=host,
                    level="warn"))
