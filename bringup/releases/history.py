"""What became of releases, read from the hosts' stores: states, the one in use, and where a rollback may land."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.errors import FindingError, InputError
from bringup.base.text import fold_hosts, nearest
from bringup.releases.document import Release, number_text

CONTRACT_FAILED = "its contract failed"
"""How the reason of a release begins that is bad for what it answers, not for how it starts."""


@dataclass(frozen=True)
class HostStore:
    """What one host's store says, as `release_store` lists it."""

    current: str | None
    releases: Mapping[str, Release]
    broken: Mapping[str, str]
    launches: Mapping[str, Mapping[str, Mapping[str, Any]]]
    history: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> HostStore:
        """From the module's answer."""
        return cls(data.get("current"), {d: Release.read(x) for d, x in data.get("releases", {}).items() if x},
                   data.get("broken", {}), data.get("launches", {}), data.get("history", []))


@dataclass(frozen=True)
class Entry:
    """A release over all hosts.

    `state` is good, bad, left (rolled back from) or untested; `live_at` when it was last switched to (seconds since the
    epoch), None when it never was. `hosts` hold it, `current_on` use it, `good_on` had it good, on `bad_on` it was last
    found bad.
    """

    digest: str
    number: int | None
    release: Release
    state: str
    made_at: float
    by: str
    live_at: float | None
    seconds: float | None
    hosts: tuple[str, ...]
    current_on: tuple[str, ...]
    good_on: tuple[str, ...]
    reason: str = ""
    bad_on: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return number_text(self.number)


@dataclass(frozen=True)
class History:
    """All releases of some hosts, the oldest first, and each host's current one."""

    entries: tuple[Entry, ...]
    current: Mapping[str, str | None] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """True when hosts use different releases: a deploy that stopped half way."""
        return len(set(self.current.values())) > 1

    def find(self, name: str) -> Entry:
        """The release with this number (`r0042`, `42`) or digest (from 6 signs on). Raises InputError."""
        wanted = name.strip().lower()
        digits = wanted[1:] if wanted.startswith("r") else wanted
        if digits.isdigit() and len(digits) <= 5:
            found = [e for e in self.entries if e.number == int(digits)]
        else:
            found = [e for e in self.entries if len(wanted) >= 6 and e.digest.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        labels = [e.label for e in self.entries]
        near = nearest(wanted, labels)
        raise InputError(f"no release is named `{name}`" if not found else f"`{name}` fits {len(found)} releases",
                         expected=", ".join(labels[-8:]) or "none was made here yet",
                         next=f"nearest: {near}" if near else "invoke releases")

    def get(self, digest: str | None) -> Entry | None:
        """The entry with this whole digest."""
        return next((e for e in self.entries if e.digest == digest), None)

    @property
    def in_use(self) -> Entry | None:
        """The release that most hosts use."""
        used = [digest for digest in self.current.values() if digest]
        return self.get(max(set(used), key=lambda d: (used.count(d), d))) if used else None


def merge(stores: Mapping[str, HostStore]) -> History:
    """One history of all hosts' stores."""
    digests: dict[str, Release] = {}
    broken: dict[str, str] = {}
    for host, store in stores.items():
        digests.update(store.releases)
        broken.update({f"{host} {digest[:12]}": why for digest, why in store.broken.items()})
    entries = [_entry(digest, release, stores) for digest, release in digests.items()]
    entries.sort(key=lambda e: (e.number if e.number is not None else 1 << 30, e.made_at))
    return History(tuple(entries), {host: store.current for host, store in stores.items()}, broken)


def _entry(digest: str, release: Release, stores: Mapping[str, HostStore]) -> Entry:
    events = sorted(((host, e) for host, store in stores.items() for e in store.history if e.get("digest") == digest),
                    key=lambda pair: pair[1].get("at") or 0)
    judged = [e for _, e in events if e["event"] in ("good", "bad", "left")]
    numbers = [e["number"] for _, e in events if e.get("number") is not None]
    made = [(e.get("at") or 0.0, str(e.get("by") or "")) for _, e in events if e["event"] == "made"]
    live = [float(e.get("at") or 0) for _, e in events if e["event"] == "switched"]
    starts = [float(e["seconds"]) for _, e in events if e["event"] == "started" and e.get("seconds")]
    return Entry(
        digest, min(numbers) if numbers else None, release, judged[-1]["event"] if judged else "untested",
        min(made)[0] if made else 0.0, min(made)[1] if made else "", max(live) if live else None,
        starts[-1] if starts else None, tuple(h for h, s in stores.items() if digest in s.releases),
        tuple(h for h, s in stores.items() if s.current == digest),
        tuple(h for h in stores if any(host == h and e["event"] == "good" for host, e in events)),
        str(judged[-1].get("reason") or "") if judged else "",
        tuple(h for h in stores if [e["event"] for host, e in events if host == h and e in judged][-1:] == ["bad"]),
    )


def unswitched(history: History) -> Entry | None:
    """A release made after the last switch and never switched to: a deploy that ended before it changed anything."""
    last = max((e.live_at for e in history.entries if e.live_at is not None), default=None)
    later = [e for e in history.entries if e.live_at is None and last is not None and e.made_at > last]
    return later[-1] if later else None


@dataclass(frozen=True)
class Target:
    """Where a rollback goes: `entry`, or None with the reason why there is nothing to do."""

    entry: Entry | None
    reason: str = ""


def rollback_target(history: History, hosts: Sequence[str], to: str | None = None) -> Target:
    """The release that a rollback goes to.

    Without `to`: the one that was in use before the present one and was good on all hosts, never one known to be bad
    or rolled back from; nothing when the last deploy ended before its switch. Raises FindingError when there is none
    or `to` is known to be bad, InputError when `to` is unknown.
    """
    now = history.in_use
    if to:
        return _named(history, hosts, to)
    waiting = unswitched(history)
    if waiting is not None and now is not None and not history.mixed:
        return Target(None, f"{waiting.label} was never switched to: {now.label} is in use and stays "
                            f"(further back: --to)")
    candidates = [e for e in history.entries if e.state == "good" and e.live_at is not None
                  and (history.mixed or e is not now) and _everywhere(e, hosts)]
    if not candidates:
        raise FindingError("there is no earlier release to go back to",
                           expected=f"one that was good on all of {fold_hosts(list(hosts))}",
                           found=_others(history, now), next="invoke releases")
    return Target(max(candidates, key=lambda e: e.live_at or 0))


def _named(history: History, hosts: Sequence[str], to: str) -> Target:
    entry = history.find(to)
    if all(history.current.get(host) == entry.digest for host in hosts):
        return Target(None, f"{entry.label} is in use on all of {fold_hosts(list(hosts))} already")
    if entry.state == "bad":
        raise FindingError(f"{entry.label} is known to be bad", found=entry.reason or "its start failed",
                           next="invoke rollback without --to goes to the last good one")
    if entry.state == "left":
        raise FindingError(f"{entry.label} was rolled back from", found=entry.reason or "a person went back from it",
                           next="provision it again when its cause is mended")
    missing = [host for host in hosts if host not in entry.hosts]
    if missing:
        raise FindingError(f"{entry.label} is not on {fold_hosts(missing)}", next="invoke provision")
    return Target(entry)


def _everywhere(entry: Entry, hosts: Sequence[str]) -> bool:
    return all(host in entry.hosts and host in entry.good_on for host in hosts)


def _others(history: History, now: Entry | None) -> str:
    words = {"left": "rolled back from"}
    told = [f"{e.label} {words.get(e.state, e.state)}" for e in history.entries if e is not now]
    return ", ".join(told[-6:]) or "no other release"
