"""A contract that was approved once: which checks, when, by whom; kept beside the release in its hosts' stores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from bringup.base.text import plural
from bringup.base.verdicts import Finding, Verdict
from bringup.releases import storing
from bringup.releases.history import HostStore
from bringup.run.actions import Fleet

APPROVED = "contract-approved"
"""The event of a release's history."""


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
    try:
        checks = json.loads(str(newest.get("reason") or "{}")).get("checks") or []
    except ValueError:
        checks = []
    return Approval(tuple(str(check) for check in checks), str(newest.get("by") or "?"), float(newest.get("at") or 0))


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
