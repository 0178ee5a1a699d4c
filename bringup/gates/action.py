"""`gate_line`: one line of the gates against what runs; kept, so that the next run goes on behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bringup.base.errors import FindingError, InputError
from bringup.base.events import Findings, Note, StageSummary
from bringup.base.results import Result, Status
from bringup.base.text import nearest
from bringup.gates import approved as approved_cards
from bringup.gates.definition import Definition, Line, incomplete, judge, load_definition
from bringup.gates.ground import Came, Ground, stand
from bringup.gates.measure import told
from bringup.gates.state import State, load_state
from bringup.inventory.model import Inventory
from bringup.run.actions import Fleet, ModuleSpec

DEFAULT = "gates/default.yml"
COMPARE_KEY = "BRINGUP_COMPARE_KEY"
"""The environment variable that holds the other endpoint's key."""


def specs() -> list[ModuleSpec]:
    """The modules, for the table of modules."""
    return [
        ModuleSpec("gate_line", {
            "line": {"type": "str", "required": True}, "definition": {"type": "str", "default": DEFAULT},
            "cycle": {"type": "int", "default": 1}, "again": {"type": "bool", "default": False}},
            fleet_action=gate_line, help="hold what runs against one line of the gates"),
        ModuleSpec("gate_end", {
            "definition": {"type": "str", "default": DEFAULT}, "approve": {"type": "bool", "default": False},
            "cycle": {"type": "int", "default": 1}, "last": {"type": "bool", "default": True}},
            fleet_action=gate_end, reads_only=True, help="say what the gates came to; approve the scorecard"),
        ModuleSpec("gate_compare", {
            "url": {"type": "str", "required": True}, "model": {"type": "str"},
            "definition": {"type": "str", "default": DEFAULT}, "slice": {"type": "int"}},
            fleet_action=gate_compare, reads_only=True, help="ask another endpoint the same tasks, side by side"),
    ]


def inventory_name(fleet: Fleet) -> str:
    """The name under which a gate's state and its approved scorecard are kept: the inventory's file."""
    return name_of(fleet.inventory)


def name_of(inventory: Inventory) -> str:
    """The stem of the file that names the first host."""
    for host in inventory.hosts.values():
        if host.origin is not None and host.origin.file:
            return Path(host.origin.file).stem
    return "inventory"


def state_path(root: Path, inventory: str) -> Path:
    """`.bringup/gates/NAME.json`."""
    return root / ".bringup" / "gates" / f"{inventory}.json"


