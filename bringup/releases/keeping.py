"""`pin_release` and `remove_releases`: which releases stay on the hosts, and which are removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.errors import FindingError, InputError
from bringup.base.events import Note, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import fold_hosts, plural, size
from bringup.environments.build import find_environments
from bringup.releases import storing
from bringup.releases.document import short
from bringup.releases.history import Entry, History, HostStore, merge
from bringup.releases.spare_builds import builds_on, spare_builds
from bringup.releases.targets import WORDS, candidates
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls

KEEP = 5
"""Newest releases that stay when nothing else is said."""


def pin_release(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Pin a release on every host that has it, or take the pin away. `args`: release, pinned (bool), reason.

    Raises InputError for an unknown one. A release that is pinned already stays so, with its reason.
    """
    history = merge(storing.stores_of(fleet, fleet.hosts))
    entry = history.find(str(args["release"]))
    pin = bool(args.get("pinned", True))
    if (entry.pinned is not None) == pin:
        said = f"pinned already: {entry.pinned}" if pin else "not pinned"
        fleet.emit(StageSummary(entry.label, said))
        return {}
    reason = str(args.get("reason") or "") or None
    storing.mark(fleet, entry.digest, entry.hosts, "pinned" if pin else "unpinned", reason=reason)
    done = ("would be " if fleet.check else "") + ("pinned" if pin else "unpinned")
    what = ": release.gc never removes it" if pin else ": release.gc may remove it"
    fleet.emit(StageSummary(entry.label, f"{done} on {fold_hosts(list(entry.hosts))}{what}"))
    return {host: Result(host, "pin_release", Status.CHANGED) for host in entry.hosts}


