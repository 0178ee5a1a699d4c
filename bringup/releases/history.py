"""What became of releases, read from the hosts' stores: states, the one in use, pins, what a run left half done.

Nothing here compares clocks of different hosts: on each host the order of its own events counts, and what hosts say of
one release is put together by the gravest word.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.releases.document import Release, number_text

CONTRACT_FAILED = "its contract failed"
"""How the reason of a release begins that is bad for what it answers, not for how it starts."""

LED_OUT, LED_IN = "traffic-out", "traffic-in"
"""Events of a replica's head: clients were led away from the replica, and back."""


def led_away(events: Sequence[Mapping[str, Any]], replica: str) -> Mapping[str, Any] | None:
    """The event with which clients were led away from this replica and not back; None where they were not."""
    moves = [event for event in events if event.get("event") in (LED_OUT, LED_IN) and event.get("replica") == replica]
    return moves[-1] if moves and moves[-1]["event"] == LED_OUT else None


@dataclass(frozen=True)
class HostStore:
    """What one host's store says, as `release_store` lists it."""

    current: str | None
    releases: Mapping[str, Release]
    broken: Mapping[str, str]
    launches: Mapping[str, Mapping[str, Mapping[str, Any]]]
    history: Sequence[Mapping[str, Any]]
    approved: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> HostStore:
        """From the module's answer."""
        return cls(data.get("current"), {d: Release.read(x) for d, x in data.get("releases", {}).items() if x},
                   data.get("broken", {}), data.get("launches", {}), data.get("history", []),
                   data.get("approved") or {})


@dataclass(frozen=True)
class Entry:
    """A release over all hosts.

    `state` is good, bad, left (rolled back from) or untested; `live_at` when it was last switched to (seconds since the
    epoch, the latest that a host's clock says), None when it never was. `hosts` hold it, `current_on` use it,
    `good_on` had it good, on `bad_on` it was last found bad. `pinned` is the reason of its pin, None without one.
    `waiting` is true when it was made after the last switch and never switched to. `left_at` is when a rollback left
    it.
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
    pinned: str | None = None
    waiting: bool = False
    left_at: float | None = None

    @property
    def label(self) -> str:
        return number_text(self.number)


@dataclass(frozen=True)
class Unfinished:
    """A rollback from `leaving` to `target` (digests) that the hosts `pending` have not finished."""

    target: str
    leaving: str
    pending: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """All releases of some hosts, the oldest first, and each host's current one.

    `removed` maps a number to when and by whom that release was removed; `unfinished` is a rollback that some hosts
    have not finished; `came_back_from` is the digest of a deploy that did not start, after which the one in use was
    switched to again by itself. `deployed` is what the newest deploy or rollback went to, whether or not every host
    came along. `by_hand` maps a host whose `current` names another release than its last switch to that switch's
    digest.
    """

    entries: tuple[Entry, ...]
    current: Mapping[str, str | None] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[int, tuple[float, str]] = field(default_factory=dict)
    unfinished: Unfinished | None = None
    came_back_from: str | None = None
    deployed: str | None = None
    by_hand: Mapping[str, str] = field(default_factory=dict)

    @property
    def mixed(self) -> bool:
        """True when hosts use different releases: a deploy that stopped half way, or a link changed by hand."""
        return len(set(self.current.values())) > 1

    @property
    def agreed(self) -> bool:
        """True when all hosts use one release, and each the one that it was switched to."""
        return not self.mixed and not self.by_hand

    @property
    def to_leave(self) -> Entry | None:
        """The release that a rollback leaves: the one in use; where the links do not tell, the one deployed last."""
        return self.in_use if self.agreed else self.get(self.deployed)

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
        if not found and digits.isdigit() and int(digits) in self.removed:
            at, by = self.removed[int(digits)]
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
            raise InputError(f"{number_text(int(digits))} was removed by release.gc", found=f"{when} by {by or '?'}",
                             expected=", ".join(labels[-8:]) or "none is left", next="invoke releases")
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
    removed = {int(e["number"]): (float(e.get("at") or 0), str(e.get("by") or "")) for store in stores.values()
               for e in store.history if e["event"] == "pruned" and e.get("number") is not None
               and e.get("digest") not in digests}
    return History(tuple(entries), {host: store.current for host, store in stores.items()}, broken, removed,
                   _unfinished(stores), _came_back_from(stores), _deployed(stores), _by_hand(stores))


_GRAVEST = ("left", "bad", "good")


@dataclass(frozen=True)
class _OnHost:
    """What one host's own events say of a release, the oldest first."""

    events: tuple[Mapping[str, Any], ...]
    judged: Mapping[str, Any] | None
    waiting: bool

    @property
    def verdict(self) -> str | None:
        return str(self.judged["event"]) if self.judged else None


def _on_host(digest: str, store: HostStore) -> _OnHost:
    own = tuple(e for e in store.history if e.get("digest") == digest)
    verdicts: list[Mapping[str, Any]] = []
    for event in own:
        if event["event"] in _GRAVEST:
            verdicts.append(event)
        elif event.get("undo") and verdicts and verdicts[-1]["event"] == "left":
            verdicts.pop()  # the rollback away from it did not succeed: it counts as it did before
    order = [(e["event"], e.get("digest")) for e in store.history]
    last_switch = max((at for at, (event, _) in enumerate(order) if event == "switched"), default=None)
    made = max((at for at, (event, of) in enumerate(order) if of == digest and event in ("made", "prepared")),
               default=None)
    waiting = last_switch is not None and made is not None and made > last_switch and store.current != digest
    return _OnHost(own, verdicts[-1] if verdicts else None, waiting)


