"""From facts and needs to findings: every check on every host, then the hosts together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.base.verdicts import Finding, Verdict
from bringup.preflight.registry import Check, Outcome, View, checks
from bringup.preflight.unread import Unread

MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""What a check meets in an answer of the agent that a host, or a person who wrote a recording, gave another shape."""


@dataclass(frozen=True)
class Chosen:
    """Which checks run: tier, and the words of --only and --skip (a check, a group, or `group.*`)."""

    tier: str = "fast"
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def select(self) -> list[Check]:
        """The checks. Raises InputError with the nearest name for a word that names none."""
        known = checks()
        only, skip = _matching(self.only, known), _matching(self.skip, known)
        wanted = [one for one in known.values() if self.tier == "deep" or one.tier == "fast"]
        return [one for one in wanted if (not self.only or one.id in only) and one.id not in skip]


def _matching(words: Iterable[str], known: Mapping[str, Check]) -> set[str]:
    groups = {one.group for one in known.values()}
    out: set[str] = set()
    for word in words:
        name = word.removesuffix(".*").removesuffix(".")
        found = {one.id for one in known.values() if one.id == name or one.group == name}
        if not found:
            near = nearest(name, [*groups, *known])
            raise InputError(f"no check or group is named `{word}`", expected=", ".join(sorted(groups)),
                             next=f"nearest: {near}" if near else "invoke checks lists all")
        out |= found
    return out


def judge(views: Sequence[View], chosen: Chosen | None = None) -> list[Finding]:
    """All findings, passes and skips included, in the order of checks and hosts."""
    selected = (chosen or Chosen()).select()
    platforms = {view.host: view.platform for view in views}
    bad: dict[str, set[str]] = {view.host: set() for view in views}
    findings: list[Finding] = []
    for check in selected:
        for view in views:
            if check.judge is None or check.platform not in ("any", platforms[view.host]):
                continue
            for outcome in _one(check, view, bad[view.host]):
                findings.append(_finding(check, outcome, outcome.subject or view.host))
                if outcome.verdict in (Verdict.FAIL, Verdict.UNKNOWN):
                    bad[view.host].add(check.id)
        if check.fleet is not None:
            fitting = [view for view in views if check.platform in ("any", platforms[view.host])]
            for outcome in _together(check, fitting) if fitting else ():
                findings.append(_finding(check, outcome, outcome.subject))
    return findings


def _one(check: Check, view: View, bad: set[str]) -> Iterable[Outcome]:
    assert check.judge is not None
    explained = [name for name in check.after if name in bad]
    if explained:
        return [Outcome(Verdict.SKIP, f"see {explained[0]}")]
    try:
        found = check.judge(view)
        return [found] if isinstance(found, Outcome) else list(found)
    except Unread as error:
        if error.absent and check.absent == "skip":
            return [Outcome(Verdict.SKIP, error.reason)]
        return [Outcome(Verdict.UNKNOWN, error.reason)]
    except MALFORMED as error:
        return [Outcome(Verdict.UNKNOWN, _malformed(error))]


def _together(check: Check, views: Sequence[View]) -> Iterable[Outcome]:
    assert check.fleet is not None
    try:
        return list(check.fleet(views))
    except Unread as error:
        reason = error.reason
    except MALFORMED as error:
        reason = _malformed(error)
    return [Outcome(Verdict.UNKNOWN, reason, subject=view.host) for view in views]


def _malformed(error: Exception) -> str:
    return f"an answer is not of the shape that it must have: {type(error).__name__}: {error}"


def _finding(check: Check, outcome: Outcome, subject: str) -> Finding:
    quiet = outcome.verdict in (Verdict.PASS, Verdict.SKIP)
    remedy = check.remedy or None if outcome.verdict in (Verdict.FAIL, Verdict.WARN) else None
    return Finding(
        check=check.id, subject=subject, verdict=outcome.verdict, summary=outcome.summary, details=outcome.details,
        required=outcome.required or (None if quiet else check.requires), found=outcome.found,
        source=outcome.source or check.source or None,
        mend=None if quiet else outcome.mend or remedy,
        data=outcome.data)


def subject_hosts(subject: str) -> tuple[str, ...]:
    """The hosts that a finding's subject names: one, or both of a pair `a > b`."""
    return tuple(part.strip() for part in subject.split(" > "))
