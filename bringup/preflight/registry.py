"""What a check is, and the table of all checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bringup.base.verdicts import Verdict
from bringup.preflight.facts import Facts
from bringup.preflight.requirement import Need, Profile, profile_of
from bringup.preflight.unread import Unread


@dataclass(frozen=True)
class Outcome:
    """What a check found on one subject, before it is a Finding. `subject` is empty for the host itself."""

    verdict: Verdict
    summary: str
    details: tuple[str, ...] = ()
    required: str | None = None
    found: str | None = None
    source: str | None = None
    mend: str | None = None
    subject: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


def passed(summary: str, **more: Any) -> Outcome:
    return Outcome(Verdict.PASS, summary, **more)


def noted(summary: str, **more: Any) -> Outcome:
    return Outcome(Verdict.NOTE, summary, **more)


def warned(summary: str, **more: Any) -> Outcome:
    return Outcome(Verdict.WARN, summary, **more)


def failed(summary: str, **more: Any) -> Outcome:
    return Outcome(Verdict.FAIL, summary, **more)


def skipped(summary: str, **more: Any) -> Outcome:
    return Outcome(Verdict.SKIP, summary, **more)


def unknown(summary: str, **more: Any) -> Outcome:
    return Outcome(Verdict.UNKNOWN, summary, **more)


class View:
    """One host as a check sees it: its facts and what is needed of it."""

    def __init__(self, facts: Facts, need: Need) -> None:
        self.facts = facts
        self.need = need
        self.host = facts.host

    @property
    def platform(self) -> str:
        """The accelerator platform: the plan's, else the one on the PCI bus, else the one whose tool is there."""
        if self.need.platform:
            return self.need.platform
        vendors = {"10de": "nvidia", "19e5": "ascend", "1002": "amd"}
        try:
            for device in self.facts.pci:
                if device.vendor in vendors and device.kind[:2] in ("03", "12") and device.kind != "0300":
                    return vendors[device.vendor]
        except Unread:
            pass
        for probe, platform in (("nvidia.q", "nvidia"), ("ascend.info", "ascend"), ("amd.smi", "amd")):
            if not self.facts.answers.get(probe).missing:
                return platform
        return ""

    @property
    def profile(self) -> Profile | None:
        """The plan's hardware profile, else the one that the first accelerator's name fits."""
        if self.need.profile:
            return self.need.profile
        try:
            if self.platform == "nvidia":
                return profile_of(self.facts.smi.gpus[0].name)
            if self.platform == "ascend":
                return profile_of(self.facts.npu.chips[0].name)
        except Unread:
            pass
        return None


Judge = Callable[[View], "Outcome | Iterable[Outcome]"]
FleetJudge = Callable[[Sequence[View]], Iterable[Outcome]]


@dataclass(frozen=True)
class Check:
    """A check: what it reads, requires and by whose word, and the function that judges.

    `absent` says what a missing tool or file means: `skip`, `unknown` or `fail`. `after` names checks that explain it:
    where one of them failed on the host, what this one cannot read is a skip, not a second unknown.
    """

    id: str
    requires: str
    judge: Judge | None = None
    fleet: FleetJudge | None = None
    platform: str = "any"
    tier: str = "fast"
    reads: tuple[str, ...] = ()
    source: str = ""
    remedy: str = ""
    absent: str = "skip"
    after: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]


_CHECKS: dict[str, Check] = {}


def check(id: str, requires: str, *, platform: str = "any", tier: str = "fast", reads: Sequence[str] = (),
          source: str = "", remedy: str = "", absent: str = "skip", after: Sequence[str] = ()
          ) -> Callable[[Judge], Judge]:
    """Register a function that judges one host."""

    def keep(judge: Judge) -> Judge:
        _add(Check(id, requires, judge, None, platform, tier, tuple(reads), source, remedy, absent, tuple(after)))
        return judge

    return keep


def fleet_check(id: str, requires: str, *, platform: str = "any", tier: str = "fast", reads: Sequence[str] = (),
                source: str = "", remedy: str = "") -> Callable[[FleetJudge], FleetJudge]:
    """Register a function that judges the hosts together; its outcomes name their subject."""

    def keep(judge: FleetJudge) -> FleetJudge:
        _add(Check(id, requires, None, judge, platform, tier, tuple(reads), source, remedy))
        return judge

    return keep


def _add(one: Check) -> None:
    if one.id in _CHECKS:
        raise ValueError(f"two checks are named {one.id}")
    _CHECKS[one.id] = one


def checks() -> Mapping[str, Check]:
    """Every check by id, in the order of the report's groups."""
    from bringup.preflight import checks as rooms

    order = rooms.load()
    return dict(sorted(_CHECKS.items(), key=lambda item: order[_home(item[1])]))


def _home(one: Check) -> str:
    function = one.judge or one.fleet
    return str(getattr(function, "__module__", ""))
