"""`switch_release`: `current` of every node at once, all nodes of a replica or none."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bringup.base.errors import BringupError, StepError, UnreachableError
from bringup.base.events import Note, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import duration, fold_hosts
from bringup.releases import chosen as chosen_release
from bringup.releases import storing
from bringup.releases.chosen import Chosen
from bringup.run.actions import Fleet
from bringup.serving import engine_calls as calls


def switch_release(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Point `current` at the chosen release on every node at once. `args` has none.

    Where a node of a replica does not do it, the others of that replica are switched back and the replica is left
    out by name; the other replicas go on. Raises UnreachableError or StepError when none is left.
    """
    choice = chosen_release.needed(fleet)
    began = time.monotonic()
    reason = f"rolled back to {choice.label}" if choice.leaving else None
    results = storing.try_switch(fleet, choice.digest, choice.hosts, leaving=reason)
    took = time.monotonic() - began
    bad = calls.broken(results)
    out = {host: Result(host, "switch_release", result.status, data={"digest": choice.digest})
           for host, result in results.items() if host not in bad}
    for host, result in bad.items():
        out[host] = replace(result, task="switch_release", message=f"not switched: {calls.first_line(result)}",
                            next="invoke rollback again finishes it when the node is back")
    if bad:
        choice = _without(fleet, choice, results, bad)
    changed = [host for host, result in results.items() if host in choice.hosts and result.status is Status.CHANGED]
    word = "would be switched" if fleet.check else "switched"
    there = len(choice.hosts) - len(changed)
    beside = f", there on {there} already" if there else ""
    fleet.emit(StageSummary(choice.label, f"{word} on {len(changed)} of {len(results)} in {duration(took)}{beside}"
                            if changed else "in use everywhere already"))
    return out


def _without(fleet: Fleet, choice: Chosen, results: Mapping[str, Result], bad: Mapping[str, Result]) -> Chosen:
    """The choice without replicas that a node keeps from switching; their other nodes go back to what they used."""
    left, whole = dict(choice.left_out), dict(choice.launches)
    for name, hosts in choice.replicas.items():
        failed = [host for host in hosts if host in bad]
        if failed:
            back = [host for host in hosts if host not in bad and results[host].status is Status.CHANGED]
            _undo(fleet, back, results)
            del whole[name]
            left[name] = f"{fold_hosts(failed)} did not switch ({calls.first_line(bad[failed[0]])})"
            again = f"; {fold_hosts(back)} is as before" if back else ""
            fleet.emit(Note(f"{name} is left out: {left[name]}{again}", level="warn"))
    if not whole:
        kind: type[BringupError] = UnreachableError if calls.gone(bad) else StepError
        raise kind("no replica could be switched; nothing was stopped", host=fold_hosts(list(bad)),
                   details=[f"{host}: {calls.first_line(result)}" for host, result in list(bad.items())[:8]],
                   next="the same command again when the node is back")
    kept = replace(choice, launches=whole, left_out=left)
    chosen_release.save(fleet, kept)
    return kept


def _undo(fleet: Fleet, hosts: Sequence[str], results: Mapping[str, Result]) -> None:
    groups: dict[str, list[str]] = {}
    for host in hosts:
        before = results[host].data.get("before")
        if before:
            groups.setdefault(str(before), []).append(host)
    for digest, members in groups.items():
        storing.try_switch(fleet, digest, members, undo=True)
