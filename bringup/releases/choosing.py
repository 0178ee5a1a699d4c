"""`choose_release`: a stored release, proven on every node before anything stops."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.errors import BringupError, FindingError, StepError
from bringup.base.events import Note, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts, plural
from bringup.releases import chosen as chosen_release
from bringup.releases import layout, storing
from bringup.releases.chosen import Chosen
from bringup.releases.document import Release, differences
from bringup.releases.history import Entry, History, HostStore, merge
from bringup.releases.layout import made_for
from bringup.releases.making import launch_documents
from bringup.releases.planned import Planned, deadlines_of, key_of, plan_now
from bringup.releases.proving import can_start
from bringup.releases.targets import WORDS, Target, candidates, rollback_target
from bringup.releases.traffic import named_inventory
from bringup.run.actions import Fleet
from bringup.serving.plan_digest import ProcessTemplate, split


def choose_release(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Choose a release of the stores for this run.

    `args`: to (`current`, `previous`, a number or a digest), prove (bool), ask (bool), even_if_bad (bool), rehearse
    (bool: everything short of the switch, told as findings). `previous` is where a rollback goes. Raises FindingError
    when there is none, hosts are mixed, a node could not start it, or nobody says yes.
    """
    wanted = str(args.get("to") or "current")
    planned = plan_now(fleet)
    _tell_left_out(fleet, planned)
    stores = storing.stores_of(fleet, planned.hosts)
    spares = [host for host in planned.hosts if host in _replacing(fleet, planned)]
    known = {host: store for host, store in stores.items() if host not in spares}
    history = merge(known)
    target = _target(history, list(known), wanted, even_if_bad=bool(args.get("even_if_bad")))
    entry = target.entry
    results = {host: Result(host, "choose_release", Status.OK, data={"go": entry is not None})
               for host in planned.hosts}
    if entry is None:
        fleet.emit(StageSummary(history.in_use.label if history.in_use else "release", target.reason))
        entry = history.in_use
        if entry is None:
            raise FindingError(target.reason, next="invoke releases")
        chosen_release.save(fleet, _chosen(fleet, planned, history, entry, stores))
        return results
    if spares:
        _bring(fleet, entry, spares)
    leaving = _left_by(history, target) if wanted != "current" else None
    choice = _chosen(fleet, planned, history, entry, stores, leaving=leaving)
    chosen_release.save(fleet, choice)
    if choice.leaving:
        fleet.emit(Note(_told(choice, entry, history, target)))
    if args.get("prove"):
        _demand_proof(fleet, choice, entry, planned, history, stores, each=bool(args.get("rehearse")))
    fleet.emit(StageSummary(choice.label, f"can start on {plural(len(choice.hosts), 'host')} today"
                            if args.get("prove") else "in use"))
    if args.get("ask") and not fleet.check and choice.previous != choice.digest:
        _ask(fleet)
    if not fleet.check:
        _write(fleet, choice)
    if args.get("rehearse"):
        _rehearse(fleet, choice)
    return results


def _tell_left_out(fleet: Fleet, planned: Planned) -> None:
    for name, reason in planned.left_out.items():
        fleet.emit(Note(f"{name} is left out: {reason}", level="warn"))


def _replacing(fleet: Fleet, planned: Planned) -> frozenset[str]:
    """Spares that this run puts in the place of other nodes (`bringup_replace`)."""
    given = fleet.variables(planned.hosts[0]).get("bringup_replace") or {}
    return frozenset(str(host) for host in given.values())


def _target(history: History, hosts: Sequence[str], wanted: str, *, even_if_bad: bool) -> Target:
    if wanted == "current":
        if history.mixed:
            groups = ", ".join(f"{_label(history, digest)} on {host}" for host, digest in history.current.items())
            raise FindingError("hosts use different releases: nothing is started like this", found=groups,
                               next="invoke provision finishes the deploy, invoke rollback undoes it")
        if history.in_use is None:
            raise FindingError("no release is in use here yet", next="invoke provision")
        return Target(history.in_use)
    return rollback_target(history, hosts, None if wanted == "previous" else wanted, even_if_bad=even_if_bad)


def _label(history: History, digest: str | None) -> str:
    entry = history.get(digest)
    return entry.label if entry else "none"


