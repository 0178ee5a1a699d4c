"""What a gate has come to, kept from one run to the next: lines that passed are not run again for the same release."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bringup.base.errors import StepError


@dataclass
class State:
    """One gate's lines by cycle: {"1": {line: {"passed", "at", "seconds", "measures", "told"}}}."""

    path: Path
    release: str
    definition: str
    cycles: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def passed(self, cycle: int, line: str) -> Mapping[str, Any] | None:
        """What is kept of a line that passed in this cycle."""
        kept = self.cycles.get(str(cycle), {}).get(line)
        return kept if kept and kept.get("passed") else None

    def keep(self, cycle: int, line: str, *, passed: bool, seconds: float, measures: Mapping[str, Any], told: str,
             series: Mapping[str, Any] | None = None) -> None:
        """Write down how a line ended. Raises StepError when the file cannot be written."""
        self.cycles.setdefault(str(cycle), {})[line] = {
            "passed": passed, "at": time.time(), "seconds": round(seconds, 3), "measures": dict(measures),
            "told": told, "series": dict(series or {})}
        self.write()

    def write(self, *, complete: bool = False) -> None:
        """Write it whole or not at all."""
        data = {"release": self.release, "definition": self.definition, "complete": complete, "cycles": self.cycles}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            staged = self.path.with_suffix(".new")
            staged.write_text(json.dumps(data, indent=1), encoding="utf-8")
            staged.replace(self.path)
        except OSError as error:
            raise StepError("what the gate came to cannot be kept", where=str(self.path),
                            found=error.strerror or str(error)) from None


def load_state(path: Path, release: str, definition: str, *, again: bool = False) -> State:
    """The state that goes on from: empty for another release, other gates, a gate that was through, or with `again`."""
    data = read(path)
    same = data.get("release") == release and data.get("definition") == definition and not data.get("complete")
    return State(path, release, definition, dict(data.get("cycles") or {}) if same and not again else {})


def read(path: Path) -> dict[str, Any]:
    """The file as it is, empty when there is none. Raises StepError for one that is broken."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StepError("what the gate came to cannot be read", where=str(path), found=str(error),
                        next="move it away: the gate then begins anew") from None
    return data if isinstance(data, dict) else {}
