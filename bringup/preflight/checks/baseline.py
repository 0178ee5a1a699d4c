"""What a host shows against its recorded baseline."""

from __future__ import annotations

from collections.abc import Iterable

from bringup.preflight.baseline import loss, values
from bringup.preflight.registry import Outcome, View, check, failed, noted, passed, skipped, warned

_OF_DEVICES = ("all-reduce", "copy", "device memory", "NVLinks", "RDMA")
"""Measures of which a loss is a defect of the host; the others may have a reason elsewhere."""


@check("baseline.measured", "nothing is worse than its recorded baseline by more than the tolerance",
       source="invoke preflight --record", remedy="find what changed; invoke preflight --record takes the new value")
def measured(view: View) -> Iterable[Outcome]:
    if not view.need.baseline:
        return [skipped("no baseline of this host is recorded: invoke preflight --record")]
    before = view.need.baseline.get("measured", {})
    _, now = values(view)
    out = []
    count = 0
    for name, old in before.items():
        if name not in now or not isinstance(old, (int, float)):
            continue
        count += 1
        lost = loss(str(name), float(old), now[name])
        if lost > view.need.tolerance:
            make = failed if str(name).startswith(_OF_DEVICES) else warned
            out.append(make(f"{name}: {now[name]:g}, {float(old):g} in the baseline ({-lost:+.1f} %)",
                            required=f"{float(old):g} less {view.need.tolerance:g} %", found=f"{now[name]:g}",
                            data={"measure": str(name), "was": float(old), "now": now[name], "loss": round(lost, 2)}))
    return out or [passed(f"{count} measures") if count else skipped("nothing of the baseline was measured now")]


@check("baseline.same", "versions and counts are those of the recorded baseline", source="invoke preflight --record",
       remedy="meant? invoke preflight --record takes the new value")
def same(view: View) -> Iterable[Outcome]:
    if not view.need.baseline:
        return [skipped("no baseline of this host is recorded: invoke preflight --record")]
    before = view.need.baseline.get("exact", {})
    now, _ = values(view)
    out = [noted(f"{name}: {now[name]}, {old} in the baseline of {view.need.baseline.get('recorded', '?')}")
           for name, old in before.items() if name in now and str(now[name]) != str(old)]
    return out or [passed(f"{len(before)} values")]
