"""The stages of a playbook that preflight brings: `preflight:` judges all hosts of the play, `capture:` saves them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.events import Findings, Note, StageSummary
from bringup.base.paths import Project
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts, plural
from bringup.base.verdicts import Finding, Verdict
from bringup.inventory.model import Inventory
from bringup.preflight import baseline, recording
from bringup.preflight.answers import Answers
from bringup.preflight.checks import pairs
from bringup.preflight.checks.parity import table
from bringup.preflight.facts import Facts
from bringup.preflight.gather import Gathered, gather
from bringup.preflight.judge import Chosen, judge, subject_hosts
from bringup.preflight.needs import headline, needs_of
from bringup.preflight.redact import redacted
from bringup.preflight.registry import Check, View
from bringup.preflight.replay import without_baseline
from bringup.preflight.requirement import Need
from bringup.preflight.show import facts_of
from bringup.run.actions import Fleet, ModuleSpec

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "tier": {"type": "str", "default": "fast", "choices": ["fast", "deep"]},
    "only": {"type": "list", "default": []},
    "skip": {"type": "list", "default": []},
    "record": {"type": "bool", "default": False},
}
"""Arguments of the module `preflight`: tier, checks or groups to run or leave out, whether to record a baseline."""

CAPTURE_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "output": {"type": "path", "required": True},
    "tier": {"type": "str", "default": "fast", "choices": ["fast", "deep"]},
    "redact": {"type": "bool", "default": False},
}
"""Arguments of the module `capture`: the folder (or .tar.gz) on the controller that gets one folder a host; `redact`
replaces names, addresses, accounts and serial numbers."""


def modules() -> list[ModuleSpec]:
    """The modules that this room gives to playbooks."""
    return [
        ModuleSpec("preflight", ARGUMENTS, fleet_action=preflight, reads_only=True,
                   help="look at every host and at all of them together"),
        ModuleSpec("mend_hosts", ARGUMENTS, fleet_action=_mend,
                   help="make the mends that are safe and can be put back, after showing them"),
        ModuleSpec("host_facts", {}, fleet_action=host_facts, reads_only=True,
                   help="the typed facts of every host, as preflight reads them"),
        ModuleSpec("capture", CAPTURE_ARGUMENTS, fleet_action=capture, reads_only=True,
                   help="save the raw outputs of every host on the controller"),
    ]


def _mend(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    from bringup.preflight.mending import mend

    return mend(fleet, args)


STEP = "Preflight"
BLOCKED = "preflight found what blocks"
"""Message of a host's failed result: the run ends with status 4 (FINDING) where that is the cause."""


@dataclass(frozen=True)
class Seen:
    """What a look at all hosts came to."""

    needs: Mapping[str, Need]
    gathered: Gathered
    views: Sequence[View]
    findings: Sequence[Finding]


def look(fleet: Fleet, args: Mapping[str, Any]) -> Seen:
    """Ask and judge all hosts; emits Findings and a StageSummary. Raises InputError for a wrong plan or filter."""
    chosen = Chosen(str(args.get("tier") or "fast"), _words(args.get("only")), _words(args.get("skip")))
    wanted = measures_of(chosen.select(), record=bool(args.get("record")))
    begun = time.monotonic()
    needs = needs_of(fleet.inventory, fleet.project, fleet.variables, fleet.hosts)
    gathered = gather(fleet, needs, tier=chosen.tier, wanted=wanted, build=True)
    views = views_of(gathered.answers, needs, fleet.hosts)
    if args.get("record"):
        # what is recorded now is not compared with what was recorded before
        views = without_baseline(views)
    findings = [*unreachable(gathered), *judge(views, chosen)]
    title = f"{headline({host: needs[host] for host in fleet.hosts})}     {duration(time.monotonic() - begun)}"
    fleet.emit(Findings(title, tuple(findings), tables(views)))
    fleet.emit(StageSummary(plural(len(fleet.hosts), "host"), verdict_line(findings)))
    return Seen(needs, gathered, views, findings)


def measures_of(selected: Sequence[Check], *, record: bool) -> frozenset[str] | None:
    """The probes that these checks read, so that nothing else is measured; None, for all, where a baseline is recorded
    or compared with."""
    if record or any(check.group == "baseline" for check in selected):
        return None
    return frozenset(probe for check in selected for probe in check.reads)


