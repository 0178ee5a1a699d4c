"""Why a build failed, from its last lines: known signs with their cause and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from bringup.base.yaml import load_file


@dataclass(frozen=True)
class Sign:
    """A known sign: `pattern` is looked for in each line, or `across` lines in the whole text with its spaces folded;
    `cause` and `next` may use its groups as {1} or {name}."""

    id: str
    pattern: re.Pattern[str]
    cause: str
    next: str
    across: bool = False


@dataclass(frozen=True)
class Cause:
    """What a log says: the sign's id, the cause, the line it was read from, what to do."""

    id: str
    cause: str
    line: str
    next: str


@lru_cache(maxsize=1)
def signs() -> tuple[Sign, ...]:
    """The table of signs, `data/signs.yml`, the most telling first."""
    rows = load_file(Path(__file__).parent / "data" / "signs.yml", shown_as="signs.yml")
    return tuple(Sign(str(row["id"]), re.compile(str(row["pattern"])), str(row["cause"]), str(row.get("next") or ""),
                      bool(row.get("across"))) for row in rows)


def cause_of(lines: Sequence[str], result: Mapping[str, Any] | None = None) -> Cause | None:
    """The cause of a failed build: a sign in its lines, the earliest in the table that is found anywhere.

    `result` is what the runner left: its step, status and whether memory was exhausted count too. None when nothing
    known is found.
    """
    result = result or {}
    text = [line for line in [*lines, str(result.get("message") or "")] if line]
    folded = [" ".join(" ".join(text).split())]
    for sign in signs():
        for line in folded if sign.across else text:
            found = sign.pattern.search(line)
            if found:
                return Cause(sign.id, _filled(sign.cause, found),
                             found.group() if sign.across else line.strip(), _filled(sign.next, found))
    return _by_status(result)


def _by_status(result: Mapping[str, Any]) -> Cause | None:
    rc = result.get("rc")
    proof = result.get("step") == "proof"
    if rc in (132, -4):
        return Cause("instruction", "an instruction that this CPU does not have (status 132, SIGILL)", "",
                     "leave `cpu` of the recipe out, or ask for a variant that the CPU has")
    if rc in (139, -11) and proof:
        return Cause("crash", "the extension loads and crashes at its first computation (SIGSEGV)", "",
                     "a compiler that puts a libstdc++ of its own into the extension does that: see the compiler taken")
    if rc in (137, -9) or result.get("memory"):
        return Cause("memory", "memory was exhausted: a compiler was killed", "",
                     "set jobs of the kernel lower, or free memory on the host")
    return None


def _filled(text: str, match: re.Match[str]) -> str:
    groups = [(str(number), value) for number, value in enumerate(match.groups(), 1)]
    for name, value in [*groups, *match.groupdict().items()]:
        text = text.replace(f"{{{name}}}", value or "")
    return text
