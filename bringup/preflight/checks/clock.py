"""Time: kept by something, near the truth, and near each other."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from bringup.base.text import duration
from bringup.preflight.registry import Outcome, View, check, failed, fleet_check, noted, passed, warned
from bringup.preflight.requirement import limits


def shown(seconds: float) -> str:
    """`0.8 ms`, `2.1 s`."""
    return f"{abs(seconds) * 1000:.1f} ms" if abs(seconds) < 1 else duration(abs(seconds))


@check("time.sync", "the clock is synchronised and near its source", reads=("time.chrony", "time.timedatectl"),
       source="chrony: leap status first, the offset prints 0 before it", remedy="sudo systemctl enable --now chrony   "
       "(role host_time does)")
def sync(view: View) -> Outcome:
    clock = view.facts.clock
    if clock.synced is False:
        return warned(f"not synchronised ({clock.by})", mend="chronyc sources -v; then sudo chronyc makestep")
    warn, fail = limits()["clock_offset_warn"], limits()["clock_offset_fail"]
    if clock.offset is not None and abs(clock.offset) >= warn.number:
        side = "fast" if clock.offset > 0 else "slow"
        text = f"{shown(clock.offset)} {side} of {clock.source or 'its source'}"
        make = failed if abs(clock.offset) >= fail.number else warned
        return make(text, required=f"within {shown(warn.number)}", mend="sudo chronyc makestep")
    return passed(f"within {shown(clock.offset)}" if clock.offset is not None else "synchronised")


@fleet_check("time.between", "the clocks of all hosts agree", reads=("time.chrony",),
             source="logs of several hosts are put in order by time", remedy="sudo chronyc makestep on the odd one")
def between(views: Sequence[View]) -> Iterable[Outcome]:
    measured = {view.host: view.facts.answers.clock for view in views if view.facts.answers.clock is not None}
    if len(measured) < 2:
        return
    offsets = {host: pair[0] for host, pair in measured.items() if pair is not None}
    middle = statistics.median(offsets.values())
    warn, fail = limits()["clock_offset_warn"], limits()["clock_offset_fail"]
    for host, offset in offsets.items():
        pair = measured[host]
        doubt = pair[1] if pair is not None else 0.0
        away = abs(offset - middle) - doubt
        side = "ahead of" if offset > middle else "behind"
        text = f"{shown(offset - middle)} {side} the others"
        if away >= fail.number:
            yield failed(text, subject=host, required=f"within {shown(warn.number)}")
        elif away >= warn.number * 10:
            yield warned(text, subject=host)
        elif away >= warn.number:
            yield noted(text, subject=host)
        else:
            yield passed(shown(offset - middle), subject=host)