def preflight(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Ask and judge all hosts; record the baseline where that was asked for. A host with a blocking finding has a
    failed result whose data holds `exit_status: 4`. Raises InputError."""
    seen = look(fleet, args)
    if args.get("record"):
        text, path = recorded(seen.views, seen.findings, fleet.project, fleet.inventory)
        fleet.emit(Note(text))
        fleet.emit(StageSummary("baseline", str(path)))
    return {**results(seen.findings, fleet.hosts), **seen.gathered.lost}


def tables(views: Sequence[View]) -> dict[str, list[tuple[str, ...]]]:
    """The tables of the report by name."""
    out: dict[str, list[tuple[str, ...]]] = {"parity": [*table(views)]}
    compared = baseline.table(views)
    return {**out, **pairs.tables(views), **({"baseline": [*compared]} if compared else {})}


def recorded(views: Sequence[View], findings: Sequence[Finding], project: Project, inventory: Inventory
             ) -> tuple[str, Path]:
    """Write the baseline of the hosts on which nothing blocks. Returns what to say, and the file. Raises InputError."""
    blocked = {host for finding in findings if finding.blocks for host in subject_hosts(finding.subject)}
    kept = [view for view in views if view.host not in blocked]
    path = baseline.path_of(project, inventory)
    if not kept:
        return "no baseline is recorded: something blocks on every host", path
    count = baseline.write(path, kept)
    left = sorted(view.host for view in views if view.host in blocked)
    text = f"baseline of {plural(len(kept), 'host')} recorded, {plural(count, 'value')}: {path}"
    return text + (f"; left out, because something blocks there: {fold_hosts(left)}" if left else ""), path


def host_facts(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """The typed facts of all hosts, as a table `facts` of (host, JSON)."""
    needs = needs_of(fleet.inventory, fleet.project, fleet.variables, fleet.hosts)
    gathered = gather(fleet, needs)
    rows = [(view.host, json.dumps(facts_of(view.facts))) for view in views_of(gathered.answers, needs, fleet.hosts)]
    fleet.emit(Findings("facts", (), {"facts": rows}))
    ok = {host: Result(host, "Facts", Status.OK, module="host_facts", data={"changed": False}) for host, _ in rows}
    return {**ok, **gathered.lost}


def views_of(answers: Mapping[str, Answers], needs: Mapping[str, Need], hosts: Sequence[str]) -> list[View]:
    """Hosts that answered, as checks see them, in the order given."""
    return [View(Facts(answers[host]), needs[host]) for host in hosts if host in answers]


def unreachable(gathered: Gathered) -> list[Finding]:
    """A finding for each host that could not be asked."""
    return [Finding("host.reached", host, Verdict.FAIL, result.message or f"the host is {result.status.value}",
                    mend=result.next) for host, result in gathered.lost.items()]


def verdict_line(findings: Sequence[Finding]) -> str:
    """`pass`, or `2 fail, 1 warn`."""
    parts = []
    for verdict in (Verdict.FAIL, Verdict.UNKNOWN, Verdict.WARN):
        count = sum(1 for finding in findings if finding.verdict is verdict)
        if count:
            parts.append(f"{count} {verdict.value}")
    blocked = any(finding.blocks for finding in findings)
    return ", ".join(parts) if blocked else "pass" + (f" ({', '.join(parts)})" if parts else "")


def results(findings: Sequence[Finding], hosts: Sequence[str]) -> dict[str, Result]:
    """A result per host: failed with its first blocking findings, else ok."""
    blocking: dict[str, list[Finding]] = {host: [] for host in hosts}
    for finding in findings:
        if finding.blocks:
            for host in subject_hosts(finding.subject):
                if host in blocking:
                    blocking[host].append(finding)
    out = {}
    for host, found in blocking.items():
        if not found:
            out[host] = Result(host, STEP, Status.OK, module="preflight", data={"changed": False, "findings": 0})
            continue
        out[host] = Result(
            host, STEP, Status.FAILED, module="preflight", message=f"{BLOCKED}: {found[0].check}: {found[0].summary}",
            expected=found[0].required, found=found[0].found, next=found[0].mend,
            output=tuple(f"{one.check}: {one.summary}" for one in found[1:6]),
            data={"changed": False, "failed": True, "exit_status": 4, "findings": len(found)})
    return out


def capture(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Save the raw answers of all hosts under `output`, a folder a host, or in that archive. Raises InputError."""
    target = Path(str(args["output"])).expanduser()
    target = target if target.is_absolute() else Path.cwd() / target
    needs = needs_of(fleet.inventory, fleet.project, fleet.variables, fleet.hosts)
    gathered = gather(fleet, needs, tier=str(args.get("tier") or "fast"))
    out = dict(gathered.lost)
    told: list[str] = []
    kept = dict(gathered.answers)
    if args.get("redact"):
        kept = dict(zip(kept, redacted(kept, told.append), strict=True))
    with recording.opened(target) as folder:
        count = 0
        for host, answers in kept.items():
            if "/" in answers.host or answers.host in (".", ".."):
                raise InputError(f"a folder cannot be named `{answers.host}`", where=str(target))
            count += recording.write(folder / answers.host, answers)
            out[host] = Result(host, "Capture", Status.OK, module="capture",
                               data={"changed": False, "folder": str(target / answers.host)})
    fleet.emit(Note(told[0] if told else
                    "raw outputs as the tools printed them; only secrets known to this run were masked: names, "
                    f"addresses, serial numbers and command lines are in {target}", level="warn"))
    fleet.emit(StageSummary(plural(len(kept), "host"), f"{plural(count, 'file')} in {target}"))
    return out


def _words(value: Any) -> tuple[str, ...]:
    if value in (None, ""):
        return ()
    items = value.split(",") if isinstance(value, str) else value
    return tuple(str(item).strip() for item in items if str(item).strip())
