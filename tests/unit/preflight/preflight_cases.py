"""What the tests of situations from the field share: their recorded state, and what must be said."""

from __future__ import annotations

from typing import Any

import yaml
from preflight_hosts import (
    CASES,
)

from bringup.base.verdicts import Finding
from bringup.preflight.report import lines

GIB = 1024**3


def state(case: str) -> dict[str, Any]:
    return yaml.safe_load((CASES / case / "host.yml").read_text())


def said(case: str) -> list[str]:
    return yaml.safe_load((CASES / case / "case.yml").read_text()).get("say", [])


def shown(findings: list[Finding]) -> str:
    return "\n".join(lines(findings, width=200))