def gate_line(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Run one line. Raises FindingError (exit 4) when a pass line is missed or something is worse than approved."""
    definition = load_definition(fleet.project.root / str(args.get("definition") or DEFAULT))
    name = str(args["line"])
    line = _named(definition, name)
    _complete(fleet, definition)
    if fleet.check:
        fleet.emit(StageSummary(name, f"would run: {line.command}"))
        return {}
    ground = stand(fleet, definition)
    state = _state(fleet, ground, again=bool(args.get("again")))
    cycle = int(args.get("cycle") or 1)
    kept = state.passed(cycle, name)
    if kept is not None:
        fleet.emit(StageSummary(name, f"passed before on {ground.label}: {kept['told']}"))
        return {}
    began = time.monotonic()
    came = _do(ground, line)
    findings = [*came.findings, *judge(line, came.measures), *approved_cards.compared(
        name, came.measures, _approved(fleet, definition), definition)]
    bad = [finding for finding in findings if finding.blocks]
    state.keep(cycle, name, passed=not bad, seconds=time.monotonic() - began, measures=came.measures, told=came.told,
               series=came.series)
    fleet.emit(Findings(f"gate {name}", tuple(findings), _tables(line, came, _approved(fleet, definition))))
    fleet.emit(StageSummary(name, came.told))
    for subject, text in told(came.measures):
        fleet.emit(StageSummary(subject, text))
    head = ground.members[ground.replica][0]
    if bad:
        raise FindingError(f"the gate {name} is closed: {bad[0].summary}", details=[f.summary for f in bad[1:5]],
                           expected=bad[0].required, found=bad[0].found,
                           next=f"{line.rollback} (owner: {line.owner}); mended, invoke gate goes on from here")
    return {head: Result(head, "gate_line", Status.OK, message=came.told, data={"measures": dict(came.measures)})}


def _approved(fleet: Fleet, definition: Definition) -> dict[str, Any]:
    return approved_cards.load(approved_cards.path_of(definition, inventory_name(fleet)))


def _tables(line: Line, came: Came, approved: Mapping[str, Any]) -> dict[str, Any]:
    """The measures beside their pass lines and the approved ones, and a sweep's pairs."""
    before = (approved.get("lines") or {}).get(line.name) or {}
    rows = [[name, "not measured" if value is None else f"{value:g}", str(line.bounds.get(name, "")),
             f"{before[name]:g}" if name in before else ""] for name, value in came.measures.items()]
    tables: dict[str, Any] = {f"gate {line.name}": [["measure", "now", "pass line", "approved"], *rows]}
    if "pairs" in came.series:
        from bringup.gates.parsers import rows as pairs

        tables["parsers"] = pairs(came.series)
    return tables


def _do(ground: Ground, line: Line) -> Came:
    return _runner(line.kind)(ground, line)


def _runner(kind: str) -> Callable[[Ground, Line], Came]:
    """Imported when it is needed: each kind has weight of its own."""
    if kind in ("smoke", "traces", "scorecard"):
        from bringup.gates import asking

        return {"smoke": asking.smoke, "traces": asking.traces, "scorecard": asking.scorecard}[kind]
    if kind == "parsers":
        from bringup.gates.parsers import sweep

        return sweep
    if kind == "chaos":
        from bringup.gates.chaos import chaos

        return chaos
    from bringup.gates.rehearsal import rehearsal

    return rehearsal


def _named(definition: Definition, name: str) -> Line:
    """The line of this name. Raises InputError."""
    line = definition.line(name)
    if line is None:
        names = [line.name for line in definition.lines]
        near = nearest(name, names)
        raise InputError(f"no gate is called `{name}`", where=str(definition.path), expected=", ".join(names),
                         next=f"nearest: {near}" if near else None)
    return line


def _complete(fleet: Fleet, definition: Definition) -> None:
    missing = incomplete(definition)
    if missing:
        fleet.emit(Findings("gates", tuple(missing)))
        raise FindingError(f"the gate {missing[0].check.partition('.')[2]} is not complete: {missing[0].summary}",
                           where=str(definition.path), expected=missing[0].required, next=missing[0].mend)


def _state(fleet: Fleet, ground: Ground, *, again: bool = False) -> State:
    return load_state(state_path(fleet.project.root, inventory_name(fleet)), ground.release,
                      ground.definition.digest, again=again)


def gate_end(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """After all lines: what they came to; with `approve` the scorecard of now is the one that later ones are held
    against. Raises FindingError when not all of them passed."""
    definition = load_definition(fleet.project.root / str(args.get("definition") or DEFAULT))
    if fleet.check:
        return {}
    ground = stand(fleet, definition)
    state = _state(fleet, ground)
    cycle = int(args.get("cycle") or 1)
    kept = state.cycles.get(str(cycle), {})
    missing = [line.name for line in definition.lines if not kept.get(line.name, {}).get("passed")]
    if args.get("approve"):
        _approve(fleet, ground, kept, missing)
    if not missing:
        label = f"cycle {cycle}" if not args.get("last", True) or cycle > 1 else ground.label
        fleet.emit(StageSummary(label, f"all {len(definition.lines)} gates passed"))
        if args.get("last", True):
            state.write(complete=True)
    else:
        fleet.emit(StageSummary(ground.label, f"{len(definition.lines) - len(missing)} of {len(definition.lines)} "
                                              f"gates passed; not run: {', '.join(missing)}"))
    return {}


def _approve(fleet: Fleet, ground: Ground, kept: Mapping[str, Any], missing: list[str]) -> None:
    if missing:
        raise FindingError("the scorecard was not approved", found=f"not passed: {', '.join(missing)}",
                           expected="every gate passed on this release", next="invoke gate --approve, without --only")
    path = approved_cards.path_of(ground.definition, inventory_name(fleet))
    approved_cards.save(path, ground.label, fleet.operator, kept)
    fleet.emit(Note(f"approved: the scorecard of {ground.label} is in {path}; later gates are held against it"))




def gate_compare(fleet: Fleet, args: Mapping[str, Any]) -> Mapping[str, Result]:
    """Ask this deployment and the endpoint `url` (from here) the same slice of tasks. Raises FindingError when this
    side is worse by more than the tolerance."""
    import os

    from bringup.base.secrets import SCRUBBER
    from bringup.gates import versus
    from bringup.gates.asking import memory_headroom, slice_of
    from bringup.gates.direct import Direct, served_name
    from bringup.gates.sides import compare, side, table

    definition = load_definition(fleet.project.root / str(args.get("definition") or DEFAULT))
    line = next((line for line in definition.lines if line.kind == "scorecard"), None)
    if line is None:
        raise InputError("there is no slice to compare on", where=str(definition.path),
                         expected="a gate of the kind scorecard")
    tasks = slice_of(definition.path.parent, line)[:int(args["slice"])] if args.get("slice") else slice_of(
        definition.path.parent, line)
    key = os.environ.get(COMPARE_KEY)
    if key:
        SCRUBBER.add(key)
    url = str(args["url"])
    direct = Direct(url, key)
    model = str(args.get("model") or served_name(
        direct, url, f"its key goes into {COMPARE_KEY}; --compare-model names the model",
        "the other endpoint"))
    if fleet.check:
        return {}
    ground = stand(fleet, definition)
    at_once = line.number("at_once", 4)
    here = side(f"{ground.label} {ground.model}", ground.model, ground.ask, tasks, ground.routes(), ground.folder,
                at_once)
    there = side(url, model, direct, tasks, ground.routes(), ground.folder, at_once)
    here = replace(here, measures={**here.measures, "memory_headroom": memory_headroom(ground)})
    found = compare(here, there, tasks, definition.tolerance, definition.noise)
    versus.keep(versus.path_of(fleet.project.root, inventory_name(fleet)),
                versus.record(here, there, tasks, found, definition.tolerance))
    fleet.emit(Findings("compared", tuple(found), {"compared": table(here, there)}))
    fleet.emit(StageSummary(ground.label, found[-1].summary))
    bad = [finding for finding in found if finding.blocks]
    if bad:
        raise FindingError(f"{ground.label} is not as good as {url}: {bad[0].summary}",
                           details=[f.summary for f in bad[1:5]],
                           next="invoke gate --compare URL --report compare.html shows both sides")
    return {}
