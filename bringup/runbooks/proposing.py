"""Which runbook fits what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bringup.base.verdicts import Finding, Verdict
from bringup.runbooks.document import Runbook, Sign

_WORST = {Verdict.FAIL: 0, Verdict.UNKNOWN: 1, Verdict.WARN: 2}
_EFFECTS = ("process.dead", "process.rank", "process.absent", "process.leftover", "endpoint", "release.running",
            "watcher.")
"""What follows from something: a device, a host, a cause in the log that blocks, too, comes before it."""


@dataclass(frozen=True)
class Proposal:
    """A runbook and the findings that speak for it, worst first."""

    runbook: Runbook
    findings: tuple[Finding, ...]

    def command(self, inventories: Iterable[str] = ()) -> str:
        """What to type; values that the findings do not name are left in capitals."""
        words = ["invoke runbook", self.runbook.name, *(f"--inventory {name}" for name in inventories)]
        subject = self.findings[0].subject
        plain = not any(sign in subject for sign in " ,[>")
        words += [f"--set {name}={subject if name == 'node' and plain else name.upper()}"
                  for name in sorted(self.runbook.variables, key=lambda name: name != "node")]
        return " ".join(words)


def propose(findings: Iterable[Finding], runbooks: Mapping[str, Runbook]) -> tuple[list[Proposal], list[Finding]]:
    """The runbooks that fit, causes before what follows from them, then worst and most exact first; and the findings
    that none is written for. Pure.

    Where a sign with a text fits a finding, those without one do not count for it: the exact runbook is the one.
    """
    found: dict[str, list[tuple[tuple[int, ...], Finding]]] = {}
    left = []
    for finding in findings:
        if finding.verdict not in _WORST:
            continue
        fits = [(name, sign) for name, book in runbooks.items() for sign in book.signs if _fits(sign, finding)]
        exact = [(name, sign) for name, sign in fits if sign.text]
        for name in dict.fromkeys(name for name, _ in exact or fits):
            found.setdefault(name, []).append((_rank(finding, bool(exact)), finding))
        if not fits:
            left.append(finding)
    order = sorted(found, key=lambda name: (min(row[0] for row in found[name]), -len(found[name]), name))
    return [Proposal(runbooks[name], tuple(row[1] for row in sorted(found[name], key=lambda row: row[0])))
            for name in order], left


def _rank(finding: Finding, exact: bool) -> tuple[int, ...]:
    return (0 if finding.blocks else 1, 1 if finding.check.startswith(_EFFECTS) else 0, _WORST[finding.verdict],
            0 if exact else 1)


def _fits(sign: Sign, finding: Finding) -> bool:
    if not fnmatchcase(finding.check, sign.check):
        return False
    return not sign.text or sign.text.lower() in " ".join((finding.summary, *finding.details)).lower()