def remove_releases(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Remove what is older than the newest `keep` releases, never one in use, running, pinned or the last good; then
    the environments and kernel builds that no release uses any more. Asks first; raises FindingError without a yes.

    `args`: keep (whole number from 0 on).
    """
    keep = int(args.get("keep", KEEP))
    if keep < 0:
        raise InputError("release.gc keeps a number of releases from 0 on", found=str(keep))
    stores = storing.stores_of(fleet, fleet.hosts)
    history = merge(stores)
    reasons = staying(history, list(fleet.hosts), keep, _running(fleet))
    going = [entry for entry in history.entries if entry.digest not in reasons]
    for entry in history.entries:
        if entry.digest in reasons:
            fleet.emit(StageSummary(entry.label, f"stays: {reasons[entry.digest]}"))
    spaces = _environments(fleet)
    leaving = {entry.digest for entry in going}
    unused = _unused(fleet, spaces, stores, leaving)
    builds = builds_on(fleet)
    freed = _sizes(fleet, going)
    for entry in going:
        fleet.emit(StageSummary(entry.label, f"{'would go' if fleet.check else 'goes'}: {_state(entry)}, "
                                             f"{size(freed.get(entry.digest, 0))} on {fold_hosts(list(entry.hosts))}"))
    removable = _tell_spare(fleet, spaces, unused)
    spare = _tell_spare(fleet, builds, spare_builds(builds, stores, leaving))
    if not going and not removable and not spare:
        fleet.emit(StageSummary("", "nothing to remove"))
        return {}
    if fleet.check:
        return _changed({host for entry in going for host in entry.hosts} | set(removable) | set(spare))
    _ask(fleet, len(going), sum(len(v) for v in removable.values()), sum(len(v) for v in spare.values()))
    return _remove(fleet, going, {"environment": removable, "build": spare})


def staying(history: History, hosts: Sequence[str], keep: int, running: Mapping[str, Sequence[str]]
            ) -> dict[str, str]:
    """digest -> why it stays: in use, running (digest -> hosts), pinned, good last, among the newest. Pure."""
    out: dict[str, str] = {}
    known = [host for host in hosts if any(host in entry.hosts for entry in history.entries)]
    good = [e for e in history.entries if e.state == "good"]
    last_good = good[-1] if good else None
    back = candidates(history, known)
    for entry in history.entries:
        if entry.current_on:
            out[entry.digest] = "in use"
        elif entry.digest in running:
            out[entry.digest] = f"runs on {fold_hosts(list(running[entry.digest]))}"
        elif history.unfinished is not None and entry.digest in (history.unfinished.target, history.unfinished.leaving):
            out[entry.digest] = "a rollback is not finished"
        elif entry.pinned is not None:
            out[entry.digest] = f"pinned ({entry.pinned})" if entry.pinned != "pinned" else "pinned"
        elif entry is last_good or (back and entry is back[0]):
            out[entry.digest] = "the last good one" if entry is last_good else "where a rollback goes"
    for entry in history.entries[::-1][:keep]:
        out.setdefault(entry.digest, f"among the newest {keep}")
    return out


def _state(entry: Entry) -> str:
    return WORDS.get(entry.state, entry.state)


def _running(fleet: Fleet) -> dict[str, list[str]]:
    """digest -> hosts where a process of it runs. Raises when a host cannot say."""
    results = calls.call_all(fleet, "engine_process", {host: {"action": "status"} for host in fleet.hosts},
                             changes=False)
    storing.demand(results, "what runs there is not known")
    out: dict[str, list[str]] = {}
    for host, result in results.items():
        for seen in result.data.get("processes", {}).values():
            if seen.get("release") and (seen["state"] == "running" or seen.get("leftover")):
                out.setdefault(str(seen["release"]), []).append(host)
    return out


def _environments(fleet: Fleet) -> dict[str, dict[str, Mapping[str, Any]]]:
    results = calls.call_all(fleet, "environment_space", {host: {"action": "list"} for host in fleet.hosts},
                             changes=False, timeout=300)
    storing.demand(results, "the environments cannot be looked at")
    return {host: dict(result.data["environments"]) for host, result in results.items()}


def _unused(fleet: Fleet, spaces: Mapping[str, Mapping[str, Any]], stores: Mapping[str, HostStore], going: set[str]
            ) -> dict[str, list[str]]:
    """host -> environments (digests) that no release that stays uses and that the inventory does not want."""
    wanted: dict[str, set[str]] = {host: set() for host in spaces}
    for host, found in find_environments(fleet).items():
        wanted.setdefault(host, set()).update(item.digest for item in found.values())
    for host, store in stores.items():
        for digest, release in store.releases.items():
            if digest in going:
                continue
            wanted[host].update(str(release.identity["environment"].get("digest") or "").split(","))
            wanted[host].update(str(document["values"].get("environment"))
                                for document in store.launches.get(digest, {}).values() if document)
    return {host: [digest for digest in found if digest not in wanted[host]] for host, found in spaces.items()}


def _sizes(fleet: Fleet, going: Sequence[Entry]) -> dict[str, int]:
    """digest -> bytes on all hosts together; raises when a host would not let one go."""
    asked = {host: [e.digest for e in going if host in e.hosts] for host in fleet.hosts}
    asked = {host: digests for host, digests in asked.items() if digests}
    out: dict[str, int] = {}
    results = calls.call_all(fleet, "release_store", {host: {"action": "sizes", "digests": digests}
                                                      for host, digests in asked.items()}, changes=False)
    storing.demand(results, "what would be freed is not known")
    for result in results.values():
        for digest, count in result.data["freed"].items():
            out[digest] = out.get(digest, 0) + int(count)
    return out


def _tell_spare(fleet: Fleet, spaces: Mapping[str, Mapping[str, Any]], unused: Mapping[str, Sequence[str]]
                ) -> dict[str, list[str]]:
    """Name environments or builds that no release uses; returns what may be removed, by host."""
    groups: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    removable: dict[str, list[str]] = {}
    for host, digests in unused.items():
        for digest in digests:
            item = spaces[host][digest]
            key = (digest, str(item.get("name") or item["path"]), str(item["keep"] or ""))
            groups.setdefault(key, []).append((host, int(item["bytes"])))
            if not item["keep"]:
                removable.setdefault(host, []).append(digest)
    for (digest, name, kept), where in groups.items():
        text = f"no release uses it, {size(sum(count for _, count in where))} on {fold_hosts([h for h, _ in where])}"
        named = f"{name} {short(digest)}" if "/" not in digest else name
        if kept:
            fleet.emit(Note(f"{named}: {text}; left alone: {kept}"))
        else:
            fleet.emit(StageSummary(named, f"{'would go' if fleet.check else 'goes'}: {text}"))
    return removable


def _ask(fleet: Fleet, releases: int, environments: int, builds: int) -> None:
    parts = [plural(count, word) for count, word in (
        (releases, "release"), (environments, "environment folder"), (builds, "kernel build")) if count]
    what = ", ".join(parts[:-1]) + (" and " if parts[1:] else "") + parts[-1]
    answer = fleet.ask(f"Remove {what}?")
    if not answer:
        raise FindingError("nothing was removed", found="no terminal to ask at" if answer is None else
                           "the answer was no", next="the same command with --yes" if answer is None else None)


def _remove(fleet: Fleet, going: Sequence[Entry], spare: Mapping[str, Mapping[str, Sequence[str]]]
            ) -> dict[str, Result]:
    """`spare`: environment or build -> host -> digests."""
    asked = {host: [e.digest for e in going if host in e.hosts] for host in fleet.hosts}
    results = calls.call_all(fleet, "release_store", {
        host: {"action": "prune", "digests": digests, "by": fleet.operator} for host, digests in asked.items()
        if digests}, changes=True, timeout=300)
    storing.demand(results, "not every release was removed")
    changed = {host for host, result in results.items() if result.status is Status.CHANGED}
    freed = sum(int(count) for result in results.values() for count in result.data["freed"].values())
    for kind, module in (("environment", "environment_space"), ("build", "kernel_space")):
        done = calls.call_all(fleet, module, {
            host: {"action": "remove", "digests": list(digests)} for host, digests in spare[kind].items()},
            changes=True, timeout=600)
        storing.demand(done, f"not every {kind} was removed")
        for host, result in done.items():
            freed += sum(int(count) for count in result.data["removed"].values())
            changed |= {host} if result.data["removed"] else set()
            for digest, reason in result.data["kept"].items():
                fleet.emit(Note(f"{short(digest)} is left alone: {reason}", host=host))
    fleet.emit(StageSummary("", f"freed {size(freed)} on {fold_hosts(sorted(changed))}"))
    return _changed(changed)


def _changed(hosts: set[str]) -> dict[str, Result]:
    return {host: Result(host, "remove_releases", Status.CHANGED) for host in hosts}
