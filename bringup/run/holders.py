"""A host's record of the run that holds it, in words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bringup.base.text import duration


def who(record: Mapping[str, Any]) -> str:
    """The operator."""
    return str(record.get("operator") or "somebody")


def step_of(record: Mapping[str, Any]) -> str:
    """The verb and the step that it was at."""
    verb = str(record.get("verb") or "")
    return f"{verb}, {record.get('step')}" if record.get("step") else verb or "no step recorded"


def about(record: Mapping[str, Any], clock: float | None = None) -> str:
    """Run, verb, how long, when last heard. `clock` is the time on the host that wrote the record, seconds since the
    epoch; ours where it is not known."""
    parts = [f"run {record.get('run')}"]
    if record.get("verb"):
        parts.append(str(record["verb"]))
    now = time.time() if clock is None else clock
    if isinstance(record.get("since"), (int, float)):
        parts.append(f"for {duration(max(0.0, now - record['since']))}")
    if isinstance(record.get("heard"), (int, float)):
        parts.append(f"last heard {duration(max(0.0, now - record['heard']))} ago")
    return ", ".join(parts)
