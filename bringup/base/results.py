"""What became of a task on a host: one closed set of states."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bringup.base.origin import Origin


class Status(str, enum.Enum):
    """The states of a task on a host. `lost` counts as unreachable in a recap."""

    OK = "ok"
    CHANGED = "changed"
    SKIPPED = "skipped"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    LOST = "lost"


@dataclass(frozen=True)
class Result:
    """The result of one task on one host.

    `data` is what the module returned (what `register` gives a playbook); `seconds` is wall time on the host.
    `ignored` and `rescued` mark a failed result that does not end the host.
    """

    host: str
    task: str
    status: Status
    origin: Origin | None = None
    seconds: float = 0.0
    message: str = ""
    expected: str | None = None
    found: str | None = None
    output: tuple[str, ...] = ()
    next: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    diff: tuple[Mapping[str, Any], ...] = ()
    ignored: bool = False
    rescued: bool = False
    no_log: bool = False
    item: Any = None
    handler: bool = False
    module: str = ""

    @property
    def bad(self) -> bool:
        """True when the result ends the host: failed (not ignored, not rescued), unreachable or lost."""
        if self.status is Status.FAILED:
            return not (self.ignored or self.rescued)
        return self.status in (Status.UNREACHABLE, Status.LOST)
