"""`invoke drift`: approved against running on every node, or one inventory against another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bringup.base.errors import ExitStatus, InputError, worst
from bringup.cli.options import COMMON, Option, Options, verb
from bringup.cli.serve import read_stages, run_data, say

if TYPE_CHECKING:
    from bringup.base.events import Event
    from bringup.base.verdicts import Finding
    from bringup.cli.running import Reading

_FLAGS = tuple(option for option in COMMON if option.name not in ("check", "diff", "yes"))


@verb([*_FLAGS, Option("against", help="another inventory: compare what runs there instead"),
       Option("contract", False, "ask the approved checks of the contract now, too"),
       Option("times", help="with --contract: how often each of them (1)")])
def drift(options: Options) -> ExitStatus:
    """Compare what runs with what was approved: links, files, units, flags, packages, drivers (exit 4 when not)."""
    times = options.number("times", least=1)
    if times is not None and not options.contract:
        raise InputError("--times says how often --contract asks", next="invoke drift --contract --times 5")
    if options.against:
        if options.contract:
            raise InputError("--contract asks what runs here, --against compares with another inventory")
        return _between(options)
    more = {"drift_contract": True, "drift_times": times or 1} if options.contract else {}
    reading = read_stages(options, "drift", more, whole=False)
    return run_data(reading, "drift", _Page(options))


def _between(options: Options) -> ExitStatus:
    """Facts of both inventories, one after the other, then what differs."""
    other = Options({**options.values, "inventory": [options.against], "limit": None, "report": []})
    readings = [read_stages(one, "drift", {"drift_compare": True}, whole=False) for one in (options, other)]
    if set(readings[0].inventory.hosts) & set(readings[1].inventory.hosts):
        both = sorted(set(readings[0].inventory.hosts) & set(readings[1].inventory.hosts))
        raise InputError("the two inventories name the same hosts", found=", ".join(both[:8]),
                         next="--against takes another inventory: staging.yml")
    sides, statuses = [], []
    for reading in readings:
        facts: dict[str, Any] = {}
        statuses.append(run_data(reading, "drift", lambda event, facts=facts: _gather(event, facts)))
        sides.append(facts)
    if not all(sides):
        return worst([*statuses, ExitStatus.FINDING])
    from bringup.releases.drift import between

    findings = between(sides[0], sides[1], (_name(readings[0]), _name(readings[1])))
    _say_findings(options, findings, f"{_name(readings[0])} against {_name(readings[1])}")
    return worst([*statuses, *([ExitStatus.FINDING] if any(f.blocks for f in findings) else [])])


def _name(reading: Reading) -> str:
    return reading.inventory.shown_as.rpartition("/")[2]


def _gather(event: Event, facts: dict[str, Any]) -> bool:
    from bringup.base.events import TaskEnded

    if isinstance(event, TaskEnded) and not event.result.bad and "facts" in event.result.data:
        facts[event.result.host] = event.result.data["facts"]
        return True
    return False


class _Page:
    """Shows the findings of a run as they come; what they told is not told again as a failed task."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.shown = False

    def __call__(self, event: Event) -> bool:
        from bringup.base.events import Findings, TaskEnded

        if isinstance(event, Findings) and event.title == "drift":
            _say_findings(self.options, event.findings, "")
            self.shown = True
            return True
        if isinstance(event, Findings):
            return True  # what was asked again is told as drift
        failed = isinstance(event, TaskEnded) and event.result.status.value == "failed"
        return failed and self.shown


def _say_findings(options: Options, findings: Any, title: str) -> None:
    from bringup.preflight.report import as_data, lines
    from bringup.ui.screen import line_width

    found: list[Finding] = list(findings)
    if options.format == "json":
        say(json.dumps(as_data(found, {}), indent=2, ensure_ascii=False))
        return
    for line in lines(found, width=line_width(), title=title, verbose=bool(options.verbose)):
        say(line)
