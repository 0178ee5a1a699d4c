"""All checks of the contract, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from bringup.base.errors import InputError
from bringup.base.text import nearest
from bringup.serving.contract.answers import ANSWERS, ENDS, REFUSALS, STREAMS
from bringup.serving.contract.check import Check as Check
from bringup.serving.contract.check import Judgement as Judgement
from bringup.serving.contract.check import Served as Served
from bringup.serving.contract.load import LOAD
from bringup.serving.contract.responses import RESPONSE_CHECKS
from bringup.serving.contract.thinking import THINKING
from bringup.serving.contract.tools import TOOLS

CHECKS: tuple[Check, ...] = (REFUSALS[0], *ANSWERS, *THINKING, *TOOLS, *STREAMS, *RESPONSE_CHECKS, *ENDS, *REFUSALS[1:],
                             *LOAD)


def chosen(patterns: Sequence[str], checks: Sequence[Check] = CHECKS) -> tuple[Check, ...]:
    """The checks that `--only` names: ids or patterns (`tools.*`). Raises InputError with the nearest id."""
    if not patterns:
        return tuple(checks)
    wanted = [pattern.strip().removeprefix("contract.") for pattern in patterns if pattern.strip()]
    for pattern in wanted:
        if not any(_fits(check.id, pattern) for check in checks):
            near = nearest(pattern, [check.id for check in checks])
            raise InputError(f"no check of the contract is called `{pattern}`",
                             expected=", ".join(dict.fromkeys(f"{check.id.split('.')[0]}.*" for check in checks)),
                             next=f"--only {near}" if near else "docs/contract.md lists them")
    return tuple(check for check in checks if any(_fits(check.id, pattern) for pattern in wanted))


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith(pattern + ".")
