"""The errors a person sees, and the exit status that each of them means."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from bringup.base.origin import Origin


class ExitStatus(enum.IntEnum):
    """Exit status of every verb. When several apply, `worst` says which one wins."""

    DONE = 0
    STEP = 1
    INPUT = 2
    UNREACHABLE = 3
    FINDING = 4
    LOCKED = 5
    SERVED = 6
    INTERRUPTED = 130


_WORST_FIRST = (
    ExitStatus.SERVED,
    ExitStatus.INTERRUPTED,
    ExitStatus.INPUT,
    ExitStatus.LOCKED,
    ExitStatus.UNREACHABLE,
    ExitStatus.STEP,
    ExitStatus.FINDING,
)


def worst(statuses: Iterable[ExitStatus]) -> ExitStatus:
    """The status that wins: 6, 130, 2, 5, 3, 1, 4, then 0."""
    seen = set(statuses)
    for status in _WORST_FIRST:
        if status in seen:
            return status
    return ExitStatus.DONE


class BringupError(Exception):
    """An error told to a person: what happened, where, expected, found, and what to type next.

    `details` are further lines printed as they are (a second place, the last lines of output).
    """

    status = ExitStatus.STEP

    def __init__(
        self,
        what: str,
        *,
        where: Origin | str | None = None,
        host: str | None = None,
        task: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        details: Iterable[str] = (),
        next: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.host = host
        self.task = task
        self.expected = expected
        self.found = found
        self.details = tuple(details)
        self.next = next

    def lines(self) -> list[str]:
        """The message as printed, first line first, without colour."""
        head = " ".join(part for part in (str(self.where) if self.where else "", self.host or "") if part)
        out = [f"{head}  {self.what}" if head else self.what]
        indent = " " * min(len(head) + 2, 25) if head else "  "
        if self.task:
            out.append(f"{indent}in task {self.task}")
        if self.expected is not None:
            out.append(f"{indent}expected  {self.expected}")
        if self.found is not None:
            out.append(f"{indent}found     {self.found}")
        out.extend(f"{indent}{line}" for line in self.details)
        if self.next:
            out.append(f"{indent}next      {self.next}")
        return out

    def __str__(self) -> str:
        return "\n".join(self.lines())


class InputError(BringupError):
    """Inventory, playbook, plan or flags are wrong; no host was contacted."""

    status = ExitStatus.INPUT


class StepError(BringupError):
    """A step failed; what was in use before is still in use."""

    status = ExitStatus.STEP


class UnreachableError(BringupError):
    """A host refused, did not answer, or was lost."""

    status = ExitStatus.UNREACHABLE


class FindingError(BringupError):
    """Preflight, status, verify or a gate found something that blocks, or a question needs a person."""

    status = ExitStatus.FINDING


class LockedError(BringupError):
    """Another run holds the hosts; nothing was changed."""

    status = ExitStatus.LOCKED


class ServedError(BringupError):
    """The endpoint served before this run and does not now."""

    status = ExitStatus.SERVED
