"""The approved scorecard of an inventory, kept in the gates' folder, and what is worse than it now."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bringup.base.errors import InputError, StepError
from bringup.base.verdicts import Finding, Verdict
from bringup.gates.definition import Definition
from bringup.gates.measure import worse


def path_of(definition: Definition, inventory: str) -> Path:
    """`gates/approved/NAME.json`."""
    return definition.path.parent / "approved" / f"{inventory}.json"


def load(path: Path) -> dict[str, Any]:
    """The approved scorecard; empty when nothing was approved. Raises InputError for a broken file."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("the approved scorecard cannot be read", where=str(path), found=str(error)) from None
    if not isinstance(data, dict) or not isinstance(data.get("lines"), dict):
        raise InputError("is no approved scorecard", where=str(path), expected='{"release", "by", "at", "lines"}')
    return data


def save(path: Path, release: str, by: str, lines: Mapping[str, Mapping[str, Any]]) -> None:
    """Make these measures the approved ones. Raises StepError."""
    data = {"release": release, "by": by, "at": round(time.time()), "lines": {
        name: {measure: value for measure, value in entry["measures"].items() if value is not None}
        for name, entry in lines.items()}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StepError("the approved scorecard cannot be written", where=str(path),
                        found=error.strerror or str(error)) from None


def compared(name: str, measures: Mapping[str, float | None], approved: Mapping[str, Any], definition: Definition
             ) -> list[Finding]:
    """A failing finding for each measure of a line that is worse than the approved one beyond the tolerance."""
    before = (approved.get("lines") or {}).get(name) or {}
    return [Finding(f"gate.{name}", measure, Verdict.FAIL,
                    f"{measure} {now:g}, approved {then:g}: worse by more than {definition.tolerance:g} %",
                    required=f"{then:g} within {definition.tolerance:g} %", found=f"{now:g}",
                    source=str(approved.get("release")),
                    mend="find out why, or approve the new figures: invoke gate --approve")
            for measure, now, then in worse(measures, before, definition.tolerance, definition.noise)]
