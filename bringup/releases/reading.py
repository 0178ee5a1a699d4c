"""`list_releases`: what the hosts know of releases, told as data; nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.events import Findings, Note
from bringup.base.results import Result
from bringup.base.text import duration, fold_hosts
from bringup.releases import storing
from bringup.releases.approval import told_of
from bringup.releases.document import differences, short
from bringup.releases.history import Entry, History, merge
from bringup.releases.planned import looked_at
from bringup.releases.targets import WORDS
from bringup.run.actions import Fleet


def list_releases(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Read the stores of all replicas' hosts that answer and tell them as the table `releases`.

    `args`: between (two releases): their differences as the table `differences` instead. Raises InputError for an
    unknown one.
    """
    _, members = looked_at(fleet)
    hosts = list(dict.fromkeys(host for nodes in members.values() for host in nodes))
    stores = storing.stores_of(fleet, hosts)
    history = merge(stores)
    between = [str(name) for name in args.get("between") or ()]
    if between:
        old, new = (history.find(name) for name in between)
        told = [[line] for line in differences(old.release, new.release)] or [["nothing that reaches the processes"]]
        fleet.emit(Findings("differences", (), {"differences": [[f"{old.label} -> {new.label}"], *told]}))
        return {}
    if not history.entries:
        fleet.emit(Note("no release was made here yet; next: invoke provision"))
    fleet.emit(Findings("releases", (), {"releases": rows(history, hosts, {
        entry.digest: told_of(stores, entry.digest) for entry in history.entries})}))
    for entry in history.entries:
        if entry.state == "bad":
            fleet.emit(Note(f"{entry.label} is bad: {entry.reason or 'its start failed'}",
                            level="warn" if entry.current_on else "note"))
    begun = history.unfinished
    if begun is not None:
        fleet.emit(Note(f"a rollback is not finished on {fold_hosts(list(begun.pending))}; next: invoke rollback",
                        level="warn"))
    elif history.mixed:
        fleet.emit(Note("hosts use different releases; invoke status says how that came", level="warn"))
    elif history.by_hand:
        fleet.emit(Note("`current` was changed by hand; invoke status says what runs",
                        host=fold_hosts(list(history.by_hand)), level="warn"))
    return {}


def rows(history: History, hosts: Sequence[str], contracts: Mapping[str, str]) -> list[list[str]]:
    """The table: a heading, then a line per release, the newest first. `contracts` maps a digest to what became of its
    contract."""
    out = [["release", "digest", "state", "made", "by", "last start", "contract", "differs from the one before"]]
    before: Entry | None = None
    body = []
    for entry in history.entries:
        changes = "; ".join(differences(before.release, entry.release)[:3]) if before else "the first here"
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.made_at)) if entry.made_at else "-"
        body.append([entry.label, short(entry.digest), state_of(entry, hosts), made, entry.by or "-",
                     duration(entry.seconds) if entry.seconds else "-", contracts.get(entry.digest, "-"),
                     changes or "nothing that is told"])
        before = entry
    return out + body[::-1]


def state_of(entry: Entry, hosts: Sequence[str]) -> str:
    """The state in words: `current, good`, `rolled back from`, `good on gpu01`, `good, pinned (before the audit)`."""
    words = WORDS.get(entry.state, entry.state)
    if entry.state == "good" and set(entry.good_on) != set(hosts):
        words = f"good on {fold_hosts(list(entry.good_on))}"
    if entry.pinned is not None:
        words += ", pinned" if entry.pinned == "pinned" else f", pinned ({entry.pinned})"
    missing = [host for host in hosts if host not in entry.hosts]
    if missing:
        words += f", not on {fold_hosts(missing)}"
    if not entry.current_on:
        return words
    where = "current" if set(entry.current_on) == set(hosts) else f"current on {fold_hosts(list(entry.current_on))}"
    return f"{where}, {words}"