def _left_by(history: History, target: Target) -> str | None:
    """The release that a rollback leaves: what an unfinished one left, what was deployed last where the links do not
    tell, else what most hosts use beside the target."""
    assert target.entry is not None
    if target.finishes and history.unfinished is not None:
        return history.unfinished.leaving
    if history.to_leave is not None and history.to_leave is not target.entry:
        return history.to_leave.digest
    others = [digest for digest in history.current.values() if digest and digest != target.entry.digest]
    return max(sorted(set(others)), key=others.count) if others else None


def _chosen(fleet: Fleet, planned: Planned, history: History, entry: Entry, stores: Mapping[str, HostStore],
            *, leaving: str | None = None) -> Chosen:
    now = history.get(leaving) if leaving else history.in_use
    key = key_of(fleet, entry.release.identity.get("api_key_variable"))
    return Chosen(
        entry.digest, entry.number, planned.plan.manager,
        documents_of(fleet, planned, entry.release, stores, entry.label), previous=now.digest if now else None,
        previous_number=now.number if now else None,
        changes=tuple(differences(now.release, entry.release)) if now and now.digest != entry.digest else (),
        leaving=leaving is not None, seconds=entry.seconds, deadlines=dict(deadlines_of(fleet, planned.plan).__dict__),
        left_out=dict(planned.left_out), key_variable=key[0] if key else None)


def _bring(fleet: Fleet, entry: Entry, spares: Sequence[str]) -> None:
    """Bring the release to nodes that never had it."""
    storing.put(fleet, entry.release, spares)
    if entry.number is not None:
        storing.tell_number(fleet, entry.digest, entry.number, spares)


