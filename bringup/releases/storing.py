"""Releases brought to the hosts' stores: put, number, launch files, marks, `current`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.errors import BringupError, StepError, UnreachableError
from bringup.base.events import Note
from bringup.base.results import Result
from bringup.base.text import fold_hosts
from bringup.releases import on_controller
from bringup.releases.document import Release, short
from bringup.releases.history import HostStore
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls


def stores_of(fleet: Fleet, hosts: Sequence[str]) -> dict[str, HostStore]:
    """What these hosts' stores say. Raises when one cannot be read."""
    results = calls.call_all(fleet, "release_store", {host: {"action": "list"} for host in hosts}, changes=False)
    demand(results, "the store of releases cannot be read")
    return {host: HostStore.read(result.data) for host, result in results.items()}


def put(fleet: Fleet, release: Release, hosts: Sequence[str]) -> dict[str, Result]:
    """Bring the document to every host, and keep it here. Raises when a host does not take it: nothing was switched
    then."""
    results = calls.call_all(fleet, "release_store", {
        host: {"action": "put", "digest": release.digest, "document": release.document(), "by": fleet.operator}
        for host in hosts}, changes=True)
    demand(results, "the release was not stored; nothing was switched")
    problem = None if fleet.check else on_controller.keep(fleet.project.root, release)
    if problem:
        fleet.emit(Note(f"the controller keeps no copy of the release: {problem}", level="warn"))
    return results


def give_number(fleet: Fleet, digest: str, head: str, hosts: Sequence[str], stores: Mapping[str, HostStore]) -> int:
    """The release's number: what a host knows already, else the next one of the head's store; told to every host."""
    known = [int(e["number"]) for store in stores.values() for e in store.history
             if e.get("digest") == digest and e.get("number") is not None]
    highest = max((int(e["number"]) for store in stores.values() for e in store.history
                   if e.get("number") is not None), default=0)
    wanted = min(known) if known else highest + 1
    first = calls.call_all(fleet, "release_store", {head: {"action": "number", "digest": digest, "number": wanted,
                                                           "by": fleet.operator}}, changes=True)
    demand(first, "the head's store gave no number")
    number = int(first[head].data.get("number") or wanted)
    rest = [host for host in hosts if host != head]
    if rest:
        tell_number(fleet, digest, number, rest)
    return number


def tell_number(fleet: Fleet, digest: str, number: int, hosts: Sequence[str]) -> None:
    """Have these hosts know a release's number. Raises when one does not."""
    demand(calls.call_all(fleet, "release_store", {
        host: {"action": "number", "digest": digest, "number": number, "by": fleet.operator} for host in hosts},
        changes=True), "the number was not stored")


def put_launches(fleet: Fleet, digest: str, replicas: Sequence[Mapping[str, Mapping[str, Any]]]
                 ) -> dict[str, list[str]]:
    """Write each host's launch files, `replicas` holding host -> document of each; returns per host what differs from
    its last start, in words."""
    launches: dict[str, list[Mapping[str, Any]]] = {}
    for replica in replicas:
        for host, document in replica.items():
            launches.setdefault(host, []).append(document)
    results = calls.call_all(fleet, "release_store", {
        host: {"action": "launch", "digest": digest, "launches": documents} for host, documents in launches.items()},
        changes=True)
    demand(results, "the launch files were not stored; nothing was switched")
    out = {}
    for host, result in results.items():
        words = []
        for item in result.data.get("differs") or ():
            before = (item.get("before") or {}).get("values")
            if before is not None:
                now = launches[host][0]["values"]
                words += [f"{name} {before.get(name, 'none')} -> {now.get(name, 'none')}"
                          for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        if words:
            out[host] = list(dict.fromkeys(words))
    return out


def switch(fleet: Fleet, digest: str, hosts: Sequence[str], *, undo: bool = False) -> dict[str, Result]:
    """Point `current` of these hosts at a release. Raises when one did not, naming those that did.

    `undo` says that this is what was in use before a start that failed.
    """
    results = try_switch(fleet, digest, hosts, undo=undo)
    bad = calls.broken(results)
    if bad:
        done = [host for host, result in results.items() if not result.bad]
        _raise(bad, f"`current` was switched to {short(digest)} on {fold_hosts(done) if done else 'no host'} only",
               "the next provision finishes it, invoke rollback undoes it")
    return results


def try_switch(fleet: Fleet, digest: str, hosts: Sequence[str], *, undo: bool = False, leaving: str | None = None
               ) -> dict[str, Result]:
    """The same without raising: each host's result. `leaving` is the reason why a rollback leaves what is in use."""
    return calls.call_all(fleet, "release_store", {
        host: {"action": "switch", "digest": digest, "by": fleet.operator, "undo": undo,
               "leaving": leaving is not None, "reason": leaving} for host in hosts}, changes=True)


def rehearse_switch(fleet: Fleet, digest: str, hosts: Sequence[str]) -> dict[str, Result]:
    """What a switch does, under another name beside `current`. Raises when a host could not do it."""
    results = calls.call_all(fleet, "release_store", {
        host: {"action": "rehearse", "digest": digest} for host in hosts}, changes=True)
    demand(results, "the switch could not be rehearsed")
    return results


def unswitch(fleet: Fleet, digest: str, hosts: Sequence[str], reason: str) -> dict[str, Result]:
    """Take `current` away on hosts where it names this release. A host that cannot do it is passed over."""
    return calls.call_all(fleet, "release_store", {
        host: {"action": "unswitch", "digest": digest, "reason": reason, "by": fleet.operator} for host in hosts},
        changes=True)


def approve(fleet: Fleet, digest: str, hosts: Sequence[str]) -> None:
    """Have each host write down how it is now that the release is good there, for drift and rollback."""
    calls.call_all(fleet, "release_store", {
        host: {"action": "approve", "digest": digest, "by": fleet.operator} for host in hosts}, changes=True)


def mark(fleet: Fleet, digest: str, hosts: Sequence[str], event: str, *, reason: str | None = None,
         seconds: float | None = None, replica: str | None = None) -> None:
    """Add an event to the history of these hosts. A host that does not take it is passed over: status shows it."""
    calls.call_all(fleet, "release_store", {
        host: {"action": "mark", "digest": digest, "event": event, "reason": reason, "seconds": seconds,
               "replica": replica, "by": fleet.operator} for host in hosts}, changes=True)


def demand(results: Mapping[str, Result], what: str) -> None:
    """Raise when a call did not do it: UnreachableError for a host that is gone, else StepError."""
    bad = calls.broken(results)
    if bad:
        _raise(bad, what, None)


def _raise(bad: Mapping[str, Result], what: str, next_: str | None) -> None:
    kind: type[BringupError] = UnreachableError if len(calls.gone(bad)) == len(bad) else StepError
    raise kind(what, host=fold_hosts(list(bad)),
               details=[f"{host}: {calls.first_line(result)}" for host, result in list(bad.items())[:8]],
               next=next_ or next((str(r.next) for r in bad.values() if r.next), None))
