"""The file of gates that a team edits: lines in order, each with owner, command, rollback criterion and pass lines."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.base.verdicts import Finding, Verdict
from bringup.base.yaml import key_origin, load_file, origin_of
from bringup.gates.measure import NOISE

KINDS: Mapping[str, tuple[str, ...]] = {
    "smoke": ("requests", "at_once", "max_tokens", "by"), "traces": ("files", "at_once"),
    "parsers": ("versions", "tool_parsers", "reasoning_parsers", "stand_in"), "chaos": ("faults", "replica", "silence"),
    "rehearsal": ("first_release",), "scorecard": ("tasks", "slice", "at_once", "route"),
}
"""Kinds of lines and the settings that each takes beside those of every line."""
_EVERY = ("kind", "owner", "command", "rollback", "pass")
_BOUND = re.compile(r"^\s*(<=|>=|==)\s*(-?\d+(?:\.\d+)?)\s*$")


@dataclass(frozen=True)
class Bound:
    """What a measure must keep: `sign` is <=, >= or ==."""

    sign: str
    value: float

    def holds(self, found: float) -> bool:
        """True when a measured value keeps it."""
        return found <= self.value if self.sign == "<=" else found >= self.value if self.sign == ">=" else (
            found == self.value)

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"


@dataclass(frozen=True)
class Line:
    """One gate. `empty` names what a person must still fill in."""

    name: str
    kind: str
    owner: str
    command: str
    rollback: str
    bounds: Mapping[str, Bound]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def empty(self) -> tuple[str, ...]:
        return tuple(name for name in ("owner", "command", "rollback") if not getattr(self, name).strip())

    def number(self, name: str, default: int) -> int:
        """A setting that is a whole number from 1 on. Raises InputError."""
        value = self.settings.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"the gate {self.name}: `{name}` takes a whole number from 1 on", found=str(value))
        return value


@dataclass(frozen=True)
class Definition:
    """All gates of a file; `tolerance` is percent against the last approved scorecard, `noise` what a
    difference must be besides."""

    path: Path
    tolerance: float
    lines: tuple[Line, ...]
    digest: str
    noise: Mapping[str, float] = field(default_factory=dict)

    def line(self, name: str) -> Line | None:
        """The line of this name."""
        return next((line for line in self.lines if line.name == name), None)


def load_definition(path: Path) -> Definition:
    """A file of gates. Raises InputError with file and line."""
    if not path.is_file():
        raise InputError("there is no file of gates", where=str(path), next="docs/gates.md shows one")
    data = _keys(load_file(path), ("tolerance", "noise", "gates"), "a file of gates")
    gates = data.get("gates")
    if not isinstance(gates, Mapping) or not gates:
        raise InputError("`gates` takes at least one line", where=key_origin(data, "gates"))
    try:
        tolerance = float(data.get("tolerance", 5))
    except (TypeError, ValueError):
        raise InputError("`tolerance` takes percent", where=key_origin(data, "tolerance")) from None
    try:
        noise = {**NOISE, **{str(name): float(value) for name, value in (data.get("noise") or {}).items()}}
    except (AttributeError, TypeError, ValueError):
        raise InputError("`noise` takes a number for each measure", where=key_origin(data, "noise")) from None
    lines = tuple(_line(str(name), entry) for name, entry in gates.items())
    text = json.dumps(data, sort_keys=True, default=str)
    return Definition(path, tolerance, lines, hashlib.sha256(text.encode()).hexdigest(), noise)


def _line(name: str, entry: Any) -> Line:
    if not isinstance(entry, Mapping):
        raise InputError(f"the gate {name} takes a mapping", where=origin_of(entry))
    kind = str(entry.get("kind") or name)
    if kind not in KINDS:
        near = nearest(kind, KINDS)
        raise InputError(f"the gate {name} is of no known kind", where=key_origin(entry, "kind") or origin_of(entry),
                         found=kind, expected=", ".join(KINDS), next=f"kind: {near}" if near else None)
    data = _keys(entry, (*_EVERY, *KINDS[kind]), f"the gate {name}")
    bounds = {}
    for measure, text in (data.get("pass") or {}).items():
        match = _BOUND.match(str(text))
        if match is None:
            raise InputError(f"the gate {name}: `pass` says how a measure is bounded",
                             where=key_origin(data["pass"], measure), found=f"{measure}: {text}",
                             expected='"<= 2", ">= 98" or "== 0"')
        bounds[str(measure)] = Bound(match.group(1), float(match.group(2)))
    return Line(name, kind, str(data.get("owner") or ""), str(data.get("command") or ""),
                str(data.get("rollback") or ""), bounds,
                {key: data[key] for key in KINDS[kind] if data.get(key) is not None})


def _keys(value: Any, known: tuple[str, ...], what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{what} is a mapping", where=origin_of(value), found=type(value).__name__)
    for key in value:
        if key not in known:
            near = nearest(str(key), known)
            raise InputError(f"{what} knows no `{key}`", where=key_origin(value, key), expected=", ".join(known),
                             next=f"nearest: {near}" if near else None)
    return value


def judge(line: Line, measures: Mapping[str, float | None]) -> list[Finding]:
    """A finding for each pass line; a measure that was not taken is unknown and blocks."""
    out = []
    for measure, bound in line.bounds.items():
        found = measures.get(measure)
        verdict = Verdict.UNKNOWN if found is None else Verdict.PASS if bound.holds(found) else Verdict.FAIL
        told = f"{measure} {'was not measured' if found is None else f'{found:g}'}, pass line {bound}"
        out.append(Finding(f"gate.{line.name}", measure, verdict, told, required=str(bound),
                           found=None if found is None else f"{found:g}",
                           details=() if verdict is Verdict.PASS else (f"owner     {line.owner}",
                                                                       f"rollback  {line.rollback}"),
                           mend=None if verdict is Verdict.PASS else line.command))
    return out


def incomplete(definition: Definition) -> list[Finding]:
    """What a person must still write: a line without owner, command or rollback criterion blocks."""
    return [Finding(f"gate.{line.name}", "definition", Verdict.FAIL, f"{' and '.join(line.empty)} "
                    f"{'is' if len(line.empty) == 1 else 'are'} empty", required="owner, command, rollback criterion",
                    mend=f"write it in {definition.path}") for line in definition.lines if line.empty]
