"""What a look at the live state means for runbooks: causes in the engines' logs, checks of the devices, slow tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from bringup.base.verdicts import Finding, Verdict
from bringup.preflight import registry
from bringup.runbooks.document import Runbook
from bringup.serving.causes import KNOWN, first_cause

SLOW = 5.0
"""Seconds for the eight tokens that status asks for: a healthy endpoint gives them in about one, a lab at once."""
ASKED = ("tools.structured", "tools.typed", "tools.several", "tools.nested", "tools.result", "thinking.off",
         "stream.equal")
"""Checks of the contract that tell malformed tool calls, few enough for an endpoint under load."""
_TOKEN = re.compile(r"a token in ([\d.]+) s")
_TELLING = frozenset(known.key for known in KNOWN if known.echo == 0)


@dataclass
class Seen:
    """What one look brought: the table and findings of status, lines of the engines in the order of time, findings of
    preflight, and hosts that were not reached, with what was said."""

    rows: Sequence[Sequence[str]] = ()
    status: list[Finding] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)
    devices: list[Finding] = field(default_factory=list)
    contract: list[Finding] = field(default_factory=list)
    unreached: dict[str, str] = field(default_factory=dict)

    def findings(self) -> list[Finding]:
        """All that speaks for a runbook. A warning about a device counts only beside something that is wrong."""
        out = [*self.status, *self._unreached(), *causes(self.rows, self.status, self.lines), *slow(self.rows)]
        contract = [finding for finding in self.contract if finding.verdict is Verdict.FAIL]
        wrong = bool(out or contract) or any(finding.blocks for finding in self.devices)
        devices = [finding for finding in self.devices if finding.check != "host.reached"
                   and (finding.blocks or (wrong and finding.verdict is Verdict.WARN))]
        return [*out, *devices, *contract]

    def _unreached(self) -> list[Finding]:
        told = {finding.subject for finding in self.status if finding.check == "process.unknown"}
        return [Finding("process.unknown", host, Verdict.UNKNOWN, text) for host, text in self.unreached.items()
                if host not in told]


def checks_of(books: Iterable[Runbook]) -> list[str]:
    """The checks of preflight that some runbook is for: what a look asks the devices."""
    signs = {sign.check for book in books for sign in book.signs}
    return sorted(name for name, check in registry.checks().items() if check.tier == "fast" and name != "host.reached"
                  and any(fnmatchcase(name, sign) for sign in signs))


def causes(rows: Sequence[Sequence[str]], status: Sequence[Finding], lines: Sequence[tuple[str, str]]
           ) -> list[Finding]:
    """The first known cause in the logs of each replica that is not well, as a finding `cause.KEY` of its node. What
    only follows from another failure is no cause. Pure."""
    sick = {finding.subject for finding in status if finding.blocks}
    out = []
    for replica, hosts in _members(rows).items():
        if not sick & set(hosts):
            continue
        logs: dict[str, list[tuple[float | None, str]]] = {host: [] for host in hosts}
        for place, (host, text) in enumerate(lines):
            if host in logs:
                logs[host].append((float(place), text))
        cause = first_cause(logs, {})
        if cause is not None and cause.key in _TELLING:
            out.append(Finding(f"cause.{cause.key}", cause.host, Verdict.FAIL, f"{replica}: {cause.what}",
                               (cause.evidence,) if cause.evidence else (), mend=cause.mend))
    return out


def slow(rows: Sequence[Sequence[str]]) -> list[Finding]:
    """A warning for each replica whose token took longer than SLOW."""
    out = []
    for row in _named(rows):
        found = _TOKEN.search(row.get("endpoint", ""))
        if found and float(found[1]) > SLOW:
            out.append(Finding("endpoint.slow", row["node"], Verdict.WARN,
                               f"{row['replica']} serves, and eight tokens took {found[1]} s (more than {SLOW:.0f} s)"))
    return out


def _members(rows: Sequence[Sequence[str]]) -> Mapping[str, list[str]]:
    out: dict[str, list[str]] = {}
    replica = ""
    for row in _named(rows):
        replica = row["replica"] or replica
        out.setdefault(replica, []).append(row["node"])
    return out


def _named(rows: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    head, *rest = rows or [[]]
    return [dict(zip(head, row, strict=True)) for row in rest]
