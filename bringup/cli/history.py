"""`invoke history`: every run that changed these hosts, told by the hosts themselves."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bringup.base.errors import ExitStatus, InputError
from bringup.cli.options import COMMON, Option, Options, verb
from bringup.cli.serve import read_stages, run_data, say

if TYPE_CHECKING:
    from bringup.base.events import Event

_FLAGS = tuple(option for option in COMMON if option.name not in ("check", "diff", "yes", "report"))
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@verb([*_FLAGS, Option("host", help="only this host or pattern (as --limit)"),
       Option("since", help="how far back: 90m, 12h, 2d, 1w, or a day, 2026-11-30 or 2026-11-30T14:00")])
def history(options: Options) -> ExitStatus:
    """Show every run that changed these hosts: who, from where, what, how it ended; from the hosts' own journals."""
    values = dict(options.values)
    if options.host:
        if options.limit:
            raise InputError("--host and --limit say the same: give one of them")
        values["limit"] = options.host
    seconds = since_seconds(options.since, time.time()) if options.since else None
    given = Options(values)
    reading = read_stages(given, "history", {"history_since": seconds if seconds is not None else ""}, whole=False)
    return run_data(reading, "history", lambda event: _show(given, event))


def since_seconds(text: str, now: float) -> float:
    """How long ago `12h`, `2d`, `2026-11-30` or `2026-11-30T14:00` (local time) is, in seconds. Raises InputError."""
    match = re.fullmatch(r"(\d+)\s*([smhdw])", text.strip())
    if match:
        return int(match.group(1)) * _UNITS[match.group(2)]
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"):
        try:
            then = time.mktime(time.strptime(text.strip(), form))
        except (ValueError, OverflowError):
            continue
        if then > now:
            raise InputError("--since lies in the future", found=text)
        return now - then
    raise InputError("--since takes 90m, 12h, 2d, 1w or a day", expected="2026-11-30 or 2026-11-30T14:00", found=text)


def _show(options: Options, event: Event) -> bool:
    from bringup.base.events import Findings

    if not isinstance(event, Findings) or "runs" not in event.tables:
        return False
    runs = [json.loads(row[0]) for row in event.tables["runs"]]
    if options.format == "json":
        say(json.dumps(runs, indent=2, ensure_ascii=False))
        return True
    if runs:
        from bringup.cli.release import fitted

        now = time.time()
        head = ["began", "run", "verb", "how it ended", "took", "release", "who, hosts, inventory"]
        for line in fitted([head, *(_row(run, now) for run in runs)]):
            say(line)
    return True


def _row(run: Mapping[str, Any], now: float) -> list[str]:
    from bringup.base.text import duration, fold_hosts

    release = run["before"] if run["before"] == run["after"] or run["after"] == "-" else \
        f"{run['before']} -> {run['after']}"
    source = f" from {run['address']}" if run["address"] else ""
    took = duration(run["seconds"]) if run["seconds"] is not None else "-"
    form = "%m-%d %H:%M" if now - run["began"] < 300 * 86400 else "%Y-%m-%d"
    return [time.strftime(form, time.localtime(run["began"])), run["run"], run["verb"], _ending(run), took, release,
            f"{run['operator']}{source}, {fold_hosts(run['hosts'])}, {run['inventory']}"]


_ENDED = {0: "done", 1: "a step failed (1)", 3: "a host was lost (3)", 4: "a finding (4)", 5: "refused (5)",
          6: "endpoint down (6)", 130: "interrupted (130)"}


def _ending(run: Mapping[str, Any]) -> str:
    if run["state"] != "ended":
        return str(run["state"])
    if run["outcome"] is None:
        return "ended, how is not known"
    done = _ENDED.get(run["outcome"], f"({run['outcome']})")
    return f"{done}, no change" if run["outcome"] == 0 and not run["changed"] else done