def _entry(digest: str, release: Release, stores: Mapping[str, HostStore]) -> Entry:
    seen = {host: _on_host(digest, store) for host, store in stores.items()}
    events = [e for one in seen.values() for e in one.events]
    state = next((word for word in _GRAVEST if any(one.verdict == word for one in seen.values())), "untested")
    reasons = [str(one.judged.get("reason") or "") for one in seen.values() if one.judged and one.verdict == state]
    numbers = [int(e["number"]) for e in events if e.get("number") is not None]
    made = [(float(e.get("at") or 0.0), str(e.get("by") or "")) for e in events if e["event"] == "made"]
    live = [float(e.get("at") or 0) for e in events if e["event"] == "switched"]
    left = [float(e.get("at") or 0) for e in events if e["event"] == "left"]
    starts = [max((float(e["seconds"]) for e in _of_last_run(one.events)), default=None) for one in seen.values()]
    pins = [next((e for e in one.events[::-1] if e["event"] in ("pinned", "unpinned")), None)
            for one in seen.values()]
    pinned = next((e for e in pins if e is not None and e["event"] == "pinned"), None)
    return Entry(
        digest, min(numbers) if numbers else None, release, state,
        min(made)[0] if made else 0.0, min(made)[1] if made else "", max(live) if live else None,
        max((s for s in starts if s is not None), default=None),
        tuple(h for h, s in stores.items() if digest in s.releases),
        tuple(h for h, s in stores.items() if s.current == digest),
        tuple(h for h, one in seen.items() if any(e["event"] == "good" for e in one.events)),
        next((reason for reason in reasons if reason), ""),
        tuple(h for h, one in seen.items() if one.verdict == "bad"),
        None if pinned is None else str(pinned.get("reason") or "pinned"),
        any(one.waiting for one in seen.values()), max(left) if left and state == "left" else None,
    )


def _of_last_run(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The timed starts of the newest run that started it."""
    starts = [e for e in events if e["event"] == "started" and e.get("seconds")]
    return [e for e in starts if e.get("run") == starts[-1].get("run")]


def _unfinished(stores: Mapping[str, HostStore]) -> Unfinished | None:
    """A rollback that switched hosts and after which not all of them started what they were switched to.

    Each host that was switched says where it went and what it left; a host that the rollback never reached uses what
    was left still.
    """
    found: dict[str, tuple[str, str, str]] = {}
    for host, store in stores.items():
        events = list(store.history)
        at = max((n for n, e in enumerate(events) if e["event"] == "switched"), default=None)
        if at is None or not events[at].get("leaving") or store.current != events[at].get("digest"):
            continue
        target = str(events[at]["digest"])
        done = any(e["event"] in ("started", "good", "bad") and e.get("digest") == target for e in events[at + 1:])
        found[host] = (target, str(events[at]["leaving"]), "" if done else host)
    if not found:
        return None
    target, leaving, _ = next((one for one in found.values() if one[2]), next(iter(found.values())))
    behind = [host for host, store in stores.items() if store.current == leaving]
    not_started = [host for host, one in found.items() if one[2]]
    pending = tuple(host for host in stores if host in behind or host in not_started)
    return Unfinished(target, leaving, pending) if pending else None


def _came_back_from(stores: Mapping[str, HostStore]) -> str | None:
    """The deploy (no rollback) that every host's last switch undid; None when not all hosts say the same."""
    found: set[str | None] = set()
    for store in stores.values():
        switches = [e for e in store.history if e["event"] == "switched"]
        last = switches[-1] if switches else {}
        before = switches[-2] if len(switches) > 1 else {}
        undone = bool(last.get("undo")) and not before.get("leaving")
        found.add(str(last.get("previous")) if undone and last.get("previous") else None)
    return found.pop() if len(found) == 1 else None


def _deployed(stores: Mapping[str, HostStore]) -> str | None:
    """What the newest deploy or rollback went to. A host whose last switch another one has behind it was not part of
    it; clocks are compared only between hosts that no such order tells apart."""
    switches = {host: [e for e in store.history if e["event"] == "switched" and not e.get("undo")]
                for host, store in stores.items()}
    behind = {(e.get("run"), e["digest"]) for events in switches.values() for e in events[:-1]}
    last = [events[-1] for events in switches.values() if events]
    newest = [e for e in last if (e.get("run"), e["digest"]) not in behind] or last
    return str(max(newest, key=lambda e: float(e.get("at") or 0))["digest"]) if newest else None


def _by_hand(stores: Mapping[str, HostStore]) -> dict[str, str]:
    """Hosts whose `current` is not what their last switch made it, with that switch's digest."""
    out = {}
    for host, store in stores.items():
        last = next((e for e in store.history[::-1] if e["event"] in ("switched", "unswitched")), None)
        if last is not None and last["event"] == "switched" and store.current != last["digest"]:
            out[host] = str(last["digest"])
    return out
