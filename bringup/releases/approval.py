"""A contract that was approved once: which checks, when, by whom; kept beside the release in its hosts' stores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from bringup.base.text import plural
from bringup.base.verdicts import Finding, Verdict
from bringup.releases import storing
from bringup.releases.history import HostStore
from bringup.run.actions import Fleet

APPROVED = "contract-approved"
SEEN = "contract-seen"
"""Events of a release's history: approved once; how approved checks went when they were asked later."""


@dataclass(frozen=True)
class Approval:
    """The checks that a person approved for a release; `at` is seconds since the epoch."""

    checks: tuple[str, ...]
    by: str
    at: float

    @property
    def told(self) -> str:
        """`approved 2026-11-30 by ops@deploy1`."""
        day = datetime.fromtimestamp(self.at, timezone.utc).strftime("%Y-%m-%d")
        return f"approved {day} by {self.by}"


def approval_of(stores: Mapping[str, HostStore], digest: str | None) -> Approval | None:
    """The newest approval of this release that any host remembers."""
    events = [event for store in stores.values() for event in store.history
              if event.get("event") == APPROVED and event.get("digest") == digest]
    if not digest or not events:
        return None
    newest = max(events, key=lambda event: float(event.get("at") or 0))
    checks = _reason(newest).get("checks") or []
    return Approval(tuple(str(check) for check in checks), str(newest.get("by") or "?"), float(newest.get("at") or 0))


@dataclass(frozen=True)
class Failing:
    """An approved check that failed `failed` of `times` times when it was last asked; `on` is the replica, `at` seconds
    since the epoch."""

    check: str
    failed: int
    times: int
    on: str
    at: float
    by: str


def failing_of(stores: Mapping[str, HostStore], digest: str | None) -> tuple[Failing, ...]:
    """The approved checks of this release that failed when they were last asked, as any host remembers.

    On each host the order of its own events counts: asked again a check is as it went then, approved anew all are well.
    """
    found: dict[tuple[str, str], Failing] = {}
    for store in stores.values():
        own: dict[tuple[str, str], Failing] = {}
        for event in store.history:
            if event.get("digest") != digest or event.get("event") not in (APPROVED, SEEN):
                continue
            if event["event"] == APPROVED:
                own.clear()
                continue
            told = _reason(event)
            on = str(told.get("on") or "?")
            for check in told.get("asked") or ():
                own.pop((str(check), on), None)
            for check, (failed, times) in (told.get("failed") or {}).items():
                own[str(check), on] = Failing(str(check), int(failed), int(times), on, float(event.get("at") or 0),
                                              str(event.get("by") or "?"))
        found.update(own)
    return tuple(sorted(found.values(), key=lambda one: (one.check, one.on)))


def remember(fleet: Fleet, members: Mapping[str, Sequence[str]], releases: Mapping[str, str | None],
             stores: Mapping[str, HostStore], found: Sequence[Finding]) -> None:
    """Write on each replica's hosts how the approved checks of its release went, where one failed or failed before.

    `releases` maps a replica to the digest that runs on it, `found` are the findings of this asking.
    """
    for name, hosts in members.items():
        digest = releases.get(name)
        approval = approval_of(stores, digest)
        if approval is None or not digest:
            continue
        mine = [one for one in found if one.subject.split()[0] == name and one.check in approval.checks
                and one.verdict in (Verdict.PASS, Verdict.FAIL)]
        asked = sorted({one.check for one in mine})
        failed = {one.check: [int(one.data.get("failed") or 1), int(one.data.get("times") or 1)]
                  for one in mine if one.blocks}
        before = {one.check for one in failing_of(stores, digest) if one.on == name}
        if failed or before & set(asked):
            storing.mark(fleet, digest, list(hosts), SEEN,
                         reason=json.dumps({"on": name, "asked": asked, "failed": failed}))


def drift_findings(stores: Mapping[str, HostStore], digest: str | None, hosts: str) -> list[Finding]:
    """What `drift` says of the contract of the release in use: a failure for each approved check that failed later."""
    if not digest:
        return []
    approval = approval_of(stores, digest)
    if approval is None:
        return [Finding("drift.contract", hosts, Verdict.SKIP, "the contract of this release was never approved",
                        mend="invoke verify --approve")]
    failing = failing_of(stores, digest)
    if not failing:
        return [Finding("drift.contract", hosts, Verdict.PASS,
                        f"the contract holds as {approval.told}: {plural(len(approval.checks), 'check')}")]
    return [_drifted(on, [one for one in failing if one.on == on], approval)
            for on in dict.fromkeys(one.on for one in failing)]


def _drifted(on: str, failing: Sequence[Failing], approval: Approval) -> Finding:
    """One replica's approved checks that failed later."""
    last = max(failing, key=lambda one: one.at)
    when = datetime.fromtimestamp(last.at).strftime("%Y-%m-%d %H:%M")
    return Finding("drift.contract", on, Verdict.FAIL,
                   f"{plural(len(failing), 'check')} of the contract {'fails' if len(failing) == 1 else 'fail'}, "
                   f"{approval.told}, asked {when} by {last.by}",
                   tuple(f"{one.check}  {one.failed} of {plural(one.times, 'time')}" for one in failing),
                   mend="invoke verify tells the likely cause; invoke rollback goes back",
                   data={"failed": {one.check: [one.failed, one.times] for one in failing}})


def told_of(stores: Mapping[str, HostStore], digest: str) -> str:
    """For a table: `not approved`, `approved 2026-11-30 by ops@deploy1`, or that with how many checks fail now."""
    approval = approval_of(stores, digest)
    if approval is None:
        return "not approved"
    failing = failing_of(stores, digest)
    return approval.told + (f", {plural(len(failing), 'check')} failed later" if failing else "")


def _reason(event: Mapping[str, Any]) -> dict[str, Any]:
    """What an event says beside its name; empty where it cannot be read."""
    try:
        told = json.loads(str(event.get("reason") or "{}"))
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def approve(fleet: Fleet, digest: str, hosts: Sequence[str], checks: Sequence[str]) -> None:
    """Write on every host of the release that these checks are its contract."""
    from bringup.serving.contract.client import client_version

    storing.mark(fleet, digest, hosts, APPROVED,
                 reason=json.dumps({"checks": sorted(checks), "client": client_version()}))


def over_times(rounds: Sequence[Sequence[Finding]], approval: Approval | None) -> list[Finding]:
    """One finding a check over several rounds of the contract. What fails now and then fails, with how often; an
    approved check that fails is drift."""
    out = []
    for same in zip(*rounds, strict=True):
        bad = [finding for finding in same if finding.blocks]
        if not bad:
            out.append(same[-1])
            continue
        often = f"fails {len(bad)} of {plural(len(same), 'time')}"
        drifted = approval is not None and bad[0].check in approval.checks
        words = [f"drift: {approval.told}, {often} now"] if drifted and approval is not None else (
            [often] if len(same) > 1 else [])
        out.append(replace(bad[0], verdict=Verdict.FAIL, summary=": ".join([*words, bad[0].summary]),
                           data={**bad[0].data, "failed": len(bad), "times": len(same), "drift": drifted}))
    return out
