"""`choose_release` and `switch_release`: a stored release, proven on every node before anything stops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bringup.base.errors import FindingError, StepError
from bringup.base.events import Note, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts
from bringup.releases import chosen as chosen_release
from bringup.releases import storing
from bringup.releases.chosen import Chosen
from bringup.releases.document import Release, differences
from bringup.releases.history import Entry, History, HostStore, merge, rollback_target
from bringup.releases.making import launch_documents
from bringup.releases.planned import Planned, deadlines_of, key_of, plan_now
from bringup.releases.starting import prove
from bringup.run.actions import Fleet
from bringup.serving.plan_digest import ProcessTemplate, split


def choose_release(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Choose a release of the stores for this run.

    `args`: to (`current`, `previous`, a number or a digest), prove (bool), ask (bool). `previous` is where a rollback
    goes. Raises FindingError when there is none, hosts are mixed, a node could not start it, or nobody says yes.
    """
    wanted = str(args.get("to") or "current")
    planned = plan_now(fleet)
    stores = storing.stores_of(fleet, planned.hosts)
    history = merge(stores)
    entry, reason = _entry(history, planned, wanted)
    results = {host: Result(host, "choose_release", Status.OK, data={"go": entry is not None})
               for host in planned.hosts}
    if entry is None:
        fleet.emit(StageSummary(history.in_use.label if history.in_use else "release", reason))
        entry = history.in_use
        if entry is None:
            raise FindingError(reason, next="invoke releases")
        chosen_release.save(fleet, _chosen(fleet, planned, history, entry, stores))
        return results
    choice = _chosen(fleet, planned, history, entry, stores, leaving=wanted != "current")
    chosen_release.save(fleet, choice)
    if args.get("prove"):
        _demand_proof(fleet, choice)
    if choice.leaving:
        fleet.emit(Note(_told(choice, entry, history)))
    fleet.emit(StageSummary(choice.label, f"can start on {len(choice.hosts)} hosts" if args.get("prove") else "in use"))
    if args.get("ask") and not fleet.check and choice.previous != choice.digest:
        _ask(fleet)
    if not fleet.check:
        _write(fleet, choice)
    return results


def _entry(history: History, planned: Planned, wanted: str) -> tuple[Entry | None, str]:
    if wanted == "current":
        if history.mixed:
            groups = ", ".join(f"{_label(history, digest)} on {host}" for host, digest in history.current.items())
            raise FindingError("hosts use different releases: nothing is started like this", found=groups,
                               next="invoke provision finishes the deploy, invoke rollback undoes it")
        if history.in_use is None:
            raise FindingError("no release is in use here yet", next="invoke provision")
        return history.in_use, ""
    target = rollback_target(history, planned.hosts, None if wanted == "previous" else wanted)
    return target.entry, target.reason


def _label(history: History, digest: str | None) -> str:
    entry = history.get(digest)
    return entry.label if entry else "none"


def _chosen(fleet: Fleet, planned: Planned, history: History, entry: Entry, stores: Mapping[str, HostStore],
            *, leaving: bool = False) -> Chosen:
    now = history.in_use
    key = key_of(fleet, entry.release.identity.get("api_key_variable"))
    return Chosen(
        entry.digest, entry.number, planned.plan.manager,
        documents_of(fleet, planned, entry.release, stores), previous=now.digest if now else None,
        previous_number=now.number if now else None,
        changes=tuple(differences(now.release, entry.release)) if now and now.digest != entry.digest else (),
        leaving=leaving, seconds=entry.seconds, deadlines=dict(deadlines_of(fleet, planned.plan).__dict__),
        left_out=dict(planned.left_out), key_variable=key[0] if key else None)


def documents_of(fleet: Fleet, planned: Planned, release: Release, stores: Mapping[str, HostStore]
                 ) -> dict[str, dict[str, dict[str, Any]]]:
    """The launch documents of a stored release with per-host values worked out anew.

    What the present plan does not know (another engine's variables, the release's own environment folder) is taken
    from the release's last start on that host. Raises StepError when a host never had it.
    """
    shapes: dict[str, tuple[ProcessTemplate, ...]] = {}
    values: dict[str, dict[str, str]] = {}
    for replica in planned.replicas:
        try:
            shapes[replica.name] = release.shape(len(replica.hosts))
        except KeyError:
            raise StepError(f"the release is not made for replicas of {len(replica.hosts)} nodes",
                            next="provision with the nodes that it was made for") from None
        for process in replica.processes:
            host = process.host
            kept = _last_values(stores.get(host), release.digest, f"{replica.name}-{host}")
            if kept is None:
                raise StepError("the release was never prepared here", host=host, next="invoke provision")
            _, fresh = split(process, str(fleet.paths(host).root), kept["env"])
            values[host] = {**kept, **fresh}
    return launch_documents(planned, release, shapes, values)


def _last_values(store: HostStore | None, digest: str, name: str) -> dict[str, str] | None:
    launches = store.launches.get(digest, {}) if store else {}
    document = launches.get(name) or next(iter(launches.values()), None)
    return {str(k): str(v) for k, v in document["values"].items()} if document else None


def _demand_proof(fleet: Fleet, choice: Chosen) -> None:
    problems = []
    for launches in choice.launches.values():
        problems += prove(fleet, launches, choice.manager)
    if problems:
        raise FindingError(
            f"{choice.label} cannot start today; nothing was stopped",
            host=fold_hosts(sorted({p[0] for p in problems})),
            details=[f"{host}: {text}" for host, text, _ in problems[:8]],
            next=next((p[2] for p in problems if p[2]), "invoke rollback --to another one: invoke releases"))


def _told(choice: Chosen, entry: Entry, history: History) -> str:
    """`r0042 -> r0041   what differs`, then where it was good and how long its last start took."""
    now = history.in_use
    changes = "; ".join(choice.changes[:3]) or "nothing that is told differs"
    more = len(choice.changes) - 3
    if more > 0:
        changes += f"; {more} more (invoke release.diff {now.label if now else '?'} {choice.label})"
    took = f"its last start took {duration(entry.seconds)}" if entry.seconds else "no start of it was timed"
    good = f"{choice.label} was good on {fold_hosts(list(entry.good_on))}" if entry.good_on else \
        f"{choice.label} was never seen good"
    return f"{now.label if now else '?'} -> {choice.label}   {changes}\n{good}; {took}"


def _ask(fleet: Fleet) -> None:
    answer = fleet.ask("Go back?")
    if not answer:
        raise FindingError("not gone back: everything is prepared, nothing in use was touched",
                           found="no terminal to ask at" if answer is None else "the answer was no",
                           next="the same command with --yes" if answer is None else None)


def _write(fleet: Fleet, choice: Chosen) -> None:
    flat = {host: document for hosts in choice.launches.values() for host, document in hosts.items()}
    for host, words in storing.put_launches(fleet, choice.digest, flat).items():
        fleet.emit(Note(f"differs from the last start here: {', '.join(words)}", host=host))


def switch_release(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Point `current` at the chosen release on every node at once. `args` has none."""
    choice = chosen_release.needed(fleet)
    results = storing.switch(fleet, choice.digest, choice.hosts)
    changed = [host for host, result in results.items() if result.status is Status.CHANGED]
    fleet.emit(StageSummary(choice.label, f"switched on {len(changed)} of {len(results)}" if changed
                            else "in use everywhere already"))
    return {host: Result(host, "switch_release", result.status, data={"digest": choice.digest})
            for host, result in results.items()}
