"""The stage `mend_hosts`: look, show the mends that are safe and reversible, ask, make them, look again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bringup.base.events import Note
from bringup.base.results import Result, Status
from bringup.base.text import plural
from bringup.preflight.action import look, results
from bringup.preflight.fixes import Mend, mends_of, shown
from bringup.run.actions import Call, Fleet


def mend(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Judge all hosts, make the mends that a person agreed to, judge again. Results as those of `preflight`.

    Without a terminal and without --yes nothing is changed and the hosts that would be mended fail with status 4.
    """
    seen = look(fleet, args)
    mends, left = mends_of(seen.findings, seen.needs)
    for text in left:
        fleet.emit(Note(text))
    if not mends:
        fleet.emit(Note("nothing that was found has a mend that is safe and can be put back"))
        return {**results(seen.findings, fleet.hosts), **seen.gathered.lost}
    lines = shown(mends)
    fleet.emit(Note("\n".join(["safe mends, what was before is kept on the host:", *lines])))
    if fleet.check:
        fleet.emit(Note(f"{plural(len(mends), 'mend')} not made: --check changes nothing"))
        return {**results(seen.findings, fleet.hosts), **seen.gathered.lost}
    if not fleet.ask(f"Make {plural(len(mends), 'mend')}?"):
        fleet.emit(Note(f"{plural(len(mends), 'mend')} not made: nobody said yes (--yes does)"))
        return {**results(seen.findings, fleet.hosts), **_unasked(mends), **seen.gathered.lost}
    failures = _make(fleet, mends)
    after = look(fleet, args)
    return {**results(after.findings, fleet.hosts), **failures, **after.gathered.lost}


def _unasked(mends: Sequence[Mend]) -> dict[str, Result]:
    return {one.host: Result(one.host, "Mend", Status.FAILED, module="mend_hosts",
                             message=f"{one.check}: the mend waits for a yes", next="invoke preflight --fix --yes",
                             data={"changed": False, "failed": True, "exit_status": 4}) for one in mends}


def _make(fleet: Fleet, mends: Sequence[Mend]) -> dict[str, Result]:
    """Make the mends, a setting at a time on all hosts; results of the hosts where one failed."""
    bad: dict[str, Result] = {}
    for setting in dict.fromkeys(one.fix.setting for one in mends):
        calls = {one.host: Call("host_setting", one.args, become="root") for one in mends
                 if one.fix.setting == setting and one.host not in bad}
        for host, result in fleet.call(calls).items():
            if result.bad:
                bad[host] = result
                fleet.emit(Note(f"{setting}: {result.message or result.status.value}", host=host, level="warn"))
            elif result.data.get("skipped"):
                fleet.emit(Note(f"{setting}: {result.data.get('msg', 'not on this host')}", host=host))
            else:
                fleet.emit(Note(f"{setting}: {result.data.get('msg', 'done')}; put back by host_setting "
                                f"name={setting} state=restored", host=host))
    return bad
