"""Where a rollback lands: the newest release that was good on all nodes, or the one that a person names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bringup.base.errors import FindingError
from bringup.base.text import fold_hosts
from bringup.releases.history import Entry, History

WORDS = {"left": "rolled back from"}
"""States as a person reads them, where the word is another."""


@dataclass(frozen=True)
class Target:
    """Where a rollback goes: `entry`, or None with the `reason` why there is nothing to do.

    `finishes` says that an earlier rollback began to go there and some hosts have not finished.
    """

    entry: Entry | None
    reason: str = ""
    finishes: bool = False


def unswitched(history: History) -> Entry | None:
    """A release made after the last switch and never switched to: a deploy that ended before it changed anything."""
    later = [e for e in history.entries if e.waiting and not e.current_on]
    return later[-1] if later else None


def candidates(history: History, hosts: Sequence[str]) -> list[Entry]:
    """Releases that a rollback may go to, the best first: in use before, good on all hosts, neither bad nor left. Of
    hosts that use different ones, what was deployed last is undone: it is none of them."""
    leaving = history.to_leave
    found = [e for e in history.entries if e.state == "good" and e.live_at is not None
             and e is not leaving and _everywhere(e, hosts)]
    return sorted(found, key=lambda e: e.live_at or 0, reverse=True)


def rollback_target(history: History, hosts: Sequence[str], to: str | None = None, *, even_if_bad: bool = False
                    ) -> Target:
    """The release that a rollback goes to.

    Without `to`: an unfinished rollback's own target; else the one that was in use before the present one and was good
    on all hosts, never one known to be bad or rolled back from; nothing when the last deploy ended before its switch.
    Raises FindingError when there is none or `to` is known to be bad (unless `even_if_bad`), InputError when `to` is
    unknown.
    """
    now = history.in_use
    if to:
        return _named(history, hosts, to, even_if_bad)
    begun = history.unfinished
    if begun is not None and (entry := history.get(begun.target)) is not None and entry.state != "bad" \
            and _held(entry, hosts):
        return Target(entry, f"finishes the rollback to {entry.label} on {fold_hosts(list(begun.pending))}", True)
    waiting = unswitched(history)
    if waiting is not None and now is not None and history.agreed:
        return Target(None, f"{waiting.label} was never switched to: {now.label} is in use and stays "
                            f"(further back: --to)")
    failed = history.get(history.came_back_from)
    if failed is not None and now is not None and now.state == "good" and history.agreed:
        return Target(None, f"{failed.label} did not start and {now.label} is in use again already "
                            f"(further back: --to)")
    found = candidates(history, hosts)
    if not found:
        raise FindingError("there is no earlier release to go back to",
                           expected=f"one that was good on all of {fold_hosts(list(hosts))}",
                           found=_others(history, history.to_leave), next=_instead(history, hosts))
    return Target(found[0], _undone(history))


def _named(history: History, hosts: Sequence[str], to: str, even_if_bad: bool) -> Target:
    entry = history.find(to)
    begun = history.unfinished
    if begun is not None and begun.target == entry.digest and _held(entry, hosts):
        return Target(entry, f"finishes the rollback to {entry.label} on {fold_hosts(list(begun.pending))}", True)
    if all(history.current.get(host) == entry.digest for host in hosts) and history.agreed:
        return Target(None, f"{entry.label} is in use on all of {fold_hosts(list(hosts))} already")
    if not even_if_bad and entry.state in ("bad", "left"):
        word = "known to be bad" if entry.state == "bad" else "one that was rolled back from"
        reason = entry.reason or ("its start failed" if entry.state == "bad" else "a person went back from it")
        raise FindingError(f"{entry.label} is {word}", found=reason,
                           next="invoke rollback without --to goes to the last good one; if it must be this one: "
                                "--even-if-bad")
    missing = [host for host in hosts if host not in entry.hosts]
    if missing:
        raise FindingError(f"{entry.label} is not on {fold_hosts(missing)}", next="invoke provision")
    return Target(entry)


def _undone(history: History) -> str:
    """What a rollback undoes, where the links alone do not tell."""
    last = history.to_leave
    return "" if history.agreed or last is None else f"{last.label} was deployed last: it is undone on all of them"


def _instead(history: History, hosts: Sequence[str]) -> str:
    """What to type where hosts use different releases and there is none before: the one deployed last, on all."""
    last = history.to_leave
    if not history.agreed and last is not None and last.state == "good" and _everywhere(last, hosts):
        return f"invoke rollback --to {last.label} puts all of them on it"
    return "invoke releases"


def _everywhere(entry: Entry, hosts: Sequence[str]) -> bool:
    return all(host in entry.hosts and host in entry.good_on for host in hosts)


def _held(entry: Entry, hosts: Sequence[str]) -> bool:
    return all(host in entry.hosts for host in hosts)


def _others(history: History, now: Entry | None) -> str:
    told = [f"{e.label} {WORDS.get(e.state, e.state)}" for e in history.entries if e is not now]
    return ", ".join(told[-6:]) or "no other release"
