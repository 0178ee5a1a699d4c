"""What a check says of a host, a pair of hosts or the fleet."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Verdict(str, enum.Enum):
    """UNKNOWN is what could not be read: never a pass."""

    PASS = "pass"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIP = "skip"


@dataclass(frozen=True)
class Finding:
    """One check on one subject.

    `subject` is a host name or `a > b` for a pair; `summary` is one line; `details` follow it;
    `mend` is the command that mends it. `blocks` says whether provisioning stops.
    """

    check: str
    subject: str
    verdict: Verdict
    summary: str
    details: tuple[str, ...] = ()
    required: str | None = None
    found: str | None = None
    source: str | None = None
    mend: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def blocks(self) -> bool:
        """FAIL and UNKNOWN block; the others do not."""
        return self.verdict in (Verdict.FAIL, Verdict.UNKNOWN)
