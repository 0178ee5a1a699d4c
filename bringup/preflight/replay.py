"""Judge recorded hosts exactly as live ones, without a connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.paths import DEFAULT_ROOT, Project
from bringup.base.verdicts import Finding
from bringup.inventory.model import Inventory
from bringup.preflight import recording
from bringup.preflight.facts import Facts
from bringup.preflight.judge import Chosen, judge
from bringup.preflight.needs import needs_of
from bringup.preflight.registry import View
from bringup.preflight.requirement import Need


def recorded(paths: Sequence[Path]) -> list[View]:
    """Every recorded host at the paths, without a plan. Raises InputError when a host stands twice."""
    return [View(facts, _bare(facts)) for facts in _facts(paths)]


def _bare(facts: Facts) -> Need:
    """A need without a plan, with the paths that the recording asked about."""
    site = facts.answers.site
    return Need(root=site.get("root") or DEFAULT_ROOT, login=site.get("login") or "")


def with_inventory(paths: Sequence[Path], inventory: Inventory, project: Project,
                   variables: Callable[[str], Mapping[str, Any]]) -> list[View]:
    """Recorded hosts under the inventory's plan; hosts are matched by name. Raises InputError."""
    facts = {one.host: one for one in _facts(paths)}
    hosts = [host for host in inventory.hosts if host in facts]
    if not hosts:
        raise InputError("no recorded host is a host of the inventory", expected=", ".join(inventory.hosts),
                         found=", ".join(facts))
    needs = needs_of(inventory, project, variables, hosts)
    return [View(facts[host], needs[host]) for host in hosts]


def without_baseline(views: Sequence[View]) -> list[View]:
    """The hosts as a run that records a baseline judges them: compared with none."""
    return [View(view.facts, replace(view.need, baseline=None)) for view in views]


def judged(views: Sequence[View], chosen: Chosen) -> list[Finding]:
    """Findings of recorded hosts."""
    return judge(views, chosen)


def _facts(paths: Sequence[Path]) -> list[Facts]:
    out: dict[str, Facts] = {}
    for path in paths:
        for folder in recording.find(path):
            facts = Facts(recording.read(folder))
            if facts.host in out:
                raise InputError(f"two recordings are of `{facts.host}`", where=str(folder))
            out[facts.host] = facts
    return list(out.values())
