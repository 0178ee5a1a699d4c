"""Verbs that look at hosts and change nothing: `preflight`, `capture`, `checks`, `facts`."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from bringup.cli.options import COMMON, FORMAT, Option, Options, verb

if TYPE_CHECKING:
    from bringup.preflight.registry import View
    from bringup.ui.report import Collector

TIER = Option("tier", "fast", "fast (seconds, nothing is loaded) or deep", choices=("fast", "deep"))
ONLY = Option("only", help="a check or a group, as nvlink or net.mtu; commas, and may be given again", many=True)
RECORD = Option("record", False, "also keep what is found as the inventory's baseline, for later runs to compare with")
FIX = Option("fix", False, "make the mends that are safe and can be put back, after showing them and asking")
SKIP = Option("skip", help="the same, left out", many=True)
REPLAY = Option("replay", help="judge recorded hosts instead: a capture, a folder of them, a .tar.gz; again for more",
                many=True)


@verb((*COMMON, TIER, ONLY, SKIP, REPLAY, RECORD, FIX))
def preflight(options: Options) -> int:
    """Look at every host and at all of them together; say what would break, why, and what mends it."""
    from bringup.preflight.judge import Chosen

    chosen = Chosen(options.tier, words(options.only), words(options.skip))
    chosen.select()
    if options.fix and (options.replay or options.record):
        from bringup.base.errors import InputError

        raise InputError("--fix goes with neither --replay nor --record", next="record when the hosts are well")
    if options.replay:
        return _replayed(options, chosen)
    return _run(options, "preflight-fix" if options.fix else "preflight",
                {"preflight_tier": chosen.tier, "preflight_only": list(chosen.only),
                 "preflight_skip": list(chosen.skip), "preflight_record": options.record})


@verb((*COMMON, TIER, Option("output", help="folder that gets one folder per host; or a file ending in .tar.gz"),
       Option("redact", False, "replace names, addresses, accounts and serial numbers")))
def capture(options: Options) -> int:
    """Save the raw outputs of every host, a folder each; nothing but known secrets is masked without --redact."""
    from bringup.base.errors import InputError

    if not options.output:
        raise InputError("capture needs --output DIR", next="invoke capture --output captures/")
    return _run(options, "capture", {"capture_output": options.output, "capture_tier": options.tier,
                                     "capture_redact": options.redact})


@verb((Option("tier", "deep", "deep: all checks; fast: those of the fast tier", choices=("fast", "deep")), ONLY, SKIP,
       FORMAT))
def checks(options: Options) -> int:
    """List the checks of preflight: what each reads, requires, by whose word, and what mends it."""
    from bringup.preflight.fixes import SAFE
    from bringup.preflight.judge import Chosen

    listed = Chosen(options.tier, words(options.only), words(options.skip)).select()
    if options.format == "json":
        print(json.dumps([
            {"id": one.id, "group": one.group, "platform": one.platform, "tier": one.tier, "requires": one.requires,
             "source": one.source, "remedy": one.remedy,
             "fix": SAFE[one.id].does if one.id in SAFE else None, "reads": list(one.reads),
             "scope": "host" if one.judge else "hosts"} for one in listed], indent=1))
        return 0
    width = max(len(one.id) for one in listed) if listed else 0
    for one in listed:
        where = "" if one.platform == "any" else f"  [{one.platform}]"
        print(f"{one.id:<{width}}  {one.requires}{where}")
        print(f"{'':<{width}}  by {one.source}" + (f" · mend: {one.remedy}" if one.remedy else ""))
    print(f"{len(listed)} checks")
    return 0


@verb((*COMMON, REPLAY))
def facts(options: Options) -> int:
    """Show the typed facts that preflight reads from hosts or recordings, with what could not be read and why."""
    from bringup.base.secrets import SCRUBBER
    from bringup.preflight.show import facts_of

    if options.replay:
        _show_facts(options, SCRUBBER.tree({view.host: facts_of(view.facts) for view in _views(options)}))
        return 0
    from bringup.base.events import Event, Findings
    from bringup.base.paths import Project
    from bringup.cli.running import Reading
    from bringup.cli.serve import run_data

    def show(event: Event) -> bool:
        if not isinstance(event, Findings) or "facts" not in event.tables:
            return False
        _show_facts(options, SCRUBBER.tree({host: json.loads(text) for host, text in event.tables["facts"]}))
        return True

    return int(run_data(Reading(options, Project.find().root / "playbooks" / "facts.yml"), "facts", show))


def _show_facts(options: Options, found: Any) -> None:
    if options.format == "json":
        print(json.dumps(found, indent=1))
        return
    for host, values in found.items():
        print(host)
        for name, value in values.items():
            text = value if isinstance(value, str) else json.dumps(value)
            print(f"  {name:<16} {text if len(text) <= 100 or options.verbose else text[:97] + '...'}")


def words(values: Any) -> tuple[str, ...]:
    """`a,b` given once or more as single words."""
    return tuple(part.strip() for value in values for part in str(value).split(",") if part.strip())


def _run(options: Options, name: str, extra: dict[str, Any]) -> int:
    from bringup.base.paths import Project
    from bringup.cli.running import run_playbook

    playbook = Project.find().root / "playbooks" / f"{name}.yml"
    return int(run_playbook(options, playbook, verb=name.partition("-")[0], extra_vars=extra))


def _views(options: Options) -> list[View]:
    from pathlib import Path

    from bringup.base.paths import Project
    from bringup.preflight import replay

    paths = [Path(path).expanduser() for path in options.replay]
    if not options.inventory:
        return replay.recorded(paths)
    from bringup.cli.plan import planned_inventory

    inventory, variables, _ = planned_inventory(options, Project.find())
    return replay.with_inventory(paths, inventory, Project.find(), variables)


def _replayed(options: Options, chosen: Any) -> int:
    from bringup.base.errors import ExitStatus
    from bringup.base.secrets import SCRUBBER
    from bringup.preflight import replay, report
    from bringup.preflight.action import tables as tables_of
    from bringup.ui.report import write_report

    begun = time.monotonic()
    views = _views(options)
    if options.record:
        views = replay.without_baseline(views)
    findings, tables = replay.judged(views, chosen), tables_of(views)
    status = int(ExitStatus.FINDING) if any(finding.blocks for finding in findings) else 0
    collector = _collected(options, views, findings, tables, status, time.monotonic() - begun)
    for file in options.report:
        write_report(collector, file)
    if options.format == "json":
        print(collector.json())
    else:
        from bringup.preflight.needs import headline
        from bringup.ui.screen import line_width

        title = f"bringup preflight · replayed · {headline({view.host: view.need for view in views})}"
        for line in report.lines(findings, tables, width=line_width(), title=title, verbose=options.verbose):
            print(SCRUBBER.text(line))
    if options.record:
        _record(options, views, findings)
    return status


def _record(options: Options, views: list[View], findings: Any) -> None:
    from bringup.base.errors import InputError
    from bringup.base.paths import Project
    from bringup.cli.inventory import load_for
    from bringup.preflight.action import recorded

    if not options.inventory:
        raise InputError("a baseline belongs to an inventory", next="--inventory NAME beside --replay and --record")
    print(recorded(views, findings, Project.find(), load_for(options))[0], file=sys.stderr)


def _collected(options: Options, views: list[View], findings: Any, tables: Any, status: int, seconds: float
               ) -> Collector:
    """What a run would have told of these hosts: the document and the reports are those of a live one."""
    from bringup.base.events import Findings, RunEnded, RunStarted
    from bringup.ui.report import Collector

    collector = Collector()
    shown = ", ".join(str(name) for name in options.inventory)
    collector(RunStarted("preflight", shown, "", "", tuple(view.host for view in views)))
    collector(Findings("preflight, replayed", tuple(findings), tables))
    collector(RunEnded(status, seconds))
    return collector