def documents_of(fleet: Fleet, planned: Planned, release: Release, stores: Mapping[str, HostStore],
                 label: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """The launch documents of a stored release with per-host values worked out anew.

    What the present plan does not know (another engine's variables, the release's own environment folder) is taken
    from the release's last start on that host. Raises StepError when a host never had it, or when it is not made for
    replicas as the plan has them.
    """
    if not made_for(release, planned.replicas):
        plan = planned.plan
        raise StepError(
            "the release is of another strategy and is started by a provision", found=layout.told(release),
            expected=f"{plan.strategy}, as the inventory has it",
            next=layout.by_provision(release, "it" if label is None else label, named_inventory(fleet)))
    shapes: dict[str, tuple[ProcessTemplate, ...]] = {}
    values: dict[str, dict[str, str]] = {}
    for replica in planned.replicas:
        shapes[replica.name] = release.shape(len(replica.hosts), replica.head.role)
        for process in replica.processes:
            host = process.host
            kept = _last_values(stores.get(host), release.digest, f"{replica.name}-{host}")
            kept = kept or _as_a_neighbour(fleet, host, release.digest, stores)
            if kept is None:
                raise StepError("the release was never prepared here", host=host, next="invoke provision")
            _, fresh = split(process, str(fleet.paths(host).root), kept["env"])
            values[host] = {**values.get(host, {}), **kept, **fresh}
    return launch_documents(planned, release, shapes, values)


def _last_values(store: HostStore | None, digest: str, name: str) -> dict[str, str] | None:
    launches = store.launches.get(digest, {}) if store else {}
    document = launches.get(name) or next(iter(launches.values()), None)
    return {str(k): str(v) for k, v in document["values"].items()} if document else None


def _as_a_neighbour(fleet: Fleet, host: str, digest: str, stores: Mapping[str, HostStore]) -> dict[str, str] | None:
    """For a node put in as a spare: where the others have the environment, under its own root."""
    for other in stores:
        kept = _last_values(stores[other], digest, "") if other != host else None
        if kept is None:
            continue
        theirs, own = str(fleet.paths(other).root), str(fleet.paths(host).root)
        env = own + kept["env"][len(theirs):] if kept["env"].startswith(theirs + "/") else kept["env"]
        return {"env": env, "root": own, **{n: kept[n] for n in ("environment", "image", "image_digest", "client")
                                              if n in kept}}
    return None


def _demand_proof(fleet: Fleet, choice: Chosen, entry: Entry, planned: Planned, history: History,
                  stores: Mapping[str, HostStore], *, each: bool) -> None:
    """Raise FindingError when a node could not start it, with the next release that all of them could. With `each`,
    a line for each thing that was proven."""
    seen = {(host, str((fleet.variables(host).get("deployment") or {}).get("model_path") or planned.plan.model_path)):
            manifest for host, manifest in planned.manifests.items()}
    proof = can_start(fleet, entry.release, choice.launches, choice.manager, stores, seen)
    if not proof.problems:
        for text, hosts in proof.notes.items():
            fleet.emit(Note(text, host=fold_hosts(list(hosts)), level="warn"))
        for check, text in proof.held if each else ():
            fleet.emit(StageSummary(check, f"{text}, on {plural(len(proof.hosts), 'host')}"))
        if not each:
            fleet.emit(Note(f"proven on {fold_hosts(list(proof.hosts))}: {'; '.join(t for _, t in proof.held)}"))
        return
    mend = next((p.mend for p in proof.problems if p.mend), "")
    raise FindingError(
        f"{choice.label} cannot start today; nothing was stopped",
        host=fold_hosts(list(dict.fromkeys(p.host for p in proof.problems))),
        details=[f"{p.host}: {p.text}" for p in proof.problems[:8]],
        next="; ".join(word for word in (mend, _next_best(fleet, choice, planned, history, stores)) if word))


def _next_best(fleet: Fleet, choice: Chosen, planned: Planned, history: History, stores: Mapping[str, HostStore]
               ) -> str:
    """The next release that every node can start today, as what to type."""
    known = [host for host in planned.hosts if history.current.get(host) is not None]
    for other in candidates(history, known):
        if other.digest in (choice.digest, choice.previous):
            continue
        try:
            launches = documents_of(fleet, planned, other.release, stores)
        except BringupError:
            continue  # it was never prepared on one of these nodes: not one to offer
        if not can_start(fleet, other.release, launches, choice.manager, stores).problems:
            return f"{other.label} can start today: invoke rollback --to {other.label}"
    return "no other good release can start on all of them today: invoke releases"


def _told(choice: Chosen, entry: Entry, history: History, target: Target) -> str:
    """`r0042 -> r0041   what differs`, then where it was good and how long its last start took."""
    now = history.get(choice.previous)
    changes = "; ".join(choice.changes[:3]) or "nothing that is told differs"
    more = len(choice.changes) - 3
    if more > 0:
        changes += f"; {more} more (invoke release.diff {now.label if now else '?'} {choice.label})"
    took = f"its last start took {duration(entry.seconds)}" if entry.seconds else "no start of it was timed"
    good = f"{choice.label} was good on {fold_hosts(list(entry.good_on))}" if entry.good_on else \
        f"{choice.label} was never seen good"
    if entry.state in ("bad", "left"):
        word = "is bad" if entry.state == "bad" else f"was {WORDS['left']}"
        good = f"{choice.label} {word} ({entry.reason or 'no reason was noted'})"
    lines = [f"{now.label if now else '?'} -> {choice.label}   {changes}", f"{good}; {took}"]
    return "\n".join([*lines, target.reason] if target.reason else lines)


def _ask(fleet: Fleet) -> None:
    answer = fleet.ask("Go back?")
    if not answer:
        raise FindingError("not gone back: everything is prepared, nothing in use was touched",
                           found="no terminal to ask at" if answer is None else "the answer was no",
                           next="the same command with --yes" if answer is None else None)


def _write(fleet: Fleet, choice: Chosen) -> None:
    for host, words in storing.put_launches(fleet, choice.digest, list(choice.launches.values())).items():
        fleet.emit(Note(f"differs from the last start here: {', '.join(words)}", host=host))


def _rehearse(fleet: Fleet, choice: Chosen) -> None:
    """Rehearse the switch on every node, and say what a rehearsal cannot show."""
    began = time.monotonic()
    if not fleet.check:
        storing.rehearse_switch(fleet, choice.digest, choice.hosts)
    took = duration(time.monotonic() - began)
    would = "would be rehearsed" if fleet.check else f"rehearsed in {took}"
    hosts = plural(len(choice.hosts), "host")
    fleet.emit(StageSummary("switch", f"{would} on {hosts}; nothing was stopped or switched"))
    down = f"about {duration(choice.seconds)} each (its last start)" if choice.seconds else "not known, none was timed"
    fleet.emit(StageSummary("not shown", f"that {choice.label} loads and answers: only its start does, {down}"))
